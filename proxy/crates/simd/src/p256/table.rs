//! Odd multiples of the base point, for each place that a digit of a scalar can have: a multiple of the base point then is
//! a sum of one entry per place, without doublings.

use std::sync::LazyLock;

use crate::digits::{DIGITS, Digits, splat};
use crate::lanes::{LANES, Lanes};
use crate::montgomery::Vector;
use crate::p256::inverse;
use crate::p256::modulus::{FieldPrime, Prime, canonical, multiply};
use crate::p256::point::{GENERATOR, Jacobian};
use crate::portable::Words;

/// Bits of a scalar's digit.
pub(crate) const WINDOW: usize = 7;

/// Digits of a scalar.
pub(crate) const WINDOWS: usize = 256_usize.div_ceil(WINDOW);

/// Multiples per place: those of 1, 3, 5 … 127; the negative ones have the same x.
pub(crate) const ENTRIES: usize = 1 << (WINDOW - 1);

/// One digit of all entries of a place, eight in a vector.
pub(crate) type Column = [Lanes; ENTRIES / LANES];

/// The entries of a place, digit by digit, x before y.
pub(crate) type Place = [Column; 2 * DIGITS];

/// 185 KiB, computed when the first signature is made.
pub(crate) static TABLE: LazyLock<Box<[Place]>> = LazyLock::new(build);

fn build() -> Box<[Place]> {
    let none = Words::splat(0);
    let mut places = vec![[[Lanes::ZERO; ENTRIES / LANES]; 2 * DIGITS]; WINDOWS.next_multiple_of(LANES)];
    let mut base = Jacobian::<Words>::from_affine(&splat(GENERATOR[0]), &splat(GENERATOR[1]), none);
    // A place per lane.
    for places in places.chunks_mut(LANES) {
        let mut bases = base;
        for lane in 0..LANES {
            let lanes = Words::splat(1).select(none, Words(std::array::from_fn(|lane| lane as u64)), lane as u64);
            for (bases, base) in [
                (&mut bases.x, &base.x),
                (&mut bases.y, &base.y),
                (&mut bases.z, &base.z),
            ] {
                for (digit, other) in bases.iter_mut().zip(base) {
                    *digit = digit.select(*other, lanes, 0);
                }
            }
            base = (0..WINDOW).fold(base, |point, _| point.double());
        }
        let mut odd = Vec::with_capacity(ENTRIES);
        let both = affine(&[bases, bases.double()]);
        let ((x, y), (x2, y2)) = (both[0], both[1]);
        odd.push(Jacobian::from_affine(&x, &y, none));
        for entry in 1..ENTRIES {
            odd.push(odd[entry - 1].add_affine(&x2, &y2, none));
        }
        for (entry, (x, y)) in affine(&odd).into_iter().enumerate() {
            for (digit, column) in x.into_iter().chain(y).enumerate() {
                let mut lanes = Lanes::ZERO;
                column.store(&mut lanes);
                for (place, word) in places.iter_mut().zip(lanes.0) {
                    place[digit][entry / LANES].0[entry % LANES] = word;
                }
            }
        }
    }
    places.truncate(WINDOWS);
    places.into_boxed_slice()
}

/// The points' coordinates below the prime, with one inversion for all of them.
fn affine(points: &[Jacobian<Words>]) -> Vec<(Digits<Words>, Digits<Words>)> {
    let one = splat(FieldPrime::ONE);
    // Products of the Z before each.
    let mut products = vec![one];
    for point in points {
        products.push(multiply::<FieldPrime, Words>(&products[products.len() - 1], &point.z));
    }
    let (mut inverse, _) = inverse::both(&products[points.len()], &one, &mut inverse::Scratch::new());
    let mut found: Vec<_> = points
        .iter()
        .zip(&products)
        .rev()
        .map(|(point, before)| {
            let (x, y) = point.affine(&multiply::<FieldPrime, Words>(&inverse, before));
            inverse = multiply::<FieldPrime, Words>(&inverse, &point.z);
            (canonical::<FieldPrime, Words>(&x), canonical::<FieldPrime, Words>(&y))
        })
        .collect();
    found.reverse();
    found
}
