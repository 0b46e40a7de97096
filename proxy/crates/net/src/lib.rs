//! Sockets, connection facts and bytes below TLS.
#![forbid(unsafe_code)]

mod accept;
mod client_hello;
mod connect;
mod connection;
mod listen;
mod pool;

pub use accept::{AcceptFailure, original_destination, tune_accepted};
pub use client_hello::{ClientHello, ClientHelloInspector, Inspection, MAX_CLIENT_HELLO};
pub use connect::{ConnectOptions, Keepalive, connect};
pub use connection::{ConnectionInfo, PeerIdentity, TransportProtocol};
pub use listen::{ListenOptions, listen};
pub use pool::{BUFFER_SIZE, BufferPool};
