//! Message heads: the start line's facts and the header fields, the same for HTTP/1.1 and HTTP/2.

mod cookie;
mod fields;
mod framing;
mod known;
mod request;
mod response;
mod spare;
mod target;
mod trailers;

pub(crate) use cookie::{cookie, cookies};
pub(crate) use fields::LineError;
pub use fields::{Fields, Span};
pub(crate) use framing::{parse_length, take_expectation};
pub use known::Known;
pub(crate) use known::KnownSet;
pub(crate) use request::is_grpc;
pub use request::{Method, Protocol, RequestHead, Scheme};
pub use response::ResponseHead;
pub(crate) use response::reason;
pub(crate) use spare::trim_spares;
pub use target::{TargetError, check_method, check_target};
pub(crate) use target::{first_bits, has_port, is_authority, is_token, is_token_byte};
pub use trailers::Trailers;

/// How a message's body is delimited in HTTP/1.1 (RFC 9112 section 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    #[default]
    None,
    /// `content-length`.
    Length(u64),
    /// `transfer-encoding: chunked`.
    Chunked,
    /// Everything until the connection ends: a response without length, or an upgraded connection.
    UntilClose,
}
