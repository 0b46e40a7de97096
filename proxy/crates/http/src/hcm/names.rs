//! Names of request fields with underscores and the like. To CGI and what came of it (WSGI, Rack, PHP) `x_a` is `x-a`, so
//! they are a way around whoever looks at `x-a`.

use heddle_config::snapshot::UnderscoresAction;
use heddle_matching::{is_respelled, is_separator};
use heddle_telemetry::{Counter, Stats};

use crate::head::{Fields, Protocol};

/// Beginnings of the names by which proxies tell each other who a client is and what it may ask for.
const IDENTITY: [&[u8]; 2] = [b"x-envoy-", b"x-forwarded-"];

/// What became of such names; those of `headers_with_underscores_action` under Envoy's names.
#[derive(Debug)]
pub(crate) struct NameStats {
    dropped: ByCodec,
    rejected: ByCodec,
    identity: Counter,
}

#[derive(Debug)]
struct ByCodec {
    http1: Counter,
    http2: Counter,
}

impl ByCodec {
    fn of(&self, protocol: Protocol) -> &Counter {
        match protocol {
            Protocol::Http10 | Protocol::Http11 => &self.http1,
            Protocol::Http2 => &self.http2,
        }
    }
}

impl NameStats {
    pub(super) fn new(stats: &Stats, labels: &[(&'static str, &str)]) -> Self {
        let counter = |name| stats.counter(name, labels);
        Self {
            dropped: ByCodec {
                http1: counter("envoy_http1_dropped_headers_with_underscores"),
                http2: counter("envoy_http2_dropped_headers_with_underscores"),
            },
            rejected: ByCodec {
                http1: counter("envoy_http1_requests_rejected_with_underscores_in_headers"),
                http2: counter("envoy_http2_requests_rejected_with_underscores_in_headers"),
            },
            identity: counter("heddle_http_identity_headers_dropped_total"),
        }
    }

    /// Applies `headers_with_underscores_action`. False when the request is refused.
    pub(super) fn admit(&self, action: UnderscoresAction, fields: &mut Fields, protocol: Protocol) -> bool {
        let underscored = |name: &[u8]| name.contains(&b'_');
        match action {
            UnderscoresAction::Allow => true,
            UnderscoresAction::RejectRequest => {
                let found = fields.iter().any(|(_, name, _)| underscored(name));
                if found {
                    self.rejected.of(protocol).inc();
                }
                !found
            }
            UnderscoresAction::DropHeader => {
                let dropped = fields.remove_named(underscored);
                if dropped > 0 {
                    self.dropped.of(protocol).add(dropped as u64);
                }
                true
            }
        }
    }

    /// Takes out other spellings of names that say who a client is: no honest proxy writes them, and what is said under
    /// the right spelling is taken out or written anew in so many ways that none of them would find these.
    pub(super) fn sanitize(&self, fields: &mut Fields) {
        let dropped = fields.remove_named(is_identity_in_disguise);
        if dropped > 0 {
            self.identity.add(dropped as u64);
        }
    }
}

/// Whether a lower-case name would be one of a proxy's if its words were parted by `-`.
fn is_identity_in_disguise(name: &[u8]) -> bool {
    // Nearly every name is told apart by its first byte.
    name.first() == Some(&b'x')
        && is_respelled(name)
        && IDENTITY.iter().any(|beginning| {
            let head = name.get(..beginning.len()).unwrap_or_default();
            head.len() == beginning.len()
                && head
                    .iter()
                    .zip(*beginning)
                    .all(|(a, b)| a == b || is_separator(*a) && is_separator(*b))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disguises() {
        for name in [
            "x_forwarded_client_cert",
            "x-forwarded_client-cert",
            "x_forwarded-for",
            "x-forwarded-client_cert",
            "x_envoy_peer_metadata",
            "x-envoy-peer_metadata",
            "x.forwarded+client~cert",
            "x-forwarded-client.cert",
        ] {
            assert!(is_identity_in_disguise(name.as_bytes()), "{name}");
        }
        for name in [
            "x-forwarded-client-cert",
            "x_role",
            "x_forwarded",
            "forwarded_x",
            "x-envoy",
            "",
        ] {
            assert!(!is_identity_in_disguise(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn actions() {
        let stats = Stats::new();
        let names = NameStats::new(&stats, &[]);
        let fields = || {
            let mut fields = Fields::new();
            for name in ["a", "x_a", "b_", "c-d"] {
                fields.push(name.as_bytes(), b"v");
            }
            fields
        };
        for (action, protocol, admitted, left) in [
            (UnderscoresAction::Allow, Protocol::Http11, true, 4),
            (UnderscoresAction::DropHeader, Protocol::Http11, true, 2),
            (UnderscoresAction::DropHeader, Protocol::Http2, true, 2),
            (UnderscoresAction::RejectRequest, Protocol::Http11, false, 4),
            (UnderscoresAction::RejectRequest, Protocol::Http2, false, 4),
        ] {
            let mut fields = fields();
            assert_eq!(names.admit(action, &mut fields, protocol), admitted, "{action:?}");
            assert_eq!(fields.len(), left, "{action:?}");
        }
        let counts = [&names.dropped, &names.rejected].map(|by| (by.http1.get(), by.http2.get()));
        assert_eq!(counts, [(2, 2), (1, 1)]);
    }
}
