//! RSA keys that an accelerator may use, which BoringSSL can do as well.

use boring::bn::BigNumRef;
use boring::pkey::{PKey, Private};
use boring::rsa::{Padding, Rsa};
use heddle_simd::{KeySize, RsaComponents};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::provider::KeyError;

/// Why a provider cannot use a key.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyRefused {
    /// The processor, or the operating system, has no vectors to do it with.
    #[error("this processor has no AVX-512 IFMA")]
    NoVectors,
    /// There is no device to do it on.
    #[error(transparent)]
    NoDevice(#[from] heddle_qat::Unavailable),
    /// No key in it.
    #[error("it is not a private key in PEM: {0}")]
    NotPem(String),
    /// Another algorithm than `qat`'s.
    #[error("it is not an RSA key")]
    NotRsa,
    /// Another algorithm or curve than `cryptomb`'s.
    #[error("it is neither an RSA key nor an ECDSA key of P-256")]
    Type,
    /// An ECDSA key whose public point does not belong to its private number.
    #[error("its public point is not its private number's; the key is damaged")]
    Damaged,
    /// A key without primes or exponents of the Chinese remainder theorem.
    #[error("it does not hold its primes (RFC 8017 §3.2, second form)")]
    NoPrimes,
    /// A length that accelerators do not have, or numbers that do not belong together.
    #[error(transparent)]
    Numbers(#[from] heddle_simd::KeyError),
}

impl KeyRefused {
    /// Whether it is this machine that is to blame, and not the key.
    pub fn is_of_the_machine(&self) -> bool {
        matches!(self, Self::NoVectors | Self::NoDevice(_))
    }
}

/// One certificate's key, as BoringSSL has it.
pub(crate) struct RsaKey {
    pkey: PKey<Private>,
    rsa: Rsa<Private>,
    size: KeySize,
}

impl RsaKey {
    /// Takes a key, and has its numbers put in the accelerator's form by `prepare`, which also checks them.
    pub(crate) fn new<T>(
        pkey: PKey<Private>,
        prepare: impl FnOnce(&RsaComponents<'_>) -> Result<T, heddle_simd::KeyError>,
    ) -> Result<(Self, T), KeyRefused> {
        let rsa = pkey.rsa().map_err(|_| KeyRefused::NotRsa)?;
        let part = |number: Option<&BigNumRef>| {
            number
                .map(|number| Zeroizing::new(number.to_vec()))
                .ok_or(KeyRefused::NoPrimes)
        };
        let prepared = prepare(&RsaComponents {
            modulus: &rsa.n().to_vec(),
            public_exponent: &rsa.e().to_vec(),
            prime1: &part(rsa.p())?,
            prime2: &part(rsa.q())?,
            exponent1: &part(rsa.dmp1())?,
            exponent2: &part(rsa.dmq1())?,
            coefficient: &part(rsa.iqmp())?,
        })?;
        let size = KeySize::from_bits(rsa.n().num_bits() as usize).ok_or(heddle_simd::KeyError::Size)?;
        Ok((Self { pkey, rsa, size }, prepared))
    }

    pub(crate) fn pkey(&self) -> &PKey<Private> {
        &self.pkey
    }

    pub(crate) fn size(&self) -> KeySize {
        self.size
    }

    pub(crate) fn bytes(&self) -> usize {
        self.size.bytes()
    }

    /// One operation by BoringSSL, which blinds and verifies too. Signatures and decryptions are the same to it: neither
    /// has a padding that is its business.
    pub(crate) fn in_software(&self, input: &[u8]) -> Result<Vec<u8>, KeyError> {
        let mut output = vec![0; self.bytes()];
        self.rsa
            .private_encrypt(input, &mut output, Padding::NONE)
            .map_err(|stack| KeyError::Failed(stack.to_string()))?;
        Ok(output)
    }

    /// Whether `output` is what the private operation makes of `input`, by the public one.
    pub(crate) fn verifies(&self, input: &[u8], output: &[u8]) -> bool {
        let mut undone = vec![0; self.bytes()];
        self.rsa.public_decrypt(output, &mut undone, Padding::NONE).is_ok() && undone == input
    }

    /// Whether `input` is a number that there is an operation for: as long as the modulus, and below it.
    pub(crate) fn is_in_range(&self, input: &[u8]) -> bool {
        input.len() == self.bytes() && self.rsa.n().to_vec().as_slice() > input
    }
}
