//! Arithmetic on single numbers of 64-bit limbs, least significant first: what preparing a key and an exponent takes.
//!
//! Limbs hold primes and exponents: nothing branches on, or is addressed by, their values; lengths are public.

use std::hint::black_box;

use zeroize::Zeroizing;

use crate::lanes::{DIGIT_BITS, DIGIT_MASK};

/// A number that is wiped when dropped.
pub(crate) type Limbs = Zeroizing<Vec<u64>>;

/// Reads big-endian bytes, leading zeros allowed. None when the number needs more than `length` limbs.
pub(crate) fn from_bytes(bytes: &[u8], length: usize) -> Option<Limbs> {
    let zeros = bytes.iter().take_while(|b| **b == 0).count();
    let bytes = &bytes[zeros..];
    if bytes.len() > length * 8 {
        return None;
    }
    let mut limbs = Zeroizing::new(vec![0; length]);
    for (limb, chunk) in limbs.iter_mut().zip(bytes.rchunks(8)) {
        *limb = chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    Some(limbs)
}

/// Reads big-endian bytes, without a look at their values.
pub(crate) fn from_array<const BYTES: usize>(bytes: &[u8; BYTES]) -> Limbs {
    let limb = |chunk: &[u8]| chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Zeroizing::new(bytes.rchunks(8).map(limb).collect())
}

/// Writes big-endian bytes.
pub(crate) fn to_bytes(limbs: &[u64]) -> Vec<u8> {
    limbs.iter().rev().flat_map(|limb| limb.to_be_bytes()).collect()
}

/// The number in `count` digits of 52 bits; it must fit.
pub(crate) fn to_digits(limbs: &[u64], count: usize) -> Limbs {
    let digit = |i: usize| bits(limbs, i * DIGIT_BITS as usize) & DIGIT_MASK;
    Zeroizing::new((0..count).map(digit).collect())
}

/// The number of 52-bit digits in `count` limbs; it must fit.
pub(crate) fn from_digits(digits: &[u64], count: usize) -> Limbs {
    let mut limbs = Zeroizing::new(vec![0; count + 1]);
    for (i, digit) in digits.iter().enumerate() {
        let (limb, shift) = (i * DIGIT_BITS as usize / 64, i * DIGIT_BITS as usize % 64);
        if limb < count {
            limbs[limb] |= digit << shift;
            // Two shifts, because one by 64 would not be defined when `shift` is 0.
            limbs[limb + 1] |= digit >> 1 >> (63 - shift);
        }
    }
    limbs.truncate(count);
    limbs
}

/// The 64 bits from bit `position` on, zeros past the end.
pub(crate) fn bits(limbs: &[u64], position: usize) -> u64 {
    let (limb, shift) = (position / 64, position % 64);
    let low = limbs.get(limb).copied().unwrap_or(0);
    let high = limbs.get(limb + 1).copied().unwrap_or(0);
    low >> shift | high << 1 << (63 - shift)
}

/// The product, as long as both factors together.
pub(crate) fn multiply(a: &[u64], b: &[u64]) -> Limbs {
    let mut product = Zeroizing::new(vec![0; a.len() + b.len()]);
    for (i, x) in a.iter().enumerate() {
        let mut carry = 0;
        for (j, y) in b.iter().enumerate() {
            (product[i + j], carry) = step(product[i + j], *x, *y, carry);
        }
        product[i + b.len()] = carry;
    }
    product
}

/// `sum` += `a`·`factor`; `sum` is one limb longer than `a` and must have room.
pub(crate) fn add_product(sum: &mut [u64], a: &[u64], factor: u64) {
    let mut carry = 0;
    for (s, x) in sum.iter_mut().zip(a) {
        (*s, carry) = step(*s, *x, factor, carry);
    }
    sum[a.len()] = sum[a.len()].wrapping_add(carry);
}

fn step(sum: u64, x: u64, y: u64, carry: u64) -> (u64, u64) {
    let wide = u128::from(x) * u128::from(y) + u128::from(sum) + u128::from(carry);
    (wide as u64, (wide >> 64) as u64)
}

/// `a` − `b` where `mask` is all ones, `a` where it is zero; returns what `a` − `b` borrowed (0 or 1) in either case.
fn subtract_masked(a: &mut [u64], b: &[u64], mask: u64) -> u64 {
    // So that the compiler does not make a branch of it.
    let mask = black_box(mask);
    let mut borrow = 0;
    for (x, y) in a.iter_mut().zip(b) {
        let (difference, one) = x.overflowing_sub(*y);
        let (difference, two) = difference.overflowing_sub(borrow);
        borrow = u64::from(one | two);
        *x ^= (*x ^ difference) & mask;
    }
    borrow
}

/// `a` − `b`; the borrow is lost.
pub(crate) fn subtract(a: &mut [u64], b: &[u64]) {
    subtract_masked(a, b, u64::MAX);
}

/// Whether `a` is below `b` of the same length.
pub(crate) fn less(a: &[u64], b: &[u64]) -> bool {
    let mut copy = Zeroizing::new(a.to_vec());
    subtract_masked(&mut copy, b, 0) == 1
}

/// `a` = 2·`a` + `bit` modulo `modulus`, for `a` below it.
fn double(a: &mut [u64], bit: u64, modulus: &[u64]) {
    let mut carry = bit;
    for limb in a.iter_mut() {
        (*limb, carry) = (*limb << 1 | carry, *limb >> 63);
    }
    let borrow = subtract_masked(a, modulus, 0);
    subtract_masked(a, modulus, (carry | (borrow ^ 1)).wrapping_neg());
}

/// `a`·2^`power` modulo `modulus`, for any `a`.
pub(crate) fn shifted(a: &[u64], power: usize, modulus: &[u64]) -> Limbs {
    let mut rest = Zeroizing::new(vec![0; modulus.len()]);
    for position in (0..a.len() * 64).rev() {
        double(&mut rest, bits(a, position) & 1, modulus);
    }
    for _ in 0..power {
        double(&mut rest, 0, modulus);
    }
    rest
}

/// −m⁻¹ modulo 2^52, for odd `m`.
pub(crate) fn negated_inverse(m: u64) -> u64 {
    // Each step doubles the number of right bits, from the three that m itself has (m² = 1 modulo 8).
    let inverse = (0..5).fold(m, |x, _| x.wrapping_mul(2u64.wrapping_sub(m.wrapping_mul(x))));
    inverse.wrapping_neg() & DIGIT_MASK
}
