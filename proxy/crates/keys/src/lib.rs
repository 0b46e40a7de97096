//! Private keys behind an asynchronous provider, so that operations of several connections can share one pass of an
//! accelerator.
#![forbid(unsafe_code)]

mod encoding;
mod fake;
pub mod multibuffer;
mod p256;
mod place;
mod provider;
pub mod qat;
mod rsa;
mod settings;
mod software;
#[cfg(test)]
mod testing;

pub use heddle_simd::{X25519_BYTES, x25519_offer};

pub use fake::{FakeControl, FakeProvider};
pub use provider::{Expected, KeyError, KeyFuture, PrivateKeyProvider, SignatureAlgorithm};
pub use rsa::KeyRefused;
pub use settings::Settings;
pub use software::SoftwareProvider;

use heddle_telemetry::Stats;

/// Has the providers collect operations on this thread, and count into `stats`. To be called once by each worker, inside
/// the `LocalSet` that its handshakes run in. On other threads they do each operation at once, in software.
pub fn collect_here(stats: &Stats) {
    multibuffer::collect_here(stats);
    qat::collect_here(stats);
}
