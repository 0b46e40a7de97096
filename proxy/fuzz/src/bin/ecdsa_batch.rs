//! See `../ecdsa_batch.rs`.
#![no_main]

#[path = "../ecdsa_batch.rs"]
mod ecdsa_batch;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| ecdsa_batch::batch(data));
