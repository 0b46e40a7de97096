//! The HTTP/2 codec's receiving direction, on both sides: the same whatever the pieces, and bounded.
#![no_main]

use heddle_config::snapshot::Http2Options;
use heddle_fuzz::PIECES;
use heddle_http::parse::{Limits, Receiver};
use libfuzzer_sys::fuzz_target;

const LIMITS: Limits = Limits {
    max_bytes: 4096,
    max_count: 20,
};

/// What came of the bytes: the requests, and the error that ended the connection.
fn outcome(mut receiver: Receiver, bytes: &[u8], piece: usize) -> (Vec<String>, Option<u32>) {
    let mut given = 0;
    for chunk in bytes.chunks(piece) {
        given += chunk.len();
        if let Err(code) = receiver.receive(chunk) {
            return (receiver.requests().to_vec(), Some(code));
        }
        assert!(receiver.held() <= given, "more is held than came");
    }
    (receiver.requests().to_vec(), None)
}

fuzz_target!(|bytes: &[u8]| {
    // The first byte chooses the side, and whether extended CONNECT is offered; a server's bytes get their preface, which no fuzzer has to find.
    let Some((side, rest)) = bytes.split_first() else {
        return;
    };
    let options = Http2Options {
        max_concurrent_streams: 8,
        allow_connect: side & 2 != 0,
        ..Http2Options::default()
    };
    let mut whole = Vec::new();
    if side & 1 == 0 {
        whole.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    }
    whole.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    whole.extend_from_slice(rest);
    let start = || match side & 1 {
        0 => Receiver::server(options, LIMITS),
        _ => Receiver::client(options, LIMITS, 4),
    };
    let expected = outcome(start(), &whole, whole.len());
    for piece in PIECES {
        assert_eq!(
            outcome(start(), &whole, piece.clamp(1, whole.len())),
            expected,
            "pieces of {piece}"
        );
    }
});
