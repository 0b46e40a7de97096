//! Eight bytes at a time. Lines of a head are so short that to begin a vectored search for each costs more than the search.

/// One in each byte.
pub(crate) const ONES: u64 = u64::from_ne_bytes([1; 8]);

/// The high bit of each byte.
pub(crate) const HIGH: u64 = ONES << 7;

/// The high bit of each byte that is `wanted`, where the first byte is the lowest.
#[inline]
pub(crate) const fn equal(word: u64, wanted: u8) -> u64 {
    let word = word ^ (ONES * wanted as u64);
    !(((word & !HIGH) + !HIGH) | word) & HIGH
}

/// The eight bytes at `at`, where there are so many.
#[inline]
pub(crate) fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    let chunk = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_at_every_place() {
        for fill in [0, b'\n' - 1, b'\n', b'\n' + 1, 0x8a, 0xff] {
            for place in 0..8 {
                for byte in 0..=u8::MAX {
                    let mut bytes = [fill; 8];
                    bytes[place] = byte;
                    let expected = bytes.map(|b| if b == b'\n' { 0x80 } else { 0 });
                    let word = word_at(&bytes, 0).expect("a word");
                    assert_eq!(equal(word, b'\n').to_le_bytes(), expected, "{bytes:?}");
                }
            }
        }
        assert_eq!(word_at(&[0; 8], 1), None);
    }
}
