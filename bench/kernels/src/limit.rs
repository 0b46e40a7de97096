//! The processor's limit: how many IFMA instructions it does, and which share of that the kernels reach.

use std::time::Duration;

use heddle_simd::{Engine, KeySize, LANES, ifma_instructions};

use crate::{Work, compare, heddle, heddle_key};

/// Accumulators of the loop. Two instructions may begin in each cycle and one takes four.
const CHAINS: usize = 16;

/// Instructions per accumulator and call.
const ROUNDS: usize = 4096;

/// Uses of a pair of blinding factors; drawing one costs as much as an operation.
const USES: u64 = 64;

/// Adds `ifma_per_second` of independent instructions, and for each size of RSA the instructions of one signature and their
/// share of that rate. `None` without the instructions.
pub(crate) fn measure(
    engine: Option<Engine>,
    rounds: u64,
    length: Duration,
    result: &mut serde_json::Map<String, serde_json::Value>,
) {
    if engine.is_none() {
        return;
    }
    let subjects: Vec<(String, Work<'_>)> = vec![("heddle".to_owned(), Box::new(independent))];
    compare("ifma_per_second", subjects, rounds, length, result);
    let heddle = &mut result["heddle"];
    let limit = heddle["ifma_per_second"].as_f64().expect("a rate");
    for size in KeySize::ALL {
        let name = format!("rsa{}", size.bits());
        let needed = per_signature(size);
        let rate = heddle[format!("{name}_sign_per_second")]
            .as_f64()
            .expect("a rate");
        heddle[format!("{name}_ifma_per_signature")] = needed.round().into();
        heddle[format!("{name}_ifma_share")] = (rate * needed / limit).into();
    }
}

/// Counted with the portable kernels, which are called for the same; blinding, its renewal and verification included.
fn per_signature(size: KeySize) -> f64 {
    let bits = u32::try_from(size.bits()).expect("bits");
    let key = heddle_key(&boring::rsa::Rsa::generate(bits).expect("key"));
    let batch = || {
        let before = ifma_instructions();
        heddle(Engine::portable(), &key, LANES);
        ifma_instructions() - before
    };
    // The first draws blinding factors.
    let (first, other) = (batch(), batch());
    (other as f64 + (first - other) as f64 / USES as f64) / LANES as f64
}

/// As many instructions as the processor does when nothing but itself is in their way.
#[cfg(target_arch = "x86_64")]
fn independent() -> usize {
    use core::arch::x86_64::{__m512i, _mm512_madd52lo_epu64, _mm512_set1_epi64};

    #[target_feature(enable = "avx512f,avx512ifma")]
    fn run() -> [__m512i; CHAINS] {
        let factor = std::hint::black_box(_mm512_set1_epi64(3));
        let mut sums = [factor; CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_madd52lo_epu64(*sum, factor, factor);
            }
        }
        sums
    }
    // SAFETY: only called where the engine has found the features.
    std::hint::black_box(unsafe { run() });
    CHAINS * ROUNDS
}

#[cfg(not(target_arch = "x86_64"))]
fn independent() -> usize {
    unreachable!("no engine")
}
