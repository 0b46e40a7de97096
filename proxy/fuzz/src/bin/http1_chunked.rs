//! A chunked body, against a plain reader of the same grammar and however its bytes are split.
#![no_main]

use heddle_fuzz::{LIMITS, PIECES};
use heddle_http::parse::{ChunkDecoder, ChunkStep};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Default, PartialEq, Eq)]
struct Body {
    data: Vec<u8>,
    /// Bytes up to the end of the trailer section; none when the end is not there yet.
    end: Option<usize>,
    trailers: Vec<u8>,
}

/// The body in pieces as a connection's reader would see it; none when it is refused.
fn decode(bytes: &[u8], piece: usize) -> Option<Body> {
    let mut decoder = ChunkDecoder::default();
    let mut body = Body::default();
    let (mut given, mut taken) = (0, 0);
    loop {
        match decoder.step(&bytes[taken..given], LIMITS).ok()? {
            ChunkStep::More if given == bytes.len() => return Some(body),
            ChunkStep::More => given = given.saturating_add(piece).min(bytes.len()),
            ChunkStep::Skip(n) => {
                assert!(n > 0, "framing that takes nothing would never end");
                taken += n;
            }
            ChunkStep::Data(n) => {
                assert!(n > 0 && n <= given - taken);
                body.data.extend_from_slice(&bytes[taken..taken + n]);
                decoder.consumed(n);
                taken += n;
            }
            ChunkStep::End(n) => {
                body.end = Some(taken + n);
                if let Some(trailers) = decoder.take_trailers() {
                    trailers.write(&mut body.trailers);
                }
                assert_eq!(
                    decoder.step(&bytes[taken..], LIMITS),
                    Ok(ChunkStep::End(0)),
                    "the end stays the end"
                );
                return Some(body);
            }
        }
    }
}

/// The data of a complete body by RFC 9112 section 7.1, read in the most obvious way.
fn plainly(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    loop {
        let at = bytes.windows(2).position(|w| w == b"\r\n")?;
        let digits = bytes[..at].split(|b| *b == b';').next()?;
        let size = usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        bytes = &bytes[at + 2..];
        if size == 0 {
            return Some(data);
        }
        data.extend_from_slice(bytes.get(..size)?);
        bytes = bytes.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

fuzz_target!(|bytes: &[u8]| {
    let whole = decode(bytes, bytes.len().max(1));
    for piece in PIECES {
        assert_eq!(decode(bytes, piece), whole, "pieces of {piece}");
    }
    let Some(body) = whole else { return };
    assert!(body.data.len() <= bytes.len());
    if let Some(end) = body.end {
        assert_eq!(plainly(&bytes[..end]).as_deref(), Some(&body.data[..]));
    }
});
