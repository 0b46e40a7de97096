//! Keys in memory, operations by BoringSSL on the calling worker.

use std::future::ready;

use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::pkey::{Id, PKey, Private};
use boring::rsa::Padding;
use boring::sign::{RsaPssSaltlen, Signer};

use crate::provider::{KeyError, KeyFuture, PrivateKeyProvider, SignatureAlgorithm};

/// BoringSSL itself. Every operation completes at once.
///
/// [`PrivateKeyProvider::is_direct`] has BoringSSL take the key, so that handshakes do not come through here at all; the
/// operations exist for [`FakeProvider`](crate::FakeProvider).
pub struct SoftwareProvider {
    key: PKey<Private>,
}

impl SoftwareProvider {
    /// Takes a key.
    pub fn new(key: PKey<Private>) -> Self {
        Self { key }
    }

    /// Reads a PEM key: PKCS#8, PKCS#1 or SEC 1, not encrypted.
    ///
    /// # Errors
    /// BoringSSL's reason when the text holds no such key.
    pub fn from_pem(pem: &[u8]) -> Result<Self, KeyError> {
        PKey::private_key_from_pem(pem).map(Self::new).map_err(failed)
    }

    /// Signs without a future.
    ///
    /// # Errors
    /// [`KeyError::Unsupported`] when the scheme is not one of this key's type.
    pub fn sign_now(&self, algorithm: SignatureAlgorithm, input: &[u8]) -> Result<Vec<u8>, KeyError> {
        use SignatureAlgorithm as S;
        let (id, digest, pss) = match algorithm {
            S::RsaPkcs1Sha256 => (Id::RSA, MessageDigest::sha256(), false),
            S::RsaPkcs1Sha384 => (Id::RSA, MessageDigest::sha384(), false),
            S::RsaPkcs1Sha512 => (Id::RSA, MessageDigest::sha512(), false),
            S::RsaPssSha256 => (Id::RSA, MessageDigest::sha256(), true),
            S::RsaPssSha384 => (Id::RSA, MessageDigest::sha384(), true),
            S::RsaPssSha512 => (Id::RSA, MessageDigest::sha512(), true),
            S::EcdsaP256Sha256 => (Id::EC, MessageDigest::sha256(), false),
            S::EcdsaP384Sha384 => (Id::EC, MessageDigest::sha384(), false),
            S::EcdsaP521Sha512 => (Id::EC, MessageDigest::sha512(), false),
            S::Ed25519 => return self.sign_ed25519(input),
        };
        if self.key.id() != id {
            return Err(KeyError::Unsupported("a signature scheme of another key type"));
        }
        let mut signer = Signer::new(digest, &self.key).map_err(failed)?;
        if pss {
            signer.set_rsa_padding(Padding::PKCS1_PSS).map_err(failed)?;
            // RFC 8446 §4.2.3: the salt is as long as the digest.
            signer
                .set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)
                .map_err(failed)?;
            signer.set_rsa_mgf1_md(digest).map_err(failed)?;
        }
        signer.update(input).map_err(failed)?;
        signer.sign_to_vec().map_err(failed)
    }

    fn sign_ed25519(&self, input: &[u8]) -> Result<Vec<u8>, KeyError> {
        if self.key.id() != Id::ED25519 {
            return Err(KeyError::Unsupported("a signature scheme of another key type"));
        }
        Signer::new_without_digest(&self.key)
            .and_then(|mut s| s.sign_oneshot_to_vec(input))
            .map_err(failed)
    }

    /// Decrypts without a future.
    ///
    /// # Errors
    /// [`KeyError::Unsupported`] when the key is not RSA.
    pub fn decrypt_now(&self, ciphertext: &[u8]) -> Result<Vec<u8>, KeyError> {
        let rsa = self
            .key
            .rsa()
            .map_err(|_| KeyError::Unsupported("decryption, it is not an RSA key"))?;
        let mut plain = vec![0; rsa.size() as usize];
        let length = rsa
            .private_decrypt(ciphertext, &mut plain, Padding::NONE)
            .map_err(failed)?;
        plain.truncate(length);
        Ok(plain)
    }
}

fn failed(stack: ErrorStack) -> KeyError {
    KeyError::Failed(stack.to_string())
}

impl PrivateKeyProvider for SoftwareProvider {
    fn name(&self) -> &'static str {
        "software"
    }

    fn sign(&self, algorithm: SignatureAlgorithm, input: &[u8]) -> KeyFuture {
        Box::pin(ready(self.sign_now(algorithm, input)))
    }

    fn decrypt(&self, ciphertext: &[u8]) -> KeyFuture {
        Box::pin(ready(self.decrypt_now(ciphertext)))
    }

    fn key(&self) -> &PKey<Private> {
        &self.key
    }

    fn is_direct(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use boring::ec::{EcGroup, EcKey};
    use boring::nid::Nid;
    use boring::rsa::Rsa;
    use boring::sign::Verifier;

    fn p256() -> PKey<Private> {
        let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("curve");
        PKey::from_ec_key(EcKey::generate(&group).expect("key")).expect("pkey")
    }

    #[test]
    fn signatures_verify() {
        let rsa = SoftwareProvider::new(PKey::from_rsa(Rsa::generate(2048).expect("rsa")).expect("pkey"));
        let pkcs1 = rsa
            .sign_now(SignatureAlgorithm::RsaPkcs1Sha256, b"hello")
            .expect("signs");
        let mut v = Verifier::new(MessageDigest::sha256(), &rsa.key).expect("verifier");
        v.update(b"hello").expect("update");
        assert!(v.verify(&pkcs1).expect("verify"));

        let pss = rsa.sign_now(SignatureAlgorithm::RsaPssSha384, b"hello").expect("signs");
        let mut v = Verifier::new(MessageDigest::sha384(), &rsa.key).expect("verifier");
        v.set_rsa_padding(Padding::PKCS1_PSS).expect("padding");
        v.set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH).expect("salt");
        v.update(b"hello").expect("update");
        assert!(v.verify(&pss).expect("verify"));

        let ec = SoftwareProvider::new(p256());
        let signature = ec
            .sign_now(SignatureAlgorithm::EcdsaP256Sha256, b"hello")
            .expect("signs");
        let mut v = Verifier::new(MessageDigest::sha256(), &ec.key).expect("verifier");
        v.update(b"hello").expect("update");
        assert!(v.verify(&signature).expect("verify"));
    }

    #[test]
    fn a_scheme_of_another_key_type_is_refused() {
        let ec = SoftwareProvider::new(p256());
        assert!(matches!(
            ec.sign_now(SignatureAlgorithm::RsaPssSha256, b"x"),
            Err(KeyError::Unsupported(_))
        ));
        assert!(matches!(
            ec.sign_now(SignatureAlgorithm::Ed25519, b"x"),
            Err(KeyError::Unsupported(_))
        ));
        assert!(matches!(ec.decrypt_now(&[0; 256]), Err(KeyError::Unsupported(_))));
    }

    #[test]
    fn raw_decryption_keeps_the_padding() {
        let rsa = Rsa::generate(2048).expect("rsa");
        let mut cipher = vec![0; 256];
        rsa.public_encrypt(b"secret", &mut cipher, Padding::PKCS1)
            .expect("encrypts");
        let provider = SoftwareProvider::new(PKey::from_rsa(rsa).expect("pkey"));
        let plain = provider.decrypt_now(&cipher).expect("decrypts");
        assert_eq!(plain.len(), 256);
        assert_eq!(&plain[..2], &[0, 2]);
        assert!(plain.ends_with(b"\0secret"));
    }

    #[test]
    fn not_a_key() {
        assert!(matches!(SoftwareProvider::from_pem(b"hello"), Err(KeyError::Failed(_))));
    }
}
