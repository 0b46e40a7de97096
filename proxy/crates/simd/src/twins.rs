//! The kernels of both kinds against school arithmetic, and against each other.

use crate::kernels::{Kernels, PARTS, Scratch};
use crate::lanes::{DIGIT_BITS, DIGIT_MASK, LANES, Lanes};
use crate::limbs;
use crate::montgomery::Modulus;
use crate::portable::Portable;

/// Digits all ones, all zero but the lowest, or random; the top digit keeps `spare` bits free.
fn number<const N: usize>(random: &mut fastrand::Rng, spare: u32) -> [Lanes; N] {
    let mut number = [Lanes::ZERO; N];
    for lane in 0..LANES {
        let kind = random.u8(..4);
        for (i, digit) in number.iter_mut().enumerate() {
            let top = if i + 1 == N { spare } else { 0 };
            digit.0[lane] = (DIGIT_MASK >> top)
                & match kind {
                    0 => DIGIT_MASK,
                    1 => u64::from(i == 0),
                    _ => random.u64(..),
                };
        }
    }
    number
}

fn modulus<const N: usize>(random: &mut fastrand::Rng) -> Modulus<N> {
    let mut digits = number::<N>(random, 16);
    let mut inverse = Lanes::ZERO;
    for lane in 0..LANES {
        digits[0].0[lane] |= 1;
        digits[N - 1].0[lane] |= 1 << (DIGIT_BITS - 17);
        inverse.0[lane] = limbs::negated_inverse(digits[0].0[lane]);
    }
    Modulus { digits, inverse }
}

fn limbs_of<const N: usize>(number: &[Lanes; N], lane: usize) -> limbs::Limbs {
    let digits: Vec<_> = number.iter().map(|digit| digit.0[lane]).collect();
    limbs::from_digits(&digits, (N * DIGIT_BITS as usize).div_ceil(64))
}

fn arithmetic<K: Kernels, const N: usize>(kernels: K) {
    let mut random = fastrand::Rng::with_seed(N as u64);
    for _ in 0..4 {
        let m = modulus::<N>(&mut random);
        let (a, b) = (number::<N>(&mut random, 15), number::<N>(&mut random, 15));
        let mut scratch = Scratch::new();
        let (mut product, mut square) = ([Lanes::ZERO; N], [Lanes::ZERO; N]);
        kernels.multiply(&mut product, &a, &b, &m, &mut scratch);
        kernels.square(&mut square, &a, &m, &mut scratch);
        let (mut same, mut twin) = ([Lanes::ZERO; N], [Lanes::ZERO; N]);
        kernels.multiply(&mut same, &a, &a, &m, &mut scratch);
        assert_eq!(square, same, "{N} digits: a square is a product");
        Portable.multiply(&mut twin, &a, &b, &m, &mut scratch);
        assert_eq!(product, twin, "{N} digits: both kinds agree");
        for lane in 0..LANES {
            let modulus = limbs_of(&m.digits, lane);
            let expected = limbs::multiply(&limbs_of(&a, lane), &limbs_of(&b, lane));
            let found = limbs::shifted(&limbs_of(&product, lane), N * DIGIT_BITS as usize, &modulus);
            assert_eq!(found, limbs::shifted(&expected, 0, &modulus), "{N} digits, lane {lane}");
            assert!(
                product.iter().all(|digit| digit.0[lane] <= DIGIT_MASK),
                "{N} digits, lane {lane}"
            );
        }
    }
}

fn look_ups<K: Kernels, const N: usize>(kernels: K) {
    let mut random = fastrand::Rng::with_seed(N as u64);
    let table: Vec<_> = (0..16).map(|_| number::<N>(&mut random, 0)).collect();
    for _ in 0..20 {
        let index = Lanes(std::array::from_fn(|_| random.u64(..16)));
        let mut picked = [Lanes::splat(7); N];
        for part in 0..PARTS {
            kernels.pick(&mut picked, &table, &index, part);
        }
        for (i, digit) in picked.iter().enumerate() {
            let expected = std::array::from_fn(|lane| table[index.0[lane] as usize][i].0[lane]);
            assert_eq!(digit.0, expected, "digit {i}, entries {index:?}");
        }
    }
}

fn all<K: Kernels>(kernels: K) {
    arithmetic::<K, 20>(kernels);
    arithmetic::<K, 30>(kernels);
    arithmetic::<K, 40>(kernels);
    arithmetic::<K, 60>(kernels);
    arithmetic::<K, 80>(kernels);
    look_ups::<K, 20>(kernels);
    look_ups::<K, 30>(kernels);
    look_ups::<K, 40>(kernels);
}

#[test]
fn portable_kernels_are_right() {
    all(Portable);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn vector_kernels_are_right() {
    match crate::ifma::Ifma::detect() {
        Some(kernels) => all(kernels),
        None => println!("skipped: this processor has no AVX-512 IFMA"),
    }
}
