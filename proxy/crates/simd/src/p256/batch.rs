//! Keys and batches of signatures.

use std::fmt;

use thiserror::Error;
use zeroize::Zeroizing;

use crate::digits::DIGITS;
use crate::kernels::Kernels;
use crate::lanes::{DIGIT_BITS, LANES, Lanes, Wiped};
use crate::limbs::{self, Limbs};
use crate::p256::modulus::{Order, Prime};
use crate::p256::sign::Work;
use crate::rsa::BatchError;

/// Bytes of a scalar, a coordinate and a digest.
pub const P256_BYTES: usize = 32;

/// Limbs of the same.
const LIMBS: usize = P256_BYTES / 8;

/// The key is zero, or not below the group's order.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the private key must be a number from 1 to the order of P-256 less one, in at most 32 bytes")]
pub struct P256KeyError;

/// An ECDSA private key of P-256 for batches; wiped when it is dropped.
pub struct P256PrivateKey {
    /// Times R, in digits.
    secret: Limbs,
}

impl fmt::Debug for P256PrivateKey {
    /// Never shows the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("P256PrivateKey").finish_non_exhaustive()
    }
}

impl P256PrivateKey {
    /// Takes a scalar, big-endian; leading zeros are allowed.
    ///
    /// # Errors
    /// [`P256KeyError`] when it is none of the group.
    pub fn new(scalar: &[u8]) -> Result<Self, P256KeyError> {
        let scalar = limbs::from_bytes(scalar, LIMBS)
            .filter(|s| is_scalar(s))
            .ok_or(P256KeyError)?;
        let entered = limbs::shifted(&scalar, DIGITS * DIGIT_BITS as usize, &order());
        Ok(Self {
            secret: limbs::to_digits(&entered, DIGITS),
        })
    }
}

fn order() -> Limbs {
    limbs::from_digits(&Order::PRIME, LIMBS)
}

/// Whether it is one of 1 to n − 1.
fn is_scalar(limbs: &[u64]) -> bool {
    let zero = limbs.iter().fold(0, |all, limb| all | limb) == 0;
    !zero & limbs::less(limbs, &order())
}

/// One signature of a batch.
#[derive(Clone, Copy)]
pub struct P256Operation<'a> {
    /// The key; keys may differ within a batch.
    pub key: &'a P256PrivateKey,
    /// The message's digest, the leftmost 256 bits of it where it is longer.
    pub digest: &'a [u8; P256_BYTES],
    /// k, big-endian. It must be secret, unpredictable and never serve for two digests: any of the three gives the key away.
    pub nonce: &'a [u8; P256_BYTES],
}

/// r and s, big-endian, 32 bytes each.
pub type P256Signature = [u8; 2 * P256_BYTES];

/// Why one signature was not made. The others of its batch are not touched.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum P256Error {
    /// The nonce is zero, or not below the group's order.
    #[error("the nonce must be from 1 to the order of P-256 less one; draw another one")]
    Nonce,
    /// The result did not pass the checks: a fault of the processor or of this code. What was computed is not given out.
    #[error("the result did not pass the checks and was dropped; make the signature in software")]
    Mismatch,
}

/// Signatures in the order of the operations.
pub(crate) type Signatures = Vec<Result<P256Signature, P256Error>>;

/// Does a batch with the kernels given.
pub(crate) fn run<K: Kernels>(kernels: K, operations: &[P256Operation<'_>]) -> Result<Signatures, BatchError> {
    if operations.is_empty() || operations.len() > LANES {
        return Err(BatchError::Width(operations.len()));
    }
    let mut wiped = Wiped(Box::new(Work::new()));
    let work = &mut *wiped.0;
    let mut valid = [false; LANES];
    for (lane, valid) in valid.iter_mut().enumerate() {
        // Lanes that have no operation repeat the first one's.
        let operation = operations.get(lane).unwrap_or(&operations[0]);
        let nonce = limbs::from_array(operation.nonce);
        *valid = is_scalar(&nonce);
        let nonce = if *valid { nonce } else { one() };
        fill(&mut work.nonce, lane, &limbs::to_digits(&nonce, DIGITS));
        fill(&mut work.secret, lane, &operation.key.secret);
        let digest = limbs::from_array(operation.digest);
        fill(&mut work.digest, lane, &limbs::to_digits(&digest, DIGITS));
    }
    kernels.sign_p256(work);
    Ok((0..operations.len())
        .map(|lane| {
            if !valid[lane] {
                return Err(P256Error::Nonce);
            }
            let (r, s) = (number(&work.r, lane), number(&work.s, lane));
            if work.wrong.0[lane] != 0 || !is_scalar(&r) || !is_scalar(&s) {
                return Err(P256Error::Mismatch);
            }
            let mut signature = [0; 2 * P256_BYTES];
            signature[..P256_BYTES].copy_from_slice(&limbs::to_bytes(&r));
            signature[P256_BYTES..].copy_from_slice(&limbs::to_bytes(&s));
            Ok(signature)
        })
        .collect())
}

fn one() -> Limbs {
    Zeroizing::new(vec![1, 0, 0, 0])
}

fn fill(digits: &mut [Lanes; DIGITS], lane: usize, number: &[u64]) {
    for (digit, word) in digits.iter_mut().zip(number) {
        digit.0[lane] = *word;
    }
}

fn number(digits: &[Lanes; DIGITS], lane: usize) -> Limbs {
    let digits: Zeroizing<[u64; DIGITS]> = Zeroizing::new(digits.map(|digit| digit.0[lane]));
    limbs::from_digits(digits.as_slice(), LIMBS)
}
