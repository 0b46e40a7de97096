//! Field lines (RFC 9112 section 5) from bytes, strict: no folding, no blank before a colon, no control character.

use super::{Fields, Span};
use crate::head::known::Known;
use crate::head::target::is_token_byte;
use crate::head::words::{HIGH, ONES, equal, word_at};

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
fn lower_name(bytes: &mut [u8], at: usize) -> Option<usize> {
    let mut next = at;
    while let Some(chunk) = bytes.get_mut(next..).and_then(|rest| rest.first_chunk_mut::<8>()) {
        let word = u64::from_le_bytes(*chunk);
        let colon = equal(word, b':');
        // All bytes before the first colon.
        let before = (colon & colon.wrapping_neg()).wrapping_shr(7).wrapping_sub(1);
        let ascii = word & !HIGH;
        let small = ascii | (ONES * 0x20);
        // The high bit of each byte that is a letter: at least `a`, not above `z`, ASCII.
        let letter =
            (small + ONES * (0x80 - u64::from(b'a'))) & !(small + ONES * (0x7f - u64::from(b'z'))) & !word & HIGH;
        let dash = equal(word, b'-');
        if !(letter | dash) & HIGH & before != 0 {
            // Digits and the rarer characters of tokens, or no token.
            break;
        }
        *chunk = (word | (letter >> 2 & before)).to_le_bytes();
        if colon != 0 {
            let colon = next + colon.trailing_zeros() as usize / 8;
            return (colon > at).then_some(colon);
        }
        next += 8;
    }
    for byte in bytes.get_mut(next..)? {
        match *byte {
            b':' => return (next > at).then_some(next),
            other if is_token_byte(other) => *byte = other.to_ascii_lowercase(),
            _ => return None,
        }
        next += 1;
    }
    None
}

/// The first byte from `at` on that may not stand in a value: a control character other than the tabulator (RFC 9110
/// section 5.5). The end of `bytes` where there is none.
fn value_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(word) = word_at(bytes, at) {
        // The lowest bit set is right: a borrow can set that of a later byte only.
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGH;
        let hits = control | equal(word, 0x7f);
        if hits == 0 {
            at += 8;
            continue;
        }
        at += hits.trailing_zeros() as usize / 8;
        if bytes.get(at) != Some(&b'\t') {
            return at;
        }
        at += 1;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest
        .iter()
        .position(|b| b.is_ascii_control() && *b != b'\t')
        .unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a plain reader does, byte by byte.
    fn plain_name(bytes: &[u8]) -> Option<usize> {
        let end = bytes.iter().position(|b| !is_token_byte(*b))?;
        (end > 0 && bytes[end] == b':').then_some(end)
    }

    #[test]
    fn every_byte_of_a_name_at_every_place() {
        for length in 0..20 {
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
        for length in 0..20 {
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
