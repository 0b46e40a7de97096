//! Batches of exchanges.

use zeroize::Zeroizing;

use crate::digits::DIGITS;
use crate::kernels::Kernels;
use crate::lanes::{LANES, Wiped};
use crate::rsa::BatchError;
use crate::x25519::field::{DIGIT_BITS, MASK};
use crate::x25519::ladder::{WORDS, Work};

/// Bytes of a scalar, of a point's u and of a result.
pub const X25519_BYTES: usize = 32;

/// The public key of 1 (RFC 7748 §4.1).
pub const BASE_POINT: [u8; X25519_BYTES] = {
    let mut point = [0; X25519_BYTES];
    point[0] = 9;
    point
};

/// One exchange of a batch. Any bytes will do for both.
#[derive(Clone, Copy)]
pub struct X25519Operation<'a> {
    /// The private key.
    pub scalar: &'a [u8; X25519_BYTES],
    /// The peer's public key; [`BASE_POINT`] for a public key of one's own.
    pub point: &'a [u8; X25519_BYTES],
}

/// A shared secret, or public key, for each operation in their order; all zeros for points of small order (RFC 7748 §6.1).
pub(crate) type Results = Vec<Zeroizing<[u8; X25519_BYTES]>>;

/// Does a batch with the kernels given.
pub(crate) fn run<K: Kernels>(kernels: K, operations: &[X25519Operation<'_>]) -> Result<Results, BatchError> {
    if operations.is_empty() || operations.len() > LANES {
        return Err(BatchError::Width(operations.len()));
    }
    let mut wiped = Wiped(Box::new(Work::new()));
    let work = &mut *wiped.0;
    for lane in 0..LANES {
        // Lanes that have no operation repeat the first one's.
        let operation = operations.get(lane).unwrap_or(&operations[0]);
        let mut scalar = words(operation.scalar);
        // decodeScalar25519 of RFC 7748 §5.
        scalar[0] &= !7;
        scalar[WORDS - 1] = scalar[WORDS - 1] & (u64::MAX >> 1) | 1 << 62;
        for (to, word) in work.scalar.iter_mut().zip(*scalar) {
            to.0[lane] = word;
        }
        for (to, digit) in work.u.iter_mut().zip(digits(operation.point)) {
            to.0[lane] = digit;
        }
    }
    kernels.x25519(work);
    let result = |lane| {
        let digits = Zeroizing::new(work.result.map(|digit| digit.0[lane]));
        bytes(&digits)
    };
    Ok((0..operations.len()).map(result).collect())
}

/// Little-endian words.
fn words(bytes: &[u8; X25519_BYTES]) -> Zeroizing<[u64; WORDS]> {
    let (words, _) = bytes.as_chunks();
    Zeroizing::new(std::array::from_fn(|i| u64::from_le_bytes(words[i])))
}

/// The number modulo 2^255, in digits of 51 bits.
fn digits(bytes: &[u8; X25519_BYTES]) -> [u64; DIGITS] {
    let [w0, w1, w2, w3] = *words(bytes);
    [
        w0 & MASK,
        (w0 >> 51 | w1 << 13) & MASK,
        (w1 >> 38 | w2 << 26) & MASK,
        (w2 >> 25 | w3 << 39) & MASK,
        w3 >> 12 & MASK,
    ]
}

/// The number below the prime, of tight digits.
fn bytes(digits: &[u64; DIGITS]) -> Zeroizing<[u8; X25519_BYTES]> {
    let mut digits = Zeroizing::new(*digits);
    let carry = (0..DIGITS).fold(0, |carry, i| {
        let sum = digits[i] + carry;
        digits[i] = sum & MASK;
        sum >> DIGIT_BITS
    });
    digits[0] += 19 * carry;
    // Digits of 51 bits now but for the lowest, which may be 19 above; the number is below 2^255 + 19. `above` is 1 where it is
    // not below the prime: 19 more carries out of the highest digit.
    let above = digits.iter().fold(19, |carry, digit| (digit + carry) >> DIGIT_BITS);
    let _ = (0..DIGITS).fold(19 * above, |carry, i| {
        let sum = digits[i] + carry;
        digits[i] = sum & MASK;
        sum >> DIGIT_BITS
    });
    let [d0, d1, d2, d3, d4] = *digits;
    let words = Zeroizing::new([
        d0 | d1 << 51,
        d1 >> 13 | d2 << 38,
        d2 >> 26 | d3 << 25,
        d3 >> 39 | d4 << 12,
    ]);
    let mut bytes = Zeroizing::new([0; X25519_BYTES]);
    for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(*words) {
        *to = word.to_le_bytes();
    }
    bytes
}
