//! ECDSA keys in batches: what is of their own beside RSA's, which `tests.rs` has.

use std::task::{Context, Poll, Waker};

use boring::bn::BigNum;
use boring::ec::{EcGroup, EcKey};
use boring::hash::MessageDigest;
use boring::nid::Nid;
use boring::sign::Verifier;
use heddle_telemetry::prometheus::Gathered;

use super::*;
use crate::provider::KeyError;
use crate::testing::{KEYS, counted, worker};

const DELAY: Duration = Duration::from_millis(20);

const SCHEME: SignatureAlgorithm = SignatureAlgorithm::EcdsaP256Sha256;

fn key(curve: Nid) -> PKey<Private> {
    let group = EcGroup::from_curve_name(curve).expect("a curve");
    PKey::from_ec_key(EcKey::generate(&group).expect("a key")).expect("a key")
}

fn provider_with(key: &PKey<Private>, engine: Engine) -> MultibufferProvider {
    MultibufferProvider::new(key.clone(), DELAY, engine).expect("a good key")
}

fn verifies(key: &PKey<Private>, message: &[u8], signature: &[u8]) -> bool {
    verifies_by(MessageDigest::sha256(), key, message, signature)
}

fn verifies_by(digest: MessageDigest, key: &PKey<Private>, message: &[u8], signature: &[u8]) -> bool {
    let mut verifier = Verifier::new(digest, key).expect("verifier");
    verifier.update(message).expect("update");
    // BoringSSL has an error for some bad signatures.
    verifier.verify(signature).unwrap_or(false)
}

fn polled(future: &mut KeyFuture) -> Poll<Result<Vec<u8>, KeyError>> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn signatures_verify_in_lanes_and_in_software() {
    worker(|stats| async move {
        let keys = [(); 2].map(|()| key(Nid::X9_62_PRIME256V1));
        let providers = keys.each_ref().map(|key| provider_with(key, Engine::portable()));
        for width in 1..=8 {
            let messages: Vec<_> = (0..width).map(|i| vec![i; 40]).collect();
            let waiting: Vec<_> = messages
                .iter()
                .enumerate()
                .map(|(i, message)| providers[i % 2].sign(SCHEME, message))
                .collect();
            for (i, signature) in waiting.into_iter().enumerate() {
                let signature = signature.await.expect("signs");
                assert!(verifies(&keys[i % 2], &messages[i], &signature), "{i} of {width}");
                assert!(!verifies(&keys[i % 2], b"another", &signature), "{i} of {width}");
                assert!(
                    !verifies(&keys[(i + 1) % 2], &messages[i], &signature),
                    "{i} of {width}"
                );
            }
        }
        assert!(counted(
            &stats,
            "heddle_multibuffer_operations_total{path=\"software\"} 1"
        ));
        assert!(counted(
            &stats,
            "heddle_multibuffer_operations_total{path=\"vector\"} 35"
        ));
        assert!(counted(&stats, "heddle_multibuffer_ecdsa_queue_sizes_count 8"));
        let text = Gathered::read(&[stats.reader()], |_| true).prometheus(true);
        let mut failures = text
            .lines()
            .filter(|line| line.starts_with("heddle_multibuffer_verify_failures_total "));
        assert!(failures.all(|line| line.ends_with(" 0")), "{text}");
    });
}

/// TLS 1.2 has a client ask for any of them with any curve.
#[test]
fn longer_digests_verify_too() {
    worker(|_| async {
        let key = key(Nid::X9_62_PRIME256V1);
        let provider = provider_with(&key, Engine::portable());
        let schemes = [
            (SignatureAlgorithm::EcdsaP384Sha384, MessageDigest::sha384()),
            (SignatureAlgorithm::EcdsaP521Sha512, MessageDigest::sha512()),
        ];
        let together = schemes.map(|(scheme, _)| provider.sign(scheme, b"hello"));
        for ((scheme, digest), signature) in schemes.into_iter().zip(together) {
            let signature = signature.await.expect("signs");
            assert!(verifies_by(digest, &key, b"hello", &signature), "{scheme:?} in lanes");
            let alone = provider.sign(scheme, b"hello").await.expect("signs");
            assert!(verifies_by(digest, &key, b"hello", &alone), "{scheme:?} in software");
        }
    });
}

/// The same key and message are signed with other nonces each time.
#[test]
fn no_nonce_is_used_twice() {
    worker(|_| async {
        let provider = provider_with(&key(Nid::X9_62_PRIME256V1), Engine::portable());
        let waiting = [(); 4].map(|()| provider.sign(SCHEME, b"hello"));
        let mut signatures = std::collections::BTreeSet::new();
        for signature in waiting {
            signatures.insert(signature.await.expect("signs"));
        }
        assert_eq!(signatures.len(), 4);
    });
}

/// Operations of other arithmetic cannot take a lane: each type has its own batch.
#[test]
fn rsa_and_ecdsa_do_not_wait_for_each_other() {
    worker(|stats| async move {
        let (elliptic, rsa) = (key(Nid::X9_62_PRIME256V1), KEYS[0].clone());
        let elliptic = provider_with(&elliptic, Engine::portable());
        let rsa = provider_with(&rsa, Engine::portable());
        let on_its_way = rsa.expect();
        let mut waits = rsa.sign(SignatureAlgorithm::RsaPssSha256, b"x");
        assert!(polled(&mut waits).is_pending());
        let begun = tokio::time::Instant::now();
        elliptic.sign(SCHEME, b"x").await.expect("signs");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        drop(on_its_way);
        waits.await.expect("signs");
        assert!(counted(&stats, "heddle_multibuffer_batches_total{size=\"1\"} 2"));
        assert!(counted(&stats, "envoy_cryptomb_rsa_queue_sizes_count 1"));
    });
}

/// Wrong results of the lanes are never given out: software makes those signatures anew.
#[test]
fn faults_in_the_lanes_never_leave() {
    worker(|stats| async move {
        let key = key(Nid::X9_62_PRIME256V1);
        let provider = provider_with(&key, Engine::faulty(1));
        for round in 0..4 {
            let message = [round];
            let waiting = [(); 3].map(|()| provider.sign(SCHEME, &message));
            for operation in waiting {
                assert!(verifies(&key, &message, &operation.await.expect("signs")));
            }
        }
        // Each batch has hundreds of faults in one lane.
        let text = Gathered::read(&[stats.reader()], |_| true).prometheus(true);
        assert!(counted(&stats, "heddle_multibuffer_verify_failures_total 4"), "{text}");
    });
}

#[test]
fn threads_that_are_no_workers_sign_at_once() {
    let key = key(Nid::X9_62_PRIME256V1);
    let provider = provider_with(&key, Engine::portable());
    let Poll::Ready(Ok(signature)) = polled(&mut provider.sign(SCHEME, b"x")) else {
        panic!("it waits for somebody")
    };
    assert!(verifies(&key, b"x", &signature));
}

#[test]
fn other_schemes_and_decryption_are_refused() {
    let provider = provider_with(&key(Nid::X9_62_PRIME256V1), Engine::portable());
    for other in [
        SignatureAlgorithm::RsaPkcs1Sha256,
        SignatureAlgorithm::RsaPssSha256,
        SignatureAlgorithm::Ed25519,
    ] {
        let refused = polled(&mut provider.sign(other, b"x"));
        assert!(
            matches!(refused, Poll::Ready(Err(KeyError::Unsupported(_)))),
            "{other:?}"
        );
    }
    let refused = polled(&mut provider.decrypt(&[0; 32]));
    assert!(matches!(refused, Poll::Ready(Err(KeyError::Unsupported(_)))));
}

#[test]
fn keys_of_other_curves_and_damaged_ones_are_refused() {
    let refused = |key| MultibufferProvider::new(key, DELAY, Engine::portable()).err();
    assert_eq!(refused(key(Nid::SECP384R1)), Some(KeyRefused::Type));
    // RFC 8410 §7.
    let ed25519 = [
        b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20".as_slice(),
        &[7; 32],
    ]
    .concat();
    let ed25519 = PKey::private_key_from_der(&ed25519).expect("a key");
    assert_eq!(refused(ed25519), Some(KeyRefused::Type));
    // Another key's point. Where BoringSSL itself refuses it, it never comes here.
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("a curve");
    let other = EcKey::generate(&group).expect("a key");
    let number = BigNum::from_u32(5).expect("a number");
    if let Ok(damaged) = EcKey::from_private_components(&group, &number, other.public_key()) {
        let damaged = PKey::from_ec_key(damaged).expect("a key");
        assert_eq!(refused(damaged), Some(KeyRefused::Damaged));
    }
}
