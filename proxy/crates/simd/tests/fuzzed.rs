//! A slice of what `proxy/fuzz` does with batches: its seeds, and random inputs without the engine that learns from coverage.

#[path = "../../../fuzz/src/ecdsa_batch.rs"]
mod ecdsa_batch;
#[path = "../../../fuzz/src/rsa_batch.rs"]
mod rsa_batch;

use std::fs;
use std::path::Path;

use heddle_simd::Engine;

/// Random inputs; the portable kernels, which are slower than any library, do fewer.
const INPUTS: usize = 300;
const PORTABLE: usize = 3;

fn seeds(target: &str, batch: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(target);
    let mut seeds = 0;
    for file in fs::read_dir(folder).expect("the seeds") {
        batch(&fs::read(file.expect("a file").path()).expect("reads"));
        seeds += 1;
    }
    assert!(seeds >= 5, "{seeds} seeds of {target}");
}

fn random_inputs(longest: usize, batch: fn(&[u8])) {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..if Engine::detect().is_some() { INPUTS } else { PORTABLE } {
        let mut data = vec![0; random.usize(..longest)];
        random.fill(&mut data);
        batch(&data);
    }
}

#[test]
fn seeds_agree() {
    seeds("rsa_batch", rsa_batch::batch);
    seeds("ecdsa_batch", ecdsa_batch::batch);
}

#[test]
fn random_inputs_agree() {
    random_inputs(200, rsa_batch::batch);
    random_inputs(600, ecdsa_batch::batch);
}
