//! Numbers of eight lanes outside of the kernels: gathered, scattered, added, subtracted. In constant time.

use std::hint::black_box;
use std::ops::{Deref, DerefMut};

use zeroize::{Zeroize, Zeroizing};

use crate::lanes::{DIGIT_BITS, DIGIT_MASK, LANES, Lanes};
use crate::limbs::Limbs;

/// A number of `N` digits for each lane, wiped when dropped.
#[derive(Clone)]
pub(crate) struct Wide<const N: usize>(Box<[Lanes; N]>);

impl<const N: usize> Drop for Wide<N> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<const N: usize> Deref for Wide<N> {
    type Target = [Lanes; N];

    fn deref(&self) -> &[Lanes; N] {
        &self.0
    }
}

impl<const N: usize> DerefMut for Wide<N> {
    fn deref_mut(&mut self) -> &mut [Lanes; N] {
        &mut self.0
    }
}

/// Zero in each lane.
pub(crate) fn zero<const N: usize>() -> Wide<N> {
    Wide(Box::new([Lanes::ZERO; N]))
}

/// Puts the digits of one number per lane side by side, those of the first also into the lanes that have none.
pub(crate) fn gather<'a, const N: usize>(numbers: impl IntoIterator<Item = &'a [u64]>) -> Wide<N> {
    let mut wide = zero::<N>();
    let mut used = 0;
    for number in numbers {
        for (digit, word) in wide.iter_mut().zip(number) {
            digit.0[used] = *word;
        }
        used += 1;
    }
    for digit in wide.iter_mut() {
        let first = digit.0[0];
        digit.0[used..].fill(first);
    }
    wide
}

/// The digits of one lane.
pub(crate) fn lane<const N: usize>(wide: &[Lanes; N], lane: usize) -> Limbs {
    Zeroizing::new(wide.iter().map(|digit| digit.0[lane]).collect())
}

/// `a` += `b`; the sum must fit.
pub(crate) fn add<const N: usize>(a: &mut [Lanes; N], b: &[Lanes]) {
    let mut carry = Lanes::ZERO;
    for (i, a) in a.iter_mut().enumerate() {
        for l in 0..LANES {
            let sum = a.0[l] + b.get(i).map_or(0, |b| b.0[l]) + carry.0[l];
            a.0[l] = sum & DIGIT_MASK;
            carry.0[l] = sum >> DIGIT_BITS;
        }
    }
}

/// `a` −= `b`; all ones in the lanes where the difference is negative and therefore wrong, zero elsewhere.
pub(crate) fn subtract<const N: usize>(a: &mut [Lanes; N], b: &[Lanes; N]) -> Lanes {
    let mut borrow = Lanes::ZERO;
    for (a, b) in a.iter_mut().zip(b) {
        for l in 0..LANES {
            let difference = a.0[l].wrapping_sub(b.0[l]).wrapping_sub(borrow.0[l]);
            a.0[l] = difference & DIGIT_MASK;
            borrow.0[l] = difference >> 63;
        }
    }
    for word in &mut borrow.0 {
        // Hidden from the compiler, so that it does not make a branch of what the mask selects.
        *word = black_box(word.wrapping_neg());
    }
    borrow
}

/// Brings numbers below twice the modulus below the modulus.
pub(crate) fn reduce_once<const N: usize>(a: &mut [Lanes; N], modulus: &[Lanes; N]) {
    let mut reduced = zero::<N>();
    reduced.copy_from_slice(a);
    let negative = subtract(&mut reduced, modulus);
    for (a, reduced) in a.iter_mut().zip(reduced.iter()) {
        for l in 0..LANES {
            a.0[l] = reduced.0[l] ^ ((a.0[l] ^ reduced.0[l]) & negative.0[l]);
        }
    }
}

/// Whether one lane of two numbers is the same.
pub(crate) fn equal<const N: usize>(a: &[Lanes; N], b: &[Lanes; N], lane: usize) -> bool {
    let difference = a.iter().zip(b).fold(0, |all, (a, b)| all | (a.0[lane] ^ b.0[lane]));
    difference == 0
}
