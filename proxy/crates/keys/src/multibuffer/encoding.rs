//! What is raised to the private exponent: a message's digest in the encodings of RFC 8017 §9.

use boring::error::ErrorStack;
use boring::hash::{MessageDigest, hash};
use boring::rand::rand_bytes;

use crate::provider::{KeyError, SignatureAlgorithm};

/// Digests of the schemes (RFC 8446 §4.2.3), and what stands before them in a PKCS #1 v1.5 signature (RFC 8017 §9.2,
/// note 1).
#[derive(Clone, Copy)]
struct Digest {
    digest: fn() -> MessageDigest,
    length: usize,
    prefix: &'static [u8],
}

const SHA256: Digest = Digest {
    digest: MessageDigest::sha256,
    length: 32,
    prefix: b"\x30\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20",
};
const SHA384: Digest = Digest {
    digest: MessageDigest::sha384,
    length: 48,
    prefix: b"\x30\x41\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x02\x05\x00\x04\x30",
};
const SHA512: Digest = Digest {
    digest: MessageDigest::sha512,
    length: 64,
    prefix: b"\x30\x51\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x03\x05\x00\x04\x40",
};

/// Encodes `message` for a modulus of `bytes` bytes whose highest bit is set; at least 256.
pub(super) fn encode(algorithm: SignatureAlgorithm, message: &[u8], bytes: usize) -> Result<Vec<u8>, KeyError> {
    use SignatureAlgorithm as S;
    let failed = |stack: ErrorStack| KeyError::Failed(stack.to_string());
    match algorithm {
        S::RsaPkcs1Sha256 => pkcs1(SHA256, message, bytes),
        S::RsaPkcs1Sha384 => pkcs1(SHA384, message, bytes),
        S::RsaPkcs1Sha512 => pkcs1(SHA512, message, bytes),
        S::RsaPssSha256 => pss(SHA256, message, bytes),
        S::RsaPssSha384 => pss(SHA384, message, bytes),
        S::RsaPssSha512 => pss(SHA512, message, bytes),
        S::EcdsaP256Sha256 | S::EcdsaP384Sha384 | S::EcdsaP521Sha512 | S::Ed25519 => {
            return Err(KeyError::Unsupported("a signature scheme of another key type"));
        }
    }
    .map_err(failed)
}

/// EMSA-PKCS1-v1_5, RFC 8017 §9.2.
fn pkcs1(digest: Digest, message: &[u8], bytes: usize) -> Result<Vec<u8>, ErrorStack> {
    let hashed = hash((digest.digest)(), message)?;
    let tail = digest.prefix.len() + digest.length;
    let mut encoded = vec![0xff; bytes];
    encoded[0] = 0;
    encoded[1] = 1;
    encoded[bytes - tail - 1] = 0;
    encoded[bytes - tail..bytes - digest.length].copy_from_slice(digest.prefix);
    encoded[bytes - digest.length..].copy_from_slice(&hashed);
    Ok(encoded)
}

/// EMSA-PSS, RFC 8017 §9.1.1, with a salt as long as the digest (RFC 8446 §4.2.3).
fn pss(digest: Digest, message: &[u8], bytes: usize) -> Result<Vec<u8>, ErrorStack> {
    let length = digest.length;
    let mut salt = vec![0; length];
    rand_bytes(&mut salt)?;
    let hashed = hash((digest.digest)(), message)?;
    let salted = [&[0; 8], &*hashed, &salt].concat();
    let hashed = hash((digest.digest)(), &salted)?;
    // DB = zeros, 01, salt; masked; then H and the trailer.
    let data = bytes - length - 1;
    let mut encoded = vec![0; bytes];
    encoded[data - length - 1] = 1;
    encoded[data - length..data].copy_from_slice(&salt);
    mask(digest, &hashed, &mut encoded[..data])?;
    // emBits is one less than the modulus' bits.
    encoded[0] &= 0x7f;
    encoded[data..bytes - 1].copy_from_slice(&hashed);
    encoded[bytes - 1] = 0xbc;
    Ok(encoded)
}

/// MGF1, RFC 8017 §B.2.1, added to `data`.
fn mask(digest: Digest, seed: &[u8], data: &mut [u8]) -> Result<(), ErrorStack> {
    for (counter, part) in (0_u32..).zip(data.chunks_mut(digest.length)) {
        let block = hash((digest.digest)(), &[seed, &counter.to_be_bytes()].concat())?;
        part.iter_mut().zip(&*block).for_each(|(byte, mask)| *byte ^= mask);
    }
    Ok(())
}
