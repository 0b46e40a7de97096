//! A key in the two forms that its operations are done with.

use std::fmt;
use std::time::Duration;

use boring::pkey::{PKey, Private};
use boring::rand::rand_bytes;
use boring::sha::{sha256, sha384, sha512};
use heddle_simd::{
    BASE_POINT, Engine, KeySize, LANES, Operation, OperationError, P256_BYTES, P256Error, P256Operation, RsaPrivateKey,
    X25519_BYTES, X25519Operation, x25519_offer,
};
use zeroize::Zeroizing;

use super::nonce::nonce;
use crate::encoding;
use crate::p256::{self, P256Key};
use crate::provider::{KeyError, SignatureAlgorithm};
use crate::rsa::{KeyRefused, RsaKey};

/// What a batch is of: its operations take the same arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyType {
    /// RSA, of one size.
    Rsa(KeySize),
    /// ECDSA with P-256.
    P256,
    /// Key exchanges with X25519, whose keys are drawn for each.
    X25519,
}

impl KeyType {
    /// How many there are.
    pub(super) const COUNT: usize = KeySize::ALL.len() + 2;

    /// The place among them.
    pub(super) fn index(self) -> usize {
        match self {
            Self::Rsa(size) => size as usize,
            Self::P256 => KeySize::ALL.len(),
            Self::X25519 => KeySize::ALL.len() + 1,
        }
    }

    /// Fewest operations that a batch does faster than they are done one by one (`make bench S=kernels`): a batch takes 1.3
    /// to 1.4 times as long as one operation of RSA by BoringSSL, with P-256 less than two, and 2.7 times as long as one exchange
    /// by s2n-bignum's assembly.
    pub(super) fn pays_from(self) -> usize {
        match self {
            Self::Rsa(_) | Self::P256 => 2,
            Self::X25519 => 3,
        }
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rsa(size) => write!(f, "RSA-{}", size.bits()),
            Self::P256 => f.write_str("ECDSA P-256"),
            Self::X25519 => f.write_str("X25519"),
        }
    }
}

/// Why an operation in lanes has no result.
#[derive(Debug)]
pub(super) enum LaneError {
    /// The input is none that there is an operation for.
    Input,
    /// What came out did not pass its check: software is to do it anew.
    Mismatch,
}

/// One certificate's key: BoringSSL's form and the lanes'.
pub(super) struct BatchKey {
    numbers: Numbers,
    poll_delay: Duration,
    engine: Engine,
}

enum Numbers {
    Rsa {
        software: RsaKey,
        lanes: Box<RsaPrivateKey>,
    },
    P256(P256Key),
}

impl BatchKey {
    pub(super) fn new(pkey: PKey<Private>, poll_delay: Duration, engine: Engine) -> Result<Self, KeyRefused> {
        let numbers = if P256Key::is_elliptic(&pkey) {
            Numbers::P256(P256Key::new(pkey)?)
        } else {
            let (software, lanes) = RsaKey::new(pkey, RsaPrivateKey::new).map_err(|refused| match refused {
                KeyRefused::NotRsa => KeyRefused::Type,
                other => other,
            })?;
            Numbers::Rsa {
                software,
                lanes: Box::new(lanes),
            }
        };
        Ok(Self {
            numbers,
            poll_delay,
            engine,
        })
    }

    pub(super) fn pkey(&self) -> &PKey<Private> {
        match &self.numbers {
            Numbers::Rsa { software, .. } => software.pkey(),
            Numbers::P256(key) => key.pkey(),
        }
    }

    pub(super) fn key_type(&self) -> KeyType {
        match &self.numbers {
            Numbers::Rsa { software, .. } => KeyType::Rsa(software.size()),
            Numbers::P256(_) => KeyType::P256,
        }
    }

    pub(super) fn poll_delay(&self) -> Duration {
        self.poll_delay
    }

    /// What the private operation of a signature is done with: the encoded message, or its digest.
    pub(super) fn encode(&self, algorithm: SignatureAlgorithm, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        match &self.numbers {
            Numbers::Rsa { software, .. } => encoding::encode(algorithm, message, software.bytes()),
            // In TLS 1.2 the schemes name no curve (RFC 8446 §4.2.3). Of a longer digest the leftmost bits count (FIPS 186-5
            // §6.4.1).
            Numbers::P256(_) => {
                let digest = match algorithm {
                    SignatureAlgorithm::EcdsaP256Sha256 => sha256(message).to_vec(),
                    SignatureAlgorithm::EcdsaP384Sha384 => sha384(message)[..P256_BYTES].to_vec(),
                    SignatureAlgorithm::EcdsaP521Sha512 => sha512(message)[..P256_BYTES].to_vec(),
                    _ => return Err(KeyError::Unsupported("a signature scheme of another key type")),
                };
                Ok(digest)
            }
        }
    }

    /// The private operation of a decryption.
    pub(super) fn ciphertext(&self, ciphertext: &[u8]) -> Result<Vec<u8>, KeyError> {
        match &self.numbers {
            // RFC 8017 §7.2.2 step 1. Public: whoever sent it knows its length.
            Numbers::Rsa { software, .. } if ciphertext.len() != software.bytes() => Err(KeyError::Failed(
                "the ciphertext is not as long as the modulus".to_owned(),
            )),
            Numbers::Rsa { .. } => Ok(ciphertext.to_vec()),
            Numbers::P256(_) => Err(KeyError::Unsupported("decryption, it is not an RSA key")),
        }
    }

    /// One operation by BoringSSL. Empty for an exchange: BoringSSL's call computes it then.
    pub(super) fn in_software(&self, key_type: KeyType, input: &[u8]) -> Result<Vec<u8>, KeyError> {
        if key_type == KeyType::X25519 {
            return Ok(Vec::new());
        }
        match &self.numbers {
            Numbers::Rsa { software, .. } => software.in_software(input),
            Numbers::P256(key) => key.in_software(input),
        }
    }
}

/// What comes of each operation of a batch.
pub(super) type Results = Vec<Result<Vec<u8>, LaneError>>;

/// A batch of operations of one type, each with its key and input. None when it could not be begun.
pub(super) fn in_lanes(key_type: KeyType, operations: &[(&BatchKey, &[u8])]) -> Option<Results> {
    let (first, _) = operations.first()?;
    match key_type {
        KeyType::Rsa(_) => rsa_in_lanes(first.engine, operations),
        KeyType::P256 => p256_in_lanes(first.engine, operations),
        KeyType::X25519 => exchanges_in_lanes(first.engine, operations),
    }
}

fn rsa_in_lanes(engine: Engine, operations: &[(&BatchKey, &[u8])]) -> Option<Results> {
    let operations = operations
        .iter()
        .map(|(key, input)| match &key.numbers {
            Numbers::Rsa { lanes, .. } => Some(Operation { key: lanes, input }),
            Numbers::P256(_) => None,
        })
        .collect::<Option<Vec<_>>>()?;
    let mut drawn = true;
    let mut random = |bytes: &mut [u8]| drawn &= rand_bytes(bytes).is_ok();
    let results = engine.private_operations(&operations, &mut random).ok()?;
    let result = |result: Result<_, _>| {
        result.map_err(|error| match error {
            OperationError::Input => LaneError::Input,
            OperationError::Mismatch => LaneError::Mismatch,
        })
    };
    // Without blinding nothing may leave.
    drawn.then(|| results.into_iter().map(result).collect())
}

fn p256_in_lanes(engine: Engine, operations: &[(&BatchKey, &[u8])]) -> Option<Results> {
    let mut extra = Zeroizing::new([0; LANES * P256_BYTES]);
    rand_bytes(extra.as_mut_slice()).ok()?;
    // With its room from the beginning: a vector that grows leaves nonces in the memory that it gives back.
    let mut prepared = Vec::with_capacity(operations.len());
    for ((key, input), extra) in operations.iter().zip(extra.chunks(P256_BYTES)) {
        let Numbers::P256(key) = &key.numbers else { return None };
        let digest: [u8; P256_BYTES] = (*input).try_into().ok()?;
        prepared.push((key, digest, nonce(key.secret(), &digest, extra)));
    }
    let operations: Vec<_> = prepared
        .iter()
        .map(|(key, digest, nonce)| P256Operation {
            key: key.lanes(),
            digest,
            nonce,
        })
        .collect();
    let results = engine.sign_p256(&operations).ok()?;
    let result = |result| match result {
        Ok(signature) => p256::der(&signature).map_err(|_| LaneError::Mismatch),
        // A nonce that is derived is in range.
        Err(P256Error::Nonce | P256Error::Mismatch) => Err(LaneError::Mismatch),
    };
    Some(results.into_iter().map(result).collect())
}

/// Draws a key for each peer's, and computes its public key and the shared secret; as `x25519_offer::encode` writes them.
/// Nothing for a peer's key of small order, which BoringSSL then refuses by itself.
fn exchanges_in_lanes(engine: Engine, operations: &[(&BatchKey, &[u8])]) -> Option<Results> {
    let mut privates = Zeroizing::new([[0; X25519_BYTES]; LANES]);
    rand_bytes(privates.as_flattened_mut()).ok()?;
    let mut exchanges = Vec::with_capacity(operations.len());
    for (scalar, (_, peer)) in privates.iter().zip(operations) {
        let point = (*peer).try_into().ok()?;
        exchanges.push(X25519Operation { scalar, point });
    }
    let secrets = engine.x25519(&exchanges).ok()?;
    for exchange in &mut exchanges {
        exchange.point = &BASE_POINT;
    }
    let publics = engine.x25519(&exchanges).ok()?;
    let all = privates.iter().zip(publics.iter().zip(&secrets));
    Some(
        all.map(|(private, (public, secret))| Ok(x25519_offer::encode(private, public, secret)))
            .collect(),
    )
}
