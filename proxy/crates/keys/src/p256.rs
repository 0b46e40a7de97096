//! ECDSA keys of P-256 in the forms that their signatures are made with.

use boring::bn::BigNum;
use boring::ec::EcKey;
use boring::ecdsa::EcdsaSig;
use boring::error::ErrorStack;
use boring::nid::Nid;
use boring::pkey::{Id, PKey, Private};
use heddle_simd::{P256_BYTES, P256PrivateKey, P256Signature};
use zeroize::Zeroizing;

use crate::provider::KeyError;
use crate::rsa::KeyRefused;

/// One certificate's key, as BoringSSL has it and as the lanes do.
pub(crate) struct P256Key {
    pkey: PKey<Private>,
    ec: EcKey<Private>,
    secret: Zeroizing<[u8; P256_BYTES]>,
    lanes: P256PrivateKey,
}

impl P256Key {
    /// Whether the key is an elliptic one: of which curve, is another question.
    pub(crate) fn is_elliptic(pkey: &PKey<Private>) -> bool {
        pkey.id() == Id::EC
    }

    /// Takes a key whose public point is the private number's.
    pub(crate) fn new(pkey: PKey<Private>) -> Result<Self, KeyRefused> {
        let ec = pkey.ec_key().map_err(|_| KeyRefused::Type)?;
        if ec.group().curve_name() != Some(Nid::X9_62_PRIME256V1) {
            return Err(KeyRefused::Type);
        }
        ec.check_key().map_err(|_| KeyRefused::Damaged)?;
        let padded = ec.private_key().to_vec_padded(P256_BYTES).map(Zeroizing::new);
        let mut secret = Zeroizing::new([0; P256_BYTES]);
        secret.copy_from_slice(&padded.map_err(|_| KeyRefused::Damaged)?);
        let lanes = P256PrivateKey::new(secret.as_slice()).map_err(|_| KeyRefused::Damaged)?;
        Ok(Self {
            pkey,
            ec,
            secret,
            lanes,
        })
    }

    pub(crate) fn pkey(&self) -> &PKey<Private> {
        &self.pkey
    }

    /// The private number, big-endian.
    pub(crate) fn secret(&self) -> &[u8; P256_BYTES] {
        &self.secret
    }

    pub(crate) fn lanes(&self) -> &P256PrivateKey {
        &self.lanes
    }

    /// A signature of a digest by BoringSSL, in DER.
    pub(crate) fn in_software(&self, digest: &[u8]) -> Result<Vec<u8>, KeyError> {
        EcdsaSig::sign(digest, &self.ec)
            .and_then(|signature| signature.to_der())
            .map_err(failed)
    }
}

/// A signature as TLS has it (RFC 8446 §4.2.3): `ECDSA-Sig-Value` of RFC 5480 in DER.
pub(crate) fn der(signature: &P256Signature) -> Result<Vec<u8>, KeyError> {
    let (r, s) = signature.split_at(P256_BYTES);
    let number = |bytes| BigNum::from_slice(bytes);
    number(r)
        .and_then(|r| EcdsaSig::from_private_components(r, number(s)?))
        .and_then(|signature| signature.to_der())
        .map_err(failed)
}

fn failed(stack: ErrorStack) -> KeyError {
    KeyError::Failed(stack.to_string())
}
