use std::sync::Arc;

use heddle_keys::{FakeProvider, KeyError, SoftwareProvider};

use super::*;
use crate::testing::Leaf;

fn behind_fake(pair: KeyPair) -> (KeyPair, heddle_keys::FakeControl) {
    let (fake, control) = FakeProvider::new(SoftwareProvider::from_pem(&pair.key_pem).expect("key"));
    (
        KeyPair {
            chain_pem: pair.chain_pem,
            key_pem: Vec::new(),
            provider: Some(Arc::new(fake)),
        },
        control,
    )
}

async fn settle(mut ready: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if ready() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("nothing happened");
}

#[tokio::test]
async fn handshakes_wait_for_the_provider() {
    let root = Authority::root("root");
    for (version, rsa) in [
        (TlsVersion::V1_2, true),
        (TlsVersion::V1_2, false),
        (TlsVersion::V1_3, true),
        (TlsVersion::V1_3, false),
    ] {
        let (mut server, client) = mutual(&root);
        let (pair, control) = behind_fake(root.issue(&Leaf {
            uris: &[SERVER],
            rsa,
            ..Leaf::default()
        }));
        server.certificates = vec![pair];
        server.max_version = Some(version);
        let release = async {
            settle(|| control.waiting() == 1).await;
            assert!(control.release());
        };
        let ((accepted, dialled), ()) = tokio::join!(handshake(&server, &client), release);
        accepted.expect("server side");
        dialled.expect("client side");
        assert_eq!(control.started(), 1);
    }
}

/// Each of several certificates may have its key elsewhere.
#[tokio::test]
async fn every_certificate_may_have_a_provider() {
    let root = Authority::root("root");
    let leaf = |rsa| {
        behind_fake(root.issue(&Leaf {
            uris: &[SERVER],
            rsa,
            ..Leaf::default()
        }))
    };
    let ((first, of_first), (second, of_second)) = (leaf(true), leaf(false));
    of_first.complete_at_once();
    of_second.complete_at_once();
    let (mut server, client) = mutual(&root);
    server.certificates = vec![first, second];
    server.max_version = Some(TlsVersion::V1_2);
    for (suite, used) in [
        ("ECDHE-RSA-AES128-GCM-SHA256", (1, 0)),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", (1, 1)),
    ] {
        server.cipher_suites = vec![suite.to_owned()];
        let (accepted, dialled) = handshake(&server, &client).await;
        accepted.expect("server side");
        dialled.expect("client side");
        assert_eq!((of_first.started(), of_second.started()), used);
    }
}

/// A key that belongs to another certificate is refused wherever it is kept.
#[tokio::test]
async fn a_providers_key_is_held_against_the_certificate() {
    let root = Authority::root("root");
    let (mut pair, _control) = behind_fake(root.spiffe(SERVER));
    pair.chain_pem = root.spiffe(SERVER).chain_pem;
    let refused = ServerContext::new(&ServerParams {
        certificates: vec![pair],
        ..ServerParams::default()
    });
    assert!(
        matches!(refused, Err(TlsConfigError::KeyMismatch { .. })),
        "{refused:?}"
    );
}

#[tokio::test]
async fn eight_handshakes_can_wait_together() {
    let root = Authority::root("root");
    let (mut server, client) = mutual(&root);
    let (pair, control) = behind_fake(root.spiffe(SERVER));
    server.certificates = vec![pair];
    let handshakes = async {
        let mut all = Vec::new();
        for _ in 0..8 {
            all.push(Box::pin(handshake(&server, &client)));
        }
        // Polls all of them: the runtime has one thread.
        let mut done = 0;
        std::future::poll_fn(|cx| {
            all.retain_mut(|h| match h.as_mut().poll(cx) {
                std::task::Poll::Ready((accepted, dialled)) => {
                    accepted.expect("server side");
                    dialled.expect("client side");
                    done += 1;
                    false
                }
                std::task::Poll::Pending => true,
            });
            if all.is_empty() {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
        done
    };
    let release = async {
        settle(|| control.waiting() == 8).await;
        while control.release() {}
    };
    let (done, ()) = tokio::join!(handshakes, release);
    assert_eq!(done, 8);
}

#[tokio::test]
async fn a_failed_key_fails_its_handshake_only() {
    let root = Authority::root("root");
    let (mut server, client) = mutual(&root);
    let (pair, control) = behind_fake(root.spiffe(SERVER));
    server.certificates = vec![pair];
    let fail = async {
        settle(|| control.waiting() == 1).await;
        control.fail(KeyError::Failed("out of order".to_owned()));
    };
    let ((accepted, dialled), ()) = tokio::join!(handshake(&server, &client), fail);
    assert!(matches!(
        accepted.expect_err("must fail").kind,
        HandshakeErrorKind::Key(_)
    ));
    dialled.expect_err("must fail");

    control.complete_at_once();
    let (accepted, dialled) = handshake(&server, &client).await;
    accepted.expect("the next one is fine");
    dialled.expect("the next one is fine");
}

#[tokio::test]
async fn a_dropped_handshake_leaves_nothing_behind() {
    let root = Authority::root("root");
    let (mut server, client) = mutual(&root);
    let (pair, control) = behind_fake(root.spiffe(SERVER));
    server.certificates = vec![pair];
    {
        let both = handshake(&server, &client);
        let mut both = std::pin::pin!(both);
        tokio::select! {
            _ = &mut both => panic!("nobody released it"),
            () = settle(|| control.waiting() == 1) => {}
        }
    }
    // The provider finishes after the connection has gone.
    assert!(control.release());
}
