//! Certificates with their keys in a context, and keys that a provider holds: what boring does not wrap. Its own
//! asynchronous keys belong to a context, so that only one of several certificates could have one.

use std::ffi::{c_int, c_long, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use boring::error::ErrorStack;
use boring::ex_data::Index;
use boring::ssl::{ExtensionType, SelectCertError, Ssl, SslContextBuilder, SslRef};
use boring::x509::X509;
use boring_sys::ssl_private_key_result_t as Outcome;
use foreign_types::ForeignTypeRef;
use heddle_keys::{Expected, KeyFuture, PrivateKeyProvider, SignatureAlgorithm, X25519_BYTES, x25519_offer};
use heddle_net::{KeyShareGroup, KeyShares};

use crate::unwrapped::Side;

type Provider = Arc<dyn PrivateKeyProvider>;

/// A handshake's part of its key operations.
struct Operations {
    /// Wakes the task that handshakes.
    waker: Option<Waker>,
    /// The one that is under way. The lock is never contended: BoringSSL's data must be `Sync`.
    under_way: Mutex<Option<KeyFuture>>,
    /// Says to the providers that there may be one.
    expected: Vec<Expected>,
    /// Who is to do a server's key exchange, until it is asked, and that it may be.
    exchange: Option<(Provider, Expected)>,
}

/// Where a connection keeps its [`Operations`]. BoringSSL runs out of indexes only when memory has run out.
static OPERATIONS: LazyLock<Option<Index<Ssl, Operations>>> = LazyLock::new(|| Ssl::new_ex_index().ok());

/// Where a credential keeps its provider; negative when there was no memory.
static PROVIDER: LazyLock<c_int> = LazyLock::new(|| {
    // SAFETY: registers a number and a function that matches the data kept under it; nothing is read or written.
    unsafe { boring_sys::SSL_CREDENTIAL_get_ex_new_index(0, null_mut(), null_mut(), None, Some(free_provider)) }
});

static METHOD: boring_sys::SSL_PRIVATE_KEY_METHOD = boring_sys::SSL_PRIVATE_KEY_METHOD {
    sign: Some(sign),
    decrypt: Some(decrypt),
    complete: Some(complete),
};

/// Adds a certificate chain with its key. The client's signature algorithms decide which of a context's certificates is
/// used; among those that fit, the first added wins.
///
/// A provider that is direct gives its key to BoringSSL, which signs inside the handshake call. Any other needs
/// [`prepare`] for each connection.
pub(crate) fn add(builder: &mut SslContextBuilder, chain: &[X509], provider: &Provider) -> Result<(), ErrorStack> {
    let ders: Vec<Vec<u8>> = chain.iter().map(|c| c.to_der()).collect::<Result<_, _>>()?;
    // SAFETY: every pointer below is checked before use. CRYPTO_BUFFER_new copies the bytes; set1 and add1 take
    // references of their own, so what was made here is freed here, on every path. The provider's box belongs to the
    // credential once set_ex_data has taken it, and is freed here when it has not. The method is static.
    unsafe {
        let buffers: Vec<*mut boring_sys::CRYPTO_BUFFER> = ders
            .iter()
            .map(|der| boring_sys::CRYPTO_BUFFER_new(der.as_ptr(), der.len(), null_mut()))
            .collect();
        let credential = boring_sys::SSL_CREDENTIAL_new_x509();
        let complete = !credential.is_null() && buffers.iter().all(|b| !b.is_null());
        let added = complete
            && boring_sys::SSL_CREDENTIAL_set1_cert_chain(credential, buffers.as_ptr(), buffers.len()) == 1
            && if provider.is_direct() {
                boring_sys::SSL_CREDENTIAL_set1_private_key(credential, provider.key().as_ptr()) == 1
            } else {
                let kept = Box::into_raw(Box::new(Arc::clone(provider)));
                let taken = boring_sys::SSL_CREDENTIAL_set_ex_data(credential, *PROVIDER, kept.cast()) == 1;
                if !taken {
                    drop(Box::from_raw(kept));
                }
                taken && boring_sys::SSL_CREDENTIAL_set_private_key_method(credential, &METHOD) == 1
            }
            && boring_sys::SSL_CTX_add1_credential(builder.as_ptr(), credential) == 1;
        for buffer in buffers {
            boring_sys::CRYPTO_BUFFER_free(buffer);
        }
        boring_sys::SSL_CREDENTIAL_free(credential);
        if added { Ok(()) } else { Err(ErrorStack::get()) }
    }
}

/// Readies a connection whose context has certificates of these providers. To be called on the worker that handshakes.
pub(crate) fn prepare(ssl: &mut SslRef, side: Side, providers: &[Provider]) {
    if let (Some(index), false) = (*OPERATIONS, providers.is_empty()) {
        let exchange = |provider: &Provider| Some((Arc::clone(provider), provider.expect_exchange()?));
        let operations = Operations {
            waker: None,
            under_way: Mutex::new(None),
            expected: providers.iter().filter_map(|provider| provider.expect()).collect(),
            exchange: match side {
                Side::Server => providers.iter().find_map(exchange),
                Side::Client => None,
            },
        };
        ssl.replace_ex_data(index, operations);
    }
}

/// Has the handshakes of a server's context ask their providers for the key exchange when the ClientHello has come, before
/// BoringSSL does it alone. `groups` are those of the context.
pub(crate) fn exchange_ahead(builder: &mut SslContextBuilder, groups: Vec<KeyShareGroup>) {
    builder.set_select_certificate_callback(move |mut hello| {
        // A panic must not cross into C.
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let extension = |kind| hello.get_extension(kind).unwrap_or_default();
            let shares = KeyShares {
                supported_versions: extension(ExtensionType::SUPPORTED_VERSIONS),
                supported_groups: extension(ExtensionType::SUPPORTED_GROUPS),
                key_share: extension(ExtensionType::KEY_SHARE),
            };
            let peer = shares.x25519(&groups);
            match operations(hello.ssl_mut()) {
                Some(operations) => operations.poll_exchange(peer),
                None => Poll::Ready(()),
            }
        }));
        match polled {
            Ok(Poll::Ready(())) => Ok(()),
            Ok(Poll::Pending) => Err(SelectCertError::RETRY),
            Err(_) => Err(SelectCertError::ERROR),
        }
    });
}

impl Operations {
    /// Ready when BoringSSL may go on: the exchange is offered, or there is none to wait for.
    fn poll_exchange(&mut self, peer: Option<[u8; X25519_BYTES]>) -> Poll<()> {
        let (Some(peer), Some(waker)) = (peer, &self.waker) else {
            self.exchange = None;
            return Poll::Ready(());
        };
        let under_way = self.under_way.get_mut().unwrap_or_else(PoisonError::into_inner);
        // It has asked when this is over, and is expected until then.
        let asks = self.exchange.take();
        let begun = under_way.take().or_else(|| asks?.0.exchange(&peer));
        let Some(mut operation) = begun else {
            return Poll::Ready(());
        };
        match operation.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Pending => {
                *under_way = Some(operation);
                return Poll::Pending;
            }
            Poll::Ready(Ok(exchanged)) => x25519_offer::offer(exchanged, &peer),
            Poll::Ready(Err(error)) => tracing::debug!(%error, "a key exchange is left to BoringSSL"),
        }
        Poll::Ready(())
    }
}

/// Who is woken when an operation has ended. To be called before each handshake call.
pub(crate) fn set_waker(ssl: &mut SslRef, waker: &Waker) {
    if let Some(operations) = operations(ssl) {
        match &mut operations.waker {
            Some(kept) => kept.clone_from(waker),
            empty => *empty = Some(waker.clone()),
        }
    }
}

/// The handshake is over: no operation will come.
pub(crate) fn finish(ssl: &mut SslRef) {
    if let Some(operations) = operations(ssl) {
        operations.waker = None;
        operations.expected = Vec::new();
        operations.exchange = None;
    }
}

fn operations(ssl: &mut SslRef) -> Option<&mut Operations> {
    ssl.ex_data_mut((*OPERATIONS)?)
}

/// One call of BoringSSL's for an operation: begins it unless one is under way, and asks whether it has ended.
///
/// # Safety
/// The arguments must be those of a callback of `SSL_PRIVATE_KEY_METHOD`.
unsafe fn call(
    ssl: *mut boring_sys::SSL,
    out: *mut u8,
    out_len: *mut usize,
    max_out: usize,
    begin: impl FnOnce(&dyn PrivateKeyProvider) -> Option<KeyFuture>,
) -> Outcome {
    // SAFETY: BoringSSL gives a live connection that it uses on this thread only, and room for `max_out` bytes. The
    // provider is read from the credential of this handshake, which the handshake keeps.
    let (ssl, room, out_len, provider) = unsafe {
        let credential = boring_sys::SSL_get0_selected_credential(ssl);
        let provider = if credential.is_null() {
            null_mut()
        } else {
            boring_sys::SSL_CREDENTIAL_get_ex_data(credential, *PROVIDER)
        };
        (
            SslRef::from_ptr_mut(ssl),
            std::slice::from_raw_parts_mut(out, max_out),
            &mut *out_len,
            provider.cast::<Provider>().as_ref(),
        )
    };
    // A panic must not cross into C.
    let polled = catch_unwind(AssertUnwindSafe(|| {
        let operations = operations(ssl)?;
        let under_way = operations.under_way.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut operation = match under_way.take() {
            Some(operation) => operation,
            None => begin(provider?.as_ref())?,
        };
        // It has asked now.
        operations.expected = Vec::new();
        let waker = operations.waker.as_ref()?;
        let polled = operation.as_mut().poll(&mut Context::from_waker(waker));
        if polled.is_pending() {
            *under_way = Some(operation);
        }
        Some(polled)
    }));
    match polled {
        Ok(Some(Poll::Pending)) => Outcome::ssl_private_key_retry,
        Ok(Some(Poll::Ready(Ok(bytes)))) => match room.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(&bytes);
                *out_len = bytes.len();
                Outcome::ssl_private_key_success
            }
            None => Outcome::ssl_private_key_failure,
        },
        // The handshake's error only says that the key failed.
        Ok(Some(Poll::Ready(Err(error)))) => {
            tracing::debug!(%error, "a private key operation failed");
            Outcome::ssl_private_key_failure
        }
        Ok(None) | Err(_) => Outcome::ssl_private_key_failure,
    }
}

unsafe extern "C" fn sign(
    ssl: *mut boring_sys::SSL,
    out: *mut u8,
    out_len: *mut usize,
    max_out: usize,
    algorithm: u16,
    input: *const u8,
    input_len: usize,
) -> Outcome {
    // SAFETY: BoringSSL gives `input_len` bytes, and calls with what `call` asks for.
    unsafe {
        let input = std::slice::from_raw_parts(input, input_len);
        call(ssl, out, out_len, max_out, |provider| {
            Some(provider.sign(SignatureAlgorithm::from_code_point(algorithm)?, input))
        })
    }
}

unsafe extern "C" fn decrypt(
    ssl: *mut boring_sys::SSL,
    out: *mut u8,
    out_len: *mut usize,
    max_out: usize,
    input: *const u8,
    input_len: usize,
) -> Outcome {
    // SAFETY: BoringSSL gives `input_len` bytes, and calls with what `call` asks for.
    unsafe {
        let input = std::slice::from_raw_parts(input, input_len);
        call(ssl, out, out_len, max_out, |provider| Some(provider.decrypt(input)))
    }
}

unsafe extern "C" fn complete(ssl: *mut boring_sys::SSL, out: *mut u8, out_len: *mut usize, max_out: usize) -> Outcome {
    // SAFETY: BoringSSL calls with what `call` asks for. It asks only for operations that are under way.
    unsafe { call(ssl, out, out_len, max_out, |_| None) }
}

unsafe extern "C" fn free_provider(
    _: *mut c_void,
    provider: *mut c_void,
    _: *mut boring_sys::CRYPTO_EX_DATA,
    _: c_int,
    _: c_long,
    _: *mut c_void,
) {
    if !provider.is_null() {
        // SAFETY: `add` made it from a box, and the credential that kept it is going away.
        drop(unsafe { Box::from_raw(provider.cast::<Provider>()) });
    }
}
