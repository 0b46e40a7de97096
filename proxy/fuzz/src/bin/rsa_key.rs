//! RSA keys, damaged, and inputs of operations. The first byte says how many changes of a good key follow, each a part, a
//! place and a difference; the rest is the input. The whole is also read as seven numbers.
#![no_main]

use std::sync::LazyLock;

use heddle_simd::{Engine, KeySize, Operation, OperationError, RsaComponents, RsaPrivateKey};
use libfuzzer_sys::fuzz_target;

/// Modulus, public exponent, primes, private exponents, coefficient.
type Parts = [Vec<u8>; 7];

static GOOD: LazyLock<Parts> = LazyLock::new(|| {
    let mut lines = include_str!("../rsa_key.hex").lines().map(|line| {
        let digit = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).expect("hexadecimal digits");
        (0..line.len()).step_by(2).map(digit).collect()
    });
    std::array::from_fn(|_| lines.next().expect("seven lines"))
});

fn read(parts: &Parts) -> Option<RsaPrivateKey> {
    let [
        modulus,
        public_exponent,
        prime1,
        prime2,
        exponent1,
        exponent2,
        coefficient,
    ] = parts;
    RsaPrivateKey::new(&RsaComponents {
        modulus,
        public_exponent,
        prime1,
        prime2,
        exponent1,
        exponent2,
        coefficient,
    })
    .ok()
}

fuzz_target!(|data: &[u8]| {
    let size = data.len() / 7;
    assert!(
        read(&std::array::from_fn(|part| data[part * size..][..size].to_vec())).is_none(),
        "not by chance"
    );

    let Some((count, rest)) = data.split_first() else {
        return;
    };
    let (changes, input) = rest.split_at((usize::from(*count % 8) * 3).min(rest.len()));
    let mut parts = GOOD.clone();
    for change in changes.chunks_exact(3) {
        let part = &mut parts[usize::from(change[0]) % 7];
        let place = usize::from(change[1]) % part.len();
        part[place] ^= change[2];
    }
    let Some(key) = read(&parts) else {
        assert!(parts != *GOOD, "the seed is a good key");
        return;
    };
    assert!(parts == *GOOD, "a damaged key was accepted");
    assert_eq!(key.size(), KeySize::Rsa2048);

    let engine = Engine::detect().unwrap_or_else(Engine::portable);
    // Blinding need not be secret here, but must not repeat one number for ever.
    let mut state = 0u8;
    let mut random = |bytes: &mut [u8]| {
        for byte in bytes {
            state = state.wrapping_mul(5).wrapping_add(1);
            *byte = state;
        }
    };
    let operations = [
        Operation { key: &key, input },
        Operation {
            key: &key,
            input: &[1; 256],
        },
    ];
    let results = engine
        .private_operations(&operations, &mut random)
        .expect("two operations of one size");
    let good = input.len() == 256 && input < parts[0].as_slice();
    match &results[0] {
        Ok(result) => assert!(good && result.len() == 256),
        Err(OperationError::Input) => assert!(!good),
        Err(OperationError::Mismatch) => panic!("the arithmetic is wrong"),
    }
    assert!(results[1].is_ok(), "an operation is not touched by the one beside it");
});
