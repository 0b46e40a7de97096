//! The chunked transfer coding (RFC 9112 section 7.1), read strictly.

use super::error::H1Error;
use super::parse::{HeadScan, Limits, parse_trailers};
use crate::head::Fields;

/// Longest chunk-size line: sixteen digits and a short extension.
const MAX_LINE: usize = 256;

/// Most bytes of chunk extensions in one body; more is an attempt to make us work without data.
const MAX_EXTENSIONS: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Size,
    Data(u64),
    DataEnd,
    Trailers(HeadScan),
    Done,
}

/// What the decoder found at the front of the bytes given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkStep {
    /// More bytes are needed.
    More,
    /// So many bytes of framing stand in front and mean nothing to anyone else.
    Skip(usize),
    /// So many bytes of body data stand in front; report them back by [`ChunkDecoder::consumed`].
    Data(usize),
    /// The body is over after so many bytes more (the trailer section).
    End(usize),
}

/// Decoder of one chunked body.
#[derive(Debug, Default)]
pub struct ChunkDecoder {
    state: State,
    extensions: usize,
    trailers: Option<Fields>,
}

impl ChunkDecoder {
    /// Looks at the bytes not yet consumed.
    ///
    /// # Errors
    /// [`H1Error::Chunk`] or what a trailer section can have.
    pub fn step(&mut self, buf: &[u8], limits: Limits) -> Result<ChunkStep, H1Error> {
        match &mut self.state {
            State::Size => {
                let window = buf.get(..buf.len().min(MAX_LINE)).unwrap_or_default();
                let Some(end) = memchr::memchr(b'\n', window) else {
                    return if buf.len() >= MAX_LINE {
                        Err(H1Error::Chunk)
                    } else {
                        check_partial(window)
                    };
                };
                let line = window
                    .get(..end)
                    .and_then(|l| l.strip_suffix(b"\r"))
                    .ok_or(H1Error::Chunk)?;
                let (size, extension) = parse_size(line)?;
                self.extensions += extension;
                if self.extensions > MAX_EXTENSIONS {
                    return Err(H1Error::Chunk);
                }
                self.state = if size == 0 {
                    State::Trailers(HeadScan::default())
                } else {
                    State::Data(size)
                };
                Ok(ChunkStep::Skip(end + 1))
            }
            State::Data(left) => {
                let n = usize::try_from(*left).unwrap_or(usize::MAX).min(buf.len());
                Ok(if n == 0 { ChunkStep::More } else { ChunkStep::Data(n) })
            }
            State::DataEnd => match buf {
                [b'\r', b'\n', ..] => {
                    self.state = State::Size;
                    Ok(ChunkStep::Skip(2))
                }
                [] | [b'\r'] => Ok(ChunkStep::More),
                _ => Err(H1Error::Chunk),
            },
            State::Trailers(scan) => match scan.advance(buf, limits)? {
                None => Ok(ChunkStep::More),
                Some(end) => {
                    if end > 2 {
                        let mut fields = Fields::new();
                        parse_trailers(buf.get(..end).unwrap_or_default(), &mut fields)?;
                        if !fields.is_empty() {
                            self.trailers = Some(fields);
                        }
                    }
                    self.state = State::Done;
                    Ok(ChunkStep::End(end))
                }
            },
            State::Done => Ok(ChunkStep::End(0)),
        }
    }

    /// Tells that so many bytes of the data announced last were taken.
    pub fn consumed(&mut self, n: usize) {
        if let State::Data(left) = &mut self.state {
            *left = left.saturating_sub(n as u64);
            if *left == 0 {
                self.state = State::DataEnd;
            }
        }
    }

    /// The trailers, once.
    pub fn take_trailers(&mut self) -> Option<Fields> {
        self.trailers.take()
    }
}

/// Refuses early what can never become a size line, so that garbage does not wait for a timeout.
fn check_partial(window: &[u8]) -> Result<ChunkStep, H1Error> {
    match window.first() {
        Some(b) if !b.is_ascii_hexdigit() => Err(H1Error::Chunk),
        _ => Ok(ChunkStep::More),
    }
}

/// Size and length of the extensions of one chunk-size line without CR LF.
fn parse_size(line: &[u8]) -> Result<(u64, usize), H1Error> {
    let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let (size, extension) = line.split_at(digits);
    if digits == 0 || digits > 15 {
        return Err(H1Error::Chunk);
    }
    if !extension.is_empty() && extension.first() != Some(&b';') {
        return Err(H1Error::Chunk);
    }
    if extension.iter().any(|b| b.is_ascii_control() && *b != b'\t') {
        return Err(H1Error::Chunk);
    }
    let size = size
        .iter()
        .fold(0_u64, |n, b| n << 4 | u64::from((*b as char).to_digit(16).unwrap_or(0)));
    Ok((size, extension.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_bytes: 1024,
        max_count: 10,
    };

    /// Feeds `bytes` in pieces and returns the data and whether the body ended, and what was left.
    fn decode(bytes: &[u8], piece: usize) -> Result<(Vec<u8>, bool, usize, Option<Fields>), H1Error> {
        let mut decoder = ChunkDecoder::default();
        let (mut data, mut given, mut taken) = (Vec::new(), 0, 0);
        loop {
            match decoder.step(&bytes[taken..given], LIMITS)? {
                ChunkStep::More if given == bytes.len() => return Ok((data, false, 0, None)),
                ChunkStep::More => given = (given + piece).min(bytes.len()),
                ChunkStep::Skip(n) => taken += n,
                ChunkStep::Data(n) => {
                    data.extend_from_slice(&bytes[taken..taken + n]);
                    decoder.consumed(n);
                    taken += n;
                }
                ChunkStep::End(n) => {
                    return Ok((data, true, bytes.len() - taken - n, decoder.take_trailers()));
                }
            }
        }
    }

    #[test]
    fn any_split_gives_the_same_body() {
        let bytes = b"5\r\nhello\r\n6;a=b\r\n world\r\n0\r\nx-sum: 1\r\nhost: evil\r\n\r\nGET /";
        for piece in 1..=bytes.len() {
            let (data, ended, left, trailers) = decode(bytes, piece).expect("valid");
            assert_eq!(data, b"hello world");
            assert!(ended);
            assert!(left <= 5);
            let trailers = trailers.expect("trailers");
            assert_eq!(trailers.get(b"x-sum"), Some(&b"1"[..]));
            assert_eq!(
                trailers.len(),
                2,
                "what may not pass is removed where trailers are passed on"
            );
        }
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for bad in [
            &b"5\nhello\r\n0\r\n\r\n"[..],
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b"+5\r\nhello\r\n",
            b"-1\r\n",
            b" 5\r\nhello\r\n",
            b"5 \r\nhello\r\n",
            b"\r\n",
            b"5\r\nhelloX\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"FFFFFFFFFFFFFFFF\r\n",
            b"10000000000000000\r\n",
            b"5;\x00\r\nhello\r\n",
            b"5\rX\nhello",
            b"0\r\nbad line\r\n\r\n",
            b"0\r\n x: folded\r\n\r\n",
            b"0\r\nx: y\n\r\n",
            b"zz",
        ] {
            assert!(decode(bad, bad.len()).is_err(), "{:?}", String::from_utf8_lossy(bad));
            assert!(decode(bad, 1).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn extensions_are_bounded() {
        let mut bytes = Vec::new();
        for _ in 0..200 {
            bytes.extend_from_slice(b"1;");
            bytes.extend_from_slice(&[b'e'; 200]);
            bytes.extend_from_slice(b"\r\nx\r\n");
        }
        assert_eq!(decode(&bytes, 64).err(), Some(H1Error::Chunk));
        assert_eq!(decode(&[b'1'; 300], 300).err(), Some(H1Error::Chunk));
    }
}
