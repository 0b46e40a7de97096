//! JSON Web Tokens of clients, and key sets of issuers. The input is read as both.
#![no_main]

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use heddle_jwt::{JwtError, KeySet, MAX_KEYS, MAX_TOKEN, Token};
use libfuzzer_sys::fuzz_target;

/// Keys of every kind, whose private halves nobody has.
static KEYS: LazyLock<KeySet> = LazyLock::new(|| {
    let set = include_bytes!("../../corpus/jwt/keys");
    KeySet::parse(set).expect("the seed is a key set")
});

/// A token that only the holder of [`SECRET`] signs.
const SIGNED: &str = "eyJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJhIn0.QzDbsF6kdzANA8TCFZ-gR8pe4rQcyDz-Y3nKkq-0Xew";
const SECRET: &[u8] = b"a fuzzing secret";

fn token(text: &str) {
    let Ok(token) = Token::parse(text) else { return };
    assert!(text.len() <= MAX_TOKEN);
    let sections: Vec<&str> = text.split('.').collect();
    assert_eq!(sections.len(), 3);
    assert_eq!(sections.get(1), Some(&token.encoded_payload()));
    assert!(KEYS.verify(&token).is_err(), "nobody has the keys");
    for skew in [0, 60] {
        let mut ended = false;
        let mut begun = false;
        for now in [0, 1, 1_000_000_000, 4_000_000_000, u64::MAX - 60, u64::MAX] {
            let verdict = token.check_time(now, skew);
            assert!(!ended || verdict == Err(JwtError::Expired), "it stays expired");
            assert!(!begun || verdict != Err(JwtError::NotYetValid), "it stays begun");
            ended |= verdict == Err(JwtError::Expired);
            begun |= verdict.is_ok();
        }
    }
}

/// Zeros at the end of a key make no difference to HMAC (RFC 2104 section 2).
fn is_secret(encoded: &str) -> bool {
    let key = URL_SAFE_NO_PAD
        .decode(encoded.trim_end_matches('='))
        .unwrap_or_default();
    let end = key.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    key.get(..end) == Some(SECRET)
}

fn keys(bytes: &[u8]) {
    let Ok(set) = KeySet::parse(bytes) else { return };
    let signed = Token::parse(SIGNED).expect("a token");
    if set.verify(&signed).is_ok() {
        let json: serde_json::Value = serde_json::from_slice(bytes).expect("it was read");
        let keys = json["keys"].as_array().expect("keys");
        assert!(keys.len() <= MAX_KEYS);
        assert!(
            keys.iter().filter_map(|key| key["k"].as_str()).any(is_secret),
            "only who has the secret"
        );
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        token(text);
    }
    keys(bytes);
});
