//! Eight exchanges side by side: the Montgomery ladder of RFC 7748 §5.

use zeroize::Zeroize;

use crate::digits::{DIGITS, load, splat, store};
use crate::lanes::{LANES, Lanes};
use crate::montgomery::Vector;
use crate::x25519::field::{add, add_a24_times, inverse, multiply, square, subtract, swap};

/// 64-bit words of a scalar.
pub(crate) const WORDS: usize = 4;

/// Bits of a scalar.
const SCALAR_BITS: usize = 255;

const ONE: [u64; DIGITS] = [1, 0, 0, 0, 0];

/// What a batch is computed from and to. Wiped by its owner: all of it depends on secrets.
#[derive(Clone, Zeroize)]
pub(crate) struct Work {
    /// The scalars, with the bits set and cleared that RFC 7748 wants so.
    pub(crate) scalar: [Lanes; WORDS],
    /// The points' u, in digits of 51 bits.
    pub(crate) u: [Lanes; DIGITS],
    /// The u of the points times the scalars, in tight digits.
    pub(crate) result: [Lanes; DIGITS],
    bit: Lanes,
}

impl Work {
    pub(crate) const fn new() -> Self {
        Self {
            scalar: [Lanes::ZERO; WORDS],
            u: [Lanes::ZERO; DIGITS],
            result: [Lanes::ZERO; DIGITS],
            bit: Lanes::ZERO,
        }
    }

    /// Leaves one bit of each scalar in `bit`.
    #[inline(always)]
    fn choose(&mut self, position: usize) {
        let words = &self.scalar[position / 64];
        for lane in 0..LANES {
            self.bit.0[lane] = words.0[lane] >> (position % 64) & 1;
        }
    }
}

/// Fills `result` from `scalar` and `u`. The points are swapped by masks, so that time depends on neither.
#[inline(always)]
pub(crate) fn exchange<V: Vector>(work: &mut Work) {
    let (mut x2, mut z2) = (splat::<V>(ONE), splat::<V>([0; DIGITS]));
    let (mut x3, mut z3) = (load::<V>(&work.u), splat::<V>(ONE));
    let mut before = V::splat(0);
    for position in (0..SCALAR_BITS).rev() {
        work.choose(position);
        let bit = V::load(&work.bit);
        // 1 where the two differ.
        let differ = bit.add(before).and(V::splat(1));
        before = bit;
        swap(&mut x2, &mut x3, differ);
        swap(&mut z2, &mut z3, differ);

        let (a, b) = (add(&x2, &z2), subtract(&x2, &z2));
        let (c, d) = (add(&x3, &z3), subtract(&x3, &z3));
        let (da, cb) = (multiply(&d, &a), multiply(&c, &b));
        let (aa, bb) = (square(&a), square(&b));
        let e = subtract(&aa, &bb);
        x3 = square(&add(&da, &cb));
        z3 = multiply(&load(&work.u), &square(&subtract(&da, &cb)));
        x2 = multiply(&aa, &bb);
        z2 = multiply(&e, &add_a24_times(&aa, &e));
    }
    swap(&mut x2, &mut x3, before);
    swap(&mut z2, &mut z3, before);
    store(&mut work.result, &multiply(&x2, &inverse(&z2)));
}
