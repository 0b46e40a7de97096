//! X25519 (RFC 7748) by the assembly of s2n-bignum, in the place of BoringSSL's for BoringSSL's own callers: a handshake's
//! key exchange takes half the time; and what several handshakes have computed together in vector registers is handed to each.
//! On processors without what the assembly needs, and on other architectures, BoringSSL's
//! stays. The decision is in `docs/design/0036-what-a-new-connection-costs.md`.
//!
//! A program gets it by naming the crate (`use heddle_x25519 as _;`) and being linked with
//! `--wrap=X25519 --wrap=X25519_keypair`, which its package's build script asks for: the linker then takes [`wrap`]'s
//! functions wherever an object refers to BoringSSL's by name. A program with one of the two and not the other does
//! not link; one with neither has BoringSSL's.
//!
//! The `unsafe` code for the linker's functions is here, that for vector registers in `heddle-simd`.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod exchange;
#[cfg(all(target_arch = "x86_64", target_os = "linux", feature = "testing"))]
pub mod testing;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod wrap;

/// Bytes of a private key, a public key and a shared secret.
pub use heddle_simd::X25519_BYTES as BYTES;

/// Whether this processor has what the assembly (ADX, BMI2) and the code around it (AVX2) need. Where it has not,
/// exchanges are BoringSSL's.
#[must_use]
pub fn is_supported() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    return exchange::is_supported();
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    return false;
}
