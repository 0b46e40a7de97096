//! The vector code against its portable twin, and the bounds of its digits.

use crate::digits::{DIGITS, Digits};
use crate::kernels::Kernels;
use crate::lanes::{LANES, Lanes};
use crate::montgomery::Vector;
use crate::portable::{Portable, Words};
use crate::x25519::Work;
use crate::x25519::field;

/// The largest digits that the functions take.
const LARGEST: u64 = (1 << 51) + (1 << 14) - 1;

fn tight(digits: Digits<Words>) -> bool {
    digits.iter().all(|digit| digit.0.iter().all(|word| *word <= LARGEST))
}

#[test]
fn tight_digits_give_tight_ones() {
    for (a, b) in [(LARGEST, LARGEST), (LARGEST, 0), (0, LARGEST), (0, 0)] {
        let (a, b) = ([Words::splat(a); DIGITS], [Words::splat(b); DIGITS]);
        assert!(tight(field::add(&a, &b)));
        assert!(tight(field::subtract(&a, &b)));
        assert!(tight(field::multiply(&a, &b)));
        assert!(tight(field::square(&a)));
        assert!(tight(field::add_a24_times(&a, &b)));
    }
}

#[test]
fn a_square_is_a_product() {
    let mut random = fastrand::Rng::with_seed(51);
    for _ in 0..100 {
        let a = std::array::from_fn(|_| Words(std::array::from_fn(|_| random.u64(..=LARGEST))));
        let (square, product) = (field::square(&a), field::multiply(&a, &a));
        assert_eq!(square.map(|digit| digit.0), product.map(|digit| digit.0));
    }
}

fn exchanged<K: Kernels>(kernels: K, work: &Work) -> [Lanes; DIGITS] {
    let mut work = work.clone();
    kernels.x25519(&mut work);
    work.result
}

#[test]
fn both_kinds_agree() {
    let mut random = fastrand::Rng::with_seed(255);
    for round in 0..8 {
        let mut work = Work::new();
        for lane in 0..LANES {
            for word in &mut work.scalar {
                word.0[lane] = random.u64(..);
            }
            for digit in &mut work.u {
                digit.0[lane] = random.u64(..1 << 51);
            }
        }
        let portable = exchanged(Portable, &work);
        assert!(portable.iter().all(|digit| digit.0.iter().all(|word| *word <= LARGEST)));
        #[cfg(target_arch = "x86_64")]
        match crate::ifma::Ifma::detect() {
            Some(kernels) => assert_eq!(exchanged(kernels, &work), portable, "round {round}"),
            None => println!("this processor has no AVX-512 IFMA: the portable kernels are tested alone"),
        }
    }
}
