//! HTTP/2 (RFC 9113), a codec of our own for both sides of the proxy.
//!
//! `frame` and `hpack` know the bytes, `head` the messages, `flow`, `budget`, `limits` and `premature` what a peer may
//! cost. `core` is the state of a connection, `connection` its turns; `receive`, with `blocks` of headers and `control`
//! frames, and `send` are its two directions; `stream` is what a request has of it, `body` fits it to the pump.
//! `serve` is the server's side, `streams` what runs there, `rest` what of it goes to another worker; the client's is in
//! `crate::pool`. `receiver` is for fuzzing.
//!
//! Why our own, and what is not there: docs/design/0006-http2-codec.md.

mod blocks;
mod body;
mod budget;
mod close;
mod connection;
mod control;
mod core;
mod flow;
mod frame;
mod head;
mod hpack;
mod keepalive;
mod limits;
mod premature;
mod receive;
mod receiver;
mod rest;
mod send;
mod serve;
mod stats;
mod stream;
mod streams;

pub(crate) use self::core::{End, PREFACE, Role};
pub(crate) use body::{H2Reader, H2Writer};
pub(crate) use budget::reset_largest;
pub(crate) use close::close;
pub(crate) use connection::Connection;
pub(crate) use head::content_length;
pub use hpack::{Decoder as HpackDecoder, Field as HpackField, HpackError};
pub(crate) use keepalive::KeepAlive;
pub use receiver::Receiver;
pub(crate) use rest::AtRest;
pub(crate) use serve::{resume, serve};
pub(crate) use stats::CodecStats;
pub(crate) use stream::{Follows, Stream};
