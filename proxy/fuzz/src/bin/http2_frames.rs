//! The watcher of HTTP/2 frames, against a reader that has all bytes at once.
#![no_main]

use heddle_fuzz::PIECES;
use heddle_http::parse::FrameScan;
use libfuzzer_sys::fuzz_target;

/// The lowest last-stream number of all GOAWAY frames (RFC 9113 sections 4.1 and 6.8).
fn plainly(mut bytes: &[u8]) -> Option<u32> {
    let mut lowest = None::<u32>;
    while let Some((&[a, b, c, kind, _, _, _, _, _], rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let payload = &rest[..length.min(rest.len())];
        if let (7, 8.., Some(last)) = (kind, length, payload.first_chunk::<4>()) {
            let last = u32::from_be_bytes(*last) & 0x7fff_ffff;
            lowest = Some(lowest.map_or(last, |before| before.min(last)));
        }
        bytes = &rest[payload.len()..];
    }
    lowest
}

fuzz_target!(|bytes: &[u8]| {
    let expected = plainly(bytes);
    for piece in PIECES {
        let mut scan = FrameScan::default();
        let mut before = None::<u32>;
        for chunk in bytes.chunks(piece.min(bytes.len().max(1))) {
            scan.advance(chunk);
            let now = scan.last_stream();
            assert!(
                before.is_none_or(|b| now.is_some_and(|n| n <= b)),
                "a promise is never taken back"
            );
            before = now;
        }
        assert_eq!(scan.last_stream(), expected, "pieces of {piece}");
    }
});
