//! Connects a provider to BoringSSL's asynchronous private key method.

use std::sync::Arc;

use boring::error::ErrorStack;
use boring::ssl::{
    AsyncPrivateKeyMethod, AsyncPrivateKeyMethodError, BoxPrivateKeyMethodFinish, BoxPrivateKeyMethodFuture,
    SslContextBuilder, SslRef, SslSignatureAlgorithm,
};
use thiserror::Error;

use crate::provider::{KeyError, KeyFuture, PrivateKeyProvider, SignatureAlgorithm};

/// Why a provider could not be installed.
#[derive(Debug, Error)]
#[error("BoringSSL refused the private key of provider {provider}: {reason}")]
pub struct BridgeError {
    /// The provider's name.
    pub provider: &'static str,
    /// BoringSSL's reason; "key values mismatch" means that the certificate is for another key.
    pub reason: ErrorStack,
}

/// Makes `context` use `provider`'s key. The certificate must have been set before, so that a key that does not
/// belong to it is refused here.
///
/// A provider with a [`PrivateKeyProvider::direct_key`] is bypassed: BoringSSL signs inside the handshake call. Any
/// other is reached through boring's asynchronous method, which needs a task waker on the connection
/// (`SslRef::set_task_waker`) before every handshake call.
///
/// # Errors
/// [`BridgeError`] when BoringSSL refuses the key.
pub fn install(context: &mut SslContextBuilder, provider: &Arc<dyn PrivateKeyProvider>) -> Result<(), BridgeError> {
    match provider.direct_key() {
        Some(key) => {
            context.set_private_key(key).map_err(|reason| BridgeError {
                provider: provider.name(),
                reason,
            })?;
        }
        None => context.set_async_private_key_method(Bridge(Arc::clone(provider))),
    }
    Ok(())
}

struct Bridge(Arc<dyn PrivateKeyProvider>);

impl AsyncPrivateKeyMethod for Bridge {
    fn sign(
        &self,
        _ssl: &mut SslRef,
        input: &[u8],
        algorithm: SslSignatureAlgorithm,
        _output: &mut [u8],
    ) -> Result<BoxPrivateKeyMethodFuture, AsyncPrivateKeyMethodError> {
        let algorithm = code_point(algorithm)
            .and_then(SignatureAlgorithm::from_code_point)
            .ok_or(AsyncPrivateKeyMethodError)?;
        Ok(deliver(self.0.sign(algorithm, input)))
    }

    fn decrypt(
        &self,
        _ssl: &mut SslRef,
        input: &[u8],
        _output: &mut [u8],
    ) -> Result<BoxPrivateKeyMethodFuture, AsyncPrivateKeyMethodError> {
        Ok(deliver(self.0.decrypt(input)))
    }
}

/// boring hides the code point behind named constants: look it up.
fn code_point(algorithm: SslSignatureAlgorithm) -> Option<u16> {
    const KNOWN: [u16; 10] = [
        0x0401, 0x0501, 0x0601, 0x0403, 0x0503, 0x0603, 0x0804, 0x0805, 0x0806, 0x0807,
    ];
    KNOWN
        .into_iter()
        .find(|code| SslSignatureAlgorithm::from(*code) == algorithm)
}

fn deliver(operation: KeyFuture) -> BoxPrivateKeyMethodFuture {
    Box::pin(async move {
        // The handshake's error only says that the key failed; the reason is the provider's to count.
        let bytes = operation.await.map_err(|_: KeyError| AsyncPrivateKeyMethodError)?;
        let finish: BoxPrivateKeyMethodFinish = Box::new(move |_, output: &mut [u8]| {
            let room = output.get_mut(..bytes.len()).ok_or(AsyncPrivateKeyMethodError)?;
            room.copy_from_slice(&bytes);
            Ok(bytes.len())
        });
        Ok(finish)
    })
}
