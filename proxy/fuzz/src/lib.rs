//! What the targets share: feeding bytes in pieces, and reading back what the proxy wrote.
#![forbid(unsafe_code)]

use heddle_http::parse::{Fields, HeadScan, Limits, RequestHead};

/// Sizes of the pieces in which every stream is fed; the first stands for "all at once".
pub const PIECES: [usize; 4] = [usize::MAX, 1, 3, 61];

/// The bounds of a connection manager that configures none.
pub const LIMITS: Limits = Limits {
    max_bytes: 60 * 1024,
    max_count: 100,
};

/// The ends of the growing prefixes of `len` bytes that arrive in pieces of `piece`.
pub fn arrivals(len: usize, piece: usize) -> impl Iterator<Item = usize> {
    let mut seen = 0;
    std::iter::from_fn(move || {
        (seen < len).then(|| {
            seen = seen.saturating_add(piece).min(len);
            seen
        })
    })
}

/// Where the first head in `bytes` ends: none when it is incomplete. Panics when that depends on the pieces.
///
/// Only whether bytes are refused must be the same: of two faults, the pieces decide which is met first.
pub fn head_end(bytes: &[u8]) -> Option<usize> {
    let scan = |piece| {
        let mut scan = HeadScan::default();
        for end in arrivals(bytes.len(), piece) {
            match scan.advance(&bytes[..end], LIMITS) {
                Ok(None) => {}
                Ok(Some(n)) => return Ok(Some(n)),
                Err(_) => return Err(()),
            }
        }
        Ok(None)
    };
    let found = PIECES.map(scan);
    assert!(
        found.iter().all(|f| *f == found[0]),
        "pieces of {PIECES:?} end the head at {found:?}"
    );
    found[0].ok().flatten()
}

/// The fields as they are sent.
pub fn written(fields: &Fields) -> Vec<u8> {
    let mut out = Vec::new();
    fields.write(&mut out);
    assert_eq!(out.len(), fields.byte_size(), "byte_size is what is written");
    out
}

/// A request head as it is sent upstream, without what the router adds for the body.
pub fn request_bytes(head: &RequestHead, target: &str) -> Vec<u8> {
    let mut out = format!("{} {target} HTTP/1.1\r\nhost: {}\r\n", head.method_text(), head.host()).into_bytes();
    out.extend(written(&head.fields));
    out
}

/// Whether no byte could end a header line or drive a terminal.
pub fn is_one_line(bytes: &[u8]) -> bool {
    !bytes.iter().any(|b| b.is_ascii_control() && *b != b'\t')
}
