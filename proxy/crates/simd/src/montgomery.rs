//! Almost-Montgomery arithmetic on eight numbers of `N` 52-bit digits, written once for any vector type.
//!
//! With R = 2^(52·N) the results are x·y·R⁻¹ modulo m, not fully reduced: operands x and y give less than x·y/R + m. As R
//! exceeds 4·m by far for all lengths here (16 to 64 spare bits), operands below 2·m give results below 2·m without a
//! subtraction. Digits of operands and results are below 2^52.
//!
//! Two rows of the multiplication are done per pass over the columns: an accumulator is then loaded and stored once for
//! eight multiplications, and a digit of each operand loaded once for four. Nothing branches on, or is addressed by, a
//! digit's value.

use crate::kernels::{PARTS, Scratch};
use crate::lanes::{DIGIT_MASK, Lanes};

/// Eight 64-bit lanes and the operations that the kernels need.
pub(crate) trait Vector: Copy {
    /// Digits up to which a squaring is written out: at most 40.
    const WRITTEN_OUT: usize;

    /// The same word in each lane.
    fn splat(word: u64) -> Self;
    /// Reads from memory, each time it is called: values that the compiler would keep in registers instead would be
    /// spilled again, which costs more than the load that an operand of a multiplication is.
    fn load(from: &Lanes) -> Self;
    fn store(self, to: &mut Lanes);
    /// Sum modulo 2^64.
    fn add(self, other: Self) -> Self;
    /// Adds the low 52 bits of the 104-bit product of the low 52 bits of `a` and `b`.
    fn add_low(self, a: Self, b: Self) -> Self;
    /// Adds the high 52 bits of the 104-bit product of the low 52 bits of `a` and `b`.
    fn add_high(self, a: Self, b: Self) -> Self;
    /// What exceeds 52 bits.
    fn carry(self) -> Self;
    /// What exceeds 52 bits after the low 52 bits, unless they are zero, are made to overflow.
    #[inline(always)]
    fn carry_up(self) -> Self {
        self.add(Self::splat(DIGIT_MASK)).carry()
    }
    /// The low 52 bits.
    fn digit(self) -> Self;
    /// `other` in the lanes where `index` equals `position`, `self` elsewhere; reads both always.
    fn select(self, other: Self, index: Self, position: u64) -> Self;
    /// Difference modulo 2^64.
    fn subtract(self, other: Self) -> Self;
    /// The bits that both have.
    fn and(self, other: Self) -> Self;
    fn shift_left<const BITS: u32>(self) -> Self;
    /// Rounds down, as signed numbers.
    fn signed_shift_right<const BITS: u32>(self) -> Self;
    /// The word that each lane's `index`, below 64, names in a table that is the same for all; reads all of it.
    fn look_up(table: &[Lanes; 8], index: Self) -> Self;
}

/// An odd modulus of `N` digits for each lane.
#[derive(Clone)]
pub(crate) struct Modulus<const N: usize> {
    pub(crate) digits: [Lanes; N],
    /// −m⁻¹ modulo 2^52.
    pub(crate) inverse: Lanes,
}

/// `out` = `a`·`b`·R⁻¹ modulo `modulus`.
#[inline(always)]
pub(crate) fn multiply<V: Vector, const N: usize>(
    out: &mut [Lanes; N],
    a: &[Lanes; N],
    b: &[Lanes; N],
    modulus: &Modulus<N>,
    scratch: &mut Scratch<N>,
) {
    let m = &modulus.digits;
    let inverse = V::load(&modulus.inverse);
    let mut sums = Sums::<V, N>::new(&mut scratch.sums);
    for row in (0..N).step_by(2) {
        let (x0, x1) = (V::load(&b[row]), V::load(&b[row + 1]));
        let (a0, a1) = (V::load(&a[0]), V::load(&a[1]));
        let c0 = sums.low.0.add_low(a0, x0);
        let c1 = sums.low.1.add_high(a0, x0).add_low(a1, x0).add_low(a0, x1);
        let mut reduction = Reduction::start(c0, c1, m, inverse);
        let mut products = Products {
            x0,
            x1,
            last: a1,
            before: a0,
        };
        #[expect(clippy::needless_range_loop, reason = "a column is a place in four arrays")]
        for column in 2..N {
            let sum = products.column(sums.load(column), V::load(&a[column]));
            sums.store(column, &mut reduction, sum, m);
        }
        sums.store(N, &mut reduction, products.end(), m);
        sums.store(N + 1, &mut reduction, products.very_end(), m);
    }
    sums.normalize(out);
}

/// `out` = `a`²·R⁻¹ modulo `modulus`, with each product of two different digits computed once.
///
/// Row i multiplies a_i with itself and with the digits above it of 2·a: those are doubled beforehand, as a number, so
/// that they still are 52-bit digits. The first of them must not have the bit that a_i carried into it.
#[inline(always)]
pub(crate) fn square<V: Vector, const N: usize>(
    out: &mut [Lanes; N],
    a: &[Lanes; N],
    modulus: &Modulus<N>,
    scratch: &mut Scratch<N>,
) {
    let m = &modulus.digits;
    let inverse = V::load(&modulus.inverse);
    let Scratch { sums, doubled } = scratch;
    let mut below = V::splat(0);
    for (doubled, digit) in doubled.iter_mut().zip(a) {
        let digit = V::load(digit);
        let twice = digit.add(digit);
        twice.digit().add(below).store(doubled);
        below = twice.carry();
    }
    let mut sums = Sums::<V, N>::new(sums);
    // Written out, because the columns that a row multiplies differ from row to row: loops would end unpredictably.
    macro_rules! rows {
        ($($row:literal)*) => {$(
            if $row < N {
                sums.square_rows($row, a, doubled, m, inverse);
            }
        )*};
    }
    if N <= V::WRITTEN_OUT {
        rows!(0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30 32 34 36 38);
    } else {
        for row in (0..N).step_by(2) {
            sums.square_rows(row, a, doubled, m, inverse);
        }
    }
    sums.normalize(out);
}

/// Column sums, shifted down by two columns with each pass.
struct Sums<'a, V, const N: usize> {
    /// The two lowest stay in registers: the next pass cannot begin without them.
    low: (V, V),
    rest: &'a mut [Lanes; N],
}

impl<'a, V: Vector, const N: usize> Sums<'a, V, N> {
    #[inline(always)]
    fn new(rest: &'a mut [Lanes; N]) -> Self {
        *rest = [Lanes::ZERO; N];
        Self {
            low: (V::splat(0), V::splat(0)),
            rest,
        }
    }

    #[inline(always)]
    fn load(&self, column: usize) -> V {
        V::load(&self.rest[column])
    }

    /// Adds the reduction to `sum` and keeps it for the next pass.
    #[inline(always)]
    fn store(&mut self, column: usize, reduction: &mut Reduction<V>, sum: V, m: &[Lanes; N]) {
        let digit = if column < N { V::load(&m[column]) } else { V::splat(0) };
        match column {
            2 => self.low.0 = reduction.split_column(sum, digit).add(reduction.carry),
            3 => self.low.1 = reduction.split_column(sum, digit),
            _ => reduction.column(sum, digit).store(&mut self.rest[column - 2]),
        }
    }

    /// Rows `row` and `row` + 1 of a squaring.
    #[inline(always)]
    fn square_rows(&mut self, row: usize, a: &[Lanes; N], doubled: &[Lanes; N], m: &[Lanes; N], inverse: V) {
        let (x0, x1) = (V::load(&a[row]), V::load(&a[row + 1]));
        // 2·a_(row+1) without the carry of a_row.
        let first = x1.add(x1).digit();
        let (mut c0, mut c1) = self.low;
        if row == 0 {
            c0 = c0.add_low(x0, x0);
            c1 = c1.add_high(x0, x0).add_low(x0, first);
        }
        let mut reduction = Reduction::start(c0, c1, m, inverse);
        for column in 2..row {
            let sum = self.load(column);
            self.store(column, &mut reduction, sum, m);
        }
        if row > 0 {
            let sum = self.load(row).add_low(x0, x0);
            self.store(row, &mut reduction, sum, m);
            let sum = self.load(row + 1).add_high(x0, x0).add_low(x0, first);
            self.store(row + 1, &mut reduction, sum, m);
        }
        if row + 2 == N {
            // Only a_row·a_(row+1) is left of the products of different digits.
            let sum = V::splat(0).add_high(x0, first).add_low(x1, x1);
            self.store(N, &mut reduction, sum, m);
            self.store(N + 1, &mut reduction, V::splat(0).add_high(x1, x1), m);
            return;
        }
        let next = V::load(&a[row + 2]);
        // 2·a_(row+2) without the carry of a_(row+1).
        let second = next.add(next).digit();
        let (third, fourth) = (V::load(&doubled[row + 2]), V::load(&doubled[row + 3]));
        let sum = self
            .load(row + 2)
            .add_high(x0, first)
            .add_low(x0, third)
            .add_low(x1, x1);
        self.store(row + 2, &mut reduction, sum, m);
        let sum = self
            .load(row + 3)
            .add_high(x0, third)
            .add_low(x0, fourth)
            .add_high(x1, x1)
            .add_low(x1, second);
        self.store(row + 3, &mut reduction, sum, m);
        let mut products = Products {
            x0,
            x1,
            last: fourth,
            before: second,
        };
        #[expect(clippy::needless_range_loop, reason = "a column is a place in four arrays")]
        for column in row + 4..N {
            let sum = products.column(self.load(column), V::load(&doubled[column]));
            self.store(column, &mut reduction, sum, m);
        }
        self.store(N, &mut reduction, products.end(), m);
        self.store(N + 1, &mut reduction, products.very_end(), m);
    }

    /// Brings every column below 2^52.
    #[inline(always)]
    fn normalize(&self, out: &mut [Lanes; N]) {
        let mut carry = V::splat(0);
        for (column, out) in out.iter_mut().enumerate() {
            let sum = match column {
                0 => self.low.0,
                1 => self.low.1,
                _ => self.load(column),
            };
            let sum = sum.add(carry);
            sum.digit().store(out);
            carry = sum.carry();
        }
    }
}

/// Two rows of products.
struct Products<V> {
    x0: V,
    x1: V,
    /// Digits of the other operand one and two columns back.
    last: V,
    before: V,
}

impl<V: Vector> Products<V> {
    #[inline(always)]
    fn column(&mut self, sum: V, digit: V) -> V {
        let sum = sum
            .add_low(digit, self.x0)
            .add_high(self.last, self.x0)
            .add_low(self.last, self.x1)
            .add_high(self.before, self.x1);
        (self.before, self.last) = (self.last, digit);
        sum
    }

    /// The column above the last digit.
    #[inline(always)]
    fn end(&self) -> V {
        V::splat(0)
            .add_high(self.last, self.x0)
            .add_low(self.last, self.x1)
            .add_high(self.before, self.x1)
    }

    /// The column above that.
    #[inline(always)]
    fn very_end(&self) -> V {
        V::splat(0).add_high(self.last, self.x1)
    }
}

/// Two rows of q·m, with q0 and q1 chosen to make the two lowest columns zero.
struct Reduction<V> {
    q0: V,
    q1: V,
    /// Digits of the modulus one and two columns back.
    last: V,
    before: V,
    /// What the two lowest columns carry into the third.
    carry: V,
}

impl<V: Vector> Reduction<V> {
    /// The lowest column's product with q need not be computed to know its carry: it brings the low 52 bits of the sum to
    /// zero, by adding nothing or by overflowing.
    #[inline(always)]
    fn start(c0: V, c1: V, m: &[Lanes], inverse: V) -> Self {
        let (m0, m1) = (V::load(&m[0]), V::load(&m[1]));
        let q0 = V::splat(0).add_low(c0, inverse);
        let c1 = c1.add(c0.carry_up());
        let high = V::splat(0).add_high(m0, q0);
        let c1 = c1.add_low(m1, q0).add(high);
        let q1 = V::splat(0).add_low(c1, inverse);
        Self {
            q0,
            q1,
            last: m1,
            before: m0,
            carry: c1.carry_up(),
        }
    }

    #[inline(always)]
    fn column(&mut self, sum: V, digit: V) -> V {
        let sum = sum
            .add_low(digit, self.q0)
            .add_high(self.last, self.q0)
            .add_low(self.last, self.q1)
            .add_high(self.before, self.q1);
        (self.before, self.last) = (self.last, digit);
        sum
    }

    /// The same with a shorter chain behind q1, for the columns that the next pass waits for.
    #[inline(always)]
    fn split_column(&mut self, sum: V, digit: V) -> V {
        let sum = sum
            .add_low(digit, self.q0)
            .add_high(self.last, self.q0)
            .add_low(self.last, self.q1);
        let sum = sum.add(V::splat(0).add_high(self.before, self.q1));
        (self.before, self.last) = (self.last, digit);
        sum
    }
}

/// Digits `part`·N/5 to (`part` + 1)·N/5 of the entry of `table` that each lane's `index` names; every entry is read.
#[inline(always)]
pub(crate) fn pick<V: Vector, const N: usize>(out: &mut [Lanes; N], table: &[[Lanes; N]], index: &Lanes, part: usize) {
    match N / PARTS {
        4 => pick_digits::<V, N, 4>(out, table, index, part * 4),
        6 => pick_digits::<V, N, 6>(out, table, index, part * 6),
        8 => pick_digits::<V, N, 8>(out, table, index, part * 8),
        _ => (part * (N / PARTS)..(part + 1) * (N / PARTS))
            .step_by(2)
            .for_each(|first| pick_digits::<V, N, 2>(out, table, index, first)),
    }
}

#[inline(always)]
fn pick_digits<V: Vector, const N: usize, const D: usize>(
    out: &mut [Lanes; N],
    table: &[[Lanes; N]],
    index: &Lanes,
    first: usize,
) {
    let index = V::load(index);
    let mut picked = [V::splat(0); D];
    for (position, entry) in table.iter().enumerate() {
        for (picked, digit) in picked.iter_mut().zip(&entry[first..first + D]) {
            *picked = picked.select(V::load(digit), index, position as u64);
        }
    }
    for (out, picked) in out[first..first + D].iter_mut().zip(picked) {
        picked.store(out);
    }
}
