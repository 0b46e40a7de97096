//! Private keys behind an asynchronous provider, so that operations of several connections can share one pass of an
//! accelerator.
#![forbid(unsafe_code)]

mod fake;
pub mod multibuffer;
mod provider;
mod software;

pub use fake::{FakeControl, FakeProvider};
pub use provider::{Expected, KeyError, KeyFuture, PrivateKeyProvider, SignatureAlgorithm};
pub use software::SoftwareProvider;
