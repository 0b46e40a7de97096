//! Certificates of a mesh of several clusters: one root, one intermediate per cluster that may issue the name of its own
//! cluster only, and verifiers that insist on the name of a cluster they know.

use super::*;
use crate::testing::Leaf;

const ONE: &str = "c1.clusters.cluster.local";
const TWO: &str = "c2.clusters.cluster.local";

/// A server that accepts clients of these clusters.
fn server(roots: &[&Authority], own: &Authority, clusters: &[&str]) -> ServerParams {
    ServerParams {
        certificates: vec![own.issue(&Leaf {
            uris: &[SERVER],
            dns: &[ONE],
            ..Leaf::default()
        })],
        trust: Some(Trust {
            roots_pem: roots.iter().flat_map(|root| root.pem()).collect(),
            sans: clusters.iter().map(|c| SanMatcher::exact(SanKind::Dns, c)).collect(),
            trust_domains: Vec::new(),
        }),
        require_client_certificate: true,
        ..ServerParams::default()
    }
}

fn client(roots: &[&Authority], issuer: &Authority, dns: &[&str]) -> ClientParams {
    ClientParams {
        certificate: Some(issuer.issue(&Leaf {
            uris: &[CLIENT],
            dns,
            ..Leaf::default()
        })),
        trust: Some(Trust {
            roots_pem: roots.iter().flat_map(|root| root.pem()).collect(),
            sans: vec![SanMatcher::exact(SanKind::Uri, SERVER)],
            trust_domains: Vec::new(),
        }),
        ..ClientParams::default()
    }
}

/// What the server says of a client.
async fn verdict(server: &ServerParams, client: &ClientParams) -> Result<ConnectionInfo, VerifyFailure> {
    match handshake(server, client).await.0 {
        Ok((_, facts)) => Ok(facts),
        Err(error) => match error.kind {
            HandshakeErrorKind::Verify(failure) => Err(failure),
            other => panic!("{other:?}"),
        },
    }
}

#[tokio::test]
async fn clusters_may_issue_their_own_name_only() {
    let root = Authority::root("root");
    let (one, two) = (root.constrained("c1", ONE), root.constrained("c2", TWO));
    let roots = [&root];
    let server = server(&roots, &one, &[ONE, TWO]);
    for (issuer, name, cluster) in [(&one, ONE, "c1"), (&two, TWO, "c2")] {
        let facts = verdict(&server, &client(&roots, issuer, &[name])).await.expect(name);
        let peer = facts.peer.expect("peer");
        assert_eq!(peer.dns_sans, [name]);
        assert_eq!((peer.cluster(), peer.issuer.as_str()), (Some(cluster), cluster));
    }
    // The second cluster's authority, in wrong hands: whatever it issues, it is not of the first cluster.
    let below = format!("below.{TWO}");
    let wider = two.constrained("wider", ONE);
    for (what, issuer, names) in [
        ("another cluster's name", &two, &[ONE][..]),
        ("beside its own", &two, &[TWO, ONE]),
        ("all clusters", &two, &["*.clusters.cluster.local"]),
        ("by an intermediate with wider bounds below it", &wider, &[ONE]),
    ] {
        let failure = verdict(&server, &client(&roots, issuer, names)).await.expect_err(what);
        assert!(matches!(failure, VerifyFailure::Invalid(_)), "{what}: {failure}");
        assert!(failure.to_string().contains("permitted subtree"), "{what}: {failure}");
        assert_eq!(failure.counter(), "fail_verify_error", "{what}");
    }
    // Names that it may issue, but that are no cluster's.
    for (what, names) in [
        ("an identity without the name of a cluster", &[][..]),
        ("a name below its own", &[&*below]),
        ("a wildcard below its own", &["*.c2.clusters.cluster.local"]),
    ] {
        let failure = verdict(&server, &client(&roots, &two, names)).await.expect_err(what);
        assert!(matches!(failure, VerifyFailure::SanMismatch(_)), "{what}: {failure}");
        assert_eq!(failure.counter(), "fail_verify_san", "{what}");
    }
}

#[tokio::test]
async fn a_removed_cluster_is_locked_out() {
    let root = Authority::root("root");
    let (one, two) = (root.constrained("c1", ONE), root.constrained("c2", TWO));
    let roots = [&root];
    let from_two = client(&roots, &two, &[TWO]);
    verdict(&server(&roots, &one, &[ONE, TWO]), &from_two)
        .await
        .expect("a member");
    let failure = verdict(&server(&roots, &one, &[ONE]), &from_two)
        .await
        .expect_err("removed");
    assert!(matches!(failure, VerifyFailure::SanMismatch(_)), "{failure}");
}

#[tokio::test]
async fn several_roots_in_one_bundle() {
    // Of the same name, as two meshes' roots are.
    let (old, new) = (Authority::root("root"), Authority::root("root"));
    let (by_old, by_new) = (old.constrained("c1", ONE), new.constrained("c1", ONE));
    let both = [&old, &new];
    // A cluster that joins a mesh: first everyone trusts both roots, then the certificates change, then the old root
    // goes.
    for (step, roots, own, issuer, welcome) in [
        ("old only", &both[..1], &by_old, &by_new, false),
        ("both, server still old", &both, &by_old, &by_new, true),
        ("both, client still old", &both, &by_new, &by_old, true),
        ("new only", &both[1..], &by_new, &by_old, false),
    ] {
        let accepted = verdict(&server(roots, own, &[ONE]), &client(&both, issuer, &[ONE])).await;
        match accepted {
            Ok(_) => assert!(welcome, "{step}"),
            Err(failure) => {
                assert!(!welcome, "{step}: {failure}");
                assert!(matches!(failure, VerifyFailure::Untrusted(_)), "{step}: {failure}");
            }
        }
    }
}
