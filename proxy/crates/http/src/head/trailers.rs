//! Which fields may travel in a trailer section.
//!
//! A recipient may merge trailers into the head, and policies, filters and caches decide on the head: a trailer of any name
//! (`x-role`) would get past them. So only what is known to be harmless travels on, of requests and of responses, whichever
//! protocol they come by and leave by (RFC 9110 section 6.5.1).
//!
//! A gRPC client that called a gRPC server reads the metadata behind the messages, which may have any name ("gRPC over
//! HTTP/2", Custom-Metadata), and loses its errors without: to it everything travels but what is known to do harm.

use super::{Fields, Known, RequestHead, ResponseHead, is_grpc};

/// What trailers may be, whole names. `test/hostile/upstream/strict.go` has the same names.
const ALLOWED: &[&str] = &[
    // Over what was sent (RFC 9530, RFC 9421, RFC 1864, and the object stores').
    "checksum",
    "content-digest",
    "content-md5",
    "digest",
    "repr-digest",
    "signature",
    "signature-input",
    "x-amz-trailer-signature",
    "x-checksum",
    "x-goog-hash",
    // How it went.
    "grpc-message",
    "grpc-status",
    "server-timing",
    // Traces.
    "b3",
    "baggage",
    "traceparent",
    "tracestate",
    "uber-trace-id",
    "x-cloud-trace-context",
];

/// Beginnings of such names.
const ALLOWED_PREFIXES: &[&str] = &["x-amz-checksum-", "x-b3-", "x-checksum-"];

/// Ends of such names: gRPC's binary metadata, unless [`FORBIDDEN`] has them.
const ALLOWED_SUFFIXES: &[&str] = &["-bin"];

/// What the metadata of a gRPC response must not be, whole names. What harms in requests only is metadata like any other.
const FORBIDDEN: &[&str] = &[
    // Framing and the connection.
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    // Where the next request goes.
    "alt-svc",
    "host",
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
    "expires",
    "pragma",
    "vary",
    "warning",
];

/// Beginnings of names. Pseudo-headers belong into no trailer section (RFC 9113 section 8.1).
const FORBIDDEN_PREFIXES: &[&str] = &[":", "content-", "x-envoy-", "x-forwarded-"];

/// Which list they are held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trailers {
    /// What may be there: a request's, and a response's.
    Listed,
    /// What must not be there: a gRPC response's to a gRPC request.
    GrpcMetadata,
}

impl Trailers {
    /// A response's.
    pub(crate) fn of_response(request: &RequestHead, response: &ResponseHead) -> Self {
        match request.grpc && response.fields.get_known(Known::ContentType).is_some_and(is_grpc) {
            true => Self::GrpcMetadata,
            false => Self::Listed,
        }
    }

    /// Whether a field of this lower-case name may travel in them.
    pub fn may_hold(self, name: &[u8]) -> bool {
        let is = |list: &[&str]| list.iter().any(|one| one.as_bytes() == name);
        let begins = |list: &[&str]| list.iter().any(|one| name.starts_with(one.as_bytes()));
        let forbidden = || is(FORBIDDEN) || begins(FORBIDDEN_PREFIXES);
        match self {
            Self::GrpcMetadata => is(ALLOWED) || !forbidden(),
            Self::Listed => {
                // An underscore makes another name of it to some readers.
                let ends = ALLOWED_SUFFIXES.iter().any(|one| name.ends_with(one.as_bytes()));
                is(ALLOWED) || !name.contains(&b'_') && (begins(ALLOWED_PREFIXES) || ends && !forbidden())
            }
        }
    }
}

impl Fields {
    /// Removes what may not travel in such trailers and says how many fields that were.
    pub fn keep_trailers(&mut self, of: Trailers) -> usize {
        self.remove_named(|name| !of.may_hold(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRPC: [&str; 4] = ["grpc-status", "grpc-message", "grpc-status-details-bin", "my-key-bin"];
    const HARMLESS: [&str; 5] = [
        "x-checksum",
        "digest",
        "content-digest",
        "server-timing",
        "x-b3-traceid",
    ];
    const OTHERS: [&str; 4] = ["x-role", "x_role", "proxy", "etag"];
    const INFORM: [&str; 7] = [
        "date",
        "if-match",
        "location",
        "range",
        "retry-after",
        "via",
        "x-request-id",
    ];
    const STEER: [&str; 20] = [
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
        "x-forwarded-x-bin",
        "x-envoy-peer-metadata",
        "x-envoy-retry-on",
        "cache-control",
        "trailer",
        "connection",
        "te",
        "alt-svc",
        "content-x-bin",
        ":path",
    ];

    #[test]
    fn what_steers_goes_and_the_harmless_stays() {
        for name in GRPC.iter().chain(&HARMLESS) {
            assert!(Trailers::Listed.may_hold(name.as_bytes()), "{name}");
        }
        for name in OTHERS
            .iter()
            .chain(&STEER)
            .chain(&INFORM)
            .chain(&["my_key-bin", "x-checksum-a_b", "grpc-timeout"])
        {
            assert!(!Trailers::Listed.may_hold(name.as_bytes()), "{name}");
        }
        for name in GRPC.iter().chain(&OTHERS).chain(&HARMLESS).chain(&INFORM) {
            assert!(Trailers::GrpcMetadata.may_hold(name.as_bytes()), "{name}");
        }
        for name in STEER {
            assert!(!Trailers::GrpcMetadata.may_hold(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn what_goes_is_counted() {
        let mut trailers = Fields::new();
        for name in GRPC.iter().chain(&OTHERS).chain(&OTHERS) {
            trailers.push(name.as_bytes(), b"v");
        }
        assert_eq!(trailers.clone().keep_trailers(Trailers::GrpcMetadata), 0);
        assert_eq!(trailers.keep_trailers(Trailers::Listed), 8);
        let left: Vec<_> = trailers.iter().map(|(_, name, _)| name.to_vec()).collect();
        assert_eq!(left, GRPC.map(|name| name.as_bytes().to_vec()));
        assert_eq!(trailers.keep_trailers(Trailers::Listed), 0);
    }
}
