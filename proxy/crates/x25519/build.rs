//! Links this crate's tests as a program that stands in for BoringSSL's X25519 is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |name| std::env::var(name).unwrap_or_default();
    if target("CARGO_CFG_TARGET_ARCH") == "x86_64" && target("CARGO_CFG_TARGET_OS") == "linux" {
        println!("cargo::rustc-link-arg=-Wl,--wrap=X25519,--wrap=X25519_keypair");
    }
}
