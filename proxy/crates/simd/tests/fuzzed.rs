//! A slice of what `proxy/fuzz` does with batches: its seeds, and random inputs without the engine that learns from coverage.

#[path = "../../../fuzz/src/rsa_batch.rs"]
mod rsa_batch;

use std::fs;
use std::path::Path;

use heddle_simd::Engine;

/// Random inputs; the portable kernels, which are slower than any library, do fewer.
const INPUTS: usize = 300;
const PORTABLE: usize = 3;

#[test]
fn seeds_agree() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/rsa_batch");
    let mut seeds = 0;
    for file in fs::read_dir(folder).expect("the seeds") {
        rsa_batch::batch(&fs::read(file.expect("a file").path()).expect("reads"));
        seeds += 1;
    }
    assert!(seeds >= 5, "{seeds} seeds");
}

#[test]
fn random_inputs_agree() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..if Engine::detect().is_some() { INPUTS } else { PORTABLE } {
        let mut data = vec![0; random.usize(..200)];
        random.fill(&mut data);
        rsa_batch::batch(&data);
    }
}
