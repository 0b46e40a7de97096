//! What the linker made of the program.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

/// The program has the functions that BoringSSL's callers of X25519 are to reach. That they reach them wherever these are
/// in a program, the tests of `heddle-x25519` show; a program that has them without the linker's argument does not link.
#[test]
fn the_program_has_its_own_x25519() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_heddle-proxy")).expect("the program");
    for name in ["\0__wrap_X25519\0", "\0__wrap_X25519_keypair\0"] {
        let found = program.windows(name.len()).any(|bytes| bytes == name.as_bytes());
        assert!(found, "no symbol {name:?}");
    }
}
