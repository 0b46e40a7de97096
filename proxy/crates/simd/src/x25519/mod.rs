//! X25519 (RFC 7748) in batches of up to eight.

mod batch;
mod field;
mod ladder;
pub mod offer;
#[cfg(test)]
mod twins;

pub use batch::{BASE_POINT, X25519_BYTES, X25519Operation};

pub(crate) use batch::{Results, run};
pub(crate) use ladder::{Work, exchange};
