//! Looks for timing that depends on secrets, by the method of dudect.
//!
//! A few hundred batches find a branch or a lookup by a secret's bits. Finer leaks need a quiet machine and minutes:
//! `HEDDLE_RSA_TIMING=20000 cargo test --release -p heddle-simd --test timing -- --nocapture`, with the number of batches
//! per comparison.

mod dudect;
mod support;

use std::time::Instant;

use dudect::{CERTAIN, compare};
use heddle_simd::{
    Engine, KeySize, Operation, P256_BYTES, P256Operation, P256PrivateKey, RsaPrivateKey, X25519_BYTES, X25519Operation,
};
use support::{Pair, blinding};

/// Batches per comparison when `HEDDLE_RSA_TIMING` is not set.
const BATCHES: usize = 400;

#[test]
fn time_does_not_depend_on_input_or_key() {
    let batches = std::env::var("HEDDLE_RSA_TIMING").map_or(BATCHES, |n| n.parse().expect("a number of batches"));
    let engine = Engine::detect().unwrap_or_else(Engine::portable);
    let mut random = fastrand::Rng::with_seed(7);
    let keys = [Pair::new(KeySize::Rsa2048, 65537), Pair::new(KeySize::Rsa2048, 65537)];
    let bytes = KeySize::Rsa2048.bytes();
    // The class is fixed or random; only what is measured between the two clock readings differs with it.
    let mut draw = blinding(10);
    let inputs = compare(batches, |fixed| {
        let input = if fixed {
            vec![0; bytes]
        } else {
            keys[0].input(&mut random)
        };
        rsa_batch(engine, &keys[0].key, &input, &mut draw)
    });
    let mut random = fastrand::Rng::with_seed(8);
    let other_key = compare(batches, |first| {
        let pair = &keys[usize::from(!first)];
        let mut input = keys[0].input(&mut random);
        input[0] = 0;
        rsa_batch(engine, &pair.key, &input, &mut draw)
    });
    println!("t: zero against random inputs {inputs:.2}, one key against another {other_key:.2}");
    assert!(inputs.abs() < CERTAIN && other_key.abs() < CERTAIN);
}

/// The seconds that eight operations take.
fn rsa_batch(engine: Engine, key: &RsaPrivateKey, input: &[u8], draw: &mut dyn FnMut(&mut [u8])) -> f64 {
    let operations = [Operation { key, input }; 8];
    let begin = Instant::now();
    let results = engine.private_operations(&operations, draw).expect("a good batch");
    let time = begin.elapsed().as_secs_f64();
    assert!(results.iter().all(Result::is_ok));
    time
}

/// Nonces of few bits and of any, and keys likewise: a nonce's length alone, known for many signatures, gives a key away.
#[test]
fn time_does_not_depend_on_nonce_or_elliptic_key() {
    let batches = std::env::var("HEDDLE_RSA_TIMING").map_or(BATCHES, |n| n.parse().expect("a number of batches"));
    let engine = Engine::detect().unwrap_or_else(Engine::portable);
    let mut random = fastrand::Rng::with_seed(12);
    let mut drawn = || {
        let mut scalar = [0; P256_BYTES];
        random.fill(&mut scalar);
        scalar[0] = 0x40;
        scalar
    };
    let mut short = [0; P256_BYTES];
    short[P256_BYTES - 1] = 2;
    let long = drawn();
    let keys = [&short, &long].map(|scalar| P256PrivateKey::new(scalar).expect("a scalar"));
    let nonces = compare(batches, |fixed| {
        // Drawn in both classes: what comes before a batch is the same.
        let nonce = drawn();
        ecdsa_batch(engine, &keys[1], if fixed { &short } else { &nonce })
    });
    let other_key = compare(batches, |first| ecdsa_batch(engine, &keys[usize::from(!first)], &long));
    println!("t: a short nonce against random ones {nonces:.2}, a short key against a long one {other_key:.2}");
    assert!(nonces.abs() < CERTAIN && other_key.abs() < CERTAIN);
}

/// The seconds that eight signatures take.
fn ecdsa_batch(engine: Engine, key: &P256PrivateKey, nonce: &[u8; P256_BYTES]) -> f64 {
    let digest = [0x42; P256_BYTES];
    let operations = [P256Operation {
        key,
        digest: &digest,
        nonce,
    }; 8];
    let begin = Instant::now();
    let results = engine.sign_p256(&operations).expect("a good batch");
    let time = begin.elapsed().as_secs_f64();
    assert!(results.iter().all(Result::is_ok));
    time
}

#[test]
fn time_does_not_depend_on_an_exchange() {
    let batches = std::env::var("HEDDLE_RSA_TIMING").map_or(BATCHES, |n| n.parse().expect("a number of batches"));
    let engine = Engine::detect().unwrap_or_else(Engine::portable);
    let mut random = fastrand::Rng::with_seed(14);
    let mut drawn = || {
        let mut bytes = [0; X25519_BYTES];
        random.fill(&mut bytes);
        bytes
    };
    let other = drawn();
    let scalars = compare(batches, |fixed| {
        // Drawn in both classes: what comes before a batch is the same.
        let scalar = drawn();
        exchange_batch(engine, if fixed { &[0; X25519_BYTES] } else { &scalar }, &other)
    });
    let points = compare(batches, |fixed| {
        let point = drawn();
        exchange_batch(engine, &other, if fixed { &[0; X25519_BYTES] } else { &point })
    });
    println!(
        "t: a key without bits against random ones {scalars:.2}, a peer's of zeros against random ones {points:.2}"
    );
    assert!(scalars.abs() < CERTAIN && points.abs() < CERTAIN);
}

/// The seconds that eight exchanges take.
fn exchange_batch(engine: Engine, scalar: &[u8; X25519_BYTES], point: &[u8; X25519_BYTES]) -> f64 {
    let operations = [X25519Operation { scalar, point }; 8];
    let begin = Instant::now();
    let results = engine.x25519(&operations).expect("a good batch");
    let time = begin.elapsed().as_secs_f64();
    assert_eq!(results.len(), 8);
    time
}
