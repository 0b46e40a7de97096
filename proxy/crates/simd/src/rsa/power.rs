//! Exponentiation: with secret exponents by fixed windows, with public ones bit by bit.

use zeroize::{Zeroize, Zeroizing};

use crate::kernels::{Kernels, PARTS};
use crate::lanes::{LANES, Lanes};
use crate::limbs::{self, Limbs};
use crate::rsa::field::Field;
use crate::rsa::wide::{self, Wide};

/// Bits of an exponent that one table look-up stands for. Five would save a fifth of the multiplications, but the table of
/// 32 entries, all of which are read each time, fills the first cache (40 KiB for 2048-bit keys, 80 KiB for 4096).
const WINDOW: usize = 4;

const _: () = assert!(
    WINDOW + 1 == PARTS,
    "a part of the table is read before each squaring and the multiplication"
);

/// `base`^exponent for each lane's secret exponent; base and result in Montgomery form. All exponents have the same number
/// of limbs, `bits` of which count. What is done depends on that number only.
pub(crate) fn secret<K: Kernels, const N: usize>(
    field: &mut Field<K, N>,
    base: &[Lanes; N],
    exponents: &[Limbs],
    bits: usize,
) -> Wide<N> {
    let mut table = Zeroizing::new(vec![[Lanes::ZERO; N]; 1 << WINDOW]);
    table[0].copy_from_slice(field.one().as_slice());
    table[1].copy_from_slice(base);
    for entry in 2..1 << WINDOW {
        let (done, rest) = table.split_at_mut(entry);
        if entry % 2 == 0 {
            field.square_into(&mut rest[0], &done[entry / 2]);
        } else {
            field.multiply_into(&mut rest[0], &done[entry - 1], &done[1]);
        }
    }
    let mut factor = wide::zero();
    let mut power = wide::zero();
    let mut other = wide::zero();
    let windows = bits.div_ceil(WINDOW);
    let mut index = window(exponents, windows - 1);
    for part in 0..PARTS {
        field.kernels.pick(&mut power, &table, &index, part);
    }
    for position in (0..windows - 1).rev() {
        index = window(exponents, position);
        for part in 0..WINDOW {
            field.kernels.pick(&mut factor, &table, &index, part);
            field.square_into(&mut other, &power);
            std::mem::swap(&mut power, &mut other);
        }
        field.kernels.pick(&mut factor, &table, &index, WINDOW);
        field.multiply_into(&mut other, &power, &factor);
        std::mem::swap(&mut power, &mut other);
    }
    index.zeroize();
    power
}

/// Bits `position`·WINDOW and up of each lane's exponent.
fn window(exponents: &[Limbs], position: usize) -> Lanes {
    let mut index = Lanes::ZERO;
    for (l, word) in index.0.iter_mut().enumerate() {
        let exponent = exponents.get(l).unwrap_or(&exponents[0]);
        *word = limbs::bits(exponent, position * WINDOW) & ((1 << WINDOW) - 1);
    }
    index
}

/// `base`^exponent for each lane's public exponent; base and result in Montgomery form. Takes longer for longer ones.
pub(crate) fn public<K: Kernels, const N: usize>(
    field: &mut Field<K, N>,
    base: &[Lanes; N],
    exponents: &[u64; LANES],
) -> Wide<N> {
    let longest = exponents
        .iter()
        .map(|e| u64::BITS - e.leading_zeros())
        .max()
        .unwrap_or(0);
    let one = field.one();
    let mut power = one.clone();
    for position in (0..longest).rev() {
        power = field.square(&power);
        let set = exponents.map(|e| e >> position & 1 == 1);
        if set.contains(&true) {
            let mut factor = one.clone();
            for (factor, base) in factor.iter_mut().zip(base) {
                for l in (0..LANES).filter(|l| set[*l]) {
                    factor.0[l] = base.0[l];
                }
            }
            power = field.multiply(&power, &factor);
        }
    }
    power
}
