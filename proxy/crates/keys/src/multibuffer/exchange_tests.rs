//! Key exchanges in batches: what is of their own beside RSA's, which `tests.rs` has.

use boring::ec::{EcGroup, EcKey};
use boring::nid::Nid;
use heddle_simd::{BASE_POINT, X25519Operation, x25519_offer};

use super::*;
use crate::testing::{counted, worker};

type Bytes = [u8; X25519_BYTES];

fn provider() -> MultibufferProvider {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("a curve");
    let key = PKey::from_ec_key(EcKey::generate(&group).expect("a key")).expect("a key");
    MultibufferProvider::new(key, Duration::from_millis(20), Engine::portable()).expect("a good key")
}

fn multiplied(scalar: &Bytes, point: &Bytes) -> Bytes {
    let operation = X25519Operation { scalar, point };
    *Engine::portable().x25519(&[operation]).expect("a batch").remove(0)
}

fn asked(provider: &MultibufferProvider, peer: &Bytes) -> KeyFuture {
    provider.exchange(peer).expect("it does exchanges")
}

#[test]
fn each_has_a_key_of_its_own_and_the_secret_with_its_peer() {
    worker(|stats| async move {
        let provider = provider();
        let peers = [1, 2, 3].map(|n| multiplied(&[n; 32], &BASE_POINT));
        let waiting = peers.each_ref().map(|peer| asked(&provider, peer));
        let mut privates = std::collections::BTreeSet::new();
        for (outcome, peer) in waiting.into_iter().zip(&peers) {
            x25519_offer::offer(outcome.await.expect("exchanges"), peer);
            let (private, public) = x25519_offer::take_key().expect("is offered");
            assert_eq!(*public, multiplied(&private, &BASE_POINT));
            let secret = x25519_offer::take_secret(&private, peer).expect("is offered");
            assert_eq!(*secret, multiplied(&private, peer));
            privates.insert(*private);
        }
        assert_eq!(privates.len(), 3, "keys differ");
        assert!(counted(&stats, "heddle_multibuffer_x25519_queue_sizes_count 1"));
        assert!(counted(&stats, "heddle_multibuffer_batches_total{size=\"3\"} 1"));
        // They are none of a certificate's key.
        assert!(!counted(
            &stats,
            "heddle_multibuffer_operations_total{path=\"vector\"} 3"
        ));
    });
}

#[test]
fn one_alone_is_left_to_its_handshake() {
    worker(|stats| async move {
        let alone = asked(&provider(), &BASE_POINT).await.expect("no error");
        x25519_offer::offer(alone, &BASE_POINT);
        assert!(x25519_offer::take_key().is_none());
        assert!(counted(&stats, "heddle_multibuffer_flushes_total{reason=\"alone\"} 1"));
        assert!(!counted(
            &stats,
            "heddle_multibuffer_operations_total{path=\"software\"} 1"
        ));
    });
}

/// BoringSSL refuses it, and the others of the batch are not touched.
#[test]
fn a_peer_of_small_order_gets_nothing() {
    worker(|_| async {
        let provider = provider();
        let waiting = [[0; 32], BASE_POINT, BASE_POINT].map(|peer| asked(&provider, &peer));
        let mut lengths = Vec::new();
        for outcome in waiting {
            lengths.push(outcome.await.expect("no error").len());
        }
        assert_eq!(lengths, [0, 3 * X25519_BYTES, 3 * X25519_BYTES]);
    });
}

/// Nobody waits for a signature's handshake when an exchange's cannot come, or the other way round.
#[test]
fn exchanges_and_signatures_are_expected_apart() {
    worker(|stats| async move {
        let provider = provider();
        let signs = provider.expect().expect("a worker");
        asked(&provider, &BASE_POINT).await.expect("no error");
        assert!(counted(&stats, "heddle_multibuffer_flushes_total{reason=\"alone\"} 1"));
        drop(signs);
        let exchanges = provider.expect_exchange().expect("a worker");
        provider
            .sign(SignatureAlgorithm::EcdsaP256Sha256, b"hello")
            .await
            .expect("signs");
        assert!(counted(&stats, "heddle_multibuffer_flushes_total{reason=\"alone\"} 2"));
        drop(exchanges);
    });
}
