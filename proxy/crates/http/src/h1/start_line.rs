//! The first line of a head (RFC 9112 sections 3 and 4): single blanks, a version of HTTP/1, CR LF.

use super::error::H1Error;
use crate::head::{Protocol, is_token_byte};

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
        let (method, rest) = until_blank(raw, is_token_byte).ok_or(H1Error::StartLine)?;
        let (target, rest) = until_blank(rest, |b| b > b' ' && b != 0x7f).ok_or(H1Error::StartLine)?;
        if !target.is_ascii() && std::str::from_utf8(target).is_err() {
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

/// What stands before the first blank, and what behind it. None when that is nothing, or has other bytes.
fn until_blank(raw: &[u8], allowed: impl Fn(u8) -> bool) -> Option<(&[u8], &[u8])> {
    let end = raw.iter().position(|b| !allowed(*b))?;
    let (part, rest) = raw.split_at_checked(end)?;
    match rest {
        [b' ', rest @ ..] if end > 0 => Some((part, rest)),
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
