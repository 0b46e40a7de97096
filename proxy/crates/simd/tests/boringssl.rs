//! The kernels against BoringSSL.

mod support;

use boring::bn::BigNum;
use heddle_simd::{BatchError, Engine, KeySize, LANES, Operation, OperationError};
use support::{Pair, blinding, engines};

/// Operations in a normal run; `make rsa-operations` does a million.
const OPERATIONS: usize = 400;

/// Twentieths of the operations, so that each size takes about as long.
const SHARES: [(KeySize, usize); 3] = [(KeySize::Rsa2048, 16), (KeySize::Rsa3072, 3), (KeySize::Rsa4096, 1)];

/// Operations per size of the portable kernels, which are slower than any library.
const PORTABLE: usize = 6;

fn operations() -> usize {
    match std::env::var("HEDDLE_RSA_OPERATIONS") {
        Ok(number) => number.parse().expect("HEDDLE_RSA_OPERATIONS is a number"),
        Err(_) => OPERATIONS,
    }
}

/// Random results, random keys out of four (of three public exponents), every batch width. BoringSSL's public operation
/// says what each result is the result of, which is one input and no other: it takes a thirtieth of the time of its private one.
#[test]
fn random_operations_agree() {
    let mut random = fastrand::Rng::with_seed(52);
    let mut draw = blinding(1);
    for (size, share) in SHARES {
        let pairs: Vec<_> = [3, 17, 65537, 65537].into_iter().map(|e| Pair::new(size, e)).collect();
        for (name, engine) in engines() {
            let total = if name == "portable" {
                PORTABLE
            } else {
                (operations() * share / 20).max(LANES * (LANES + 1) / 2)
            };
            let mut done = 0;
            let mut width = 0;
            while done < total {
                width = width % LANES + 1;
                let chosen: Vec<_> = (0..width).map(|_| &pairs[random.usize(..pairs.len())]).collect();
                let expected: Vec<_> = chosen.iter().map(|pair| pair.input(&mut random)).collect();
                let inputs: Vec<_> = chosen
                    .iter()
                    .zip(&expected)
                    .map(|(pair, result)| pair.public(result))
                    .collect();
                let operations: Vec<_> = chosen
                    .iter()
                    .zip(&inputs)
                    .map(|(pair, input)| Operation { key: &pair.key, input })
                    .collect();
                let results = engine.private_operations(&operations, &mut draw).expect("a good batch");
                for ((input, expected), result) in inputs.iter().zip(&expected).zip(results) {
                    assert_eq!(
                        &result.expect("verifies"),
                        expected,
                        "{name} {size:?} {width} {input:02x?}"
                    );
                }
                done += width;
            }
            println!("{size:?}, {name}: {done} operations agree");
        }
    }
}

/// A pair of blinding factors is squared with each use and drawn anew in the end: results stay right over all of that.
#[test]
fn blinding_is_renewed() {
    let Some(engine) = Engine::detect() else {
        println!("skipped: takes too long without AVX-512 IFMA");
        return;
    };
    let pair = Pair::new(KeySize::Rsa2048, 65537);
    let input = pair.input(&mut fastrand::Rng::with_seed(1));
    let expected = pair.expected(&input);
    let mut drawn = 0;
    let mut random = fastrand::Rng::with_seed(2);
    let mut draw = |bytes: &mut [u8]| {
        drawn += usize::from(bytes.len() == 256);
        random.fill(bytes);
    };
    for _ in 0..150 {
        let results = engine.private_operations(
            &[Operation {
                key: &pair.key,
                input: &input,
            }],
            &mut draw,
        );
        assert_eq!(results, Ok(vec![Ok(expected.clone())]));
    }
    assert_eq!(drawn, 3, "a pair serves 64 operations");
}

/// 0, 1, n − 1, multiples of a prime, single bits: alone and beside each other.
#[test]
fn edge_values_agree() {
    let mut draw = blinding(3);
    for (name, engine) in engines() {
        let sizes = if name == "portable" {
            &KeySize::ALL[..1]
        } else {
            &KeySize::ALL[..]
        };
        for size in sizes {
            let pair = Pair::new(*size, 65537);
            let bytes = size.bytes();
            let number = |n: &BigNum| n.to_vec_padded(bytes).expect("fits");
            let n = pair.boring.n().to_owned().expect("n");
            let less = |by: u32| {
                let mut copy = n.to_owned().expect("n");
                copy.sub_word(by).expect("subtract");
                number(&copy)
            };
            let mut inputs = vec![vec![0; bytes], less(1), less(2)];
            inputs.push(number(&pair.boring.p().expect("p").to_owned().expect("p")));
            inputs.push(number(&pair.boring.q().expect("q").to_owned().expect("q")));
            for bit in [
                0,
                1,
                51,
                52,
                size.bits() / 2 - 1,
                size.bits() / 2,
                size.digits_of_half() * 52,
                size.bits() - 2,
            ] {
                let mut input = vec![0; bytes];
                input[bytes - 1 - bit / 8] = 1 << (bit % 8);
                inputs.push(input);
            }
            let mut ones = vec![0xff; bytes];
            ones[0] = 0x7f;
            inputs.push(ones);
            for batch in inputs.chunks(LANES) {
                let operations: Vec<_> = batch.iter().map(|input| Operation { key: &pair.key, input }).collect();
                let results = engine.private_operations(&operations, &mut draw).expect("a good batch");
                for (input, result) in batch.iter().zip(results) {
                    assert_eq!(
                        result.expect("verifies"),
                        pair.expected(input),
                        "{name} {size:?} {input:02x?}"
                    );
                }
            }
        }
    }
}

trait Digits {
    fn digits_of_half(&self) -> usize;
}

impl Digits for KeySize {
    /// Where the input is split before it is reduced modulo the primes.
    fn digits_of_half(&self) -> usize {
        (self.bits() / 2).div_ceil(52)
    }
}

#[test]
fn inputs_out_of_range_are_refused_alone() {
    let mut draw = blinding(4);
    let pair = Pair::new(KeySize::Rsa2048, 65537);
    let n = pair.boring.n().to_vec();
    let good = pair.input(&mut fastrand::Rng::with_seed(4));
    let inputs = [vec![], vec![1; 255], vec![1; 257], n, vec![0xff; 256], good.clone()];
    for (name, engine) in engines() {
        let operations: Vec<_> = inputs.iter().map(|input| Operation { key: &pair.key, input }).collect();
        let results = engine.private_operations(&operations, &mut draw).expect("a good batch");
        assert!(
            results[..5].iter().all(|result| *result == Err(OperationError::Input)),
            "{name} {results:?}"
        );
        assert_eq!(results[5], Ok(pair.expected(&good)), "{name}");
    }
}

#[test]
fn batches_that_cannot_be_are_refused() {
    let mut draw = blinding(5);
    let small = Pair::new(KeySize::Rsa2048, 65537);
    let large = Pair::new(KeySize::Rsa3072, 65537);
    let input = [0; 256];
    let operation = Operation {
        key: &small.key,
        input: &input,
    };
    for (_, engine) in engines() {
        assert_eq!(engine.private_operations(&[], &mut draw), Err(BatchError::Width(0)));
        assert_eq!(
            engine.private_operations(&[operation; 9], &mut draw),
            Err(BatchError::Width(9))
        );
        let mixed = [
            operation,
            Operation {
                key: &large.key,
                input: &[0; 384],
            },
        ];
        assert_eq!(
            engine.private_operations(&mixed, &mut draw),
            Err(BatchError::MixedSizes)
        );
    }
}
