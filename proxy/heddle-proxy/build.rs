//! BoringSSL's callers of X25519 get that of `heddle-x25519`. Arguments of the linker are not handed on by a dependency:
//! each package whose programs are to have it passes them, and without them such a program does not link.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |name| std::env::var(name).unwrap_or_default();
    if target("CARGO_CFG_TARGET_ARCH") == "x86_64" && target("CARGO_CFG_TARGET_OS") == "linux" {
        println!("cargo::rustc-link-arg-bins=-Wl,--wrap=X25519,--wrap=X25519_keypair");
    }
}
