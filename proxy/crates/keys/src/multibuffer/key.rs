//! A key in the two forms that its operations are done with.

use std::time::Duration;

use boring::bn::BigNumRef;
use boring::pkey::{PKey, Private};
use boring::rsa::{Padding, Rsa};
use heddle_simd::{Engine, KeySize, RsaComponents, RsaPrivateKey};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::provider::KeyError;

/// Why the kernels cannot use a key.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyRefused {
    /// The processor, or the operating system, has no vectors to do it with.
    #[error("this processor has no AVX-512 IFMA")]
    NoVectors,
    /// No key in it.
    #[error("it is not a private key in PEM: {0}")]
    NotPem(String),
    /// Another algorithm.
    #[error("it is not an RSA key")]
    NotRsa,
    /// A key without primes or exponents of the Chinese remainder theorem.
    #[error("it does not hold its primes (RFC 8017 §3.2, second form)")]
    NoPrimes,
    /// A length that the kernels do not have, or numbers that do not belong together.
    #[error(transparent)]
    Numbers(#[from] heddle_simd::KeyError),
}

/// One certificate's key.
pub(super) struct BatchKey {
    pkey: PKey<Private>,
    rsa: Rsa<Private>,
    lanes: RsaPrivateKey,
    poll_delay: Duration,
    engine: Engine,
}

impl BatchKey {
    pub(super) fn new(pkey: PKey<Private>, poll_delay: Duration, engine: Engine) -> Result<Self, KeyRefused> {
        let rsa = pkey.rsa().map_err(|_| KeyRefused::NotRsa)?;
        let part = |number: Option<&BigNumRef>| {
            number
                .map(|number| Zeroizing::new(number.to_vec()))
                .ok_or(KeyRefused::NoPrimes)
        };
        let lanes = RsaPrivateKey::new(&RsaComponents {
            modulus: &rsa.n().to_vec(),
            public_exponent: &rsa.e().to_vec(),
            prime1: &part(rsa.p())?,
            prime2: &part(rsa.q())?,
            exponent1: &part(rsa.dmp1())?,
            exponent2: &part(rsa.dmq1())?,
            coefficient: &part(rsa.iqmp())?,
        })?;
        Ok(Self {
            pkey,
            rsa,
            lanes,
            poll_delay,
            engine,
        })
    }

    pub(super) fn pkey(&self) -> &PKey<Private> {
        &self.pkey
    }

    pub(super) fn lanes(&self) -> &RsaPrivateKey {
        &self.lanes
    }

    pub(super) fn engine(&self) -> Engine {
        self.engine
    }

    pub(super) fn poll_delay(&self) -> Duration {
        self.poll_delay
    }

    pub(super) fn size(&self) -> KeySize {
        self.lanes.size()
    }

    pub(super) fn bytes(&self) -> usize {
        self.size().bytes()
    }

    /// One operation by BoringSSL, which blinds and verifies too. Signatures and decryptions are the same to it: neither
    /// has a padding that is its business.
    pub(super) fn in_software(&self, input: &[u8]) -> Result<Vec<u8>, KeyError> {
        let mut output = vec![0; self.bytes()];
        self.rsa
            .private_encrypt(input, &mut output, Padding::NONE)
            .map_err(|stack| KeyError::Failed(stack.to_string()))?;
        Ok(output)
    }
}
