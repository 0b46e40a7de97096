//! Sets of public keys (RFC 7517), and the older form that maps key numbers to certificates.

use std::fmt;

use base64::Engine as _;
use boring::bn::BigNum;
use boring::ec::{EcGroup, EcKey};
use boring::error::ErrorStack;
use boring::nid::Nid;
use boring::pkey::{PKey, Public};
use boring::rsa::Rsa;
use boring::x509::X509;
use serde_json::{Map, Value};

use crate::token::BASE64URL;
use crate::{Algorithm, JwtError};

/// Largest document that is read, in bytes.
pub const MAX_JWKS: usize = 256 * 1024;

/// Most keys of a set. A token that names none is held against all of them.
pub const MAX_KEYS: usize = 100;

/// Bits of an RSA modulus. A larger one costs whoever verifies more than whoever sends.
const RSA_BITS: std::ops::RangeInclusive<i32> = 1024..=8192;

/// `SubjectPublicKeyInfo` of an Ed25519 key, up to the key's 32 bytes (RFC 8410 section 4).
const ED25519_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Keys that verify tokens. Keys of kinds that are not known, or that make no sense, are left out.
#[derive(Clone)]
pub struct KeySet {
    pub(crate) keys: Vec<Key>,
}

/// Some keys are secrets.
impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySet").field("keys", &self.keys.len()).finish()
    }
}

#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) kid: Option<Box<str>>,
    pub(crate) alg: Option<Box<str>>,
    pub(crate) material: Material,
}

#[derive(Clone)]
pub(crate) enum Material {
    Rsa(PKey<Public>),
    /// With the length of a coordinate in bytes.
    Ec(EcKey<Public>, usize),
    Ed25519(PKey<Public>),
    Hmac(Box<[u8]>),
}

impl KeySet {
    /// Reads a set.
    ///
    /// # Errors
    /// It is no key set, is too large, or holds no key that can be used; then the error is the first key's.
    pub fn parse(json: &[u8]) -> Result<Self, JwtError> {
        if json.len() > MAX_JWKS {
            return Err(JwtError::JwksTooLarge);
        }
        let set: Map<String, Value> = serde_json::from_slice(json).map_err(|_| JwtError::JwksJson)?;
        let keys = match set.get("keys") {
            Some(Value::Array(keys)) => keys,
            Some(_) => return Err(JwtError::JwksBadKeys),
            None => return Self::certificates(&set),
        };
        if keys.len() > MAX_KEYS {
            return Err(JwtError::JwksTooMany);
        }
        let mut read = Vec::new();
        let mut first = None;
        for key in keys.iter().filter_map(Value::as_object) {
            match self::key(key) {
                Ok(key) => read.push(key),
                Err(error) => first = first.or(Some(error)),
            }
        }
        if read.is_empty() {
            return Err(first.unwrap_or(JwtError::JwksNoValidKeys));
        }
        Ok(Self { keys: read })
    }

    /// An object of RSA certificates by key number, as Google's.
    fn certificates(set: &Map<String, Value>) -> Result<Self, JwtError> {
        if set.is_empty() || set.len() > MAX_KEYS {
            return Err(JwtError::JwksNoKeys);
        }
        let keys = set.iter().map(|(kid, pem)| {
            let pem = pem
                .as_str()
                .filter(|pem| pem.starts_with("-----BEGIN CERTIFICATE-----\n"));
            let pem = pem.filter(|_| !kid.is_empty()).ok_or(JwtError::JwksNoKeys)?;
            let rsa = X509::from_pem(pem.as_bytes())
                .and_then(|certificate| certificate.public_key()?.rsa())
                .map_err(|_| JwtError::X509)?;
            Ok(Key {
                kid: Some(kid.as_str().into()),
                alg: None,
                material: Material::Rsa(bounded(rsa)?),
            })
        });
        Ok(Self {
            keys: keys.collect::<Result<_, _>>()?,
        })
    }
}

fn key(key: &Map<String, Value>) -> Result<Key, JwtError> {
    let text = |name: &str| key.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let alg = text("alg");
    let family = alg.map(|alg| Algorithm::of(alg).ok_or(JwtError::KeyAlg)).transpose()?;
    let material = match text("kty").ok_or(JwtError::KtyMissing)? {
        "RSA" => {
            if !matches!(family, None | Some(Algorithm::Rs(_) | Algorithm::Ps(_))) {
                return Err(JwtError::KeyAlg);
            }
            let rsa = Rsa::from_public_components(number(key, "n")?, number(key, "e")?).map_err(invalid)?;
            Material::Rsa(bounded(rsa)?)
        }
        "EC" => {
            if !matches!(family, None | Some(Algorithm::Es(_))) {
                return Err(JwtError::KeyAlg);
            }
            let curve = match (alg, text("crv")) {
                (None | Some("ES256"), None | Some("P-256")) => (Nid::X9_62_PRIME256V1, 32),
                (Some("ES384"), None | Some("P-384")) | (None, Some("P-384")) => (Nid::SECP384R1, 48),
                (Some("ES512"), None | Some("P-521")) | (None, Some("P-521")) => (Nid::SECP521R1, 66),
                _ => return Err(JwtError::KeyCurve),
            };
            let (x, y) = (number(key, "x")?, number(key, "y")?);
            let group = EcGroup::from_curve_name(curve.0).map_err(invalid)?;
            let point = EcKey::from_public_key_affine_coordinates(&group, &x, &y).map_err(invalid)?;
            Material::Ec(point, curve.1)
        }
        "OKP" => {
            if !matches!(family, None | Some(Algorithm::EdDsa)) {
                return Err(JwtError::KeyAlg);
            }
            if text("crv") != Some("Ed25519") {
                return Err(JwtError::KeyCurve);
            }
            let raw: [u8; 32] = bytes(key, "x")?.try_into().map_err(|_| JwtError::KeyField)?;
            let der: Vec<u8> = ED25519_PREFIX.iter().chain(&raw).copied().collect();
            Material::Ed25519(PKey::public_key_from_der(&der).map_err(invalid)?)
        }
        "oct" => {
            if !matches!(family, None | Some(Algorithm::Hs(_))) {
                return Err(JwtError::KeyAlg);
            }
            Material::Hmac(bytes(key, "k")?.into())
        }
        _ => return Err(JwtError::KtyUnknown),
    };
    Ok(Key {
        kid: text("kid").map(Box::from),
        alg: alg.map(Box::from),
        material,
    })
}

fn invalid(_: ErrorStack) -> JwtError {
    JwtError::KeyField
}

/// A field's bytes, of which there are some.
fn bytes(key: &Map<String, Value>, name: &str) -> Result<Vec<u8>, JwtError> {
    let text = key.get(name).and_then(Value::as_str).ok_or(JwtError::KeyField)?;
    let bytes = BASE64URL.decode(text).map_err(|_| JwtError::KeyField)?;
    if bytes.is_empty() {
        return Err(JwtError::KeyField);
    }
    Ok(bytes)
}

fn number(key: &Map<String, Value>, name: &str) -> Result<BigNum, JwtError> {
    BigNum::from_slice(&bytes(key, name)?).map_err(invalid)
}

/// A key of a usual size, with one of the two usual exponents, as Envoy asks for.
fn bounded(rsa: Rsa<Public>) -> Result<PKey<Public>, JwtError> {
    let exponent = rsa.e().to_vec();
    let usual = exponent == [3] || exponent == [1, 0, 1];
    if !usual || !RSA_BITS.contains(&rsa.n().num_bits()) {
        return Err(JwtError::KeyField);
    }
    PKey::from_rsa(rsa).map_err(invalid)
}
