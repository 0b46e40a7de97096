//! Percent-encoding (RFC 3986 section 2.1): the one place that reads it.

/// The byte that an escape at the front of `bytes` stands for; none when no whole escape (`%` and two hexadecimal digits)
/// stands there. It takes three bytes.
pub fn escape(bytes: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = bytes else { return None };
    let digit = |b: &u8| char::from(*b).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

/// Every escape decoded once. What is no escape stays as it is.
pub fn decode(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        match escape(rest) {
            Some(byte) => {
                out.push(byte);
                rest = rest.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

/// Appends the escape of a byte, its digits in capitals (RFC 3986 section 2.1, the normal form).
pub(crate) fn push_escape(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |n: u8| DIGITS.get(usize::from(n)).copied().unwrap_or_default();
    out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes() {
        for (text, expected) in [
            ("%41", Some(b'A')),
            ("%c3%a9", Some(0xc3)),
            ("%Ff", Some(0xff)),
            ("%00", Some(0)),
            ("%4", None),
            ("%", None),
            ("", None),
            ("%+1", None),
            ("%zz", None),
            ("a%41", None),
        ] {
            assert_eq!(escape(text.as_bytes()), expected, "{text}");
        }
        for (text, expected) in [
            ("a%2Eb", &b"a.b"[..]),
            ("a%2", b"a%2"),
            ("%zz%", b"%zz%"),
            ("%ff", b"\xff"),
            ("%252e", b"%2e"),
            ("%%32e", b"%2e"),
        ] {
            assert_eq!(decode(text), expected, "{text}");
        }
        let mut out = Vec::new();
        push_escape(0xc3, &mut out);
        push_escape(0x0a, &mut out);
        assert_eq!(out, b"%C3%0A");
    }
}
