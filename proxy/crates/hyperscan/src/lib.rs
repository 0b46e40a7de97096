//! Regular expressions and words found together in one scan, by Hyperscan or Vectorscan through their common C interface.
//! The library is loaded when a configuration first asks for it: neither the build nor a machine without it needs it.
//!
//! All of the proxy's `unsafe` code for it is here. A [`Database`] is compiled once and shared by all threads; each thread has
//! one scratch space for all databases.
//!
//! The interface is that of `hs_common.h`, `hs_compile.h` and `hs_runtime.h` of releases 5.4, whose library is `libhs.so.5`.

mod abi;
mod database;
mod library;
mod scratch;
#[cfg(test)]
mod tests;

pub use database::{Database, Expression, Failed, MAX_DATABASE, Refused, Scanned};
pub use library::{Hyperscan, Unavailable};
pub use scratch::MAX_SCRATCH;
