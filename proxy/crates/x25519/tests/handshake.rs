//! BoringSSL's handshakes run what the linker gave them.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::os::unix::net::UnixStream;

use boring::asn1::Asn1Time;
use boring::ec::{EcGroup, EcKey};
use boring::hash::MessageDigest;
use boring::nid::Nid;
use boring::pkey::{PKey, Private};
use boring::ssl::{ClientHello, ExtensionType, Ssl, SslAcceptor, SslConnector, SslMethod, SslVerifyMode, SslVersion};
use boring::x509::{X509, X509NameBuilder};
use heddle_simd::{BASE_POINT, Engine, X25519Operation};
use heddle_x25519::BYTES;

fn certificate() -> (PKey<Private>, X509) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("P-256");
    let key = PKey::from_ec_key(EcKey::generate(&group).expect("key")).expect("key");
    let mut name = X509NameBuilder::new().expect("name");
    name.append_entry_by_text("CN", "server").expect("name");
    let name = name.build();
    let mut builder = X509::builder().expect("certificate");
    builder.set_version(2).expect("version");
    builder.set_subject_name(&name).expect("subject");
    builder.set_issuer_name(&name).expect("issuer");
    builder.set_pubkey(&key).expect("key");
    let (begin, end) = (Asn1Time::days_from_now(0), Asn1Time::days_from_now(1));
    builder.set_not_before(&begin.expect("time")).expect("begin");
    builder.set_not_after(&end.expect("time")).expect("end");
    builder.sign(&key, MessageDigest::sha256()).expect("signature");
    (key, builder.build())
}

/// What a server does with a ClientHello before BoringSSL.
type Early = fn(&ClientHello<'_>);

/// The group that a handshake of both sides agreed upon, in this process.
fn handshake(groups: &str, version: SslVersion, early: Early) -> String {
    let (key, certificate) = certificate();
    let (near, far) = UnixStream::pair().expect("sockets");
    let mut server = SslAcceptor::mozilla_intermediate_v5(SslMethod::tls()).expect("context");
    server.set_private_key(&key).expect("key");
    server.set_certificate(&certificate).expect("certificate");
    server.set_curves_list(groups).expect("groups");
    server.set_max_proto_version(Some(version)).expect("version");
    server.set_select_certificate_callback(move |hello| {
        early(&hello);
        Ok(())
    });
    let server = server.build();
    let accepted = std::thread::spawn(move || {
        let ssl = Ssl::new(server.context()).expect("connection");
        let stream = ssl.setup_accept(far).handshake().expect("accepted");
        assert!(
            heddle_simd::x25519_offer::take_key().is_none(),
            "what was offered was taken"
        );
        stream.ssl().curve_name().expect("a group").to_owned()
    });
    let mut client = SslConnector::builder(SslMethod::tls()).expect("context");
    client.set_verify(SslVerifyMode::NONE);
    client.set_curves_list(groups).expect("groups");
    client.set_max_proto_version(Some(version)).expect("version");
    let client = client.build();
    client.connect("server", near).expect("connected");
    accepted.join().expect("the server's thread")
}

/// Offers an exchange with the client's key, which is the last share's end, that vectors' twin has computed.
fn offer_exchange(hello: &ClientHello<'_>) {
    let shares = hello.get_extension(ExtensionType::KEY_SHARE).expect("key shares");
    let peer = shares.last_chunk().expect("a key of X25519");
    let private = [7; BYTES];
    let of = |point| X25519Operation {
        scalar: &private,
        point,
    };
    let results = Engine::portable()
        .x25519(&[of(&BASE_POINT), of(peer)])
        .expect("a batch");
    heddle_simd::x25519_offer::offer(
        heddle_simd::x25519_offer::encode(&private, &results[0], &results[1]),
        peer,
    );
}

/// The count is the process's: one test.
#[test]
fn handshakes_call_it() {
    let supported = heddle_x25519::is_supported();
    if !supported {
        println!("without ADX, BMI2 and AVX2: these are handshakes with BoringSSL's own");
    }
    for (groups, version, group, calls) in [
        ("X25519", SslVersion::TLS1_3, "X25519", 4),
        // The certificate's curve has to be offered as well.
        ("X25519:P-256", SslVersion::TLS1_2, "X25519", 4),
        ("X25519MLKEM768", SslVersion::TLS1_3, "X25519MLKEM768", 4),
        ("P-256", SslVersion::TLS1_3, "P-256", 0),
    ] {
        let before = heddle_x25519::testing::calls();
        assert_eq!(handshake(groups, version, |_| {}), group);
        // A key and a secret on each side.
        let expected = if supported { calls } else { 0 };
        assert_eq!(
            heddle_x25519::testing::calls() - before,
            expected,
            "{group} {version:?}"
        );
    }
    // What is offered is taken, so that the client's key and secret alone are computed; both sides agree.
    for group in ["X25519", "X25519MLKEM768"] {
        let before = heddle_x25519::testing::calls();
        assert_eq!(handshake(group, SslVersion::TLS1_3, offer_exchange), group);
        let expected = if supported { 2 } else { 0 };
        assert_eq!(heddle_x25519::testing::calls() - before, expected, "{group}, offered");
    }
}
