//! Field lines (RFC 9112 section 5) from bytes, strict: no folding, no blank before a colon, no control character.

use heddle_simd::{CHUNK, Chunk};

use super::{Fields, Span};
use crate::head::known::Known;
use crate::head::target::{first_bits, is_token};

/// What is wrong with field lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineError {
    /// No token, colon and value; or something follows the empty line.
    Malformed,
    /// A CR where a line begins, and no LF behind it.
    BareReturn,
    /// There is no empty line.
    Incomplete,
    /// More lines than wanted.
    TooMany,
}

impl Fields {
    /// Indexes the field lines of a block taken over by [`Fields::load`], from `at` to its end, which is that of the empty
    /// line. Names are lowered in place, blanks around values left out. A line that is not exactly `name: value CR LF` is
    /// copied in that form. Fields for which `keep` says no are left out; it is shown name and value.
    ///
    /// # Errors
    /// [`LineError`], or what `keep` says. The fields are unusable then.
    pub(crate) fn index_lines<E: From<LineError>>(
        &mut self,
        mut at: usize,
        most: usize,
        mut keep: impl FnMut(Known, Span) -> Result<bool, E>,
    ) -> Result<(), E> {
        let end = self.bytes.len();
        for _ in 0..=most {
            if self.bytes.get(at..end).and_then(<[u8]>::first) == Some(&b'\r') {
                return match self.bytes.get(at + 1..end) {
                    Some([b'\n']) => Ok(()),
                    Some([b'\n', ..]) => Err(LineError::Malformed.into()),
                    _ => Err(LineError::BareReturn.into()),
                };
            }
            let block = self.bytes.get_mut(..end).unwrap_or_default();
            if at == end {
                return Err(LineError::Incomplete.into());
            }
            let colon = lower_name(block, at).ok_or(LineError::Malformed)?;
            let blank = |b: Option<&u8>| matches!(b, Some(b' ' | b'\t'));
            let mut start = colon + 1;
            while blank(block.get(start)) {
                start += 1;
            }
            let line_end = value_end(block, start);
            if block.get(line_end..line_end + 2) != Some(b"\r\n") {
                return Err(LineError::Malformed.into());
            }
            let mut value_end = line_end;
            while value_end > start && blank(block.get(value_end - 1)) {
                value_end -= 1;
            }
            let known = Known::of(block.get(at..colon).unwrap_or_default());
            let canonical = value_end == line_end && start == colon + 2 && block.get(colon + 1) == Some(&b' ');
            let name = Span::new(at, colon - at);
            let value = Span::new(start, value_end - start);
            at = line_end + 2;
            if !keep(known, value)? {
                continue;
            }
            let (name, value) = match canonical {
                true => (name, value),
                false => self.append_line_within(name, value),
            };
            self.add(known, name, value);
        }
        Err(LineError::TooMany.into())
    }
}

/// Lowers the letters of the token that begins at `at`, and finds the colon behind it. None where there is no such thing.
#[inline]
fn lower_name(bytes: &mut [u8], at: usize) -> Option<usize> {
    let mut next = at;
    loop {
        let chunk = Chunk::at(bytes, next);
        // Of the name in this chunk: all of it where there is no colon.
        let length = chunk.equal(b':').trailing_zeros() as usize;
        let name = first_bits(length);
        let capitals = chunk.within(b'A', b'Z') & name;
        let plain = capitals | chunk.within(b'a', b'z') | chunk.equal(b'-') | chunk.within(b'0', b'9');
        if name & !plain != 0 && !bytes.get(next..next + length).is_some_and(is_token) {
            return None;
        }
        if capitals != 0 {
            let lowered = chunk.lowered(length).to_bytes();
            match bytes.get_mut(next..).and_then(|rest| rest.first_chunk_mut()) {
                Some(whole) => *whole = lowered,
                None => bytes.get_mut(next..next + length)?.make_ascii_lowercase(),
            }
        }
        if length < CHUNK {
            let colon = next + length;
            return (colon > at).then_some(colon);
        }
        next += CHUNK;
    }
}

/// The first byte from `at` on that may not stand in a value: a control character other than the tabulator (RFC 9110
/// section 5.5). The end of `bytes` where there is none.
#[inline]
fn value_end(bytes: &[u8], mut at: usize) -> usize {
    loop {
        // What is behind the end are zeros, which are control characters.
        let chunk = Chunk::at(bytes, at);
        let hits = chunk.controls() & !chunk.equal(b'\t');
        if hits != 0 {
            return (at + hits.trailing_zeros() as usize).min(bytes.len());
        }
        at += CHUNK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::target::is_token_byte;

    /// As a plain reader does, byte by byte.
    fn plain_name(bytes: &[u8]) -> Option<usize> {
        let end = bytes.iter().position(|b| !is_token_byte(*b))?;
        (end > 0 && bytes[end] == b':').then_some(end)
    }

    #[test]
    fn every_byte_of_a_name_at_every_place() {
        for length in 0..36 {
            for place in 0..=length {
                for byte in 0..=u8::MAX {
                    let mut line = vec![b'X'; length];
                    if let Some(at) = line.get_mut(place) {
                        *at = byte;
                    }
                    line.extend_from_slice(b": V:V\r\n\r\n");
                    let expected = plain_name(&line);
                    let mut lowered = line.clone();
                    assert_eq!(lower_name(&mut lowered, 0), expected, "{line:?}");
                    if let Some(end) = expected {
                        line[..end].make_ascii_lowercase();
                        assert_eq!(lowered, line);
                    }
                }
            }
        }
    }

    #[test]
    fn every_byte_of_a_value_at_every_place() {
        for length in 0..36 {
            for place in 0..length {
                for byte in 0..=u8::MAX {
                    for fill in [b'v', b'\t', 0xff, b' '] {
                        let mut value = vec![fill; length];
                        value[place] = byte;
                        value.extend_from_slice(b"\r\n");
                        let plain = value.iter().position(|b| matches!(b, 0..=8 | 10..=31 | 127));
                        assert_eq!(Some(value_end(&value, 0)), plain, "{value:?}");
                    }
                }
            }
            assert_eq!(value_end(&vec![b'v'; length], 0), length);
        }
    }
}
