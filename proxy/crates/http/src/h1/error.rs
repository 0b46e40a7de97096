//! What can be wrong with HTTP/1.1 bytes.

/// A violation of HTTP/1.1 found in a peer's bytes. Each kind has one counter and one answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum H1Error {
    /// The start line does not parse.
    #[error("malformed start line")]
    StartLine,
    /// Not HTTP/1.0 or HTTP/1.1.
    #[error("unsupported HTTP version")]
    Version,
    /// HTTP/1.0 while `accept_http_10` is off.
    #[error("HTTP/1.0 is not accepted")]
    Http10,
    /// A line ends without CR, or a CR stands alone.
    #[error("bare CR or LF")]
    BareNewline,
    /// A header line does not parse: a bad name, white space before the colon, a folded line, a control character.
    #[error("malformed header line")]
    HeaderLine,
    /// The head is larger than `max_request_headers_kb`.
    #[error("head too large")]
    TooLarge,
    /// More fields than `max_headers_count`.
    #[error("too many header fields")]
    TooMany,
    /// `content-length` is repeated.
    #[error("repeated content-length")]
    RepeatedLength,
    /// `content-length` is not a decimal number in its shortest form.
    #[error("invalid content-length")]
    Length,
    /// `content-length` and `transfer-encoding` together.
    #[error("content-length and transfer-encoding together")]
    LengthAndEncoding,
    /// `transfer-encoding` is repeated, or sent with HTTP/1.0, or has more codings than `chunked`.
    #[error("invalid transfer-encoding")]
    TransferEncoding,
    /// A transfer coding other than `chunked`.
    #[error("unsupported transfer-encoding")]
    UnknownEncoding,
    /// No `host` field in HTTP/1.1.
    #[error("missing host")]
    MissingHost,
    /// `host` is repeated or not a host.
    #[error("invalid host")]
    Host,
    /// The method is no token, or a registered one in other letters.
    #[error("invalid method")]
    Method,
    /// The request target has none of the four forms, or characters outside of a URI.
    #[error("invalid request target")]
    Target,
    /// `connection` names a field that must not be dropped.
    #[error("invalid connection header")]
    Connection,
    /// `connection` names more fields than anyone has reason to.
    #[error("too many connection options")]
    ConnectionOptions,
    /// An expectation other than `100-continue`.
    #[error("unknown expectation")]
    Expectation,
    /// A chunk size, extension or ending is malformed or too long.
    #[error("invalid chunk")]
    Chunk,
    /// The trailer section is malformed.
    #[error("invalid trailers")]
    Trailers,
    /// The peer closed the connection inside a message.
    #[error("message cut short")]
    Incomplete,
}

impl H1Error {
    /// Every kind, for counters and tests.
    pub const ALL: [H1Error; 22] = [
        Self::StartLine,
        Self::Version,
        Self::Http10,
        Self::BareNewline,
        Self::HeaderLine,
        Self::TooLarge,
        Self::TooMany,
        Self::RepeatedLength,
        Self::Length,
        Self::LengthAndEncoding,
        Self::TransferEncoding,
        Self::UnknownEncoding,
        Self::MissingHost,
        Self::Host,
        Self::Method,
        Self::Target,
        Self::Connection,
        Self::ConnectionOptions,
        Self::Expectation,
        Self::Chunk,
        Self::Trailers,
        Self::Incomplete,
    ];

    /// The `cause` label of the protocol error counter.
    pub fn label(self) -> &'static str {
        match self {
            Self::StartLine => "start_line",
            Self::Version => "version",
            Self::Http10 => "low_version",
            Self::BareNewline => "bare_newline",
            Self::HeaderLine => "header_line",
            Self::TooLarge => "headers_too_large",
            Self::TooMany => "too_many_headers",
            Self::RepeatedLength => "repeated_content_length",
            Self::Length => "invalid_content_length",
            Self::LengthAndEncoding => "content_length_and_transfer_encoding",
            Self::TransferEncoding => "invalid_transfer_encoding",
            Self::UnknownEncoding => "unsupported_transfer_encoding",
            Self::MissingHost => "missing_host",
            Self::Host => "invalid_host",
            Self::Method => "invalid_method",
            Self::Target => "invalid_target",
            Self::Connection => "invalid_connection_header",
            Self::ConnectionOptions => "too_many_connection_options",
            Self::Expectation => "unknown_expectation",
            Self::Chunk => "invalid_chunk",
            Self::Trailers => "invalid_trailers",
            Self::Incomplete => "incomplete",
        }
    }

    /// Status of the answer to a request with this error.
    pub fn status(self) -> u16 {
        match self {
            Self::TooLarge | Self::TooMany => 431,
            Self::UnknownEncoding => 501,
            Self::Http10 => 426,
            Self::Expectation => 417,
            _ => 400,
        }
    }

    /// `%RESPONSE_CODE_DETAILS%` of the answer, with Envoy's names where it has one.
    pub fn details(self) -> &'static str {
        match self {
            Self::TooLarge => "http1.headers_too_large",
            Self::TooMany => "http1.too_many_headers",
            Self::Http10 => "low_version",
            Self::MissingHost => "missing_host_header",
            Self::UnknownEncoding => "http1.unsupported_transfer_encoding",
            Self::TransferEncoding => "http1.invalid_transfer_encoding",
            Self::LengthAndEncoding => "http1.content_length_and_chunked_not_allowed",
            Self::Target => "http1.invalid_url",
            Self::HeaderLine => "http1.invalid_characters",
            Self::Connection | Self::ConnectionOptions => "http1.connection_header_rejected",
            Self::Host => "invalid_host",
            _ => "http1.codec_error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_kind_has_its_own_counter() {
        let labels: HashSet<_> = H1Error::ALL.iter().map(|e| e.label()).collect();
        assert_eq!(labels.len(), H1Error::ALL.len());
        assert!(H1Error::ALL.iter().all(|e| (400..=505).contains(&e.status())));
    }
}
