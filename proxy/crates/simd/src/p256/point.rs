//! Points in Jacobian coordinates, (X/Z², Y/Z³), coordinates in Montgomery form.

use crate::digits::{DIGITS, Digits, minus, plus, select, splat};
use crate::montgomery::Vector;
use crate::p256::modulus::{FieldPrime, Prime, canonical, carried, multiple, multiply, multiply_two, square};

/// The curve's b.
const B: [u64; DIGITS] = [
    0xd_f622_9c4b_ddfd,
    0xc_a884_3090_d89c,
    0x2_12ed_6acf_005c,
    0x8_3415_a220_abf7,
    0xc300_61dd_4874,
];

/// The curve's a, −3.
const A: [u64; DIGITS] = [
    0xf_ffff_ffff_ffcf,
    0x3_0fff_ffff_ffff,
    0,
    0x310_0000_0000,
    0xffff_ffcf_0000,
];

/// The base point.
pub(crate) const GENERATOR: [[u64; DIGITS]; 2] = [
    [
        0x3_0d41_8a91_43c1,
        0xc_4fed_b601_79e7,
        0x6_2251_075b_a95f,
        0x5_c669_fb73_2b77,
        0x8905_f76b_5375,
    ],
    [
        0x5_357c_e955_60a8,
        0x4_3a19_e45c_ddf2,
        0x2_1f32_58b4_ab8e,
        0xd_8552_e886_88dd,
        0x571f_f18a_5885,
    ],
];

const fn primes(factor: u64) -> [u64; DIGITS] {
    multiple::<FieldPrime>(factor)
}

/// A point per lane. Coordinates are below 2.
#[derive(Clone, Copy)]
pub(crate) struct Jacobian<V> {
    pub(crate) x: Digits<V>,
    pub(crate) y: Digits<V>,
    pub(crate) z: Digits<V>,
}

impl<V: Vector> Jacobian<V> {
    /// The point (x, y), or its negative in the lanes where `negative` is 1.
    #[inline(always)]
    pub(crate) fn from_affine(x: &Digits<V>, y: &Digits<V>, negative: V) -> Self {
        let signed = select(y, &minus(&splat([0; DIGITS]), y), negative, 1);
        Self {
            x: *x,
            y: carried(plus(&signed, &splat(primes(1)))),
            z: splat(FieldPrime::ONE),
        }
    }

    /// The sum with (x, y), coordinates below 1, or with its negative in the lanes where `negative` is 1. The two points
    /// must be different and no negatives of each other: Z would be zero.
    #[inline(always)]
    pub(crate) fn add_affine(&self, x: &Digits<V>, y: &Digits<V>, negative: V) -> Self {
        let zz = square::<FieldPrime, V>(&self.z);
        let x2 = multiply::<FieldPrime, V>(x, &zz);
        let y2 = multiply::<FieldPrime, V>(y, &multiply::<FieldPrime, V>(&self.z, &zz));
        // Below 3.1: X is folded in the end.
        let h = carried(plus(&minus(&x2, &self.x), &splat(primes(2))));
        let y2 = select(&y2, &minus(&splat([0; DIGITS]), &y2), negative, 1);
        let r = plus(&minus(&y2, &self.y), &splat(primes(5)));
        let r = carried(FieldPrime::fold(r));
        let hh = square::<FieldPrime, V>(&h);
        // Below 1.4, and v below 1.2.
        let hhh = multiply::<FieldPrime, V>(&h, &hh);
        let v = multiply::<FieldPrime, V>(&self.x, &hh);
        let difference = minus(&minus(&square::<FieldPrime, V>(&r), &hhh), &plus(&v, &v));
        let x = carried(FieldPrime::fold(plus(&difference, &splat(primes(4)))));
        let y = multiply_two::<FieldPrime, V>(
            &r,
            &carried(plus(&minus(&v, &x), &splat(primes(2)))),
            &self.y,
            &carried(minus(&splat(primes(2)), &hhh)),
        );
        let z = multiply::<FieldPrime, V>(&self.z, &h);
        Self { x, y, z }
    }

    /// The point twice, for the table.
    pub(crate) fn double(&self) -> Self {
        let four = |a: &Digits<V>| plus(&plus(a, a), &plus(a, a));
        let reduced = |a: &Digits<V>| carried(FieldPrime::fold(*a));
        let delta = square::<FieldPrime, V>(&self.z);
        let gamma = square::<FieldPrime, V>(&self.y);
        let beta = multiply::<FieldPrime, V>(&self.x, &gamma);
        let below = reduced(&plus(&minus(&self.x, &delta), &splat(primes(2))));
        let product = multiply::<FieldPrime, V>(&below, &carried(plus(&self.x, &delta)));
        let alpha = reduced(&plus(&plus(&product, &product), &product));
        let beta4 = reduced(&four(&beta));
        let x = minus(&square::<FieldPrime, V>(&alpha), &plus(&beta4, &beta4));
        let x = reduced(&plus(&x, &splat(primes(3))));
        let gamma8 = four(&square::<FieldPrime, V>(&gamma));
        let gamma8 = plus(&gamma8, &gamma8);
        let rest = reduced(&plus(&minus(&beta4, &x), &splat(primes(2))));
        let y = minus(&multiply::<FieldPrime, V>(&alpha, &rest), &gamma8);
        let y = reduced(&plus(&y, &splat(primes(14))));
        let z = multiply::<FieldPrime, V>(&carried(plus(&self.y, &self.y)), &self.z);
        Self { x, y, z }
    }

    /// (x, y), given 1/Z; below 2.
    #[inline(always)]
    pub(crate) fn affine(&self, inverse: &Digits<V>) -> (Digits<V>, Digits<V>) {
        let squared = square::<FieldPrime, V>(inverse);
        let cubed = multiply::<FieldPrime, V>(&squared, inverse);
        (
            multiply::<FieldPrime, V>(&self.x, &squared),
            multiply::<FieldPrime, V>(&self.y, &cubed),
        )
    }
}

/// y² − (x³ − 3·x + b), below the prime: zero where (x, y) is a point of the curve.
#[inline(always)]
pub(crate) fn off_curve<V: Vector>(x: &Digits<V>, y: &Digits<V>) -> Digits<V> {
    let slope = carried(plus(&square::<FieldPrime, V>(x), &splat(A)));
    let right = plus(&multiply::<FieldPrime, V>(x, &slope), &splat(B));
    let left = plus(&square::<FieldPrime, V>(y), &splat(primes(4)));
    canonical::<FieldPrime, V>(&minus(&left, &right))
}
