//! Response heads.

use super::Framing;
use super::fields::Fields;
use super::request::Protocol;

/// A response head.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    /// Header fields.
    pub fields: Fields,
    /// Status code.
    pub status: u16,
    /// Protocol it came by.
    pub protocol: Protocol,
    /// How the body is delimited, as HTTP/1.1 read it; HTTP/2 leaves the default.
    pub framing: Framing,
    /// Whether the connection that it came on may carry another request (HTTP/1.1).
    pub keep_alive: bool,
}

impl ResponseHead {
    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        let Self {
            fields,
            status,
            protocol,
            framing,
            keep_alive,
        } = self;
        fields.clear();
        *status = 0;
        *protocol = Protocol::Http11;
        *framing = Framing::None;
        *keep_alive = false;
    }
}

/// The reason phrase of a status code (RFC 9110 section 15, RFC 6585); empty for unknown ones.
pub(crate) fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status)
        .ok()
        .and_then(|s| s.canonical_reason())
        .unwrap_or("")
}
