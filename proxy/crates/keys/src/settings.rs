//! What Envoy's `PrivateKeyProvider` message says of any provider.

use std::sync::Arc;
use std::time::Duration;

use boring::pkey::{PKey, Private};

use crate::provider::PrivateKeyProvider;
use crate::rsa::KeyRefused;
use crate::software::SoftwareProvider;

/// What Envoy's `PrivateKeyProvider` message says besides the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `poll_delay`: with `cryptomb`, how long an operation waits for others at most; with `qat`, how often the device is
    /// asked for its answers. The timer's resolution is a millisecond.
    pub poll_delay: Duration,
    /// Whether BoringSSL takes a key that the provider cannot use, here or at all.
    pub fallback: bool,
}

impl Settings {
    /// Has `make` take a key in PEM (PKCS#8, PKCS#1 or SEC 1), or where it cannot and there is [fallback](Settings::fallback),
    /// a [`SoftwareProvider`], which is said in the log.
    pub(crate) fn provider<P: PrivateKeyProvider>(
        self,
        name: &'static str,
        pem: &[u8],
        make: impl FnOnce(PKey<Private>) -> Result<P, KeyRefused>,
    ) -> Result<Arc<dyn PrivateKeyProvider>, KeyRefused> {
        let key = PKey::private_key_from_pem(pem).map_err(|stack| KeyRefused::NotPem(stack.to_string()))?;
        match make(key.clone()) {
            Ok(provider) => Ok(Arc::new(provider)),
            Err(reason) if self.fallback => {
                tracing::warn!(%reason, "private key provider {name} cannot be used, software takes the key");
                Ok(Arc::new(SoftwareProvider::new(key)))
            }
            Err(reason) => Err(reason),
        }
    }
}
