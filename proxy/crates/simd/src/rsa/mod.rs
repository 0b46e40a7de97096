//! Private RSA operations (RFC 8017 §5.1.2, §5.2.1) in batches of up to eight.

mod batch;
mod blinding;
#[cfg(test)]
mod faults;
mod field;
mod key;
mod power;
mod wide;

pub use batch::{BatchError, Operation, OperationError};
pub use key::{KeyError, KeySize, RsaComponents, RsaPrivateKey};

pub(crate) use batch::run;
