use std::future::Future;
use std::task::Poll;

use boring::rsa::{Padding, Rsa};
use heddle_telemetry::prometheus::Gathered;
use tokio::time::Instant;

use super::*;
use crate::provider::KeyError;
use crate::testing::{KEYS, SCHEMES, counted, verifies, worker};

const DELAY: Duration = Duration::from_millis(20);
fn provider_with(key: usize, engine: Engine) -> MultibufferProvider {
    MultibufferProvider::new(KEYS[key].clone(), DELAY, engine).expect("a good key")
}

async fn pending_once<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_pending())).await
}

#[test]
fn every_scheme_verifies_in_lanes_and_in_software() {
    worker(|stats| async move {
        let providers = [0, 1].map(|key| provider_with(key, Engine::portable()));
        // Six operations of two keys in one batch, then each alone.
        let waiting: Vec<_> = (0..SCHEMES.len())
            .map(|i| providers[i % 2].sign(SCHEMES[i].0, b"hello"))
            .collect();
        for (i, signature) in waiting.into_iter().enumerate() {
            let signature = signature.await.expect("signs");
            assert!(verifies(i % 2, i, b"hello", &signature), "{:?}", SCHEMES[i].0);
            assert!(!verifies(i % 2, i, b"hallo", &signature));
        }
        assert!(counted(&stats, "heddle_multibuffer_batches_total{size=\"6\"} 1"));
        assert!(counted(
            &stats,
            "heddle_multibuffer_operations_total{path=\"vector\"} 6"
        ));
        for (i, scheme) in SCHEMES.iter().enumerate() {
            let signature = providers[0].sign(scheme.0, b"hello").await.expect("signs");
            assert!(verifies(0, i, b"hello", &signature), "{:?}", scheme.0);
        }
        assert!(counted(
            &stats,
            "heddle_multibuffer_operations_total{path=\"software\"} 6"
        ));
        assert!(counted(&stats, "envoy_cryptomb_rsa_queue_sizes_count 7"));
    });
}

#[test]
fn decryption_keeps_the_padding_and_bad_ciphertexts_harm_nobody() {
    worker(|_| async {
        let provider = provider_with(0, Engine::portable());
        let mut cipher = vec![0; 256];
        let rsa = KEYS[0].rsa().expect("rsa");
        rsa.public_encrypt(b"secret", &mut cipher, Padding::PKCS1)
            .expect("encrypts");
        let good = provider.decrypt(&cipher);
        // Not below the modulus, zero, short, empty.
        let above = provider.decrypt(&[0xff; 256]);
        let zero = provider.decrypt(&[0; 256]);
        for bad in [&cipher[..255], &[]] {
            assert!(matches!(provider.decrypt(bad).await, Err(KeyError::Failed(_))));
        }
        let plain = good.await.expect("decrypts");
        assert_eq!(&plain[..2], &[0, 2]);
        assert!(plain.ends_with(b"\0secret"));
        assert!(matches!(above.await, Err(KeyError::Failed(_))));
        assert_eq!(zero.await, Ok(vec![0; 256]));
    });
}

#[test]
fn eight_start_at_once() {
    worker(|stats| async move {
        let provider = provider_with(0, Engine::portable());
        let mut waiting: Vec<_> = (0..8)
            .map(|_| provider.sign(SignatureAlgorithm::RsaPssSha256, b"x"))
            .collect();
        for operation in &mut waiting {
            assert!(!pending_once(operation).await, "done without anybody waiting");
        }
        assert!(counted(&stats, "heddle_multibuffer_flushes_total{reason=\"full\"} 1"));
    });
}

#[test]
fn one_alone_waits_for_nobody() {
    worker(|stats| async move {
        let provider = provider_with(0, Engine::portable());
        let begun = Instant::now();
        let expected = provider.expect();
        let operation = provider.sign(SignatureAlgorithm::RsaPssSha256, b"x");
        drop(expected);
        operation.await.expect("signs");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(counted(&stats, "heddle_multibuffer_flushes_total{reason=\"alone\"} 1"));
    });
}

#[test]
fn those_on_their_way_are_waited_for_once() {
    worker(|stats| async move {
        let provider = provider_with(0, Engine::portable());
        let idle = provider.expect();
        for (waited, by_delay) in [(DELAY, 1), (Duration::ZERO, 1)] {
            let begun = Instant::now();
            let signature = provider.sign(SignatureAlgorithm::RsaPkcs1Sha256, b"x").await;
            assert!(verifies(0, 0, b"x", &signature.expect("signs")));
            assert!(begun.elapsed() >= waited && begun.elapsed() <= waited + Duration::from_millis(2));
            let line = format!("heddle_multibuffer_flushes_total{{reason=\"delay\"}} {by_delay}");
            assert!(counted(&stats, &line));
        }
        // Another one has begun since: it is waited for, until it says that it will not ask.
        let other = provider.expect();
        let begun = Instant::now();
        let mut operation = provider.sign(SignatureAlgorithm::RsaPkcs1Sha256, b"x");
        assert!(pending_once(&mut operation).await);
        drop(other);
        operation.await.expect("signs");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        drop(idle);
    });
}

#[test]
fn who_leaves_gives_the_lane_back() {
    worker(|stats| async move {
        let provider = provider_with(0, Engine::portable());
        let _on_its_way = provider.expect();
        for _ in 0..20 {
            drop(provider.sign(SignatureAlgorithm::RsaPssSha256, b"gone"));
        }
        assert!(counted(&stats, "heddle_multibuffer_abandoned_total 20"));
        let stays = provider.sign(SignatureAlgorithm::RsaPssSha256, b"x");
        let leaves = provider.sign(SignatureAlgorithm::RsaPssSha256, b"x");
        drop(leaves);
        assert!(verifies(0, 3, b"x", &stays.await.expect("signs")));
        assert!(counted(&stats, "heddle_multibuffer_batches_total{size=\"1\"} 1"));
        assert!(counted(&stats, "envoy_cryptomb_rsa_queue_sizes_count 1"));
    });
}

#[test]
fn a_key_that_is_replaced_finishes_what_it_has_begun() {
    worker(|_| async {
        let provider = provider_with(0, Engine::portable());
        let operations = [(); 2].map(|()| provider.sign(SignatureAlgorithm::RsaPssSha256, b"x"));
        drop(provider);
        for operation in operations {
            assert!(verifies(0, 3, b"x", &operation.await.expect("signs")));
        }
    });
}

/// Wrong results of the lanes are never given out: software does those operations anew.
#[test]
fn faults_in_the_lanes_never_leave() {
    worker(|stats| async move {
        let provider = provider_with(0, Engine::faulty(1));
        for round in 0..4 {
            let message = [round];
            let waiting = [(); 3].map(|()| provider.sign(SignatureAlgorithm::RsaPkcs1Sha256, &message));
            for operation in waiting {
                assert!(verifies(0, 0, &message, &operation.await.expect("signs")));
            }
        }
        // Some faults do no harm; each batch has several.
        let nothing = counted(&stats, "heddle_multibuffer_verify_failures_total 0");
        let text = Gathered::read(&[stats.reader()], |_| true).prometheus(true);
        assert!(
            !nothing && text.contains("heddle_multibuffer_verify_failures_total"),
            "{text}"
        );
    });
}

#[test]
fn a_runtime_that_ends_leaves_nobody_waiting() {
    let mut left = worker(|_| async {
        let provider = provider_with(0, Engine::portable());
        let _on_its_way = provider.expect();
        let mut operation = provider.sign(SignatureAlgorithm::RsaPssSha256, b"x");
        assert!(pending_once(&mut operation).await);
        Some(operation)
    });
    let polled = left
        .as_mut()
        .expect("an operation")
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(KeyError::Failed(_)))), "{polled:?}");
}

#[test]
fn threads_that_are_no_workers_sign_at_once() {
    let provider = provider_with(0, Engine::portable());
    let mut operation = provider.sign(SignatureAlgorithm::RsaPssSha256, b"x");
    let polled = operation
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    let Poll::Ready(Ok(signature)) = polled else {
        panic!("{polled:?}")
    };
    assert!(verifies(0, 3, b"x", &signature));
    assert!(provider.expect().is_none());
}

#[test]
fn keys_and_schemes_that_do_not_fit_are_refused() {
    let short = PKey::from_rsa(Rsa::generate(1024).expect("rsa")).expect("key");
    let refused = MultibufferProvider::new(short, DELAY, Engine::portable()).err();
    assert_eq!(refused, Some(KeyRefused::Numbers(heddle_simd::KeyError::Size)));
    let polled = provider_with(0, Engine::portable())
        .sign(SignatureAlgorithm::Ed25519, b"x")
        .as_mut()
        .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(KeyError::Unsupported(_)))));
}
