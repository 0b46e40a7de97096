//! The first line of a head (RFC 9112 sections 3 and 4): single blanks, a version of HTTP/1, CR LF.

use heddle_simd::{CHUNK, Chunk};

use super::error::H1Error;
use crate::head::{Method, Protocol, first_bits, is_token};

/// Of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestLine<'r> {
    /// A token.
    pub(super) method: &'r [u8],
    /// UTF-8 without blanks and control characters.
    pub(super) target: &'r [u8],
    pub(super) protocol: Protocol,
    /// Of the line, its end included.
    pub(super) length: usize,
}

impl<'r> RequestLine<'r> {
    /// The line that `raw` begins with.
    ///
    /// # Errors
    /// [`H1Error::StartLine`], [`H1Error::Version`] or [`H1Error::BareNewline`].
    pub(super) fn parse(raw: &'r [u8]) -> Result<Self, H1Error> {
        check_begin(raw)?;
        let (method, _, rest) = until_blank(raw).ok_or(H1Error::StartLine)?;
        if Method::of(method) == Method::Other && !is_token(method) {
            return Err(H1Error::StartLine);
        }
        let (target, ascii, rest) = until_blank(rest).ok_or(H1Error::StartLine)?;
        if !ascii && std::str::from_utf8(target).is_err() {
            return Err(H1Error::StartLine);
        }
        let (protocol, rest) = version(rest)?;
        let [b'\r', b'\n', ..] = rest else {
            return Err(H1Error::BareNewline);
        };
        Ok(Self {
            method,
            target,
            protocol,
            length: raw.len() - rest.len() + 2,
        })
    }
}

/// Of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatusLine {
    pub(super) protocol: Protocol,
    /// Three digits.
    pub(super) status: u16,
    /// Of the line, its end included.
    pub(super) length: usize,
}

impl StatusLine {
    /// The line that `raw` begins with. The reason, and the blank before it, may be missing.
    ///
    /// # Errors
    /// [`H1Error::StartLine`], [`H1Error::Version`] or [`H1Error::BareNewline`].
    pub(super) fn parse(raw: &[u8]) -> Result<Self, H1Error> {
        check_begin(raw)?;
        let (protocol, rest) = version(raw)?;
        let [b' ', rest @ ..] = rest else {
            return Err(H1Error::Version);
        };
        let [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', rest @ ..] = rest else {
            return Err(H1Error::StartLine);
        };
        let digit = |d: &u8| u16::from(d - b'0');
        let status = digit(a) * 100 + digit(b) * 10 + digit(c);
        let rest = match rest {
            [b' ', reason @ ..] => {
                let is_end = |b: &u8| b.is_ascii_control() && *b != b'\t';
                let end = reason.iter().position(is_end).unwrap_or(reason.len());
                reason.get(end..).unwrap_or_default()
            }
            rest => rest,
        };
        let [b'\r', b'\n', ..] = rest else {
            return Err(H1Error::StartLine);
        };
        Ok(Self {
            protocol,
            status,
            length: raw.len() - rest.len() + 2,
        })
    }
}

/// Whether there is a line, and no CR alone before it.
fn check_begin(raw: &[u8]) -> Result<(), H1Error> {
    match raw {
        [] | [b'\r', b'\n', ..] => Err(H1Error::StartLine),
        [b'\r', ..] => Err(H1Error::BareNewline),
        _ => Ok(()),
    }
}

/// What stands before the first blank, whether it is ASCII, and what stands behind. None when there is nothing before, or
/// control characters.
#[inline]
fn until_blank(raw: &[u8]) -> Option<(&[u8], bool, &[u8])> {
    let (mut at, mut high) = (0, 0);
    let end = loop {
        // What is behind the end are zeros, which end it too.
        let chunk = Chunk::at(raw, at);
        let stops = chunk.within(0, b' ') | chunk.equal(0x7f);
        let length = stops.trailing_zeros() as usize;
        high |= chunk.beyond_ascii() & first_bits(length);
        if length < CHUNK {
            break at + length;
        }
        at += CHUNK;
    };
    let (part, rest) = raw.split_at_checked(end)?;
    match rest {
        [b' ', rest @ ..] if end > 0 => Some((part, high == 0, rest)),
        _ => None,
    }
}

/// The version that `raw` begins with, and what follows.
fn version(raw: &[u8]) -> Result<(Protocol, &[u8]), H1Error> {
    match raw.split_first_chunk::<8>() {
        Some((b"HTTP/1.1", rest)) => Ok((Protocol::Http11, rest)),
        Some((b"HTTP/1.0", rest)) => Ok((Protocol::Http10, rest)),
        _ => Err(H1Error::Version),
    }
}
