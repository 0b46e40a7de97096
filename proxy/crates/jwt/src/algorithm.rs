//! `alg` of tokens and keys (RFC 7518 section 3.1, RFC 8037 section 3.1).

use boring::hash::MessageDigest;

/// The hash of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    pub(crate) fn digest(self) -> MessageDigest {
        match self {
            Self::Sha256 => MessageDigest::sha256(),
            Self::Sha384 => MessageDigest::sha384(),
            Self::Sha512 => MessageDigest::sha512(),
        }
    }
}

/// How a token is signed. `none` is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// `RS256`, `RS384`, `RS512`: RSASSA-PKCS1-v1_5.
    Rs(Hash),
    /// `PS256`, `PS384`, `PS512`: RSASSA-PSS, with a salt as long as the hash.
    Ps(Hash),
    /// `ES256`, `ES384`, `ES512`: ECDSA on the curve of that name.
    Es(Hash),
    /// `HS256`, `HS384`, `HS512`: HMAC.
    Hs(Hash),
    /// `EdDSA`, with Ed25519.
    EdDsa,
}

impl Algorithm {
    /// Of its name.
    pub fn of(name: &str) -> Option<Self> {
        if name == "EdDSA" {
            return Some(Self::EdDsa);
        }
        let (family, hash) = name.split_at_checked(2)?;
        let hash = match hash {
            "256" => Hash::Sha256,
            "384" => Hash::Sha384,
            "512" => Hash::Sha512,
            _ => return None,
        };
        match family {
            "RS" => Some(Self::Rs(hash)),
            "PS" => Some(Self::Ps(hash)),
            "ES" => Some(Self::Es(hash)),
            "HS" => Some(Self::Hs(hash)),
            _ => None,
        }
    }
}
