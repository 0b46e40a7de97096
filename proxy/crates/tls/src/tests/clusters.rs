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

/// What a client says of a server.
async fn opinion(server: &ServerParams, client: &ClientParams) -> Result<(), VerifyFailure> {
    match handshake(server, client).await.1 {
        Ok(_) => Ok(()),
        Err(error) => match error.kind {
            HandshakeErrorKind::Verify(failure) => Err(failure),
            other => panic!("{other:?}"),
        },
    }
}

/// A client goes by the one name that says both who a server is and who says so.
#[tokio::test]
async fn servers_are_of_one_account_and_one_cluster() {
    const MEMBER: &str = "0123456789abcdef0123456789abcdef.c2.clusters.cluster.local";
    const BEFORE: &str = "00000000000000000000000000000000.c2.clusters.cluster.local";
    let root = Authority::root("root");
    let (one, two) = (root.constrained("c1", ONE), root.constrained("c2", MEMBER));
    let removed = root.constrained("c2", BEFORE);
    let below = |account: &str, issuer: &str| format!("{account}.shop.{issuer}");
    let wanting = |wanted: &[String]| ClientParams {
        trust: Some(Trust {
            roots_pem: root.pem(),
            sans: wanted
                .iter()
                .map(|name| SanMatcher::exact(SanKind::Dns, name))
                .collect(),
            trust_domains: Vec::new(),
        }),
        ..ClientParams::default()
    };
    let showing = |issuer: &Authority, uris: &[&str], dns: &[&str]| ServerParams {
        certificates: vec![issuer.issue(&Leaf {
            uris,
            dns,
            ..Leaf::default()
        })],
        ..ServerParams::default()
    };
    let (here, there) = (below("server", ONE), below("server", MEMBER));
    let one_home = wanting(std::slice::from_ref(&here));
    let two_homes = wanting(&[here.clone(), there.clone()]);
    opinion(&showing(&one, &[SERVER], &[ONE, &here]), &one_home)
        .await
        .expect("of the cluster that has it");
    for server in [
        showing(&one, &[SERVER], &[ONE, &here]),
        showing(&two, &[SERVER], &[MEMBER, &there]),
    ] {
        opinion(&server, &two_homes).await.expect("of either that has it");
    }
    let (thief, past) = (below("thief", MEMBER), below("server", BEFORE));
    for (what, client, server) in [
        ("the identity", &one_home, showing(&two, &[SERVER], &[MEMBER, &there])),
        (
            "a URI that reads like the name",
            &one_home,
            showing(&two, &[SERVER, &here], &[MEMBER]),
        ),
        ("only such a URI", &one_home, showing(&two, &[&here], &[])),
        ("the name itself", &one_home, showing(&two, &[SERVER], &[&here])),
        (
            "the name beside its own",
            &one_home,
            showing(&two, &[SERVER], &[MEMBER, &there, &here]),
        ),
        (
            "a wildcard",
            &one_home,
            showing(&two, &[SERVER], &["*.shop.c1.clusters.cluster.local"]),
        ),
        (
            "another account of its own",
            &two_homes,
            showing(&two, &[SERVER], &[MEMBER, &thief]),
        ),
        (
            "its cluster's name only",
            &two_homes,
            showing(&two, &[SERVER], &[MEMBER]),
        ),
        (
            "a former membership",
            &two_homes,
            showing(&removed, &[SERVER], &[BEFORE, &past]),
        ),
        (
            "a former membership, and the name",
            &two_homes,
            showing(&removed, &[SERVER, &there], &[&there]),
        ),
        (
            "a former membership, and its cluster",
            &two_homes,
            showing(&removed, &[SERVER], &["c2.clusters.cluster.local"]),
        ),
    ] {
        let failure = opinion(&server, client).await.expect_err(what);
        let said = failure.to_string();
        assert!(
            matches!(failure, VerifyFailure::SanMismatch(_)) || said.contains("permitted subtree"),
            "{what}: {said}"
        );
    }
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
