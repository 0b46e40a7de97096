//! Key exchanges that are computed before BoringSSL asks for them.
//!
//! BoringSSL computes X25519 at once and by itself, where eight handshakes could do it together. So a server's handshake has its
//! exchange computed when the client's public key has come, and offers it before it lets BoringSSL go on. The functions that
//! stand in for BoringSSL's (`heddle-x25519`) then find the key and the secret here. Whatever else they are asked for they
//! compute, and so does BoringSSL in a program without them: an offer can be left. It is made here because a crate that depends on
//! `heddle-x25519` links only with its arguments of the linker.

use std::cell::RefCell;

use zeroize::Zeroizing;

use crate::x25519::X25519_BYTES as BYTES;

/// A key, wiped when it is dropped.
pub type Key = Zeroizing<[u8; BYTES]>;

thread_local! {
    /// On the heap, where it is wiped when it goes: what is moved out of its place would stay there as well.
    static OFFERED: RefCell<Option<Box<Offer>>> = const { RefCell::new(None) };
}

struct Offer {
    private: Key,
    /// None when the pair has been taken: no two handshakes have the same.
    public: Option<Key>,
    peer: [u8; BYTES],
    secret: Key,
}

/// An exchange as [`offer`] takes it: the private key, the public key and the secret. Nothing for a secret of zeros, which is none
/// (RFC 7748 §6.1).
pub fn encode(private: &[u8; BYTES], public: &[u8; BYTES], secret: &[u8; BYTES]) -> Vec<u8> {
    if secret.iter().fold(0, |all, byte| all | byte) == 0 {
        return Vec::new();
    }
    let mut encoded = Vec::with_capacity(3 * BYTES);
    for part in [private, public, secret] {
        encoded.extend_from_slice(part);
    }
    encoded
}

/// Offers what [`encode`] gave for this peer's key to BoringSSL's next calls on this thread, until [`withdraw`]. What is empty
/// offers nothing.
pub fn offer(exchange: Vec<u8>, peer: &[u8; BYTES]) {
    let exchange = Zeroizing::new(exchange);
    let (parts, _) = exchange.as_chunks();
    let offer = match parts {
        [private, public, secret] => Some(Box::new(Offer {
            private: Zeroizing::new(*private),
            public: Some(Zeroizing::new(*public)),
            peer: *peer,
            secret: Zeroizing::new(*secret),
        })),
        _ => None,
    };
    OFFERED.set(offer);
}

/// Ends an offer. To be called after the call to BoringSSL that it was made for.
pub fn withdraw() {
    OFFERED.set(None);
}

/// The private and the public key of the offer, once.
pub fn take_key() -> Option<(Key, Key)> {
    OFFERED.with_borrow_mut(|offered| {
        let offer = offered.as_mut()?;
        let public = offer.public.take()?;
        Some((offer.private.clone(), public))
    })
}

/// The secret of these keys, where it is the one that is offered, once.
pub fn take_secret(private: &[u8; BYTES], peer: &[u8; BYTES]) -> Option<Key> {
    OFFERED.with_borrow_mut(|offered| {
        let offer = offered.as_ref()?;
        let pairs = private.iter().zip(offer.private.iter());
        let difference = pairs.fold(0, |all, (one, other)| all | (one ^ other));
        if difference != 0 || offer.peer != *peer || offer.public.is_some() {
            return None;
        }
        let secret = offer.secret.clone();
        *offered = None;
        Some(secret)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: [u8; BYTES] = [4; BYTES];

    fn offered() {
        offer(encode(&[1; BYTES], &[2; BYTES], &[3; BYTES]), &PEER);
    }

    #[test]
    fn an_offer_is_taken_once() {
        offered();
        assert_eq!(take_secret(&[1; BYTES], &PEER), None, "nobody has its key");
        let (private, public) = take_key().expect("a key");
        assert_eq!((*private, *public), ([1; BYTES], [2; BYTES]));
        assert_eq!(take_key(), None, "a key serves once");
        assert_eq!(take_secret(&[5; BYTES], &PEER), None, "another key");
        assert_eq!(take_secret(&private, &[5; BYTES]), None, "another peer");
        assert_eq!(take_secret(&private, &PEER).as_deref(), Some(&[3; BYTES]));
        assert_eq!(take_secret(&private, &PEER), None);
    }

    #[test]
    fn what_is_withdrawn_or_empty_is_not_offered() {
        offered();
        withdraw();
        assert_eq!(take_key(), None);
        offered();
        offer(encode(&[1; BYTES], &[2; BYTES], &[0; BYTES]), &PEER);
        assert_eq!(take_key(), None, "no secret, and the offer before has ended");
    }
}
