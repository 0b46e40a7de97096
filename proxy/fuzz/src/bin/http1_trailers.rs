//! Trailers: what is passed on holds no field that steers, whatever the section looked like.
#![no_main]

use heddle_fuzz::{LIMITS, is_one_line, written};
use heddle_http::parse::{ChunkDecoder, ChunkStep, Fields, Trailers};
use libfuzzer_sys::fuzz_target;

/// Names that no message may carry behind its body, and beginnings of such names.
const NAMES: &[&str] = &[
    "host",
    "connection",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "keep-alive",
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "cache-control",
];
/// Names that steer a request, or say where it came from: metadata like any other to a gRPC client.
const OF_REQUESTS: &[&str] = &["range", "if-match", "expect", "via", "forwarded"];
const BEGINNINGS: &[&str] = &["x-forwarded-", "x-envoy-"];

/// The trailers of an empty chunked body.
fn trailers(section: &[u8]) -> Option<Fields> {
    let body = [b"0\r\n", section].concat();
    let mut decoder = ChunkDecoder::default();
    let mut taken = 0;
    loop {
        match decoder.step(&body[taken..], LIMITS).ok()? {
            ChunkStep::Skip(n) => taken += n,
            ChunkStep::End(_) => return Some(decoder.take_trailers().unwrap_or_default()),
            ChunkStep::More | ChunkStep::Data(_) => return None,
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    for of in [Trailers::Listed, Trailers::GrpcMetadata] {
        let Some(fields) = trailers(bytes) else { return };
        check(bytes, of, fields);
    }
});

fn check(bytes: &[u8], of: Trailers, mut fields: Fields) {
    let before = fields.len();
    assert!(before <= LIMITS.max_count + 1, "{before} trailers");
    let dropped = fields.keep_trailers(of);
    assert_eq!(fields.len() + dropped, before, "what is dropped is counted");
    assert_eq!(fields.keep_trailers(of), 0);
    let sent = written(&fields);
    let mut lines = 0;
    for line in sent.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        lines += 1;
        let line = line.strip_suffix(b"\r").expect("CR LF");
        assert!(is_one_line(line));
        let colon = line.iter().position(|b| *b == b':').expect("a colon");
        let name = String::from_utf8_lossy(&line[..colon]).to_ascii_lowercase();
        assert!(!name.is_empty() && !name.contains([' ', '\t']), "{name:?}");
        assert!(!NAMES.contains(&&*name), "{name}");
        assert!(
            of == Trailers::GrpcMetadata || !name.contains('_') && !OF_REQUESTS.contains(&&*name),
            "{name}"
        );
        assert!(
            !BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)),
            "{name}"
        );
    }
    assert_eq!(lines, fields.len());
    // gRPC's own fields and checksums stay.
    for name in ["grpc-status", "grpc-message", "x-checksum"] {
        let came = trailers(bytes).is_some_and(|all| all.get(name.as_bytes()).is_some());
        assert_eq!(fields.get(name.as_bytes()).is_some(), came, "{name}");
    }
}
