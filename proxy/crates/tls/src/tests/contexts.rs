use super::*;
use crate::testing::Leaf;

fn params(root: &Authority) -> ServerParams {
    ServerParams {
        certificates: vec![root.spiffe(SERVER)],
        ..ServerParams::default()
    }
}

fn refused(params: &ServerParams) -> String {
    ServerContext::new(params).expect_err("must be refused").to_string()
}

#[test]
fn every_fault_is_named() {
    let root = Authority::root("root");
    assert!(refused(&ServerParams::default()).contains("certificates: none given"));

    let mut p = params(&root);
    p.certificates[0].chain_pem = b"hello".to_vec();
    assert!(
        refused(&p).contains("certificates[0].certificate_chain: not valid PEM"),
        "{}",
        refused(&p)
    );

    let mut p = params(&root);
    p.certificates[0].key_pem = b"hello".to_vec();
    assert!(refused(&p).contains("certificates[0].private_key: not valid PEM"));

    let mut p = params(&root);
    p.certificates[0].key_pem = root.spiffe(SERVER).key_pem;
    assert!(refused(&p).contains("does not match the certificate CN=leaf"));

    let mut p = params(&root);
    p.cipher_suites = vec!["ECDHE-RSA-AES128-GCM-SHA256".to_owned(), "ROT13".to_owned()];
    assert!(refused(&p).contains("\"ROT13\""));

    let mut p = params(&root);
    p.curves = vec!["P-256".to_owned(), "P-1".to_owned()];
    assert!(refused(&p).contains("\"P-1\""));

    let mut p = params(&root);
    p.alpn = vec![Box::default()];
    assert!(refused(&p).contains("alpn_protocols"));

    let mut p = params(&root);
    p.min_version = Some(TlsVersion::V1_3);
    p.max_version = Some(TlsVersion::V1_2);
    assert!(refused(&p).contains("tls_minimum_protocol_version"));

    let mut p = params(&root);
    p.require_client_certificate = true;
    assert!(refused(&p).contains("validation context"));

    let mut p = params(&root);
    p.trust = Some(Trust::default());
    assert!(refused(&p).contains("no trusted certificate"));
}

#[test]
fn certificates_are_described() {
    let root = Authority::root("the root");
    let mut p = params(&root);
    p.certificates = vec![root.issue(&Leaf {
        uris: &[SERVER],
        dns: &["cart.shop"],
        ..Leaf::default()
    })];
    p.trust = trust(&root, &[]);
    let context = ServerContext::new(&p).expect("context");
    let leaf = &context.certificates()[0];
    assert_eq!(leaf.subject, "CN=leaf");
    assert_eq!(leaf.issuer, "the root");
    assert_eq!(leaf.uri_sans, [SERVER]);
    assert_eq!(leaf.dns_sans, ["cart.shop"]);
    assert_eq!(leaf.not_after - leaf.not_before, 3660);
    assert!(!leaf.serial.is_empty());
    assert_eq!(context.local_identity().map(|i| &**i), Some(SERVER));
    assert_eq!(context.trusted()[0].subject, "CN=the root");
}

#[test]
fn keys_are_not_printed() {
    let root = Authority::root("root");
    let text = format!("{:?}", params(&root));
    assert!(text.contains("[redacted]") && !text.contains("PRIVATE KEY"));
}

#[tokio::test]
async fn several_certificates_are_chosen_by_the_client() {
    let root = Authority::root("root");
    let (mut server, client) = mutual(&root);
    server.certificates = vec![
        root.issue(&Leaf {
            uris: &[SERVER],
            ..Leaf::default()
        }),
        root.issue(&Leaf {
            uris: &[SERVER],
            rsa: true,
            ..Leaf::default()
        }),
    ];
    server.max_version = Some(TlsVersion::V1_2);
    for (suite, ok) in [
        ("ECDHE-ECDSA-AES128-GCM-SHA256", true),
        ("ECDHE-RSA-AES128-GCM-SHA256", true),
    ] {
        let client = ClientParams {
            cipher_suites: vec![suite.to_owned()],
            ..client.clone()
        };
        let (accepted, dialled) = handshake(&server, &client).await;
        assert_eq!(accepted.is_ok(), ok, "{suite}: {:?}", accepted.err());
        dialled.expect(suite);
    }
}
