//! Batches of private RSA operations beside BoringSSL. The first byte says how wide the batch is and of which size, the next
//! one seeds the blinding; then, for each operation, a byte names a key and the shape of the input, whose bytes follow.
//!
//! A file of its own, because the kernels' tests do some of it too (`crates/simd/tests/fuzzed.rs`).

use std::sync::LazyLock;

use boring::pkey::Private;
use boring::rsa::{Padding, Rsa};
use heddle_simd::{Engine, KeySize, LANES, Operation, OperationError, RsaComponents, RsaPrivateKey};

/// Keys of each size; each process has others.
const KEYS: usize = 3;

struct Pair {
    boring: Rsa<Private>,
    ours: RsaPrivateKey,
}

impl Pair {
    fn new(size: KeySize) -> Self {
        let boring = Rsa::generate(size.bits() as u32).expect("a key");
        let number = |number: Option<&boring::bn::BigNumRef>| number.expect("a number").to_vec();
        let ours = RsaPrivateKey::new(&RsaComponents {
            modulus: &boring.n().to_vec(),
            public_exponent: &boring.e().to_vec(),
            prime1: &number(boring.p()),
            prime2: &number(boring.q()),
            exponent1: &number(boring.dmp1()),
            exponent2: &number(boring.dmq1()),
            coefficient: &number(boring.iqmp()),
        });
        Self {
            ours: ours.expect("a key of BoringSSL's is a good one"),
            boring,
        }
    }

    /// An input of this length: bytes of the fuzzer's, repeated, or about the modulus or a multiple of a prime.
    fn input(&self, shape: u8, bytes: &[u8], length: usize) -> Vec<u8> {
        let number = |number: &boring::bn::BigNumRef| number.to_vec_padded(length).expect("it fits");
        let mut input = match shape % 8 {
            0 => number(self.boring.n()),
            1 => number(self.boring.p().expect("p")),
            2 => number(self.boring.q().expect("q")),
            3 => vec![0; length],
            4 => vec![0xff; length],
            // Of another length.
            5 => return bytes.to_vec(),
            _ if bytes.is_empty() => vec![1; length],
            _ => bytes.iter().copied().cycle().take(length).collect(),
        };
        if shape % 8 < 5 {
            // Near them: the lowest bytes differ.
            for (place, difference) in input.iter_mut().rev().zip(bytes) {
                *place ^= difference;
            }
        }
        input
    }

    /// What BoringSSL makes of it; none when it is none of the numbers below the modulus.
    fn expected(&self, input: &[u8]) -> Option<Vec<u8>> {
        let mut output = vec![0; self.boring.size() as usize];
        let done =
            input.len() == output.len() && self.boring.private_encrypt(input, &mut output, Padding::NONE).is_ok();
        done.then_some(output)
    }
}

/// By size; the longer ones take seconds to make.
static PAIRS: [LazyLock<Vec<Pair>>; 3] = [
    LazyLock::new(|| pairs(KeySize::Rsa2048)),
    LazyLock::new(|| pairs(KeySize::Rsa3072)),
    LazyLock::new(|| pairs(KeySize::Rsa4096)),
];

fn pairs(size: KeySize) -> Vec<Pair> {
    (0..KEYS).map(|_| Pair::new(size)).collect()
}

/// Does one batch, and holds each of its results against BoringSSL's.
pub(crate) fn batch(data: &[u8]) {
    let [head, seed, rest @ ..] = data else { return };
    let width = usize::from(*head) % LANES + 1;
    // Seven of ten batches are of the shortest keys, which take the least time.
    let size = [0, 0, 0, 0, 0, 0, 0, 1, 1, 2][usize::from(*head) / LANES % 10];
    let mut state = *seed;
    let mut random = |bytes: &mut [u8]| {
        for byte in bytes {
            state = state.wrapping_mul(5).wrapping_add(1);
            *byte = state;
        }
    };
    let share = rest.len() / width;
    let chosen: Vec<_> = (0..width)
        .map(|lane| {
            let part = &rest[lane * share..][..share];
            let (how, bytes) = part.split_first().unwrap_or((&6, &[]));
            let pair = &PAIRS[size][usize::from(*how) / 8 % KEYS];
            (pair, pair.input(*how, bytes, KeySize::ALL[size].bytes()))
        })
        .collect();
    let operations: Vec<_> = chosen
        .iter()
        .map(|(pair, input)| Operation { key: &pair.ours, input })
        .collect();
    let engine = Engine::detect().unwrap_or_else(Engine::portable);
    let results = engine
        .private_operations(&operations, &mut random)
        .expect("a batch of one size");
    assert_eq!(results.len(), width);
    for ((pair, input), result) in chosen.iter().zip(results) {
        match (result, pair.expected(input)) {
            (Ok(ours), Some(theirs)) => assert!(ours == theirs, "another result than BoringSSL's for {input:02x?}"),
            (Err(OperationError::Input), None) => {}
            (ours, theirs) => panic!("{ours:02x?} beside BoringSSL's {theirs:02x?} for {input:02x?}"),
        }
    }
}
