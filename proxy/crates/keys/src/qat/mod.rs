//! RSA on Intel's QuickAssist devices: each operation is handed to the device, and the handshake goes on when it answers.
//!
//! Each worker has one instance of the device, the next one in turn; where workers are more than instances, some share one.
//! While something is under way, the worker asks its instance for answers after each `poll_delay`. Results are verified
//! here, on the worker of the handshake: what does not verify, fails, is late, or finds no place is done by BoringSSL, so
//! that no wrong signature leaves and no handshake depends on the device.
//!
//! `heddle-qat` speaks to the library. The decisions are in `docs/design/0025-quickassist.md`.

mod stats;
#[cfg(test)]
mod tests;
mod worker;

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use boring::pkey::{PKey, Private};
pub use heddle_qat::{Device, Unavailable};
use heddle_simd::{RsaComponents, RsaPrivateKey};

pub(crate) use worker::collect_here;

use crate::encoding;
use crate::provider::{KeyError, KeyFuture, PrivateKeyProvider, SignatureAlgorithm};
use crate::rsa::{KeyRefused, RsaKey};
use crate::settings::Settings;

/// The provider of a key in PEM (PKCS#8, PKCS#1 or SEC 1). `device` is [`Device::open`]'s. With [`Settings::fallback`] it may
/// be [`SoftwareProvider`](crate::SoftwareProvider), which is said in the log.
///
/// # Errors
/// [`KeyRefused`] when it cannot be used and there is no fallback, or is no key.
pub fn provider(
    pem: &[u8],
    settings: Settings,
    device: Result<&'static Device, Unavailable>,
) -> Result<Arc<dyn PrivateKeyProvider>, KeyRefused> {
    settings.provider("qat", pem, |key| QatProvider::new(key, settings.poll_delay, device?))
}

/// Envoy's `qat` (`QatPrivateKeyMethodConfig`), for RSA keys of 2048, 3072 and 4096 bits.
pub struct QatProvider {
    key: Arc<DeviceKey>,
}

/// One certificate's key, as the device reads it and as BoringSSL does.
struct DeviceKey {
    software: RsaKey,
    numbers: heddle_qat::PrivateKey,
    poll_delay: Duration,
    device: &'static Device,
}

impl QatProvider {
    /// Takes a key. `poll_delay` is how often `device` is asked for its answers.
    ///
    /// # Errors
    /// [`KeyRefused`] when the device cannot use the key.
    pub fn new(key: PKey<Private>, poll_delay: Duration, device: &'static Device) -> Result<Self, KeyRefused> {
        let (software, numbers) = RsaKey::new(key, |parts| {
            // The same checks as for the lanes: a key that is damaged would verify nothing.
            let size = RsaPrivateKey::new(parts)?.size();
            numbers(parts, size.bytes() / 2).ok_or(heddle_simd::KeyError::Primes)
        })?;
        Ok(Self {
            key: Arc::new(DeviceKey {
                software,
                numbers,
                poll_delay,
                device,
            }),
        })
    }

    fn operation(&self, input: Vec<u8>) -> KeyFuture {
        match self.key.software.is_in_range(&input) {
            true => worker::begin(&self.key, input),
            // Public: who sent a ciphertext knows it, and encodings are below any modulus.
            false => Box::pin(ready(Err(KeyError::Failed(
                "the input is no number as long as the modulus and below it".to_owned(),
            )))),
        }
    }
}

fn numbers(parts: &RsaComponents<'_>, prime: usize) -> Option<heddle_qat::PrivateKey> {
    let numbers = [
        parts.prime1,
        parts.prime2,
        parts.exponent1,
        parts.exponent2,
        parts.coefficient,
    ];
    heddle_qat::PrivateKey::new(prime, numbers)
}

impl PrivateKeyProvider for QatProvider {
    fn name(&self) -> &'static str {
        "qat"
    }

    fn sign(&self, algorithm: SignatureAlgorithm, input: &[u8]) -> KeyFuture {
        match encoding::encode(algorithm, input, self.key.software.bytes()) {
            Ok(encoded) => self.operation(encoded),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    fn decrypt(&self, ciphertext: &[u8]) -> KeyFuture {
        self.operation(ciphertext.to_vec())
    }

    fn key(&self) -> &PKey<Private> {
        self.key.software.pkey()
    }
}
