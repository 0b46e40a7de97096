//! Random and extreme keys, compared with BoringSSL.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod support;

use heddle_x25519::BYTES;
use heddle_x25519::testing::Implementation::{BoringSsl, Linked};
use support::{number, operations};

/// Operations in a normal run; `make x25519-operations` does a million.
const OPERATIONS: usize = 2_000;

/// One operation is a public key and a secret of each, and every sixteenth a pair of keys that is drawn.
#[test]
fn random_operations_agree() {
    let operations = operations(OPERATIONS);
    let mut random = fastrand::Rng::with_seed(25519);
    for operation in 0..operations {
        let (private, peer) = (number(&mut random), number(&mut random));
        agree(&private, &peer);
        if operation % 16 == 0 {
            drawn(&peer);
        }
    }
    println!("{operations} operations agree");
}

#[track_caller]
fn agree(private: &[u8; BYTES], peer: &[u8; BYTES]) {
    assert_eq!(
        Linked.public_key(private),
        BoringSsl.public_key(private),
        "{private:02x?}"
    );
    assert_eq!(
        Linked.shared_secret(private, peer),
        BoringSsl.shared_secret(private, peer),
        "{private:02x?} {peer:02x?}"
    );
}

/// A pair that one draws serves the other.
fn drawn(peer: &[u8; BYTES]) {
    for (draws, uses) in [(Linked, BoringSsl), (BoringSsl, Linked)] {
        let (public, private) = draws.keypair();
        assert_eq!(uses.public_key(&private), public);
        agree(&private, peer);
    }
}

/// Private keys whose fixed bits are not set, numbers about the field's prime, and such with the bit that is ignored.
#[test]
fn extreme_operations_agree() {
    let mut numbers = vec![[0; BYTES], [0xff; BYTES]];
    for bit in 0..8 * BYTES {
        let mut number = [0; BYTES];
        number[bit / 8] = 1 << (bit % 8);
        numbers.push(number);
    }
    // 2^255 − 40 … 2^255 − 1, the prime and the base point's other name among them.
    for low in 0xd8..=0xff_u8 {
        let mut number = [0xff; BYTES];
        number[0] = low;
        number[BYTES - 1] = 0x7f;
        numbers.push(number);
        number[BYTES - 1] = 0xff;
        numbers.push(number);
    }
    let mut random = fastrand::Rng::with_seed(9);
    for number in numbers {
        let mut other = [0; BYTES];
        random.fill(&mut other);
        agree(&number, &other);
        agree(&other, &number);
        agree(&number, &number);
    }
}

#[test]
fn drawn_keys_differ() {
    let pairs: std::collections::HashSet<_> = (0..64).map(|_| Linked.keypair()).collect();
    assert_eq!(pairs.len(), 64);
}
