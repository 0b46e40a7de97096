//! Batches of ECDSA signatures with P-256, verified by BoringSSL. The first byte says how wide the batch is; then, for each
//! operation, a byte names a key and the shapes of its nonce and digest, whose bytes follow.
//!
//! A file of its own, because the kernels' tests do some of it too (`crates/simd/tests/fuzzed.rs`).

use std::sync::LazyLock;

use boring::bn::{BigNum, BigNumContext};
use boring::ec::{EcGroup, EcKey};
use boring::ecdsa::EcdsaSig;
use boring::nid::Nid;
use boring::pkey::Private;
use heddle_simd::{Engine, LANES, P256_BYTES, P256Error, P256Operation, P256PrivateKey};

/// Each process has others.
const KEYS: usize = 3;

struct Pair {
    boring: EcKey<Private>,
    ours: P256PrivateKey,
}

static PAIRS: LazyLock<Vec<Pair>> = LazyLock::new(|| {
    let pair = |_| {
        let boring = EcKey::generate(&group()).expect("a key");
        let ours = P256PrivateKey::new(&boring.private_key().to_vec()).expect("a key of BoringSSL's is a good one");
        Pair { boring, ours }
    };
    (0..KEYS).map(pair).collect()
});

fn group() -> EcGroup {
    EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("P-256")
}

/// The order.
static ORDER: LazyLock<[u8; P256_BYTES]> = LazyLock::new(|| {
    let mut order = BigNum::new().expect("a number");
    let mut context = BigNumContext::new().expect("a context");
    group().order(&mut order, &mut context).expect("the order");
    order.to_vec().try_into().expect("32 bytes")
});

/// A number: bytes of the fuzzer's, repeated, or near the order, zero or all ones.
fn number(shape: u8, bytes: &[u8]) -> [u8; P256_BYTES] {
    let mut number = match shape % 4 {
        0 => *ORDER,
        1 => [0; P256_BYTES],
        2 => [0xff; P256_BYTES],
        _ if bytes.is_empty() => [1; P256_BYTES],
        _ => return std::array::from_fn(|i| bytes[i % bytes.len()]),
    };
    for (place, difference) in number.iter_mut().rev().zip(bytes) {
        *place ^= difference;
    }
    number
}

/// Does one batch, and has BoringSSL verify each of its signatures.
pub(crate) fn batch(data: &[u8]) {
    let [head, rest @ ..] = data else { return };
    let width = usize::from(*head) % LANES + 1;
    let share = rest.len() / width;
    let chosen: Vec<_> = (0..width)
        .map(|lane| {
            let part = &rest[lane * share..][..share];
            let (how, bytes) = part.split_first().unwrap_or((&15, &[]));
            let (nonce, digest) = bytes.split_at(bytes.len() / 2);
            let pair = &PAIRS[usize::from(*how) / 16 % KEYS];
            (pair, number(*how, nonce), number(how / 4, digest))
        })
        .collect();
    let operations: Vec<_> = chosen
        .iter()
        .map(|(pair, nonce, digest)| P256Operation {
            key: &pair.ours,
            digest,
            nonce,
        })
        .collect();
    let engine = Engine::detect().unwrap_or_else(Engine::portable);
    let results = engine.sign_p256(&operations).expect("a batch");
    assert_eq!(results.len(), width);
    for ((pair, nonce, digest), result) in chosen.iter().zip(results) {
        let in_range = *nonce < *ORDER && *nonce != [0; P256_BYTES];
        match result {
            Ok(signature) if in_range => {
                let part = |bytes| BigNum::from_slice(bytes).expect("a number");
                let (r, s) = signature.split_at(P256_BYTES);
                let signature = EcdsaSig::from_private_components(part(r), part(s)).expect("a signature");
                let verifies = signature.verify(digest, &pair.boring).unwrap_or(false);
                assert!(verifies, "nonce {nonce:02x?}, digest {digest:02x?}");
            }
            Err(P256Error::Nonce) if !in_range => {}
            other => panic!("{other:02x?} for nonce {nonce:02x?}, digest {digest:02x?}"),
        }
    }
}
