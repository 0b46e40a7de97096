//! Access log formats, and what they print of a hostile request. The input is a format; what stands behind its first
//! line feed is the request's header value. A format that begins with `{` is also read as `json_format`.
#![no_main]

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use heddle_net::{ConnectionInfo, PeerIdentity};
use heddle_telemetry::access_log::{Format, HeaderView, LogContext};
use libfuzzer_sys::fuzz_target;

/// Longest value that an operator prints of this context beside headers: a long host name or time, generously.
const MAX_VALUE: usize = 1024;

/// Answers every name with the same value.
struct Same<'a>(&'a str);

impl HeaderView for Same<'_> {
    fn header(&self, _: &str) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(self.0))
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (format, value) = text.split_once('\n').unwrap_or((text, "value"));
    let address = std::net::SocketAddr::from(([10, 0, 0, 1], 8080));
    let mut connection = ConnectionInfo::plain(address, address);
    connection.sni = Some(value.into());
    connection.peer = Some(std::sync::Arc::new(PeerIdentity {
        uri_sans: vec![value.to_owned()],
        subject: value.to_owned(),
        ..PeerIdentity::default()
    }));
    let headers = Same(value);
    let context = LogContext {
        start: SystemTime::UNIX_EPOCH.checked_add(Duration::new(value.len() as u64 * 86_399_987, 123_456_789)),
        duration: Some(Duration::from_millis(12)),
        connection: Some(&connection),
        response: Some(&headers),
        trailers: Some(&headers),
        route_name: Some(value),
        response_code: Some(200),
        response_code_details: Some(value),
        upstream_failure: Some(value),
        grpc_status: Some(value.len() as u16),
        ..LogContext::default()
    };
    // Control characters print as `\x1b`: four bytes for one.
    let bound = |operators: usize| format.len() * 2 + operators * (MAX_VALUE + 4 * value.len());

    if let Ok(parsed) = Format::parse_text(format) {
        let mut line = Vec::new();
        parsed.write(&context, &mut line);
        let operators = format.matches('%').count();
        assert!(line.len() <= bound(operators), "{} bytes", line.len());
        // A time format may hold the letters for a line feed or tab; nothing of the peer's may become one.
        if !format.contains("%n") && !format.contains("%t") {
            let literal = |b: &u8| b.is_ascii_control() && !format.as_bytes().contains(b);
            assert!(!line.iter().any(literal), "{:?}", String::from_utf8_lossy(&line));
        }
        assert!(std::str::from_utf8(&line).is_ok());
        if parsed.is_constant() {
            let mut other = Vec::new();
            parsed.write(&LogContext::default(), &mut other);
            assert_eq!(line, other);
        }
    }
    let Ok(json) = serde_json::from_str::<serde_json::Value>(format) else {
        return;
    };
    if let Ok(parsed) = Format::parse_json(&json) {
        let mut line = Vec::new();
        parsed.write(&context, &mut line);
        assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1, "one line");
        assert_eq!(line.last(), Some(&b'\n'));
        let read: serde_json::Value = serde_json::from_slice(&line).expect("JSON");
        assert_eq!(
            read.as_object().map(|o| o.keys().collect::<Vec<_>>()),
            json.as_object().map(|o| o.keys().collect())
        );
    }
});
