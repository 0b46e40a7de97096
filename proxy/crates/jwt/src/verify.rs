//! Signatures of tokens.

use boring::bn::BigNum;
use boring::ecdsa::EcdsaSig;
use boring::error::ErrorStack;
use boring::hash::hash;
use boring::hmac::Hmac;
use boring::memcmp;
use boring::rsa::Padding;
use boring::sign::{RsaPssSaltlen, Verifier};

use crate::algorithm::Hash;
use crate::jwks::{Key, KeySet, Material};
use crate::{Algorithm, JwtError, Token};

/// Bytes of an Ed25519 signature (RFC 8032 section 5.1.6).
const ED25519_SIGNATURE: usize = 64;

impl KeySet {
    /// Whether one of the keys signed the token. A key with a number is asked only when the token names it or names none,
    /// a key with an algorithm only for tokens of that algorithm.
    ///
    /// # Errors
    /// No key was asked, or none signed it.
    pub fn verify(&self, token: &Token) -> Result<(), JwtError> {
        let mut asked = false;
        for key in self.keys.iter().filter(|key| concerns(key, token)) {
            asked = true;
            match (&key.material, token.algorithm) {
                (Material::Ed25519(_), Algorithm::EdDsa) if token.signature.len() != ED25519_SIGNATURE => {
                    return Err(JwtError::Ed25519Length);
                }
                // A failure of the library is a signature that does not hold.
                _ if signed(key, token).unwrap_or(false) => return Ok(()),
                _ => {}
            }
        }
        Err(if asked {
            JwtError::VerificationFails
        } else {
            JwtError::JwksNoMatch
        })
    }
}

fn concerns(key: &Key, token: &Token) -> bool {
    let same_number = match (&key.kid, &token.kid) {
        (Some(key), Some(token)) => key == token,
        _ => true,
    };
    same_number && key.alg.as_ref().is_none_or(|alg| *alg == token.alg)
}

fn signed(key: &Key, token: &Token) -> Result<bool, ErrorStack> {
    let (text, signature) = (token.signed(), &token.signature[..]);
    match (&key.material, token.algorithm) {
        (Material::Rsa(key), Algorithm::Rs(hash)) => {
            let mut verifier = Verifier::new(hash.digest(), key)?;
            verifier.update(text)?;
            verifier.verify(signature)
        }
        (Material::Rsa(key), Algorithm::Ps(hash)) => {
            let mut verifier = Verifier::new(hash.digest(), key)?;
            verifier.set_rsa_padding(Padding::PKCS1_PSS)?;
            verifier.set_rsa_mgf1_md(hash.digest())?;
            // RFC 7518 section 3.5.
            verifier.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)?;
            verifier.update(text)?;
            verifier.verify(signature)
        }
        (Material::Ec(key, size), Algorithm::Es(algorithm)) => {
            // Each algorithm has a curve, and its signatures a length (RFC 7518 section 3.4).
            let of_curve = match algorithm {
                Hash::Sha256 => 32,
                Hash::Sha384 => 48,
                Hash::Sha512 => 66,
            };
            if *size != of_curve || signature.len() != 2 * size {
                return Ok(false);
            }
            let (r, s) = signature.split_at(*size);
            let signature = EcdsaSig::from_private_components(BigNum::from_slice(r)?, BigNum::from_slice(s)?)?;
            signature.verify(&hash(algorithm.digest(), text)?, key)
        }
        (Material::Ed25519(key), Algorithm::EdDsa) => {
            Verifier::new_without_digest(key)?.verify_oneshot(signature, text)
        }
        (Material::Hmac(key), Algorithm::Hs(hash)) => {
            let mut mac = Hmac::init(key, &hash.digest())?;
            mac.update(text)?;
            let mac = mac.finalize()?;
            Ok(mac.len() == signature.len() && memcmp::eq(&mac, signature))
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use boring::ec::{EcGroup, EcKey};
    use boring::nid::Nid;
    use boring::pkey::{Id, PKey, Private};
    use boring::rsa::Rsa;
    use boring::sign::Signer;
    use serde_json::{Value, json};

    use super::*;
    use crate::token::BASE64URL;

    /// A key pair: the private half and the JWK.
    enum Pair {
        Rsa(PKey<Private>),
        Ec(EcKey<Private>, usize),
        Ed(PKey<Private>),
        Oct(Vec<u8>),
    }

    fn b64(bytes: impl AsRef<[u8]>) -> String {
        BASE64URL.encode(bytes).trim_end_matches('=').to_owned()
    }

    fn rsa() -> Pair {
        Pair::Rsa(PKey::from_rsa(Rsa::generate(2048).expect("a key")).expect("a key"))
    }

    fn ec(nid: Nid, size: usize) -> Pair {
        let group = EcGroup::from_curve_name(nid).expect("a curve");
        Pair::Ec(EcKey::generate(&group).expect("a key"), size)
    }

    impl Pair {
        fn jwk(&self, kid: &str, alg: Option<&str>) -> Value {
            let mut jwk = match self {
                Self::Rsa(key) => {
                    let rsa = key.rsa().expect("RSA");
                    json!({"kty": "RSA", "n": b64(rsa.n().to_vec()), "e": b64(rsa.e().to_vec())})
                }
                Self::Ec(key, size) => {
                    let (mut x, mut y) = (BigNum::new().expect("a number"), BigNum::new().expect("a number"));
                    let mut context = boring::bn::BigNumContext::new().expect("a context");
                    key.public_key()
                        .affine_coordinates_gfp(key.group(), &mut x, &mut y, &mut context)
                        .expect("coordinates");
                    let crv = match size {
                        32 => "P-256",
                        48 => "P-384",
                        _ => "P-521",
                    };
                    json!({"kty": "EC", "crv": crv, "x": b64(x.to_vec()), "y": b64(y.to_vec())})
                }
                Self::Ed(key) => {
                    let mut raw = [0; 32];
                    key.raw_public_key(&mut raw).expect("a raw key");
                    json!({"kty": "OKP", "crv": "Ed25519", "x": b64(raw)})
                }
                Self::Oct(secret) => json!({"kty": "oct", "k": b64(secret)}),
            };
            jwk["kid"] = kid.into();
            if let Some(alg) = alg {
                jwk["alg"] = alg.into();
            }
            jwk
        }

        fn token(&self, alg: &str, kid: Option<&str>) -> String {
            let mut header = json!({"alg": alg});
            if let Some(kid) = kid {
                header["kid"] = kid.into();
            }
            let text = format!("{}.{}", b64(header.to_string()), b64(r#"{"iss":"i"}"#));
            format!("{text}.{}", b64(self.sign(alg, text.as_bytes())))
        }

        fn sign(&self, alg: &str, text: &[u8]) -> Vec<u8> {
            let hash = match Algorithm::of(alg).expect(alg) {
                Algorithm::Rs(h) | Algorithm::Ps(h) | Algorithm::Es(h) | Algorithm::Hs(h) => h,
                Algorithm::EdDsa => Hash::Sha512,
            };
            match self {
                Self::Rsa(key) => {
                    let mut signer = Signer::new(hash.digest(), key).expect("a signer");
                    if alg.starts_with("PS") {
                        signer.set_rsa_padding(Padding::PKCS1_PSS).expect("padding");
                        signer.set_rsa_mgf1_md(hash.digest()).expect("mgf");
                        signer.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH).expect("salt");
                    }
                    signer.update(text).expect("text");
                    signer.sign_to_vec().expect("a signature")
                }
                Self::Ec(key, size) => {
                    let digest = boring::hash::hash(hash.digest(), text).expect("a digest");
                    let signature = EcdsaSig::sign(&digest, key).expect("a signature");
                    let mut out = Vec::new();
                    for half in [signature.r().to_vec(), signature.s().to_vec()] {
                        out.extend(std::iter::repeat_n(0, size - half.len()));
                        out.extend(half);
                    }
                    out
                }
                Self::Ed(key) => {
                    let mut signer = Signer::new_without_digest(key).expect("a signer");
                    signer.sign_oneshot_to_vec(text).expect("a signature")
                }
                Self::Oct(secret) => {
                    let mut mac = Hmac::init(secret, &hash.digest()).expect("a mac");
                    mac.update(text).expect("text");
                    mac.finalize().expect("a mac")
                }
            }
        }
    }

    fn set(keys: &[Value]) -> KeySet {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).expect("a key set")
    }

    #[test]
    fn every_algorithm() {
        let rsa = rsa();
        let pairs = [
            ("RS256", &rsa),
            ("RS384", &rsa),
            ("RS512", &rsa),
            ("PS256", &rsa),
            ("PS384", &rsa),
            ("PS512", &rsa),
            ("ES256", &ec(Nid::X9_62_PRIME256V1, 32)),
            ("ES384", &ec(Nid::SECP384R1, 48)),
            ("ES512", &ec(Nid::SECP521R1, 66)),
            ("HS256", &Pair::Oct(b"secret".to_vec())),
            ("HS384", &Pair::Oct(b"secret".to_vec())),
            ("HS512", &Pair::Oct(b"secret".to_vec())),
            ("EdDSA", &Pair::Ed(PKey::generate(Id::ED25519).expect("a key"))),
        ];
        let verify = |keys: &[Value], text: &str| set(keys).verify(&Token::parse(text).expect("a token"));
        for (alg, pair) in &pairs {
            let text = pair.token(alg, Some("a"));
            assert_eq!(verify(&[pair.jwk("a", None)], &text), Ok(()), "{alg}");
            assert_eq!(verify(&[pair.jwk("a", Some(alg))], &text), Ok(()), "{alg}");
            assert_eq!(
                verify(&[pair.jwk("b", None)], &text),
                Err(JwtError::JwksNoMatch),
                "{alg}"
            );
            // Another payload under the same signature.
            let mut sections = text.split('.');
            let (head, signature) = (sections.next().expect("a header"), sections.nth(1).expect("one"));
            let forged = format!("{head}.{}.{signature}", b64(r#"{"iss":"other"}"#));
            assert_eq!(
                verify(&[pair.jwk("a", None)], &forged),
                Err(JwtError::VerificationFails),
                "{alg}"
            );
            // Every other kind of key under the same number, and then the right one behind them.
            let others = pairs.iter().map(|(_, other)| other.jwk("a", None));
            assert_eq!(verify(&others.collect::<Vec<_>>(), &text), Ok(()), "{alg} among others");
        }
    }

    /// An RSA key's public half as an HMAC secret: the classic confusion.
    #[test]
    fn a_public_key_is_no_secret() {
        let rsa = rsa();
        let jwk = rsa.jwk("a", None);
        let secret = BASE64URL.decode(jwk["n"].as_str().expect("n")).expect("base64");
        let text = Pair::Oct(secret).token("HS256", Some("a"));
        let verdict = set(&[jwk]).verify(&Token::parse(&text).expect("a token"));
        assert_eq!(verdict, Err(JwtError::VerificationFails));
    }

    #[test]
    fn key_sets() {
        let ec = ec(Nid::X9_62_PRIME256V1, 32).jwk("a", None);
        let changed = |name: &str, value: Value| {
            let mut key = ec.clone();
            key[name] = value;
            json!({ "keys": [key] }).to_string()
        };
        let rsa = |n: Vec<u8>, e: &str| json!({"keys": [{"kty": "RSA", "n": b64(n), "e": e}]}).to_string();
        let odd = |bytes: usize| {
            let mut n = vec![0xff; bytes];
            n[0] = 0x80;
            n
        };
        for (text, expected) in [
            ("", JwtError::JwksJson),
            ("[]", JwtError::JwksJson),
            ("{}", JwtError::JwksNoKeys),
            (r#"{"keys":{}}"#, JwtError::JwksBadKeys),
            (r#"{"keys":[]}"#, JwtError::JwksNoValidKeys),
            (r#"{"keys":[{}]}"#, JwtError::KtyMissing),
            (r#"{"keys":[{"kty":"x"}]}"#, JwtError::KtyUnknown),
            (&changed("alg", "RS256".into()), JwtError::KeyAlg),
            (&changed("alg", "RSA-OAEP".into()), JwtError::KeyAlg),
            (&changed("alg", "ES384".into()), JwtError::KeyCurve),
            (&changed("crv", "P-1".into()), JwtError::KeyCurve),
            (&changed("x", "AAAA".into()), JwtError::KeyField),
            (&changed("x", 7.into()), JwtError::KeyField),
            (&rsa(odd(64), "AQAB"), JwtError::KeyField),
            (&rsa(odd(2048), "AQAB"), JwtError::KeyField),
            (&rsa(odd(256), "AQ"), JwtError::KeyField),
            (r#"{"keys":[{"kty":"oct","k":""}]}"#, JwtError::KeyField),
            (
                r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA"}]}"#,
                JwtError::KeyField,
            ),
            (
                r#"{"keys":[{"kty":"OKP","crv":"X25519","x":"AA"}]}"#,
                JwtError::KeyCurve,
            ),
            (r#"{"a":"-----BEGIN CERTIFICATE-----\nx"}"#, JwtError::X509),
            (&"x".repeat(crate::MAX_JWKS + 1), JwtError::JwksTooLarge),
            (
                &json!({"keys": vec![ec.clone(); crate::MAX_KEYS + 1]}).to_string(),
                JwtError::JwksTooMany,
            ),
        ] {
            assert_eq!(KeySet::parse(text.as_bytes()).err(), Some(expected), "{text:.80}");
        }
        let mixed = json!({"keys": [{"kty": "RSA", "alg": "RSA-OAEP"}, ec]}).to_string();
        assert_eq!(KeySet::parse(mixed.as_bytes()).expect("one is enough").keys.len(), 1);
    }
}
