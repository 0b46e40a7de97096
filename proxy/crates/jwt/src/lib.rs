//! JSON Web Tokens (RFC 7519) in compact form, and the key sets (RFC 7517) that verify them.
//!
//! Signatures are BoringSSL's, as those of TLS are; what is read here is the form of tokens and keys. A token is read
//! before anything about it is known to be true, so it is bounded by [`MAX_TOKEN`]. Texts of errors are those that Envoy
//! answers with.
#![forbid(unsafe_code)]

mod algorithm;
mod audience;
mod error;
mod jwks;
mod token;
mod verify;

pub use algorithm::Algorithm;
pub use audience::Audiences;
pub use error::JwtError;
pub use jwks::{KeySet, MAX_JWKS, MAX_KEYS};
pub use token::{MAX_TOKEN, Token};
