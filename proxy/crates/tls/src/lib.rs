//! TLS by BoringSSL over our own socket buffers: contexts, handshakes, SPIFFE verification and the byte stream above.
//!
//! The engine never touches the socket. Ciphertext is read into one scratch buffer per worker, handed to BoringSSL from
//! memory, and what BoringSSL wants to send is gathered and leaves in one system call. Contexts are `Send + Sync` and
//! shared by all workers through the snapshot; a [`Stream`] belongs to one worker and is used through `&self`. It goes to
//! another as a [`Detached`]: after the handshake nothing of a connection is kept by its thread.

mod certificate;
mod context;
mod credential;
mod detached;
mod error;
mod handshake;
mod memory;
mod params;
mod san;
mod second_look;
mod session;
mod socket;
mod stream;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod tickets;
mod unwrapped;
mod verify;

pub use certificate::CertificateInfo;
pub use context::{ClientContext, ServerContext};
pub use detached::Detached;
pub use error::{HandshakeError, HandshakeErrorKind, TlsConfigError, VerifyFailure};
pub use handshake::Connected;
pub use params::{ClientParams, KeyPair, ServerParams, TlsVersion, Trust, TrustDomain};
pub use san::{SanKind, SanMatcher};
pub use second_look::{expect_two_queues, second_looks};
pub use stream::Stream;
pub use tickets::{SessionTickets, TicketKey};
