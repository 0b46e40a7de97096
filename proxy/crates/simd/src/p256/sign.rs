//! Eight signatures side by side (FIPS 186-5 §6.4.1), from nonces that are given.

use zeroize::Zeroize;

use crate::digits::{DIGITS, Digits, load, minus, plus, select, splat, store};
use crate::lanes::{LANES, Lanes};
use crate::montgomery::Vector;
use crate::p256::inverse;
use crate::p256::modulus::{FieldPrime, Order, Prime, below_once, canonical, carried, multiply};
use crate::p256::point::{Jacobian, off_curve};
use crate::p256::table::{ENTRIES, Place, TABLE, WINDOW, WINDOWS};

/// What a batch is computed from, in and to. Wiped by its owner: all of it depends on secrets.
#[derive(Clone, Zeroize)]
pub(crate) struct Work {
    /// k, from 1 to n − 1.
    pub(crate) nonce: [Lanes; DIGITS],
    /// The private key times R, below n.
    pub(crate) secret: [Lanes; DIGITS],
    /// The message's digest.
    pub(crate) digest: [Lanes; DIGITS],
    pub(crate) r: [Lanes; DIGITS],
    pub(crate) s: [Lanes; DIGITS],
    /// Zero in the lanes whose results have passed the checks.
    pub(crate) wrong: Lanes,
    /// k or n − k, whichever is odd.
    odd: [Lanes; DIGITS],
    scratch: inverse::Scratch,
}

impl Work {
    pub(crate) const fn new() -> Self {
        let zero = [Lanes::ZERO; DIGITS];
        Self {
            nonce: zero,
            secret: zero,
            digest: zero,
            r: zero,
            s: zero,
            wrong: Lanes::ZERO,
            odd: zero,
            scratch: inverse::Scratch::new(),
        }
    }
}

/// A digit of the odd scalar: it stands for 2·`value` − 127, and for 2·`value` + 1 in the highest place, where it is below 8.
/// So all digits are odd, and none is zero.
struct Digit {
    /// Which of the entries is the absolute value.
    entry: Lanes,
    /// 1 where it is negative.
    negative: Lanes,
}

impl Digit {
    #[inline(always)]
    fn new(odd: &[Lanes; DIGITS], place: usize) -> Self {
        let position = place * WINDOW + 1;
        let (digit, shift) = (position / 52, position % 52);
        let mut found = Self {
            entry: Lanes::ZERO,
            negative: Lanes::ZERO,
        };
        for lane in 0..LANES {
            let above = odd.get(digit + 1).map_or(0, |digit| digit.0[lane]);
            let bits = odd[digit].0[lane] >> shift | above << (52 - shift);
            let value = bits & (2 * ENTRIES as u64 - 1);
            if place + 1 == WINDOWS {
                found.entry.0[lane] = value;
            } else {
                let negative = (value >> (WINDOW - 1)) ^ 1;
                found.negative.0[lane] = negative;
                found.entry.0[lane] = (value ^ negative.wrapping_neg()) & (ENTRIES as u64 - 1);
            }
        }
        found
    }
}

#[inline(always)]
fn look_up<V: Vector>(place: &Place, entry: V) -> (Digits<V>, Digits<V>) {
    let [x0, x1, x2, x3, x4, y0, y1, y2, y3, y4] = place;
    let digit = |column| V::look_up(column, entry);
    (
        [digit(x0), digit(x1), digit(x2), digit(x3), digit(x4)],
        [digit(y0), digit(y1), digit(y2), digit(y3), digit(y4)],
    )
}

/// The base point times `odd`, or Z = 0. Partial sums have a smaller absolute value than the entry that is added, so that
/// both are different points; only for one odd scalar of all, 30·2^252 − n, they are the same modulo n in the highest place.
#[inline(always)]
pub(crate) fn multiple_of_base<V: Vector>(odd: &[Lanes; DIGITS]) -> Jacobian<V> {
    let table = &*TABLE;
    let mut digit = Digit::new(odd, 0);
    let (x, y) = look_up(&table[0], V::load(&digit.entry));
    let mut sum = Jacobian::from_affine(&x, &y, V::load(&digit.negative));
    for (place, entries) in table.iter().enumerate().skip(1) {
        digit = Digit::new(odd, place);
        let (x, y) = look_up(entries, V::load(&digit.entry));
        sum = sum.add_affine(&x, &y, V::load(&digit.negative));
    }
    digit.entry.zeroize();
    digit.negative.zeroize();
    sum
}

/// The digest plus r times the key, all read from memory. As a closure it would be compiled by itself, without the processor
/// features of the kernel: then each instruction is a call.
#[inline(always)]
fn signed<V: Vector>(work: &Work) -> Digits<V> {
    let product = multiply::<Order, V>(&load(&work.r), &load(&work.secret));
    carried(plus(&product, &load(&work.digest)))
}

/// Does what [`Work`] says.
///
/// What is checked: the point is one of the curve, by its affine x; r is that x, taken anew; and s·k is the digest plus r
/// times the key, from operands that are read from memory again.
#[inline(always)]
pub(crate) fn sign<V: Vector>(work: &mut Work) {
    let one = {
        let mut one = splat([0; DIGITS]);
        one[0] = V::splat(1);
        one
    };
    let k = load(&work.nonce);
    let negated = carried(minus(&splat(Order::PRIME), &k));
    // r is the same for both.
    let odd: Digits<V> = select(&k, &negated, k[0].and(one[0]), 0);
    store(&mut work.odd, &odd);
    let point = multiple_of_base::<V>(&work.odd);

    let entered_k = multiply::<Order, V>(&k, &splat(Order::R2));
    let (z_inverse, k_inverse) = inverse::both(&point.z, &entered_k, &mut work.scratch);
    let (x, y) = point.affine(&z_inverse);
    let x = canonical::<FieldPrime, V>(&multiply::<FieldPrime, V>(&x, &one));
    let r = below_once::<Order, V>(&x);
    store(&mut work.r, &r);
    let s = canonical::<Order, V>(&multiply::<Order, V>(&k_inverse, &signed(work)));
    store(&mut work.s, &s);

    let off = off_curve(&multiply::<FieldPrime, V>(&x, &splat(FieldPrime::R2)), &y);
    let back = canonical::<Order, V>(&multiply::<Order, V>(&load(&work.s), &entered_k));
    let expected = canonical::<Order, V>(&signed(work));
    let (given, anew) = (load::<V>(&work.r), below_once::<Order, V>(&x));
    let mut wrong = V::splat(0);
    for i in 0..DIGITS {
        wrong = wrong.add(off[i]);
        for (one, other) in [(back[i], expected[i]), (given[i], anew[i])] {
            // Both are digits: each is zero, or there are ones in its lower 53 bits.
            let different = V::splat(1).select(V::splat(0), one.subtract(other), 0);
            wrong = wrong.add(different);
        }
    }
    wrong.store(&mut work.wrong);
}
