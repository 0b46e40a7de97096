//! Nonces of ECDSA signatures with P-256: derived by SHA-256 from the key and the digest, or the leftmost 256 bits of a longer
//! one (RFC 6979 §3.2), with fresh random bytes besides (§3.6). So neither a bad source of randomness nor a fault in the digest alone repeats one.

use boring::sha::Sha256;
use zeroize::Zeroizing;

const BYTES: usize = 32;

/// Bytes of a block of SHA-256.
const BLOCK: usize = 64;

/// The order of P-256, most significant limb first.
const ORDER: [u64; 4] = [
    0xffff_ffff_0000_0000,
    0xffff_ffff_ffff_ffff,
    0xbce6_faad_a717_9e84,
    0xf3b9_cac2_fc63_2551,
];

/// A secret of as many bytes as a digest has.
pub(crate) type Secret = Zeroizing<[u8; BYTES]>;

/// A nonce from 1 to the order less one. Without `extra` it is the one of RFC 6979 §3.2.
pub(crate) fn nonce(secret: &[u8; BYTES], digest: &[u8; BYTES], extra: &[u8]) -> Secret {
    let reduced = reduced(digest);
    let mut value = Zeroizing::new([1; BYTES]);
    let mut hmac = Hmac::new(&[0; BYTES]);
    for separator in [0, 1] {
        hmac = Hmac::new(&hmac.of(&[&*value, &[separator], secret, &reduced, extra]));
        value = hmac.of(&[&*value]);
    }
    loop {
        value = hmac.of(&[&*value]);
        let (_, below) = less_order(&value);
        // Whether a candidate is thrown away says nothing about the one that stays.
        if below && limbs(&value).iter().fold(0, |all, limb| all | limb) != 0 {
            return value;
        }
        hmac = Hmac::new(&hmac.of(&[&*value, &[0]]));
        value = hmac.of(&[&*value]);
    }
}

fn limbs(bytes: &[u8; BYTES]) -> Zeroizing<[u64; 4]> {
    let mut limbs = Zeroizing::new([0; 4]);
    for (limb, chunk) in limbs.iter_mut().zip(bytes.chunks(8)) {
        *limb = chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    limbs
}

/// A number less the order, and whether that is negative.
fn less_order(bytes: &[u8; BYTES]) -> (Secret, bool) {
    let mut difference = Zeroizing::new([0; BYTES]);
    let mut borrow = 0;
    let limbs = limbs(bytes);
    for ((limb, order), chunk) in limbs.iter().zip(ORDER).zip(difference.chunks_mut(8)).rev() {
        let wide = u128::from(*limb).wrapping_sub(u128::from(order)).wrapping_sub(borrow);
        chunk.copy_from_slice(&(wide as u64).to_be_bytes());
        borrow = wide >> 127;
    }
    (difference, borrow == 1)
}

/// The digest modulo the order (`bits2octets`). Digests are no secrets.
fn reduced(digest: &[u8; BYTES]) -> [u8; BYTES] {
    match less_order(digest) {
        (_, true) => *digest,
        (difference, false) => *difference,
    }
}

/// HMAC-SHA256 (RFC 2104) with one key: both hashes after the block that the key makes.
struct Hmac {
    inner: Sha256,
    outer: Sha256,
}

impl Hmac {
    fn new(key: &[u8; BYTES]) -> Self {
        let padded = |byte| {
            let mut pad = Zeroizing::new([byte; BLOCK]);
            pad.iter_mut().zip(key).for_each(|(pad, key)| *pad ^= key);
            let mut hash = Sha256::new();
            hash.update(&*pad);
            hash
        };
        Self {
            inner: padded(0x36),
            outer: padded(0x5c),
        }
    }

    /// Of the parts one after the other.
    fn of(&self, parts: &[&[u8]]) -> Secret {
        let mut inner = self.inner.clone();
        parts.iter().for_each(|part| inner.update(part));
        let mut outer = self.outer.clone();
        outer.update(&*Zeroizing::new(inner.finish()));
        Zeroizing::new(outer.finish())
    }
}

#[cfg(test)]
mod tests {
    use boring::sha::sha256;

    use super::*;

    /// A number in hexadecimal digits.
    fn hex(text: &str) -> [u8; BYTES] {
        let byte = |i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("two digits");
        std::array::from_fn(byte)
    }

    /// RFC 6979 §A.2.5.
    #[test]
    fn without_extra_bytes_it_is_the_rfc_s() {
        let secret = hex("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721");
        for (message, expected) in [
            (
                "sample",
                "A6E3C57DD01ABE90086538398355DD4C3B17AA873382B0F24D6129493D8AAD60",
            ),
            (
                "test",
                "D16B6AE827F17175E040871A1C7EC3500192C4C92677336EC2537ACAEE0008E0",
            ),
        ] {
            let digest = sha256(message.as_bytes());
            assert_eq!(*nonce(&secret, &digest, &[]), hex(expected), "{message}");
            assert_ne!(
                *nonce(&secret, &digest, &[0; BYTES]),
                hex(expected),
                "extra bytes count"
            );
        }
    }

    #[test]
    fn digests_are_reduced() {
        let order: Vec<u8> = ORDER.iter().flat_map(|limb| limb.to_be_bytes()).collect();
        let order: [u8; BYTES] = order.try_into().expect("32 bytes");
        assert_eq!(reduced(&order), [0; BYTES]);
        let mut above = order;
        above[BYTES - 1] += 1;
        let mut one = [0; BYTES];
        one[BYTES - 1] = 1;
        assert_eq!(reduced(&above), one);
        let mut below = order;
        below[BYTES - 1] -= 1;
        assert_eq!(reduced(&below), below);
        assert_eq!(&reduced(&[0xff; BYTES])[..8], [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    }
}
