//! What the linker gives BoringSSL's callers instead of its own functions, with the same contract (`openssl/curve25519.h`).
//! A handshake that offers an exchange which was computed with others (`heddle_simd::x25519_offer`) gets that one.
//!
//! `X25519_public_from_private` is left alone: in a handshake only `X25519_keypair` calls it.

use std::ffi::c_int;

use heddle_simd::x25519_offer::{take_key, take_secret};

use crate::{BYTES, exchange};

// BoringSSL's own, by the names that the linker has for them.
unsafe extern "C" {
    pub(crate) fn __real_X25519(
        secret: *mut [u8; BYTES],
        private: *const [u8; BYTES],
        peer: *const [u8; BYTES],
    ) -> c_int;
    pub(crate) fn __real_X25519_keypair(public: *mut [u8; BYTES], private: *mut [u8; BYTES]);
}

/// Writes the shared secret, and returns 1; or zeros, and 0, for a peer's key of small order.
///
/// # Safety
///
/// `private` and `peer` can be read and `secret` can be written, 32 bytes each. `secret` may be one of the others.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_X25519(
    secret: *mut [u8; BYTES],
    private: *const [u8; BYTES],
    peer: *const [u8; BYTES],
) -> c_int {
    // SAFETY: the caller promises that both can be read. Nothing is written while the references live.
    let offered = unsafe { take_secret(&*private, &*peer) };
    if let Some(offered) = offered {
        // SAFETY: the caller promises that it can be written; no reference to the other two is left.
        unsafe { secret.write(*offered) };
        return 1;
    }
    if !exchange::is_supported() {
        // SAFETY: the caller's promise is what the function asks for.
        return unsafe { __real_X25519(secret, private, peer) };
    }
    #[cfg(feature = "testing")]
    crate::testing::count();
    // SAFETY: the caller promises that both can be read. Nothing is written while the references live.
    let shared = unsafe { exchange::shared_secret(&*private, &*peer) };
    // SAFETY: the caller promises that it can be written; no reference to the other two is left.
    unsafe { secret.write(shared.as_ref().map_or([0; BYTES], |shared| shared.0)) };
    c_int::from(shared.is_some())
}

/// Draws a private key and writes it with its public key.
///
/// # Safety
///
/// `public` and `private` can be written, 32 bytes each, and do not overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_X25519_keypair(public: *mut [u8; BYTES], private: *mut [u8; BYTES]) {
    if let Some((drawn, computed)) = take_key() {
        // SAFETY: the caller promises that 32 bytes can be written to each.
        unsafe {
            private.write(*drawn);
            public.write(*computed);
        }
        return;
    }
    if !exchange::is_supported() {
        // SAFETY: the caller's promise is what the function asks for.
        return unsafe { __real_X25519_keypair(public, private) };
    }
    #[cfg(feature = "testing")]
    crate::testing::count();
    // SAFETY: the caller promises that 32 bytes can be written there. BoringSSL's generator ends the process rather than
    // fail, so all of them are.
    unsafe { boring_sys::RAND_bytes(private.cast(), BYTES) };
    // SAFETY: the bytes were just written, and nothing writes them while the reference lives.
    let key = unsafe { exchange::public_key(&*private) };
    // SAFETY: the caller promises that it can be written.
    unsafe { public.write(key) };
}
