//! A server's part of a handshake's key exchange: a key of its own, and the secret that it has in common with the client.

use std::time::Duration;

use aws_lc_rs::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use aws_lc_rs::rand::SystemRandom;
use heddle_simd::{BASE_POINT, Engine, LANES, X25519_BYTES, X25519Operation};
use heddle_x25519::testing::Implementation;

use crate::{Work, compare, subject_of};

/// Adds the rates of the implementations; of Heddle's, in lanes and one by one with s2n-bignum's assembly, only where the
/// processor has what they need.
pub(crate) fn measure(
    engine: Option<Engine>,
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
            "s2n-bignum".to_owned(),
            Box::new(|| exchange(Implementation::Linked)),
        ));
    } else {
        eprintln!("this processor has no ADX, BMI2 and AVX2: X25519 is BoringSSL's");
    }
    for (engine, width) in engine
        .into_iter()
        .flat_map(|engine| [LANES, 1, 2, 3, 4].map(|width| (engine, width)))
    {
        let client = &client;
        subjects.push((
            subject_of(width),
            Box::new(move || {
                let mut privates = [[0; X25519_BYTES]; LANES];
                let privates = &mut privates[..width];
                boring::rand::rand_bytes(privates.as_flattened_mut()).expect("random bytes");
                for point in [client, &BASE_POINT] {
                    let operations: Vec<_> = privates
                        .iter()
                        .map(|scalar| X25519Operation { scalar, point })
                        .collect();
                    let results = engine.x25519(&operations).expect("batch");
                    assert_eq!(results.len(), width);
                }
                width
            }),
        ));
    }
    compare(
        "x25519_exchange_per_second",
        subjects,
        rounds,
        length,
        result,
    );
}
