//! Looks for timing that depends on a private key, by the method of dudect. Finer leaks than those of a few thousand
//! exchanges need a quiet machine: `HEDDLE_X25519_TIMING=1000000 cargo test --release -p heddle-x25519 --test timing -- --nocapture`.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "../../simd/tests/dudect/mod.rs"]
mod dudect;

use std::hint::black_box;
use std::time::Instant;

use dudect::{CERTAIN, compare};
use heddle_x25519::BYTES;
use heddle_x25519::testing::Implementation::Linked;

/// Exchanges per comparison when `HEDDLE_X25519_TIMING` is not set.
const EXCHANGES: usize = 4_000;

#[test]
fn time_does_not_depend_on_the_key() {
    let exchanges = match std::env::var("HEDDLE_X25519_TIMING") {
        Ok(number) => number.parse().expect("HEDDLE_X25519_TIMING is a number"),
        Err(_) => EXCHANGES,
    };
    let mut random = fastrand::Rng::with_seed(13);
    let (peer, _) = Linked.keypair();
    let mut private = |fixed: bool| {
        // Drawn in both classes: what comes before an exchange is the same.
        let mut drawn = [0; BYTES];
        random.fill(&mut drawn);
        if fixed { [0; BYTES] } else { drawn }
    };
    let secret = compare(exchanges, |fixed| {
        let private = private(fixed);
        let begin = Instant::now();
        black_box(Linked.shared_secret(black_box(&private), &peer));
        begin.elapsed().as_secs_f64()
    });
    let public = compare(exchanges, |fixed| {
        let private = private(fixed);
        let begin = Instant::now();
        black_box(Linked.public_key(black_box(&private)));
        begin.elapsed().as_secs_f64()
    });
    println!("t: a key without bits against random ones, secret {secret:.2}, public key {public:.2}");
    assert!(secret.abs() < CERTAIN && public.abs() < CERTAIN);
}
