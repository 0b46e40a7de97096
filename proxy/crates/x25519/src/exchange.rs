//! The two functions of X25519, by the crate `graviola`, which carries s2n-bignum's assembly.

use graviola::key_agreement::x25519::{PublicKey, SharedSecret, StaticPrivateKey};

use crate::BYTES;

/// `graviola` panics on a processor that it finds wanting. BMI2, which the assembly has as well, it takes for granted.
pub(crate) fn is_supported() -> bool {
    graviola::util::is_cpu_supported() && is_x86_feature_detected!("bmi2")
}

/// The public key of a private one. Only where [`is_supported`].
pub(crate) fn public_key(private: &[u8; BYTES]) -> [u8; BYTES] {
    StaticPrivateKey::from_array(private).public_key().as_bytes()
}

/// The secret in common with whoever has the peer's private key; `None` where it is all zeros, which is how a peer's
/// public key of small order shows (RFC 7748 §6.1). Only where [`is_supported`]. The copies of the key that are made
/// here are wiped, the secret when it is dropped.
pub(crate) fn shared_secret(private: &[u8; BYTES], peer: &[u8; BYTES]) -> Option<SharedSecret> {
    let private = StaticPrivateKey::from_array(private);
    private.diffie_hellman(&PublicKey::from_array(peer)).ok()
}
