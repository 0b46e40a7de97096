//! Answers of the proxy's own: what went wrong, what a filter decided, what a route says.

use std::borrow::Cow;

use bytes::Bytes;
use heddle_telemetry::ResponseFlag;

use crate::hcm::Exchange;
use crate::head::{Fields, Known};

/// An answer that no upstream gives. It passes the filters' response side and the access log like any other. A gRPC
/// client gets it as a status in a head without a body, as in Envoy.
#[derive(Debug, Default)]
pub(crate) struct LocalReply {
    /// The HTTP status.
    pub(crate) status: u16,
    /// Fields beside `content-length` and `content-type`; a `content-type` in here is taken instead of `text/plain`.
    pub(crate) headers: Fields,
    /// The body, and the message of a gRPC status.
    pub(crate) body: Bytes,
    /// The gRPC status, where the one that stands for the HTTP status is not meant.
    pub(crate) grpc_status: Option<u32>,
    /// `%RESPONSE_CODE_DETAILS%`.
    pub(crate) details: Cow<'static, str>,
    /// Why, for logs and metrics.
    pub(crate) flag: Option<ResponseFlag>,
}

impl LocalReply {
    /// The answer to a request whose body is longer than a filter keeps.
    pub(crate) fn too_large() -> Self {
        Self {
            status: 413,
            body: Bytes::from_static(b"Payload Too Large"),
            details: "request_payload_too_large".into(),
            ..Self::default()
        }
    }

    /// The answer to a request whose body a filter waits for while the worker keeps too much of others'.
    pub(crate) fn no_room() -> Self {
        let mut headers = Fields::new();
        headers.push_known(Known::Overloaded, b"true");
        Self {
            status: 503,
            headers,
            body: Bytes::from_static(b"too many request bodies wait here, try again later"),
            details: "request_payload_no_room".into(),
            flag: Some(ResponseFlag::OverloadManager),
            ..Self::default()
        }
    }

    /// Makes it the exchange's response and returns the body to send.
    pub(crate) fn put(self, exchange: &mut Exchange) -> Bytes {
        exchange.details = self.details;
        if let Some(flag) = self.flag {
            exchange.flag(flag);
        }
        let grpc = exchange.request.grpc && !exchange.plain_replies;
        let response = &mut exchange.response;
        response.clear();
        response.status = self.status;
        let fields = &mut response.fields;
        if grpc {
            response.status = 200;
            fields.push_known(Known::ContentType, b"application/grpc");
            let code = self.grpc_status.unwrap_or_else(|| grpc_status(self.status));
            fields.push_number(Known::GrpcStatus, u64::from(code));
            if !self.body.is_empty() {
                fields.push_known(Known::GrpcMessage, percent_encode(&self.body).as_bytes());
            }
        } else if !self.body.is_empty() {
            // Of no body HTTP/1.1 says the length by itself; in HTTP/2 the head ends the stream.
            fields.push_number(Known::ContentLength, self.body.len() as u64);
            if !self.headers.has_known(Known::ContentType) {
                fields.push_known(Known::ContentType, b"text/plain");
            }
        }
        let settled = |known| matches!(known, Known::ContentLength) || (grpc && known == Known::ContentType);
        for (known, name, value) in self.headers.iter().filter(|(known, ..)| !settled(*known)) {
            fields.push_parsed(known, name, value);
        }
        if grpc { Bytes::new() } else { self.body }
    }
}

/// gRPC status for an HTTP status (Envoy's mapping, after gRPC's "HTTP to gRPC Status Code Mapping").
pub(crate) fn grpc_status(http: u16) -> u32 {
    match http {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502 | 503 | 504 => 14,
        _ => 2,
    }
}

/// gRPC's encoding of `grpc-message`: printable ASCII except the percent sign stays.
pub(crate) fn percent_encode(text: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for &byte in text {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    #[test]
    fn grpc_messages_are_encoded() {
        assert_eq!(percent_encode(b"RBAC: access denied"), "RBAC: access denied");
        assert_eq!(percent_encode("50%\n\u{e9}".as_bytes()), "50%25%0A%C3%A9");
    }

    #[test]
    fn an_answer_suits_the_client() {
        let mut exchange = Exchange::take(1, None, tokio::time::Instant::now());
        let body = Failure::NoHealthyUpstream.reply(false).put(&mut exchange);
        assert_eq!(&body[..], b"no healthy upstream");
        assert_eq!(exchange.response.status, 503);
        assert_eq!(exchange.flags.to_string(), "UH");
        LocalReply::default().put(&mut exchange);
        assert!(!exchange.response.fields.has_known(Known::ContentLength));
        exchange.request.grpc = true;
        let limited = || {
            let mut headers = Fields::new();
            headers.push(b"x-why", b"busy");
            headers.push(b"content-type", b"text/html");
            LocalReply {
                status: 429,
                headers,
                body: "50%".into(),
                details: "local_rate_limited".into(),
                ..LocalReply::default()
            }
        };
        let body = limited().put(&mut exchange);
        assert!(body.is_empty());
        let fields = &exchange.response.fields;
        assert_eq!(exchange.response.status, 200);
        assert_eq!(fields.joined(b"content-type").as_deref(), Some("application/grpc"));
        assert_eq!(fields.joined(b"grpc-status").as_deref(), Some("14"));
        assert_eq!(fields.joined(b"grpc-message").as_deref(), Some("50%25"));
        assert_eq!(fields.joined(b"x-why").as_deref(), Some("busy"));
        assert_eq!(exchange.details, "local_rate_limited");
        exchange.request.grpc = false;
        let body = limited().put(&mut exchange);
        let fields = &exchange.response.fields;
        assert_eq!((exchange.response.status, &body[..]), (429, &b"50%"[..]));
        assert_eq!(fields.joined(b"content-type").as_deref(), Some("text/html"));
        assert_eq!(fields.joined(b"content-length").as_deref(), Some("3"));
    }
}
