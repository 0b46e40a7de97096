//! Private keys, checked and prepared for the kernels.

use std::fmt;

use thiserror::Error;
use zeroize::Zeroizing;

use crate::lanes::DIGIT_BITS;
use crate::limbs::{self, Limbs};
use crate::rsa::blinding::Pairs;

/// Lengths of a modulus that the kernels are built for; the primes have half of it each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeySize {
    /// 2048 bits.
    Rsa2048,
    /// 3072 bits.
    Rsa3072,
    /// 4096 bits.
    Rsa4096,
}

impl KeySize {
    /// All of them, the shortest first.
    pub const ALL: [Self; 3] = [Self::Rsa2048, Self::Rsa3072, Self::Rsa4096];

    /// The size with this number of bits, if there is one.
    pub fn from_bits(bits: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|size| size.bits() == bits)
    }

    /// Bits of the modulus.
    pub const fn bits(self) -> usize {
        match self {
            Self::Rsa2048 => 2048,
            Self::Rsa3072 => 3072,
            Self::Rsa4096 => 4096,
        }
    }

    /// Bytes of the modulus, of a signature and of an operation's input.
    pub const fn bytes(self) -> usize {
        self.bits() / 8
    }

    /// Digits of a prime. An even number of digits with at least 16 bits to spare.
    pub(crate) const fn digits(self) -> usize {
        match self {
            Self::Rsa2048 => 20,
            Self::Rsa3072 => 30,
            Self::Rsa4096 => 40,
        }
    }
}

/// Why a key was refused. None of these says anything about the key's secrets but that they do not fit together.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// Another length, or a modulus with leading zeros.
    #[error("the modulus must have 2048, 3072 or 4096 bits; use the software provider for other lengths")]
    Size,
    /// Not odd, below 3, or over 64 bits.
    #[error("the public exponent must be odd, at least 3 and below 2^64")]
    PublicExponent,
    /// A prime is even or not exactly half as long as the modulus, or both are the same.
    #[error("the two primes must be odd, different, and half as long as the modulus each")]
    Primes,
    /// The primes' product is another number.
    #[error("the modulus is not the product of the primes; the key is damaged")]
    Modulus,
    /// d_p or d_q is not the inverse of e.
    #[error("a private exponent does not belong to the public one; the key is damaged")]
    PrivateExponent,
    /// q⁻¹ modulo p is another number.
    #[error("the coefficient is not the inverse of the second prime; the key is damaged")]
    Coefficient,
}

/// The numbers of a key as RFC 8017 §3.2 names them, big-endian; leading zeros are allowed.
#[derive(Clone, Copy)]
pub struct RsaComponents<'a> {
    /// n.
    pub modulus: &'a [u8],
    /// e.
    pub public_exponent: &'a [u8],
    /// p.
    pub prime1: &'a [u8],
    /// q.
    pub prime2: &'a [u8],
    /// d modulo p − 1.
    pub exponent1: &'a [u8],
    /// d modulo q − 1.
    pub exponent2: &'a [u8],
    /// q⁻¹ modulo p.
    pub coefficient: &'a [u8],
}

/// One modulus in the kernels' form.
pub(crate) struct Prepared {
    pub(crate) digits: Limbs,
    /// −m⁻¹ modulo 2^52.
    pub(crate) inverse: u64,
    /// R² modulo m.
    pub(crate) r2: Limbs,
    /// R³ modulo m.
    pub(crate) r3: Limbs,
}

impl Prepared {
    fn new(modulus: &[u64], digits: usize) -> Self {
        let power = digits * DIGIT_BITS as usize;
        Self {
            digits: limbs::to_digits(modulus, digits),
            inverse: limbs::negated_inverse(modulus[0]),
            r2: limbs::to_digits(&limbs::shifted(&[1], 2 * power, modulus), digits),
            r3: limbs::to_digits(&limbs::shifted(&[1], 3 * power, modulus), digits),
        }
    }
}

/// One of the primes with what belongs to it.
pub(crate) struct Prime {
    pub(crate) prepared: Prepared,
    /// The prime minus one: exponents are blinded by multiples of it.
    pub(crate) order: Limbs,
    /// d modulo the order.
    pub(crate) exponent: Limbs,
    /// −e modulo the order.
    pub(crate) negated_public: Limbs,
}

/// An RSA private key for batches. Its numbers are wiped when it is dropped; shared by threads, it locks only to take and
/// give back blinding factors.
pub struct RsaPrivateKey {
    pub(crate) size: KeySize,
    pub(crate) public_exponent: u64,
    pub(crate) modulus: Prepared,
    pub(crate) p: Prime,
    pub(crate) q: Prime,
    /// q⁻¹·R modulo p.
    pub(crate) coefficient: Limbs,
    /// q·R modulo n, R of the modulus.
    pub(crate) second_prime: Limbs,
    pub(crate) pairs: Pairs,
}

impl fmt::Debug for RsaPrivateKey {
    /// Never shows the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RsaPrivateKey")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl RsaPrivateKey {
    /// Checks that the numbers belong together and prepares them. That p and q are prime is not checked: an operation
    /// with a key where they are not ends in [`OperationError::Mismatch`](crate::rsa::OperationError::Mismatch).
    ///
    /// # Errors
    /// [`KeyError`] names what does not fit.
    pub fn new(parts: &RsaComponents<'_>) -> Result<Self, KeyError> {
        let bits = parts.modulus.iter().skip_while(|byte| **byte == 0).count() * 8;
        let size = KeySize::from_bits(bits).ok_or(KeyError::Size)?;
        let length = size.bits() / 64;
        let half = length / 2;
        let modulus = limbs::from_bytes(parts.modulus, length).ok_or(KeyError::Size)?;
        if modulus[length - 1] >> 63 == 0 {
            return Err(KeyError::Size);
        }
        let public_exponent = limbs::from_bytes(parts.public_exponent, 1).ok_or(KeyError::PublicExponent)?[0];
        if public_exponent < 3 || public_exponent & 1 == 0 {
            return Err(KeyError::PublicExponent);
        }
        let prime = |bytes| {
            limbs::from_bytes(bytes, half)
                .filter(|prime| prime[0] & 1 == 1 && prime[half - 1] >> 63 == 1)
                .ok_or(KeyError::Primes)
        };
        let (p, q) = (prime(parts.prime1)?, prime(parts.prime2)?);
        if p == q {
            return Err(KeyError::Primes);
        }
        if limbs::multiply(&p, &q) != modulus {
            return Err(KeyError::Modulus);
        }
        let coefficient = limbs::from_bytes(parts.coefficient, half).ok_or(KeyError::Coefficient)?;
        let one = one(half);
        if !limbs::less(&coefficient, &p) || limbs::shifted(&limbs::multiply(&coefficient, &q), 0, &p) != one {
            return Err(KeyError::Coefficient);
        }
        let digits = size.digits();
        let power = digits * DIGIT_BITS as usize;
        Ok(Self {
            size,
            public_exponent,
            coefficient: limbs::to_digits(&limbs::shifted(&coefficient, power, &p), digits),
            second_prime: limbs::to_digits(&limbs::shifted(&q, 2 * power, &modulus), 2 * digits),
            modulus: Prepared::new(&modulus, 2 * digits),
            p: Prime::new(&p, parts.exponent1, public_exponent, digits)?,
            q: Prime::new(&q, parts.exponent2, public_exponent, digits)?,
            pairs: Pairs::default(),
        })
    }

    /// The length of the modulus.
    pub fn size(&self) -> KeySize {
        self.size
    }
}

impl Prime {
    fn new(prime: &[u64], exponent: &[u8], public_exponent: u64, digits: usize) -> Result<Self, KeyError> {
        let mut order = Zeroizing::new(prime.to_vec());
        order[0] -= 1;
        let exponent = limbs::from_bytes(exponent, prime.len()).ok_or(KeyError::PrivateExponent)?;
        let product = limbs::multiply(&exponent, &[public_exponent]);
        if !limbs::less(&exponent, &order) || limbs::shifted(&product, 0, &order) != one(prime.len()) {
            return Err(KeyError::PrivateExponent);
        }
        let mut public = vec![0; prime.len()];
        public[0] = public_exponent;
        let mut negated_public = order.clone();
        limbs::subtract(&mut negated_public, &public);
        Ok(Self {
            prepared: Prepared::new(prime, digits),
            order,
            exponent,
            negated_public,
        })
    }
}

fn one(length: usize) -> Limbs {
    let mut one = Zeroizing::new(vec![0; length]);
    one[0] = 1;
    one
}
