//! RSA, ECDSA with P-256 and X25519 in the lanes of vector registers: private operations of a worker's handshakes wait for each
//! other, and eight of them take little longer than one. A server's handshake waits twice: for its key exchange, before BoringSSL
//! asks for it ([`x25519_offer`](crate::x25519_offer)), and for its signature.
//!
//! Each worker has one batch per key type and size; keys may differ within it. A batch starts when its lanes are taken, when one
//! of its operations has waited for its key's `poll_delay`, and at once when no other handshake of the worker can still
//! join: none has begun that has not yet asked its key for something, and the sockets that are ready have been looked at.
//! A handshake that has kept a batch waiting for its whole delay in vain is not waited for again. A batch too small to
//! pay is done by BoringSSL. A queue never holds more than a batch, so nothing here grows with the number of clients.
//!
//! The arithmetic is `heddle-simd`'s; each of its results but an exchange's is checked before it comes here, and what does not pass
//! is done anew by BoringSSL. The decisions are in `docs/design/0017-multibuffer-rsa.md` and `0029-multibuffer-ecdsa.md`.

#[cfg(test)]
mod ecdsa_tests;
#[cfg(test)]
mod exchange_tests;
mod key;
mod nonce;
mod queue;
mod stats;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use boring::pkey::{PKey, Private};
pub use heddle_simd::Engine;
use heddle_simd::X25519_BYTES;

pub(crate) use key::KeyType;
pub(crate) use queue::{collect_here, no_longer_expected};

use crate::provider::{Expected, KeyFuture, PrivateKeyProvider, SignatureAlgorithm};
use crate::rsa::KeyRefused;
use crate::settings::Settings;
use key::BatchKey;

/// The provider of a key in PEM (PKCS#8, PKCS#1 or SEC 1). `engine` is [`Engine::detect`]'s. With
/// [`Settings::fallback`] it may be [`SoftwareProvider`](crate::SoftwareProvider), which is said in the log.
///
/// # Errors
/// [`KeyRefused`] when it cannot be used and there is no fallback, or is no key.
pub fn provider(
    pem: &[u8],
    settings: Settings,
    engine: Option<Engine>,
) -> Result<Arc<dyn PrivateKeyProvider>, KeyRefused> {
    settings.provider("cryptomb", pem, |key| {
        let engine = engine.ok_or(KeyRefused::NoVectors)?;
        MultibufferProvider::new(key, settings.poll_delay, engine)
    })
}

/// Envoy's `cryptomb` (`CryptoMbPrivateKeyMethodConfig`), for RSA keys of 2048, 3072 and 4096 bits and ECDSA
/// keys of P-256.
pub struct MultibufferProvider {
    key: Arc<BatchKey>,
}

impl MultibufferProvider {
    /// Takes a key. `poll_delay` is how long an operation waits for others at most; `engine` does the batches.
    ///
    /// # Errors
    /// [`KeyRefused`] when the kernels cannot use the key.
    pub fn new(key: PKey<Private>, poll_delay: Duration, engine: Engine) -> Result<Self, KeyRefused> {
        Ok(Self {
            key: Arc::new(BatchKey::new(key, poll_delay, engine)?),
        })
    }
}

impl PrivateKeyProvider for MultibufferProvider {
    fn name(&self) -> &'static str {
        "cryptomb"
    }

    fn sign(&self, algorithm: SignatureAlgorithm, input: &[u8]) -> KeyFuture {
        match self.key.encode(algorithm, input) {
            Ok(encoded) => queue::join(&self.key, self.key.key_type(), encoded),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn decrypt(&self, ciphertext: &[u8]) -> KeyFuture {
        match self.key.ciphertext(ciphertext) {
            Ok(ciphertext) => queue::join(&self.key, self.key.key_type(), ciphertext),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn key(&self) -> &PKey<Private> {
        self.key.pkey()
    }

    fn expect(&self) -> Option<Expected> {
        queue::expect(self.key.key_type())
    }

    fn exchange(&self, peer: &[u8; X25519_BYTES]) -> Option<KeyFuture> {
        Some(queue::join(&self.key, KeyType::X25519, peer.to_vec()))
    }

    fn expect_exchange(&self) -> Option<Expected> {
        queue::expect(KeyType::X25519)
    }
}
