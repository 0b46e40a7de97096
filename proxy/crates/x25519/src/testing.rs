//! Both implementations side by side, and a count of calls.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{BYTES, exchange, wrap};

static CALLS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn count() {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

/// How often the process has called the assembly, either function.
#[must_use]
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// An implementation, by what its callers in C see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// What callers of BoringSSL's functions get in a program that is linked with this crate.
    Linked,
    /// BoringSSL's own.
    BoringSsl,
}

impl Implementation {
    /// The shared secret; `None` for a peer's key of small order.
    ///
    /// # Panics
    ///
    /// When it says that there is no secret and yet writes one.
    #[must_use]
    pub fn shared_secret(self, private: &[u8; BYTES], peer: &[u8; BYTES]) -> Option<[u8; BYTES]> {
        let mut secret = [0xff; BYTES];
        // SAFETY: each has the 32 bytes that the functions read or write.
        let agreed = unsafe {
            match self {
                Self::Linked => boring_sys::X25519(secret.as_mut_ptr(), private.as_ptr(), peer.as_ptr()),
                Self::BoringSsl => wrap::__real_X25519(&mut secret, private, peer),
            }
        };
        assert!(agreed == 1 || (agreed == 0 && secret == [0; BYTES]), "{agreed}");
        (agreed == 1).then_some(secret)
    }

    /// The shared secret, written over one of the operands as C allows: over the private key, or over the peer's.
    #[must_use]
    pub fn shared_secret_in_place(self, private: &[u8; BYTES], peer: &[u8; BYTES], over_peer: bool) -> [u8; BYTES] {
        let (mut private, mut peer) = (*private, *peer);
        let secret: *mut [u8; BYTES] = if over_peer { &raw mut peer } else { &raw mut private };
        // SAFETY: each has the 32 bytes that the functions read or write, and no reference to them is used meanwhile.
        unsafe {
            match self {
                Self::Linked => {
                    boring_sys::X25519(secret.cast(), (&raw const private).cast(), (&raw const peer).cast())
                }
                Self::BoringSsl => wrap::__real_X25519(secret, &raw const private, &raw const peer),
            };
            *secret
        }
    }

    /// The public key of a private one.
    #[must_use]
    pub fn public_key(self, private: &[u8; BYTES]) -> [u8; BYTES] {
        if self == Self::Linked && crate::is_supported() {
            return exchange::public_key(private);
        }
        let mut public = [0; BYTES];
        // SAFETY: each has the 32 bytes that the function reads or writes.
        unsafe { boring_sys::X25519_public_from_private(public.as_mut_ptr(), private.as_ptr()) };
        public
    }

    /// A new public key and its private key.
    #[must_use]
    pub fn keypair(self) -> ([u8; BYTES], [u8; BYTES]) {
        let (mut public, mut private) = ([0; BYTES], [0; BYTES]);
        // SAFETY: each has the 32 bytes that the functions write.
        unsafe {
            match self {
                Self::Linked => boring_sys::X25519_keypair(public.as_mut_ptr(), private.as_mut_ptr()),
                Self::BoringSsl => wrap::__real_X25519_keypair(&mut public, &mut private),
            }
        }
        (public, private)
    }
}
