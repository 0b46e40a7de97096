//! See `../rsa_batch.rs`.
#![no_main]

#[path = "../rsa_batch.rs"]
mod rsa_batch;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| rsa_batch::batch(data));
