//! Damaged keys are refused, with the part that is wrong.

mod support;

use boring::rsa::Rsa;
use heddle_simd::{KeyError, KeySize, OperationError};
use support::{Pair, Parts, blinding, engines};

fn flipped(number: &[u8]) -> Vec<u8> {
    let mut damaged = number.to_vec();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 4;
    damaged
}

/// What is done to a good key, and what is said of it then.
type Damage<'a> = (&'a str, KeyError, &'a dyn Fn(&mut Parts));

#[test]
fn damaged_keys_are_refused() {
    let good = Parts::of(&Rsa::generate(2048).expect("key"));
    assert_eq!(good.key().expect("the key is good").size(), KeySize::Rsa2048);
    let other = Parts::of(&Rsa::generate(2048).expect("key"));
    let with = |change: &dyn Fn(&mut Parts)| {
        let mut parts = good.clone();
        change(&mut parts);
        parts.key().map(|_| ()).expect_err("the key is damaged")
    };
    let cases: [Damage<'_>; 17] = [
        ("no modulus", KeyError::Size, &|k| k.modulus.clear()),
        ("short modulus", KeyError::Size, &|k| k.modulus.truncate(128)),
        ("2047 bits", KeyError::Size, &|k| k.modulus[0] &= 0x7f),
        ("flipped modulus", KeyError::Modulus, &|k| {
            k.modulus = flipped(&k.modulus)
        }),
        ("even exponent", KeyError::PublicExponent, &|k| {
            k.public_exponent = vec![1, 0]
        }),
        ("exponent 1", KeyError::PublicExponent, &|k| k.public_exponent = vec![1]),
        ("long exponent", KeyError::PublicExponent, &|k| {
            k.public_exponent = vec![1; 9]
        }),
        ("another exponent", KeyError::PrivateExponent, &|k| {
            k.public_exponent = vec![3]
        }),
        ("no prime", KeyError::Primes, &|k| k.prime1.clear()),
        ("even prime", KeyError::Primes, &|k| {
            *k.prime2.last_mut().expect("byte") &= 0xfe
        }),
        ("the same prime", KeyError::Primes, &|k| k.prime2.clone_from(&k.prime1)),
        ("short prime", KeyError::Primes, &|k| k.prime1[0] = 0x7f),
        ("another prime", KeyError::Modulus, &|k| {
            k.prime1.clone_from(&other.prime1)
        }),
        ("flipped d_p", KeyError::PrivateExponent, &|k| {
            k.exponent1 = flipped(&k.exponent1)
        }),
        ("exchanged d_p, d_q", KeyError::PrivateExponent, &|k| {
            std::mem::swap(&mut k.exponent1, &mut k.exponent2)
        }),
        ("flipped coefficient", KeyError::Coefficient, &|k| {
            k.coefficient = flipped(&k.coefficient)
        }),
        ("long coefficient", KeyError::Coefficient, &|k| {
            k.coefficient = vec![0xff; 128]
        }),
    ];
    for (name, expected, change) in cases {
        assert_eq!(with(change), expected, "{name}");
    }
}

#[test]
fn leading_zeros_do_not_matter() {
    let mut parts = Parts::of(&Rsa::generate(2048).expect("key"));
    for number in [
        &mut parts.modulus,
        &mut parts.prime1,
        &mut parts.exponent2,
        &mut parts.coefficient,
    ] {
        number.splice(0..0, [0, 0, 0]);
    }
    assert!(parts.key().is_ok());
}

#[test]
fn lengths_without_kernels_are_refused() {
    let parts = Parts::of(&Rsa::generate(1024).expect("key"));
    assert_eq!(parts.key().map(|_| ()), Err(KeyError::Size));
}

#[test]
fn debug_shows_no_secret() {
    let pair = Pair::new(KeySize::Rsa2048, 65537);
    assert_eq!(format!("{:?}", pair.key), "RsaPrivateKey { size: Rsa2048, .. }");
}

/// A product of four primes as two "primes": everything fits but nothing that is computed with it may come out.
#[test]
fn composite_primes_never_sign() {
    let modulus = || Rsa::generate(1024).expect("key");
    // The product of two moduli of 1024 bits may be one bit short.
    let parts = std::iter::repeat_with(|| composite(&modulus(), &modulus()))
        .flatten()
        .next()
        .expect("one in two is long enough");
    let key = parts.key().expect("the numbers fit");
    let input = [0x11; 256];
    for (name, engine) in engines() {
        let results = engine
            .private_operations(
                &[heddle_simd::Operation {
                    key: &key,
                    input: &input,
                }],
                &mut blinding(1),
            )
            .expect("a good batch");
        assert_eq!(results, [Err(OperationError::Mismatch)], "{name}");
    }
}

fn composite(first: &Rsa<boring::pkey::Private>, second: &Rsa<boring::pkey::Private>) -> Option<Parts> {
    use boring::bn::{BigNum, BigNumContext, BigNumRef};
    let mut context = BigNumContext::new().expect("context");
    let (p, q) = (first.n(), second.n());
    let mut product = BigNum::new().expect("number");
    product.checked_mul(p, q, &mut context).expect("product");
    if product.num_bits() != 2048 {
        return None;
    }
    let exponent = |modulus: &BigNumRef, context: &mut boring::bn::BigNumContextRef| {
        let mut order = modulus.to_owned().expect("number");
        order.sub_word(1).expect("order");
        let e = BigNum::from_u32(65537).expect("e");
        let mut inverse = BigNum::new().expect("number");
        inverse.mod_inverse(&e, &order, context).expect("inverse");
        inverse.to_vec()
    };
    let mut coefficient = BigNum::new().expect("number");
    coefficient.mod_inverse(q, p, &mut context).expect("inverse");
    Some(Parts {
        modulus: product.to_vec(),
        public_exponent: vec![1, 0, 1],
        prime1: p.to_vec(),
        prime2: q.to_vec(),
        exponent1: exponent(p, &mut context),
        exponent2: exponent(q, &mut context),
        coefficient: coefficient.to_vec(),
    })
}
