//! Bodies in base64 (RFC 4648 section 4): a row of padded pieces, of which each may be one message, a part or several.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::body::{ContentError, StreamError};
use crate::filters::body::{STEP, Step, Transform};
use crate::head::Fields;

/// A request in base64.
#[derive(Default)]
pub(super) struct DecodeText {
    /// The beginning of four characters.
    begun: [u8; 4],
    have: usize,
}

impl Transform for DecodeText {
    fn data(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Step, StreamError> {
        let mut rest = input.get(..input.len().min(STEP)).unwrap_or_default();
        let taken = rest.len();
        while self.have > 0
            && self.have < 4
            && let Some((first, others)) = rest.split_first()
        {
            self.keep(&[*first]);
            rest = others;
        }
        if self.have == 4 {
            decode(&self.begun, out)?;
            self.have = 0;
        }
        let (whole, end) = rest.split_at(rest.len() / 4 * 4);
        decode(whole, out)?;
        self.keep(end);
        Ok(Step { taken, more: false })
    }

    fn end(&mut self, _: &mut Option<Fields>, _: &mut Vec<u8>) -> Result<bool, StreamError> {
        match self.have {
            0 => Ok(true),
            _ => Err(StreamError::Content(ContentError::Base64Length)),
        }
    }
}

impl DecodeText {
    fn keep(&mut self, bytes: &[u8]) {
        for (at, byte) in self.begun.iter_mut().skip(self.have).zip(bytes) {
            *at = *byte;
        }
        self.have = (self.have + bytes.len()).min(4);
    }
}

/// Decodes whole groups of four characters, of which several may be padded.
fn decode(mut text: &[u8], out: &mut Vec<u8>) -> Result<(), StreamError> {
    while !text.is_empty() {
        let padding = memchr::memchr(b'=', text);
        let end = padding.map_or(text.len(), |at| (at / 4 + 1) * 4);
        let (piece, rest) = text.split_at_checked(end).unwrap_or((text, &[]));
        STANDARD
            .decode_vec(piece, out)
            .map_err(|_| StreamError::Content(ContentError::Base64))?;
        text = rest;
    }
    Ok(())
}

/// An answer in base64. Clients decode it message by message, so each is padded by itself, as in Envoy; but no message has
/// to be here whole.
#[derive(Debug, Default)]
pub(super) struct EncodeText {
    /// Fewer than three bytes that wait for more.
    begun: Vec<u8>,
    /// Of the message's head, as far as it is here: a flag and four bytes of length.
    head: [u8; 5],
    have: usize,
    /// Bytes of the message that are still to come.
    left: u64,
}

impl EncodeText {
    /// Encodes bytes of messages.
    pub(super) fn messages(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let wanted = match self.have {
                5 => usize::try_from(self.left).unwrap_or(usize::MAX),
                have => 5 - have,
            };
            let (piece, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            self.piece(piece, out);
            if self.have == 5 {
                self.left -= piece.len() as u64;
            } else {
                for (at, byte) in self.head.iter_mut().skip(self.have).zip(piece) {
                    *at = *byte;
                }
                self.have += piece.len();
                if let [_, length @ ..] = self.head
                    && self.have == 5
                {
                    self.left = u64::from(u32::from_be_bytes(length));
                }
            }
            if self.have == 5 && self.left == 0 {
                self.pad(out);
                self.have = 0;
            }
        }
    }

    /// Encodes bytes; up to two of them wait for others.
    pub(super) fn piece(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        if !self.begun.is_empty() {
            let (first, rest) = bytes.split_at((3 - self.begun.len()).min(bytes.len()));
            self.begun.extend_from_slice(first);
            bytes = rest;
            if self.begun.len() == 3 {
                self.pad(out);
            }
        }
        let (whole, end) = bytes.split_at(bytes.len() / 3 * 3);
        encode(whole, out);
        self.begun.extend_from_slice(end);
    }

    /// Encodes what waits, padded.
    pub(super) fn pad(&mut self, out: &mut Vec<u8>) {
        encode(&self.begun, out);
        self.begun.clear();
    }
}

fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    if let Some(room) = out.get_mut(start..) {
        // The room is what base64 takes, so this cannot fail.
        let _ = STANDARD.encode_slice(bytes, room);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(pieces: &[&str]) -> Result<Vec<u8>, StreamError> {
        let (mut text, mut out) = (DecodeText::default(), Vec::new());
        for piece in pieces {
            let step = text.data(piece.as_bytes(), &mut out)?;
            assert_eq!(step.taken, piece.len());
        }
        text.end(&mut None, &mut out)?;
        Ok(out)
    }

    #[test]
    fn base64_in_pieces_with_padding_inside() {
        for pieces in [
            &["aGVsbG8gd29ybGQ="][..],
            &["aGVs", "bG8gd29ybGQ="],
            &["a", "G", "V", "sbG8gd", "29ybGQ", "="],
            &["aGVsbG8=IHdvcmxk"],
            &["aA==ZQ==bGxvIHdvcmxk"],
            &["aA=", "=ZQ", "==bGxvIHdvcmxk"],
        ] {
            assert_eq!(decoded(pieces).as_deref(), Ok(&b"hello world"[..]), "{pieces:?}");
        }
        assert_eq!(decoded(&[]).as_deref(), Ok(&b""[..]));
    }

    #[test]
    fn what_is_no_base64() {
        for pieces in [
            &["!!!!"][..],
            &["aG=s"],
            &["a", "G=s"],
            &["===="],
            &["aB=="],
            &["aGVs\r\n\r\n"],
        ] {
            assert_eq!(
                decoded(pieces),
                Err(StreamError::Content(ContentError::Base64)),
                "{pieces:?}"
            );
        }
        for pieces in [&["a"][..], &["aGVsb"], &["aGVs", "bG8"]] {
            assert_eq!(
                decoded(pieces),
                Err(StreamError::Content(ContentError::Base64Length)),
                "{pieces:?}"
            );
        }
    }

    #[test]
    fn a_step_takes_a_piece_of_a_long_body() {
        let (mut text, mut out) = (DecodeText::default(), Vec::new());
        let step = text.data(&vec![b'A'; 10 * STEP], &mut out).expect("base64");
        assert_eq!((step.taken, out.len()), (STEP, STEP / 4 * 3));
    }
}
