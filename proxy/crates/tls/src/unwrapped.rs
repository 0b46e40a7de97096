//! What boring does not wrap: several certificates in one context, the order of TLS 1.3 suites, and a connection's side.

use boring::error::ErrorStack;
use boring::pkey::{PKeyRef, Private};
use boring::ssl::{SslContextBuilder, SslRef};
use boring::x509::X509;
use foreign_types::ForeignTypeRef;

/// Adds a certificate chain with its key. The client's signature algorithms decide which of a context's certificates is
/// used; among those that fit, the first added wins.
pub(crate) fn add(builder: &mut SslContextBuilder, chain: &[X509], key: &PKeyRef<Private>) -> Result<(), ErrorStack> {
    let ders: Vec<Vec<u8>> = chain.iter().map(|c| c.to_der()).collect::<Result<_, _>>()?;
    // SAFETY: every pointer below is checked before use. CRYPTO_BUFFER_new copies the bytes; set1 and add1 take
    // references of their own, so what was made here is freed here, on every path.
    unsafe {
        let buffers: Vec<*mut boring_sys::CRYPTO_BUFFER> = ders
            .iter()
            .map(|der| boring_sys::CRYPTO_BUFFER_new(der.as_ptr(), der.len(), std::ptr::null_mut()))
            .collect();
        let credential = boring_sys::SSL_CREDENTIAL_new_x509();
        let complete = !credential.is_null() && buffers.iter().all(|b| !b.is_null());
        let added = complete
            && boring_sys::SSL_CREDENTIAL_set1_cert_chain(credential, buffers.as_ptr(), buffers.len()) == 1
            && boring_sys::SSL_CREDENTIAL_set1_private_key(credential, key.as_ptr()) == 1
            && boring_sys::SSL_CTX_add1_credential(builder.as_ptr(), credential) == 1;
        for buffer in buffers {
            boring_sys::CRYPTO_BUFFER_free(buffer);
        }
        boring_sys::SSL_CREDENTIAL_free(credential);
        if added { Ok(()) } else { Err(ErrorStack::get()) }
    }
}

/// Sets the order of TLS 1.3 cipher suites, which BoringSSL otherwise takes from the client.
pub(crate) fn set_tls13_ciphers(builder: &mut SslContextBuilder, suites: &[u16]) -> Result<(), ErrorStack> {
    // SAFETY: the context is live and ours; the array is read during the call only; null flags mean no groups.
    let set = unsafe {
        boring_sys::SSL_CTX_set1_tls13_ciphers(builder.as_ptr(), suites.as_ptr(), std::ptr::null(), suites.len())
    };
    if set == 1 { Ok(()) } else { Err(ErrorStack::get()) }
}

/// Which side of the handshake a connection is on.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Server,
    Client,
}

/// Readies a connection for its side's handshake, after which the engine drops what only the handshake needs
/// (certificates, callbacks): 1.2 kB less per idle connection.
pub(crate) fn prepare(ssl: &mut SslRef, side: Side) {
    // SAFETY: the pointer is a live SSL that nobody else refers to; the calls set flags in it.
    unsafe {
        match side {
            Side::Server => boring_sys::SSL_set_accept_state(ssl.as_ptr()),
            Side::Client => boring_sys::SSL_set_connect_state(ssl.as_ptr()),
        }
        boring_sys::SSL_set_shed_handshake_config(ssl.as_ptr(), 1);
    }
}
