//! Which fields may travel in a trailer section.
//!
//! A recipient may merge trailers into the head, so nothing may stand there that says how to frame, route, trust or
//! process a message (RFC 9110 section 6.5.1). The same list for both protocols and both directions.

use super::fields::Fields;

/// Whole names.
const FORBIDDEN: &[&str] = &[
    // Framing and the connection.
    "connection",
    "expect",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    // Routing.
    "alt-used",
    "forwarded",
    "host",
    "max-forwards",
    "via",
    // Authentication and state.
    "authentication-info",
    "authorization",
    "cookie",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "set-cookie",
    "www-authenticate",
    // How to process the message.
    "accept-ranges",
    "age",
    "cache-control",
    "date",
    "expires",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "location",
    "pragma",
    "range",
    "retry-after",
    "vary",
    "warning",
    // Who asks, and under which name.
    "true-client-ip",
    "x-client-ip",
    "x-http-method-override",
    "x-original-url",
    "x-real-ip",
    "x-request-id",
    "x-rewrite-url",
];

/// Beginnings of names. Pseudo-headers belong into no trailer section (RFC 9113 section 8.1).
const FORBIDDEN_PREFIXES: &[&str] = &[":", "content-", "x-envoy-", "x-forwarded-"];

/// Whether a field of this lower-case name may not stand in trailers.
pub fn is_forbidden_trailer(name: &[u8]) -> bool {
    FORBIDDEN.iter().any(|forbidden| forbidden.as_bytes() == name)
        || FORBIDDEN_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix.as_bytes()))
}

impl Fields {
    /// Removes what may not stand in trailers and says how many fields that were.
    pub fn remove_forbidden_trailers(&mut self) -> usize {
        self.remove_named(is_forbidden_trailer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_stays_and_what_steers_goes() {
        let mut trailers = Fields::new();
        let stay = [
            "grpc-status",
            "grpc-message",
            "grpc-status-details-bin",
            "x-checksum",
            "my-key-bin",
            "server-timing",
            "etag",
            "digest",
            "x-b3-traceid",
        ];
        let go = [
            "transfer-encoding",
            "content-length",
            "content-type",
            "content-disposition",
            "host",
            "authorization",
            "cookie",
            "set-cookie",
            "x-forwarded-for",
            "x-forwarded-client-cert",
            "x-envoy-peer-metadata",
            "x-envoy-retry-on",
            "cache-control",
            "trailer",
            "connection",
            "te",
            "if-match",
            ":path",
        ];
        for name in stay.iter().chain(&go).chain(&go[..2]) {
            trailers.push(name.as_bytes(), b"v");
        }
        assert_eq!(trailers.remove_forbidden_trailers(), go.len() + 2);
        let left: Vec<_> = trailers.iter().map(|(_, name, _)| name.to_vec()).collect();
        assert_eq!(left, stay.map(|name| name.as_bytes().to_vec()));
        assert_eq!(trailers.remove_forbidden_trailers(), 0);
    }
}
