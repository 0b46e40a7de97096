//! The two primes of P-256: the field's and the group order's, in five digits of 52 bits with R = 2^260.
//!
//! Numbers are multiples of the prime in size: "below k" is short for below k·m. A Montgomery product of numbers below a
//! and b is below 1 + a·b/16, because R is sixteen times the primes; operands must be below 16 for their digits to fit.

use crate::digits::{DIGITS, Digits, minus, select, splat};
use crate::lanes::DIGIT_MASK;
use crate::montgomery::Vector;

/// A prime of 256 bits.
pub(crate) trait Prime {
    /// Itself.
    const PRIME: [u64; DIGITS];
    /// R² modulo it.
    const R2: [u64; DIGITS];
    /// R modulo it.
    const ONE: [u64; DIGITS];

    /// The sum of columns divided by R, in digits.
    fn reduce<V: Vector>(columns: [V; 2 * DIGITS]) -> Digits<V>;

    /// Takes the multiple of the prime out of `digits` that their bits from 2^256 on stand for: what is below 16 then is
    /// below 2^256 + 2^228. Digits need not be carried before, and are not after.
    fn fold<V: Vector>(digits: Digits<V>) -> Digits<V>;
}

/// The field's prime, 2^256 − 2^224 + 2^192 + 2^96 − 1.
#[derive(Clone, Copy)]
pub(crate) struct FieldPrime;

/// The number of the group's elements.
#[derive(Clone, Copy)]
pub(crate) struct Order;

impl Prime for FieldPrime {
    const PRIME: [u64; DIGITS] = [0xf_ffff_ffff_ffff, 0xfff_ffff_ffff, 0, 0x10_0000_0000, 0xffff_ffff_0000];
    const R2: [u64; DIGITS] = [
        0x300,
        0xf_ffff_fff0_0000,
        0xf_fffe_ffff_fffb,
        0xf_dfff_ffff_ffff,
        0x4ff_ffff,
    ];
    const ONE: [u64; DIGITS] = [
        0x10,
        0xf_0000_0000_0000,
        0xf_ffff_ffff_ffff,
        0xf_feff_ffff_ffff,
        0xf_ffff,
    ];

    /// −p⁻¹ modulo 2^52 is 1: a column's lowest digit q is its own quotient, and adding q·(2^96 − 1) brings it to zero
    /// by taking it away. What is left of q·p are three products.
    #[inline(always)]
    fn reduce<V: Vector>(mut columns: [V; 2 * DIGITS]) -> Digits<V> {
        let (at96, at192, top) = (V::splat(1 << 44), V::splat(1 << 36), V::splat(Self::PRIME[4]));
        for i in 0..DIGITS {
            let q = columns[i].digit();
            columns[i + 1] = columns[i + 1].add(columns[i].carry()).add_low(q, at96);
            columns[i + 2] = columns[i + 2].add_high(q, at96);
            columns[i + 3] = columns[i + 3].add_low(q, at192);
            columns[i + 4] = columns[i + 4].add_high(q, at192).add_low(q, top);
            columns[i + 5] = columns[i + 5].add_high(q, top);
        }
        upper_half(columns)
    }

    #[inline(always)]
    fn fold<V: Vector>([d0, d1, d2, d3, d4]: Digits<V>) -> Digits<V> {
        // 2^256 is 2^224 − 2^192 − 2^96 + 1.
        let above = d4.signed_shift_right::<48>();
        [
            d0.add(above),
            d1.subtract(above.shift_left::<44>()),
            d2,
            d3.subtract(above.shift_left::<36>()),
            d4.and(V::splat((1 << 48) - 1)).add(above.shift_left::<16>()),
        ]
    }
}

impl Order {
    /// −n⁻¹ modulo 2^52.
    const INVERSE: u64 = 0x1_c8aa_ee00_bc4f;

    /// 2^256 − n.
    const COMPLEMENT: [u64; DIGITS] = [
        0x6_353d_039c_daaf,
        0x5_258e_8617_b0c4,
        0x43_1905,
        0xf_fff0_0000_0000,
        0xffff,
    ];
}

impl Prime for Order {
    const PRIME: [u64; DIGITS] = [
        0x9_cac2_fc63_2551,
        0xa_da71_79e8_4f3b,
        0xf_ffff_ffbc_e6fa,
        0xf_ffff_ffff,
        0xffff_ffff_0000,
    ];
    const R2: [u64; DIGITS] = [
        0x5_cc0d_ea6d_c3ba,
        0x1_92a0_67d8_a084,
        0xb_ec59_6155_71bb,
        0x1_fc24_5b23_92b6,
        0xe12d_9559_d956,
    ];
    const ONE: [u64; DIGITS] = [
        0x3_53d0_39cd_aaf0,
        0x2_58e8_617b_0c46,
        0x431_9055,
        0xf_ff00_0000_0000,
        0xf_ffff,
    ];

    #[inline(always)]
    fn reduce<V: Vector>(mut columns: [V; 2 * DIGITS]) -> Digits<V> {
        let inverse = V::splat(Self::INVERSE);
        for i in 0..DIGITS {
            let q = V::splat(0).add_low(columns[i], inverse);
            // The lowest product brings the column to zero; what that carries is known without it.
            columns[i + 1] = columns[i + 1].add(columns[i].carry_up());
            for j in 0..DIGITS {
                let digit = V::splat(Self::PRIME[j]);
                if j > 0 {
                    columns[i + j] = columns[i + j].add_low(digit, q);
                }
                columns[i + j + 1] = columns[i + j + 1].add_high(digit, q);
            }
        }
        upper_half(columns)
    }

    #[inline(always)]
    fn fold<V: Vector>(mut digits: Digits<V>) -> Digits<V> {
        let above = digits[4].signed_shift_right::<48>();
        digits[4] = digits[4].and(V::splat((1 << 48) - 1));
        for i in 0..DIGITS {
            let digit = V::splat(Self::COMPLEMENT[i]);
            digits[i] = digits[i].add_low(digit, above);
            if i + 1 < DIGITS {
                digits[i + 1] = digits[i + 1].add_high(digit, above);
            }
        }
        digits
    }
}

#[inline(always)]
fn upper_half<V: Vector>(columns: [V; 2 * DIGITS]) -> Digits<V> {
    let [_, _, _, _, _, d0, d1, d2, d3, d4] = columns;
    carried([d0, d1, d2, d3, d4])
}

/// The same number with its digits, which may be negative, brought to 0..2^52; the highest keeps the sign.
#[inline(always)]
pub(crate) fn carried<V: Vector>(mut digits: Digits<V>) -> Digits<V> {
    for i in 0..DIGITS - 1 {
        digits[i + 1] = digits[i + 1].add(digits[i].signed_shift_right::<52>());
        digits[i] = digits[i].digit();
    }
    digits
}

/// `factor`·m, for factors below 16.
pub(crate) const fn multiple<M: Prime>(factor: u64) -> [u64; DIGITS] {
    let mut digits = [0; DIGITS];
    let (mut i, mut carry) = (0, 0);
    while i < DIGITS {
        let sum = M::PRIME[i] * factor + carry;
        digits[i] = sum & DIGIT_MASK;
        carry = sum >> 52;
        i += 1;
    }
    digits
}

#[inline(always)]
fn add_products<V: Vector>(columns: &mut [V; 2 * DIGITS], a: &Digits<V>, b: &Digits<V>) {
    for i in 0..DIGITS {
        for j in 0..DIGITS {
            columns[i + j] = columns[i + j].add_low(a[j], b[i]);
            columns[i + j + 1] = columns[i + j + 1].add_high(a[j], b[i]);
        }
    }
}

/// `a`·`b`/R.
#[inline(always)]
pub(crate) fn multiply<M: Prime, V: Vector>(a: &Digits<V>, b: &Digits<V>) -> Digits<V> {
    let mut columns = [V::splat(0); 2 * DIGITS];
    add_products(&mut columns, a, b);
    M::reduce(columns)
}

/// (`a`·`b` + `c`·`d`)/R, with one reduction for both.
#[inline(always)]
pub(crate) fn multiply_two<M: Prime, V: Vector>(
    a: &Digits<V>,
    b: &Digits<V>,
    c: &Digits<V>,
    d: &Digits<V>,
) -> Digits<V> {
    let mut columns = [V::splat(0); 2 * DIGITS];
    add_products(&mut columns, a, b);
    add_products(&mut columns, c, d);
    M::reduce(columns)
}

/// `a`²/R, with each product of two different digits computed once.
#[inline(always)]
pub(crate) fn square<M: Prime, V: Vector>(a: &Digits<V>) -> Digits<V> {
    let mut columns = [V::splat(0); 2 * DIGITS];
    for i in 0..DIGITS {
        for j in i + 1..DIGITS {
            columns[i + j] = columns[i + j].add_low(a[j], a[i]);
            columns[i + j + 1] = columns[i + j + 1].add_high(a[j], a[i]);
        }
    }
    for column in &mut columns {
        *column = column.add(*column);
    }
    for i in 0..DIGITS {
        columns[2 * i] = columns[2 * i].add_low(a[i], a[i]);
        columns[2 * i + 1] = columns[2 * i + 1].add_high(a[i], a[i]);
    }
    M::reduce(columns)
}

/// The same number below m. Digits need not be carried; the number is not negative, and below 16.
#[inline(always)]
pub(crate) fn canonical<M: Prime, V: Vector>(digits: &Digits<V>) -> Digits<V> {
    below_once::<M, V>(&carried(M::fold(carried(*digits))))
}

/// The same number below m, of carried digits that are below 2.
#[inline(always)]
pub(crate) fn below_once<M: Prime, V: Vector>(digits: &Digits<V>) -> Digits<V> {
    let less = carried(minus(digits, &splat(M::PRIME)));
    let sign = less[4].signed_shift_right::<63>();
    select(&less, digits, sign, u64::MAX)
}
