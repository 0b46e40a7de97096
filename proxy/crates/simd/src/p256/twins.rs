//! The vector code against its portable twin, digit by digit.

use crate::digits::DIGITS;
use crate::kernels::Kernels;
use crate::lanes::{DIGIT_MASK, LANES, Lanes};
use crate::limbs;
use crate::p256::Work;
use crate::p256::modulus::{Order, Prime};
use crate::portable::Portable;

/// Rounds of eight.
const ROUNDS: u64 = 12;

/// An odd number below the order: the highest one, 1, near the order, or random.
fn scalar(random: &mut fastrand::Rng) -> [u64; DIGITS] {
    let mut digits = match random.u8(..5) {
        0 => [0; DIGITS],
        1 => [DIGIT_MASK; DIGITS],
        2 => Order::PRIME.map(|digit| digit & !0xff),
        _ => std::array::from_fn(|_| random.u64(..) & DIGIT_MASK),
    };
    digits[4] &= (1 << 48) - 1;
    digits[4] = digits[4].min(Order::PRIME[4]);
    if digits[4] == Order::PRIME[4] {
        digits[3] = digits[3].min(Order::PRIME[3]);
        digits[2] = digits[2].min(Order::PRIME[2]);
        digits[1] = digits[1].min(Order::PRIME[1]);
        digits[0] = digits[0].min(Order::PRIME[0] - 2);
    }
    digits[0] |= 1;
    digits
}

fn signed<K: Kernels>(kernels: K, work: &Work) -> ([Lanes; DIGITS], [Lanes; DIGITS], Lanes) {
    let mut work = work.clone();
    kernels.sign_p256(&mut work);
    (work.r, work.s, work.wrong)
}

#[test]
fn both_kinds_agree() {
    let mut random = fastrand::Rng::with_seed(256);
    for round in 0..ROUNDS {
        let mut work = Work::new();
        for lane in 0..LANES {
            let mut digest: [u64; DIGITS] = std::array::from_fn(|_| random.u64(..) & DIGIT_MASK);
            digest[4] &= (1 << 48) - 1;
            for (to, digits) in [
                (&mut work.nonce, scalar(&mut random)),
                (&mut work.secret, scalar(&mut random)),
                (&mut work.digest, digest),
            ] {
                for (to, digit) in to.iter_mut().zip(digits) {
                    to.0[lane] = digit;
                }
            }
        }
        let portable = signed(Portable, &work);
        assert_eq!(portable.2, Lanes::ZERO, "round {round}: the checks");
        for number in [&portable.0, &portable.1] {
            for lane in 0..LANES {
                let digits = number.map(|digit| digit.0[lane]);
                let order = limbs::from_digits(&Order::PRIME, 4);
                assert!(limbs::less(&limbs::from_digits(&digits, 4), &order), "round {round}");
            }
        }
        #[cfg(target_arch = "x86_64")]
        match crate::ifma::Ifma::detect() {
            Some(kernels) => assert_eq!(signed(kernels, &work), portable, "round {round}"),
            None => println!("this processor has no AVX-512 IFMA: the portable kernels are tested alone"),
        }
    }
}
