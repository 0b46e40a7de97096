//! Sixteen bytes of text looked at together, where eight in a general register are not enough: heads of HTTP/1 are read with
//! it. On x86-64 these are SSE2's vectors, which every such processor has; elsewhere an array, which is what tests compare
//! with.

use std::str::Utf8Error;

#[cfg(not(target_arch = "x86_64"))]
use portable::Lanes;
#[cfg(target_arch = "x86_64")]
use sse2::Lanes;

/// Bytes in a chunk.
pub const CHUNK: usize = 16;

/// Sixteen bytes. What is asked of each is answered by a bit each, the first byte's the lowest.
#[derive(Clone, Copy, Debug)]
pub struct Chunk(Lanes);

impl Chunk {
    /// The bytes that begin at `at`, with zeros behind the end of `bytes`.
    #[inline]
    pub fn at(bytes: &[u8], at: usize) -> Self {
        let rest = bytes.get(at..).unwrap_or_default();
        match rest.first_chunk() {
            Some(whole) => Self(Lanes::of(whole)),
            None => Self(Lanes::of(&padded(rest))),
        }
    }

    /// The bytes.
    #[inline]
    pub fn to_bytes(self) -> [u8; CHUNK] {
        self.0.bytes()
    }

    /// Those that are `byte`.
    #[inline]
    pub fn equal(self, byte: u8) -> u16 {
        self.0.equal(byte)
    }

    /// Those from `low` to `high`, both included.
    #[inline]
    pub fn within(self, low: u8, high: u8) -> u16 {
        self.0.within(low, high)
    }

    /// Those that are no ASCII.
    #[inline]
    pub fn beyond_ascii(self) -> u16 {
        self.0.high()
    }

    /// Those that are control characters of ASCII.
    #[inline]
    pub fn controls(self) -> u16 {
        self.within(0, 0x1f) | self.equal(0x7f)
    }

    /// With small letters instead of ASCII's capitals among the first `count`.
    #[inline]
    #[must_use]
    pub fn lowered(self, count: usize) -> Self {
        /// From here on, as many bytes of a chunk as are wanted have the bit by which letters differ.
        static CASE: [u8; 2 * CHUNK] = {
            let mut bits = [0; 2 * CHUNK];
            let mut i = 0;
            while i < CHUNK {
                bits[i] = 0x20;
                i += 1;
            }
            bits
        };
        Self(self.0.with_where_capital(Self::at(&CASE, CHUNK - count.min(CHUNK)).0))
    }
}

/// As [`std::str::from_utf8`], for short texts that are nearly always ASCII.
///
/// # Errors
/// The bytes are not UTF-8.
#[inline]
pub fn from_utf8(bytes: &[u8]) -> Result<&str, Utf8Error> {
    let mut at = 0;
    while at < bytes.len() {
        if Chunk::at(bytes, at).beyond_ascii() != 0 {
            return std::str::from_utf8(bytes);
        }
        at += CHUNK;
    }
    // SAFETY: all of it is ASCII.
    Ok(unsafe { std::str::from_utf8_unchecked(bytes) })
}

/// Fewer bytes than a chunk has, and zeros behind them.
#[inline(never)]
fn padded(rest: &[u8]) -> [u8; CHUNK] {
    // The first and the last eight cover each other where there are less than sixteen.
    if let (Some(first), Some(last)) = (rest.first_chunk(), rest.last_chunk()) {
        let beyond = 8 * (CHUNK - rest.len()) as u32;
        let last = u64::from_le_bytes(*last).checked_shr(beyond).unwrap_or_default();
        return (u128::from(u64::from_le_bytes(*first)) | u128::from(last) << 64).to_le_bytes();
    }
    let mut chunk = [0; CHUNK];
    for (to, from) in chunk.iter_mut().zip(rest) {
        *to = *from;
    }
    chunk
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_min_epu8, _mm_movemask_epi8, _mm_or_si128,
        _mm_set1_epi8, _mm_storeu_si128, _mm_sub_epi8,
    };

    use super::CHUNK;

    #[derive(Clone, Copy, Debug)]
    pub(super) struct Lanes(__m128i);

    /// The lanes from `low` to `high` have all bits.
    #[inline]
    fn within(lanes: __m128i, low: u8, high: u8) -> __m128i {
        // SAFETY: SSE2 belongs to every x86-64.
        unsafe {
            let above = _mm_sub_epi8(lanes, _mm_set1_epi8(low as i8));
            _mm_cmpeq_epi8(_mm_min_epu8(above, _mm_set1_epi8((high - low) as i8)), above)
        }
    }

    impl Lanes {
        #[inline]
        pub(super) fn of(bytes: &[u8; CHUNK]) -> Self {
            // SAFETY: SSE2 belongs to every x86-64; sixteen bytes are there, and need not be aligned.
            Self(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
        }

        #[inline]
        pub(super) fn bytes(self) -> [u8; CHUNK] {
            let mut bytes = [0; CHUNK];
            // SAFETY: SSE2 belongs to every x86-64; there is room for sixteen bytes, and they need not be aligned.
            unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), self.0) };
            bytes
        }

        #[inline]
        pub(super) fn equal(self, byte: u8) -> u16 {
            // SAFETY: SSE2 belongs to every x86-64.
            unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(self.0, _mm_set1_epi8(byte as i8))) as u16 }
        }

        #[inline]
        pub(super) fn within(self, low: u8, high: u8) -> u16 {
            // SAFETY: SSE2 belongs to every x86-64.
            unsafe { _mm_movemask_epi8(within(self.0, low, high)) as u16 }
        }

        #[inline]
        pub(super) fn high(self) -> u16 {
            // SAFETY: SSE2 belongs to every x86-64.
            unsafe { _mm_movemask_epi8(self.0) as u16 }
        }

        #[inline]
        pub(super) fn with_where_capital(self, bits: Self) -> Self {
            let capital = within(self.0, b'A', b'Z');
            // SAFETY: SSE2 belongs to every x86-64.
            Self(unsafe { _mm_or_si128(self.0, _mm_and_si128(capital, bits.0)) })
        }
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use super::CHUNK;

    #[derive(Clone, Copy, Debug)]
    pub(super) struct Lanes([u8; CHUNK]);

    impl Lanes {
        pub(super) fn of(bytes: &[u8; CHUNK]) -> Self {
            Self(*bytes)
        }

        pub(super) fn bytes(self) -> [u8; CHUNK] {
            self.0
        }

        pub(super) fn equal(self, byte: u8) -> u16 {
            self.where_true(|b| b == byte)
        }

        pub(super) fn within(self, low: u8, high: u8) -> u16 {
            self.where_true(|b| (low..=high).contains(&b))
        }

        pub(super) fn high(self) -> u16 {
            self.where_true(|b| !b.is_ascii())
        }

        pub(super) fn with_where_capital(mut self, bits: Self) -> Self {
            for (byte, bit) in self.0.iter_mut().zip(bits.0) {
                if byte.is_ascii_uppercase() {
                    *byte |= bit;
                }
            }
            self
        }

        fn where_true(self, is: impl Fn(u8) -> bool) -> u16 {
            self.0.iter().rev().fold(0, |bits, b| bits << 1 | u16::from(is(*b)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte at every place, read as the portable twin reads it.
    #[test]
    fn reads_as_the_portable_twin() {
        for fill in [0, b'a', b'Z', 0x7f, 0x80, 0xff] {
            for place in 0..CHUNK {
                for byte in 0..=u8::MAX {
                    let mut bytes = [fill; CHUNK];
                    bytes[place] = byte;
                    let (chunk, twin) = (Chunk::at(&bytes, 0), portable::Lanes::of(&bytes));
                    assert_eq!(chunk.to_bytes(), bytes);
                    for wanted in [0, b'\n', b':', 0x7f, 0x80, 0xff] {
                        assert_eq!(chunk.equal(wanted), twin.equal(wanted), "{bytes:?}");
                    }
                    assert_eq!(chunk.beyond_ascii(), twin.high(), "{bytes:?}");
                    for (low, high) in [(0, 0x1f), (b'a', b'z'), (0x80, 0xff), (0, 0xff), (b'-', b'-')] {
                        assert_eq!(chunk.within(low, high), twin.within(low, high), "{bytes:?}");
                    }
                    let mut lowered = bytes;
                    lowered[..place].make_ascii_lowercase();
                    assert_eq!(chunk.lowered(place).to_bytes(), lowered);
                    assert_eq!(
                        chunk.lowered(CHUNK + 1).to_bytes(),
                        bytes.map(|b| b.to_ascii_lowercase())
                    );
                    let bits = portable::Lanes::of(&[0x20; CHUNK]);
                    assert_eq!(
                        twin.with_where_capital(bits).bytes(),
                        bytes.map(|b| b.to_ascii_lowercase())
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_not_there_is_zero() {
        let bytes: Vec<u8> = (1..=40).collect();
        for at in 0..50 {
            let expected: [u8; CHUNK] = std::array::from_fn(|i| bytes.get(at + i).copied().unwrap_or_default());
            assert_eq!(Chunk::at(&bytes, at).to_bytes(), expected);
        }
    }

    #[test]
    fn text_is_what_the_standard_library_takes() {
        for length in 0..50 {
            let ascii = vec![b'a'; length];
            assert_eq!(from_utf8(&ascii), std::str::from_utf8(&ascii));
            for at in 0..length {
                for (byte, next) in [(0x7f, b'a'), (0x80, b'a'), (0xc3, 0xa9), (0xc3, b'a'), (0xff, 0xff)] {
                    let mut bytes = ascii.clone();
                    bytes[at] = byte;
                    if let Some(place) = bytes.get_mut(at + 1) {
                        *place = next;
                    }
                    assert_eq!(from_utf8(&bytes), std::str::from_utf8(&bytes), "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn controls_are_those_of_ascii() {
        for byte in 0..=u8::MAX {
            let expected = if byte.is_ascii_control() { u16::MAX } else { 0 };
            assert_eq!(Chunk::at(&[byte; CHUNK], 0).controls(), expected);
        }
    }
}
