//! ECDSA signatures with P-256 (FIPS 186-5) in batches of up to eight.

mod batch;
#[cfg(test)]
mod faults;
mod inverse;
mod modulus;
mod point;
mod sign;
mod table;
#[cfg(test)]
mod twins;

pub use batch::{P256_BYTES, P256Error, P256KeyError, P256Operation, P256PrivateKey, P256Signature};

pub(crate) use batch::{Signatures, run};
pub(crate) use sign::{Work, sign};
