//! Inverses by Fermat's little theorem: a to the prime less two.

use zeroize::Zeroize;

use crate::digits::{DIGITS, Digits, load, store};
use crate::lanes::Lanes;
use crate::montgomery::Vector;
use crate::p256::modulus::{FieldPrime, Order, Prime, multiply, square};

/// Bits of an exponent that one multiplication stands for.
const WINDOW: usize = 4;

/// Windows of an exponent.
const WINDOWS: usize = 256 / WINDOW;

/// Powers 0 to 15 of a number; the first two entries are not read.
pub(crate) type Powers = [[Lanes; DIGITS]; 1 << WINDOW];

/// Where powers are kept; to be wiped by its owner.
#[derive(Clone, Zeroize)]
pub(crate) struct Scratch {
    of_z: Powers,
    of_k: Powers,
}

impl Scratch {
    pub(crate) const fn new() -> Self {
        Self {
            of_z: [[Lanes::ZERO; DIGITS]; 1 << WINDOW],
            of_k: [[Lanes::ZERO; DIGITS]; 1 << WINDOW],
        }
    }
}

/// The windows of the prime less two, the highest first. Public: what is done depends on them.
const fn windows<M: Prime>() -> [usize; WINDOWS] {
    let mut windows = [0; WINDOWS];
    let mut i = 0;
    while i < WINDOWS {
        // Both primes' lowest digit exceeds 2.
        let position = (WINDOWS - 1 - i) * WINDOW;
        let less = if position / 52 == 0 { 2 } else { 0 };
        windows[i] = ((M::PRIME[position / 52] - less) >> (position % 52)) as usize & ((1 << WINDOW) - 1);
        i += 1;
    }
    windows
}

const OF_FIELD: [usize; WINDOWS] = windows::<FieldPrime>();
const OF_ORDER: [usize; WINDOWS] = windows::<Order>();

/// 1/`z` modulo the field's prime and 1/`k` modulo the order, in and out of Montgomery form as they are; 0 for 0. Both at
/// a time: each is one long chain, and a processor does two of them in the time of one.
#[inline(always)]
pub(crate) fn both<V: Vector>(z: &Digits<V>, k: &Digits<V>, scratch: &mut Scratch) -> (Digits<V>, Digits<V>) {
    store(&mut scratch.of_z[1], z);
    store(&mut scratch.of_k[1], k);
    let (mut power_z, mut power_k) = (*z, *k);
    for entry in 2..1 << WINDOW {
        power_z = multiply::<FieldPrime, V>(&power_z, z);
        power_k = multiply::<Order, V>(&power_k, k);
        store(&mut scratch.of_z[entry], &power_z);
        store(&mut scratch.of_k[entry], &power_k);
    }
    power_z = load(&scratch.of_z[OF_FIELD[0]]);
    power_k = load(&scratch.of_k[OF_ORDER[0]]);
    for window in 1..WINDOWS {
        for _ in 0..WINDOW {
            power_z = square::<FieldPrime, V>(&power_z);
            power_k = square::<Order, V>(&power_k);
        }
        if OF_FIELD[window] > 0 {
            power_z = multiply::<FieldPrime, V>(&power_z, &load(&scratch.of_z[OF_FIELD[window]]));
        }
        if OF_ORDER[window] > 0 {
            power_k = multiply::<Order, V>(&power_k, &load(&scratch.of_k[OF_ORDER[window]]));
        }
    }
    (power_z, power_k)
}
