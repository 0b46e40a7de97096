use super::*;
use crate::testing::Leaf;

#[tokio::test]
async fn mutual_tls_fills_the_facts() {
    let root = Authority::root("root");
    let (server, client) = mutual(&root);
    let (accepted, dialled) = handshake(&server, &client).await;
    let (serving, facts) = accepted.expect("server side");
    let (stream, agreed) = dialled.expect("client side");
    assert!(stream.is_tls());
    let pem = serving.peer_certificate_pem().expect("the client's certificate");
    assert!(pem.starts_with("-----BEGIN CERTIFICATE-----\n"), "{pem}");
    assert_ne!(
        stream.peer_certificate_pem(),
        Some(pem),
        "each side's peer is the other"
    );
    assert_eq!(facts.principal(), Some(CLIENT));
    let peer = facts.peer.expect("peer");
    assert_eq!(peer.subject, "CN=leaf");
    assert_eq!(peer.issuer, "root");
    assert_eq!(peer.sha256.len(), 64);
    assert_eq!(facts.alpn.as_deref(), Some(b"h2".as_slice()));
    assert_eq!(facts.tls_version, Some("TLSv1.3"));
    assert_eq!(facts.local_identity.as_deref(), Some(SERVER));
    assert_eq!(facts.sni.as_deref(), Some("outbound_.80_._.server"));
    assert_eq!(agreed.alpn.as_deref(), Some(b"h2".as_slice()));
    assert_eq!(agreed.peer.expect("peer").uri_sans, [SERVER]);
}

#[tokio::test]
async fn tls_1_2_with_rsa() {
    let root = Authority::root("root");
    let (mut server, client) = mutual(&root);
    server.certificates = vec![root.issue(&Leaf {
        uris: &[SERVER],
        rsa: true,
        ..Leaf::default()
    })];
    server.max_version = Some(TlsVersion::V1_2);
    let (accepted, dialled) = handshake(&server, &client).await;
    assert_eq!(accepted.expect("server side").1.tls_version, Some("TLSv1.2"));
    dialled.expect("client side");
}

#[tokio::test]
async fn chains_through_an_intermediate() {
    let root = Authority::root("root");
    let intermediate = root.intermediate("cluster1");
    let (mut server, client) = mutual(&root);
    server.certificates = vec![intermediate.spiffe(SERVER)];
    let (accepted, dialled) = handshake(&server, &client).await;
    accepted.expect("server side");
    assert_eq!(dialled.expect("client side").1.peer.expect("peer").issuer, "cluster1");
}

/// What the server says of each bad client.
#[tokio::test]
async fn bad_clients_are_refused_with_a_reason() {
    let root = Authority::root("root");
    let stranger = Authority::root("stranger");
    let leaf = |from, until| {
        root.issue(&Leaf {
            uris: &[CLIENT],
            from,
            until,
            ..Leaf::default()
        })
    };
    type Case = (&'static str, Option<KeyPair>, fn(&VerifyFailure) -> bool, &'static str);
    let cases: Vec<Case> = vec![
        (
            "none",
            None,
            |f| *f == VerifyFailure::NoCertificate,
            "fail_verify_no_cert",
        ),
        (
            "other identity",
            Some(root.spiffe("spiffe://cluster.local/ns/shop/sa/thief")),
            |f| matches!(f, VerifyFailure::SanMismatch(names) if names.ends_with("sa/thief")),
            "fail_verify_san",
        ),
        (
            "no identity",
            Some(root.issue(&Leaf::default())),
            |f| matches!(f, VerifyFailure::SanMismatch(n) if n == "none"),
            "fail_verify_san",
        ),
        (
            "expired",
            Some(leaf(-7200, -3600)),
            |f| *f == VerifyFailure::Expired,
            "fail_verify_error",
        ),
        (
            "not yet valid",
            Some(leaf(3600, 7200)),
            |f| *f == VerifyFailure::NotYetValid,
            "fail_verify_error",
        ),
        (
            "unknown root",
            Some(stranger.spiffe(CLIENT)),
            |f| matches!(f, VerifyFailure::Untrusted(_)),
            "fail_verify_error",
        ),
    ];
    for version in [TlsVersion::V1_2, TlsVersion::V1_3] {
        for (name, certificate, is_expected, counter) in &cases {
            let (mut server, mut client) = mutual(&root);
            server.max_version = Some(version);
            client.certificate.clone_from(certificate);
            let (accepted, dialled) = handshake(&server, &client).await;
            match accepted.expect_err(name).kind {
                HandshakeErrorKind::Verify(failure) => {
                    assert!(is_expected(&failure), "{name}: {failure}");
                    assert_eq!(failure.counter(), *counter, "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
            // The client gets an alert: in its handshake with TLS 1.2, at its first read with TLS 1.3.
            match dialled {
                Err(e) => assert!(matches!(e.kind, HandshakeErrorKind::PeerAlert(_)), "{name}: {e}"),
                Ok((stream, _)) => {
                    let error = stream.read(&mut BytesMut::new()).await.expect_err(name);
                    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{name}: {error}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_client_without_certificate_may_come_when_none_is_required() {
    let root = Authority::root("root");
    let (mut server, mut client) = mutual(&root);
    server.require_client_certificate = false;
    client.certificate = None;
    let (accepted, _) = handshake(&server, &client).await;
    assert_eq!(accepted.expect("server side").1.peer, None);
}

#[tokio::test]
async fn a_server_of_another_identity_is_refused() {
    let root = Authority::root("root");
    let (server, mut client) = mutual(&root);
    client.trust = trust(&root, &["spiffe://cluster.local/ns/shop/sa/other"]);
    let (accepted, dialled) = handshake(&server, &client).await;
    assert!(matches!(
        dialled.expect_err("must fail").kind,
        HandshakeErrorKind::Verify(VerifyFailure::SanMismatch(names)) if names == SERVER
    ));
    assert!(matches!(
        accepted.expect_err("must fail").kind,
        HandshakeErrorKind::PeerAlert(_)
    ));
}

#[tokio::test]
async fn roots_vouch_for_their_own_trust_domain_only() {
    let here = Authority::root("here");
    let there = Authority::root("there");
    let domain = |name: &str, root: &Authority| TrustDomain {
        name: name.to_owned(),
        roots_pem: root.pem(),
    };
    let (mut server, client) = mutual(&here);
    server.trust = Some(Trust {
        trust_domains: vec![domain("cluster.local", &here), domain("partner", &there)],
        ..Trust::default()
    });
    let with = |certificate| ClientParams {
        certificate: Some(certificate),
        ..client.clone()
    };
    let (own, _) = handshake(&server, &with(here.spiffe(CLIENT))).await;
    own.expect("own identity");
    let (partner, _) = handshake(&server, &with(there.spiffe("spiffe://partner/ns/a/sa/b"))).await;
    partner.expect("the partner's identity by the partner's root");
    let (forged, _) = handshake(&server, &with(there.spiffe(CLIENT))).await;
    assert!(matches!(
        forged.expect_err("forged").kind,
        HandshakeErrorKind::Verify(VerifyFailure::Untrusted(_))
    ));
    let (foreign, _) = handshake(&server, &with(here.spiffe("spiffe://elsewhere/x"))).await;
    assert!(matches!(
        foreign.expect_err("foreign").kind,
        HandshakeErrorKind::Verify(VerifyFailure::SanMismatch(_))
    ));
    let two = here.issue(&Leaf {
        uris: &[CLIENT, "spiffe://partner/x"],
        ..Leaf::default()
    });
    let (ambiguous, _) = handshake(&server, &with(two)).await;
    assert!(matches!(
        ambiguous.expect_err("two names").kind,
        HandshakeErrorKind::Verify(VerifyFailure::SanMismatch(_))
    ));
}

#[tokio::test]
async fn no_common_protocol_version() {
    let root = Authority::root("root");
    let (mut server, mut client) = mutual(&root);
    server.min_version = Some(TlsVersion::V1_3);
    client.max_version = Some(TlsVersion::V1_2);
    let (accepted, dialled) = handshake(&server, &client).await;
    assert!(matches!(
        accepted.expect_err("must fail").kind,
        HandshakeErrorKind::Protocol(_)
    ));
    assert!(matches!(
        dialled.expect_err("must fail").kind,
        HandshakeErrorKind::PeerAlert(_)
    ));
}

#[tokio::test]
async fn what_is_not_tls_and_what_ends_early() {
    use tokio::io::AsyncWriteExt;
    let root = Authority::root("root");
    let server = ServerContext::new(&mutual(&root).0).expect("context");
    let (mut near, far) = pair().await;
    near.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .expect("writes");
    let mut facts = info(&far);
    let error = server
        .accept(far, BytesMut::new(), &mut facts)
        .await
        .expect_err("not TLS");
    assert!(matches!(error.kind, HandshakeErrorKind::NotTls), "{error}");

    let (near, far) = pair().await;
    drop(near);
    let error = server
        .accept(far, BytesMut::new(), &mut facts)
        .await
        .expect_err("closed");
    assert!(matches!(error.kind, HandshakeErrorKind::Closed), "{error}");
    assert!(error.is_transient());
}

#[tokio::test]
async fn bytes_that_an_inspector_has_read_are_used() {
    let root = Authority::root("root");
    let (server, client) = mutual(&root);
    let server = ServerContext::new(&server).expect("context");
    let client = ClientContext::new(&client).expect("context");
    let (near, far) = pair().await;
    let accept = async {
        let mut inspector = heddle_net::ClientHelloInspector::new();
        let mut read = BytesMut::new();
        let raw = Stream::plain(far);
        loop {
            raw.read(&mut read).await.expect("reads");
            match inspector.inspect(&read) {
                heddle_net::Inspection::NeedMore => {}
                heddle_net::Inspection::Tls(hello) => {
                    assert_eq!(hello.server_name.as_deref(), Some("outbound_.80_._.server"));
                    assert_eq!(hello.alpn.len(), 2);
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        let far = raw.into_tcp();
        let mut facts = info(&far);
        server.accept(far, read, &mut facts).await.expect("accepts")
    };
    let (server, client) = tokio::join!(accept, client.connect(near, None, None));
    let (client, _) = client.expect("connects");
    client.write_all(b"ping").await.expect("writes");
    let mut got = BytesMut::new();
    server.read(&mut got).await.expect("reads");
    assert_eq!(&got[..], b"ping");
}

#[tokio::test]
async fn the_caller_overrides_name_and_protocols() {
    let root = Authority::root("root");
    let (server, client) = mutual(&root);
    let server = ServerContext::new(&server).expect("context");
    let client = ClientContext::new(&client).expect("context");
    let (near, far) = pair().await;
    let mut facts = info(&far);
    let (accepted, dialled) = tokio::join!(
        server.accept(far, BytesMut::new(), &mut facts),
        client.connect(near, Some("Cart.Shop"), Some(&[b"istio"])),
    );
    accepted.expect("accepts");
    assert_eq!(dialled.expect("connects").1.alpn.as_deref(), Some(b"istio".as_slice()));
    assert_eq!(facts.sni.as_deref(), Some("cart.shop"));
}
