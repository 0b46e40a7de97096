//! Sockets, connection facts and bytes below TLS.
// Only `tcp_info` may: no safe binding of TCP_INFO fills in what an older kernel leaves out.
#![deny(unsafe_code)]

mod accept;
mod address;
mod client_hello;
mod connect;
mod connection;
mod descriptors;
mod key_share;
mod listen;
mod liveness;
mod pool;
mod tcp_info;

pub use accept::{AcceptFailure, original_destination, tune_accepted};
pub use address::AddressText;
pub use client_hello::{ClientHello, ClientHelloInspector, Inspection, MAX_CLIENT_HELLO};
pub use connect::{ConnectOptions, Keepalive, connect};
pub use connection::{ConnectionInfo, PeerIdentity, TransportProtocol};
pub use descriptors::{Reserve, is_spare, raise_descriptor_limit};
pub use key_share::{KeyShareGroup, KeyShares};
pub use listen::{ListenOptions, bind, listen};
pub use liveness::Liveness;
pub use pool::{BUFFER_SIZE, BufferPool};
