//! The interface between a TLS handshake and whatever holds the private key.

use std::future::Future;
use std::pin::Pin;

use boring::pkey::{PKey, Private};
use heddle_simd::X25519_BYTES;
use thiserror::Error;

use crate::multibuffer::{self, KeyType};

/// A TLS signature scheme by its code point (RFC 8446 §4.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SignatureAlgorithm {
    /// `rsa_pkcs1_sha256`, TLS 1.2.
    RsaPkcs1Sha256,
    /// `rsa_pkcs1_sha384`, TLS 1.2.
    RsaPkcs1Sha384,
    /// `rsa_pkcs1_sha512`, TLS 1.2.
    RsaPkcs1Sha512,
    /// `ecdsa_secp256r1_sha256`.
    EcdsaP256Sha256,
    /// `ecdsa_secp384r1_sha384`.
    EcdsaP384Sha384,
    /// `ecdsa_secp521r1_sha512`.
    EcdsaP521Sha512,
    /// `rsa_pss_rsae_sha256`.
    RsaPssSha256,
    /// `rsa_pss_rsae_sha384`.
    RsaPssSha384,
    /// `rsa_pss_rsae_sha512`.
    RsaPssSha512,
    /// `ed25519`.
    Ed25519,
}

impl SignatureAlgorithm {
    /// The scheme with this code point, if it is one that may sign a handshake here. SHA-1 schemes are not.
    pub fn from_code_point(code: u16) -> Option<Self> {
        Some(match code {
            0x0401 => Self::RsaPkcs1Sha256,
            0x0501 => Self::RsaPkcs1Sha384,
            0x0601 => Self::RsaPkcs1Sha512,
            0x0403 => Self::EcdsaP256Sha256,
            0x0503 => Self::EcdsaP384Sha384,
            0x0603 => Self::EcdsaP521Sha512,
            0x0804 => Self::RsaPssSha256,
            0x0805 => Self::RsaPssSha384,
            0x0806 => Self::RsaPssSha512,
            0x0807 => Self::Ed25519,
            _ => return None,
        })
    }
}

/// Why a key operation failed. The handshake that asked for it fails, but for an exchange, which BoringSSL then does; no other is
/// touched.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The key cannot do what was asked: wrong type for the scheme, or no decryption with it.
    #[error("the key cannot be used for {0}")]
    Unsupported(&'static str),
    /// The operation itself failed.
    #[error("key operation failed: {0}")]
    Failed(String),
}

/// A key operation in flight: the signature, or the decrypted premaster secret block with its padding
/// (RSA without padding removal, RFC 5246 §7.4.7.1: BoringSSL checks the padding in constant time), or an exchange as
/// [`x25519_offer::encode`](crate::x25519_offer::encode) writes it, empty where it is left to BoringSSL.
pub type KeyFuture = Pin<Box<dyn Future<Output = Result<Vec<u8>, KeyError>> + Send>>;

/// Holds one private key and uses it on request. Shared by all workers; called on the worker that handshakes.
///
/// An operation that can complete at once returns a future that is ready at its first poll: no wake-up is spent on it.
pub trait PrivateKeyProvider: Send + Sync + 'static {
    /// The configured name: `software`, `cryptomb`, `qat`.
    fn name(&self) -> &'static str;

    /// Signs `input`, the message itself and not its digest, by `algorithm`.
    fn sign(&self, algorithm: SignatureAlgorithm, input: &[u8]) -> KeyFuture;

    /// Raw RSA decryption of `ciphertext` for static RSA key exchange of TLS 1.2.
    fn decrypt(&self, ciphertext: &[u8]) -> KeyFuture;

    /// The key itself, to be held against the certificate.
    fn key(&self) -> &PKey<Private>;

    /// Whether BoringSSL may use the key directly and synchronously. Such a provider is never asked to sign: the
    /// handshake spends neither allocation nor future on it.
    fn is_direct(&self) -> bool {
        false
    }

    /// Says on the calling worker that a handshake has begun which may ask for an operation: whoever collects them may
    /// wait for it. `None` when nobody does.
    fn expect(&self) -> Option<Expected> {
        None
    }

    /// Draws a key of X25519 (RFC 7748) and exchanges it with a client's public key, for a handshake that offers the outcome to
    /// BoringSSL by [`x25519_offer::offer`](crate::x25519_offer::offer). `None` where the
    /// provider never does: BoringSSL does it then, as when the outcome is empty or an error.
    fn exchange(&self, _peer: &[u8; X25519_BYTES]) -> Option<KeyFuture> {
        None
    }

    /// As [`expect`](Self::expect), of an exchange.
    fn expect_exchange(&self) -> Option<Expected> {
        None
    }
}

/// A handshake that has begun and may still ask its key provider for an operation. To be dropped, on the same worker,
/// once it has asked, or will not any more.
#[derive(Debug)]
pub struct Expected {
    pub(crate) key_type: KeyType,
    pub(crate) serial: u64,
}

impl Drop for Expected {
    fn drop(&mut self) {
        multibuffer::no_longer_expected(self);
    }
}
