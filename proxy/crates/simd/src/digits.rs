//! Numbers of five digits in registers, one per lane: those of P-256 and of X25519, which differ in how they are reduced.

use crate::lanes::Lanes;
use crate::montgomery::Vector;

/// Digits of a number.
pub(crate) const DIGITS: usize = 5;

/// A number per lane, in registers.
pub(crate) type Digits<V> = [V; DIGITS];

#[inline(always)]
pub(crate) fn load<V: Vector>(from: &[Lanes; DIGITS]) -> Digits<V> {
    let [d0, d1, d2, d3, d4] = from;
    [V::load(d0), V::load(d1), V::load(d2), V::load(d3), V::load(d4)]
}

#[inline(always)]
pub(crate) fn store<V: Vector>(to: &mut [Lanes; DIGITS], digits: &Digits<V>) {
    for (to, digit) in to.iter_mut().zip(digits) {
        digit.store(to);
    }
}

/// A number that is the same in each lane.
#[inline(always)]
pub(crate) fn splat<V: Vector>(digits: [u64; DIGITS]) -> Digits<V> {
    let [d0, d1, d2, d3, d4] = digits;
    [V::splat(d0), V::splat(d1), V::splat(d2), V::splat(d3), V::splat(d4)]
}

/// `a` + `b`, digit by digit, not carried.
#[inline(always)]
pub(crate) fn plus<V: Vector>(a: &Digits<V>, b: &Digits<V>) -> Digits<V> {
    let mut sum = *a;
    for i in 0..DIGITS {
        sum[i] = sum[i].add(b[i]);
    }
    sum
}

/// `a` − `b`, digit by digit, not carried.
#[inline(always)]
pub(crate) fn minus<V: Vector>(a: &Digits<V>, b: &Digits<V>) -> Digits<V> {
    let mut difference = *a;
    for i in 0..DIGITS {
        difference[i] = difference[i].subtract(b[i]);
    }
    difference
}

/// `other` in the lanes where `index` is `position`, `this` elsewhere.
#[inline(always)]
pub(crate) fn select<V: Vector>(this: &Digits<V>, other: &Digits<V>, index: V, position: u64) -> Digits<V> {
    let mut selected = *this;
    for i in 0..DIGITS {
        selected[i] = selected[i].select(other[i], index, position);
    }
    selected
}
