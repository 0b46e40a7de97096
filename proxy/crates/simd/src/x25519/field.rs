//! Numbers modulo 2^255 − 19 in five digits of 51 bits.
//!
//! The multiplier takes digits of 52 bits, so that a digit may exceed 51 by a little: what the functions take and give
//! are digits below 2^51 + 2^14, here called tight. The halves of a product are 52 bits apart and columns 51, so an upper half
//! counts twice in the column above.

use crate::digits::{DIGITS, Digits, minus, plus, select, splat};
use crate::montgomery::Vector;

/// Bits of a digit.
pub(crate) const DIGIT_BITS: u32 = 51;

/// The largest digit of 51 bits.
pub(crate) const MASK: u64 = (1 << DIGIT_BITS) - 1;

/// Twice the prime, each of its digits larger than a tight one.
const TWICE_PRIME: [u64; DIGITS] = {
    let digit = 2 * MASK;
    [digit - 36, digit, digit, digit, digit]
};

/// (A − 2)/4 of the curve's A, 486662.
const A24: u64 = 121_665;

/// 19·`word`, by which what exceeds 2^255 comes back. For words below 2^59.
#[inline(always)]
fn nineteen<V: Vector>(word: V) -> V {
    word.shift_left::<4>().add(word.shift_left::<1>()).add(word)
}

#[inline(always)]
fn twice<V: Vector>(word: V) -> V {
    word.add(word)
}

/// The same number in tight digits, of digits below 2^60.5.
#[inline(always)]
fn carried<V: Vector>(digits: Digits<V>) -> Digits<V> {
    let mask = V::splat(MASK);
    let mut carried = digits;
    // All carries at once, none of which exceeds 2^9.5: none carries on. No digit is negative; there is no other shift to the right.
    for i in 0..DIGITS {
        let above = digits[(i + DIGITS - 1) % DIGITS].signed_shift_right::<DIGIT_BITS>();
        let above = if i == 0 { nineteen(above) } else { above };
        carried[i] = digits[i].and(mask).add(above);
    }
    carried
}

/// `a` + `b`.
#[inline(always)]
pub(crate) fn add<V: Vector>(a: &Digits<V>, b: &Digits<V>) -> Digits<V> {
    carried(plus(a, b))
}

/// `a` − `b`.
#[inline(always)]
pub(crate) fn subtract<V: Vector>(a: &Digits<V>, b: &Digits<V>) -> Digits<V> {
    carried(minus(&plus(a, &splat(TWICE_PRIME)), b))
}

/// The sums of products' lower halves by columns, and those of the upper halves, which count twice in the column above. Of each
/// at most five, so that a column stays below 2^56. What works on them has no closures: as such it would be compiled by itself, without
/// the processor features of the kernel.
struct Columns<V> {
    low: [V; 2 * DIGITS - 1],
    high: [V; 2 * DIGITS - 1],
}

impl<V: Vector> Columns<V> {
    #[inline(always)]
    fn new() -> Self {
        let zeros = [V::splat(0); 2 * DIGITS - 1];
        Self {
            low: zeros,
            high: zeros,
        }
    }

    #[inline(always)]
    fn add_product(&mut self, column: usize, a: V, b: V) {
        self.low[column] = self.low[column].add_low(a, b);
        self.high[column] = self.high[column].add_high(a, b);
    }

    #[inline(always)]
    fn double(&mut self) {
        for i in 0..2 * DIGITS - 1 {
            self.low[i] = twice(self.low[i]);
            self.high[i] = twice(self.high[i]);
        }
    }

    /// Folds the columns from the sixth on into the others.
    #[inline(always)]
    fn reduced(&self) -> Digits<V> {
        let mut digits = [V::splat(0); DIGITS];
        for (i, digit) in digits.iter_mut().enumerate() {
            let below = if i == 0 { V::splat(0) } else { twice(self.high[i - 1]) };
            let upper = twice(self.high[i + DIGITS - 1]);
            let upper = if i + 1 == DIGITS {
                upper
            } else {
                upper.add(self.low[i + DIGITS])
            };
            *digit = self.low[i].add(below).add(nineteen(upper));
        }
        carried(digits)
    }
}

/// `a`·`b`.
#[inline(always)]
pub(crate) fn multiply<V: Vector>(a: &Digits<V>, b: &Digits<V>) -> Digits<V> {
    let mut columns = Columns::new();
    for (i, a) in a.iter().enumerate() {
        for (j, b) in b.iter().enumerate() {
            columns.add_product(i + j, *a, *b);
        }
    }
    columns.reduced()
}

/// `a`², with each product of two different digits computed once.
#[inline(always)]
pub(crate) fn square<V: Vector>(a: &Digits<V>) -> Digits<V> {
    let mut columns = Columns::new();
    for i in 0..DIGITS {
        for j in i + 1..DIGITS {
            columns.add_product(i + j, a[i], a[j]);
        }
    }
    columns.double();
    for (i, a) in a.iter().enumerate() {
        columns.add_product(2 * i, *a, *a);
    }
    columns.reduced()
}

/// `a` + 121665·`e`.
#[inline(always)]
pub(crate) fn add_a24_times<V: Vector>(a: &Digits<V>, e: &Digits<V>) -> Digits<V> {
    let factor = V::splat(A24);
    let mut digits = *a;
    for i in 0..DIGITS {
        let above = twice(V::splat(0).add_high(e[(i + DIGITS - 1) % DIGITS], factor));
        let above = if i == 0 { nineteen(above) } else { above };
        digits[i] = digits[i].add_low(e[i], factor).add(above);
    }
    carried(digits)
}

#[inline(always)]
fn squared<V: Vector>(mut a: Digits<V>, times: usize) -> Digits<V> {
    for _ in 0..times {
        a = square(&a);
    }
    a
}

/// 1/`z` by Fermat's little theorem, as `z` to the power of 2^255 − 21; 0 for 0.
#[inline(always)]
pub(crate) fn inverse<V: Vector>(z: &Digits<V>) -> Digits<V> {
    let z2 = square(z);
    let z9 = multiply(&squared(z2, 2), z);
    let z11 = multiply(&z9, &z2);
    // Powers of 2^n − 1.
    let z5 = multiply(&square(&z11), &z9);
    let z10 = multiply(&squared(z5, 5), &z5);
    let z20 = multiply(&squared(z10, 10), &z10);
    let z40 = multiply(&squared(z20, 20), &z20);
    let z50 = multiply(&squared(z40, 10), &z10);
    let z100 = multiply(&squared(z50, 50), &z50);
    let z200 = multiply(&squared(z100, 100), &z100);
    let z250 = multiply(&squared(z200, 50), &z50);
    multiply(&squared(z250, 5), &z11)
}

/// Swaps the two in the lanes where `index` is 1.
#[inline(always)]
pub(crate) fn swap<V: Vector>(this: &mut Digits<V>, other: &mut Digits<V>, index: V) {
    let kept = *this;
    *this = select(this, other, index, 1);
    *other = select(other, &kept, index, 1);
}
