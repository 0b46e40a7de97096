//! Private keys behind an asynchronous provider, so that operations of several connections can share one pass of an
//! accelerator.

mod bridge;
mod fake;
mod provider;
mod software;

pub use bridge::{BridgeError, install};
pub use fake::{FakeControl, FakeProvider};
pub use provider::{KeyError, KeyFuture, PrivateKeyProvider, SignatureAlgorithm};
pub use software::SoftwareProvider;
