//! ECDSA signatures of the kernels, verified by BoringSSL.

mod support;

use boring::bn::{BigNum, BigNumContext};
use heddle_simd::{BatchError, Engine, LANES, P256_BYTES, P256Error, P256KeyError, P256Operation, P256PrivateKey};
use support::ecdsa::{Pair, number, order, order_less};
use support::engines;

/// Operations in a normal run; `make ecdsa-operations` does a million.
const OPERATIONS: usize = 4000;

/// Operations of the portable kernels, which are slower than any library.
const PORTABLE: usize = 72;

fn operations() -> usize {
    match std::env::var("HEDDLE_ECDSA_OPERATIONS") {
        Ok(number) => number.parse().expect("HEDDLE_ECDSA_OPERATIONS is a number"),
        Err(_) => OPERATIONS,
    }
}

fn signed(engine: Engine, pair: &Pair, digest: &[u8; 32], nonce: &[u8; 32]) -> Result<[u8; 64], P256Error> {
    let operation = P256Operation {
        key: &pair.key,
        digest,
        nonce,
    };
    engine.sign_p256(&[operation]).expect("a good batch").remove(0)
}

/// Random digests, nonces and keys, every batch width.
#[test]
fn random_signatures_verify() {
    let mut random = fastrand::Rng::with_seed(52);
    let pairs: Vec<_> = (0..5).map(|_| Pair::generate()).collect();
    for (name, engine) in engines() {
        let total = if name == "portable" { PORTABLE } else { operations() };
        let (mut done, mut width) = (0, 0);
        while done < total {
            width = width % LANES + 1;
            let chosen: Vec<_> = (0..width)
                .map(|_| {
                    let (mut digest, mut nonce) = ([0; 32], [0; 32]);
                    random.fill(&mut digest);
                    random.fill(&mut nonce);
                    // Below the order.
                    nonce[0] &= 0x7f;
                    (&pairs[random.usize(..pairs.len())], digest, nonce)
                })
                .collect();
            let operations: Vec<_> = chosen
                .iter()
                .map(|(pair, digest, nonce)| P256Operation {
                    key: &pair.key,
                    digest,
                    nonce,
                })
                .collect();
            let results = engine.sign_p256(&operations).expect("a good batch");
            assert_eq!(results.len(), width);
            for ((pair, digest, nonce), result) in chosen.iter().zip(results) {
                let signature = result.expect("passes the checks");
                assert!(pair.verifies(digest, &signature), "{name} {width} {nonce:02x?}");
            }
            done += width;
        }
        println!("{name}: {done} signatures verify");
    }
}

/// Digests of 0, 1, about the order and all ones; nonces and keys of 1, 2, n − 1, n − 2, single bits.
#[test]
fn edge_values_verify() {
    let mut scalars = vec![number(1), number(2), number(3), order_less(1), order_less(2)];
    for bit in [1, 6, 7, 8, 51, 52, 127, 128, 207, 208, 252, 253, 254, 255] {
        let mut scalar = [0; P256_BYTES];
        scalar[P256_BYTES - 1 - bit / 8] = 1 << (bit % 8);
        scalars.push(scalar);
    }
    let digests = [number(0), number(1), order_less(1), order(), [0xff; 32], [0x5a; 32]];
    let pairs: Vec<_> = scalars.iter().map(Pair::of).collect();
    for (name, engine) in engines() {
        for (i, nonce) in scalars.iter().enumerate() {
            // All keys and digests come to pass with the vector kernels.
            let rounds = if name == "portable" { 1 } else { pairs.len() };
            for round in 0..rounds {
                let (pair, digest) = (&pairs[(i + round) % pairs.len()], &digests[(i + round) % digests.len()]);
                let signature = signed(engine, pair, digest, nonce).expect("passes the checks");
                assert!(pair.verifies(digest, &signature), "{name} nonce {nonce:02x?}");
                assert_eq!(&signature[..32], r_of(nonce), "{name} nonce {nonce:02x?}");
            }
        }
    }
}

/// RFC 6979 §A.2.5, with the nonces that it derives.
#[test]
fn vectors_of_rfc_6979() {
    let bytes = |text: &str| -> [u8; 32] {
        let number = BigNum::from_hex_str(text).expect("a number");
        number.to_vec_padded(32).expect("fits").try_into().expect("32 bytes")
    };
    let secret = bytes("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721");
    let pair = Pair::of(&secret);
    for (message, nonce, r, s) in [
        (
            "sample",
            "A6E3C57DD01ABE90086538398355DD4C3B17AA873382B0F24D6129493D8AAD60",
            "EFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716",
            "F7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8",
        ),
        (
            "test",
            "D16B6AE827F17175E040871A1C7EC3500192C4C92677336EC2537ACAEE0008E0",
            "F1ABB023518351CD71D881567B1EA663ED3EFCF6C5132B354F28D3B0B7D38367",
            "019F4113742A2B14BD25926B49C649155F267E60D3814B4C0CC84250E46F0083",
        ),
    ] {
        let digest = boring::sha::sha256(message.as_bytes());
        let expected = [bytes(r), bytes(s)].concat();
        for (name, engine) in engines() {
            let signature = signed(engine, &pair, &digest, &bytes(nonce)).expect("passes the checks");
            assert_eq!(signature.as_slice(), expected, "{name} {message}");
        }
    }
}

/// x of the nonce's point modulo the order, by BoringSSL.
fn r_of(nonce: &[u8; 32]) -> Vec<u8> {
    let pair = Pair::of(nonce);
    let mut context = BigNumContext::new().expect("context");
    let (mut x, mut y) = (BigNum::new().expect("x"), BigNum::new().expect("y"));
    let group = pair.boring.group();
    pair.boring
        .public_key()
        .affine_coordinates_gfp(group, &mut x, &mut y, &mut context)
        .expect("coordinates");
    let mut r = BigNum::new().expect("r");
    let n = BigNum::from_slice(&order()).expect("n");
    r.nnmod(&x, &n, &mut context).expect("modulo");
    r.to_vec_padded(32).expect("fits")
}

/// The one odd scalar whose last addition would be a doubling, and its negative, which is done by the same: no signature
/// comes out, and the lane beside it is not touched.
#[test]
fn the_exceptional_scalar_signs_nothing() {
    let mut scalar = BigNum::from_slice(&[30]).expect("number");
    scalar = {
        let mut shifted = BigNum::new().expect("number");
        shifted.lshift(&scalar, 252).expect("shift");
        shifted
    };
    let n = BigNum::from_slice(&order()).expect("n");
    let mut exceptional = BigNum::new().expect("number");
    exceptional.checked_sub(&scalar, &n).expect("difference");
    let mut negative = BigNum::new().expect("number");
    negative.checked_sub(&n, &exceptional).expect("difference");
    let pair = Pair::generate();
    let digest = [0x42; 32];
    for (name, engine) in engines() {
        for bad in [&exceptional, &negative] {
            let nonces: [[u8; 32]; 2] = [
                bad.to_vec_padded(32).expect("fits").try_into().expect("32 bytes"),
                number(5),
            ];
            let operations = nonces.each_ref().map(|nonce| P256Operation {
                key: &pair.key,
                digest: &digest,
                nonce,
            });
            let results = engine.sign_p256(&operations).expect("a good batch");
            assert_eq!(results[0], Err(P256Error::Mismatch), "{name}");
            assert!(
                pair.verifies(&digest, &results[1].expect("passes the checks")),
                "{name}"
            );
        }
    }
}

#[test]
fn nonces_out_of_range_are_refused_alone() {
    let pair = Pair::generate();
    let digest = [7; 32];
    let nonces = [number(0), order(), [0xff; 32], number(9)];
    for (name, engine) in engines() {
        let operations = nonces.each_ref().map(|nonce| P256Operation {
            key: &pair.key,
            digest: &digest,
            nonce,
        });
        let results = engine.sign_p256(&operations).expect("a good batch");
        assert_eq!(results[..3], [Err(P256Error::Nonce); 3], "{name}");
        assert!(
            pair.verifies(&digest, &results[3].expect("passes the checks")),
            "{name}"
        );
    }
}

#[test]
fn keys_out_of_range_are_refused() {
    for bad in [&number(0)[..], &order(), &[0xff; 32], &[1; 33], &[]] {
        assert_eq!(P256PrivateKey::new(bad).map(|_| ()), Err(P256KeyError), "{bad:02x?}");
    }
    // Leading zeros are none of the number's.
    assert!(P256PrivateKey::new(&[[0; 8].as_slice(), &number(1)].concat()).is_ok());
    let key = P256PrivateKey::new(&[1]).expect("a short one");
    assert_eq!(format!("{key:?}"), "P256PrivateKey { .. }", "no secret");
}

#[test]
fn batches_that_cannot_be_are_refused() {
    let pair = Pair::generate();
    let operation = P256Operation {
        key: &pair.key,
        digest: &[1; 32],
        nonce: &[1; 32],
    };
    for (_, engine) in engines() {
        assert_eq!(engine.sign_p256(&[]), Err(BatchError::Width(0)));
        assert_eq!(engine.sign_p256(&[operation; 9]), Err(BatchError::Width(9)));
    }
}
