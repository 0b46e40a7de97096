//! A server's part of a handshake's key exchange: a key of its own, and the secret that it has in common with the client.

use std::time::Duration;

use aws_lc_rs::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use aws_lc_rs::rand::SystemRandom;
use heddle_x25519::testing::Implementation;

use crate::{Work, compare};

/// Adds the rates of the implementations; of Heddle's only where the processor has what it needs.
pub(crate) fn measure(
    rounds: u64,
    length: Duration,
    result: &mut serde_json::Map<String, serde_json::Value>,
) {
    let random = SystemRandom::new();
    let (client, _) = Implementation::BoringSsl.keypair();
    let exchange = |implementation: Implementation| {
        let (_, private) = implementation.keypair();
        let secret = implementation.shared_secret(&private, &client);
        assert!(secret.is_some());
        1
    };
    let mut subjects: Vec<(String, Work<'_>)> = vec![
        (
            "boringssl".to_owned(),
            Box::new(|| exchange(Implementation::BoringSsl)),
        ),
        (
            "aws-lc".to_owned(),
            Box::new(|| {
                let own = EphemeralPrivateKey::generate(&X25519, &random).expect("key");
                let public = own.compute_public_key().expect("public key");
                let peer = UnparsedPublicKey::new(&X25519, &client);
                let secret = agree_ephemeral(own, peer, "no agreement", |secret| Ok(secret.len()));
                assert_eq!((public.as_ref().len(), secret), (32, Ok(32)));
                1
            }),
        ),
    ];
    if heddle_x25519::is_supported() {
        subjects.push((
            "heddle".to_owned(),
            Box::new(|| exchange(Implementation::Linked)),
        ));
    } else {
        eprintln!("this processor has no ADX, BMI2 and AVX2: X25519 is BoringSSL's");
    }
    compare(
        "x25519_exchange_per_second",
        subjects,
        rounds,
        length,
        result,
    );
}
