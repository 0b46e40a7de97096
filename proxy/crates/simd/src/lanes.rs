//! Eight numbers side by side: digit `i` of all of them in one vector.

use zeroize::Zeroize;

/// Operations that run side by side: one per 64-bit lane of a 512-bit vector.
pub const LANES: usize = 8;

/// Bits per digit. IFMA multiplies 52-bit digits; the twelve bits above take the carries of up to 80 rows.
pub(crate) const DIGIT_BITS: u32 = 52;

/// The largest digit.
pub(crate) const DIGIT_MASK: u64 = (1 << DIGIT_BITS) - 1;

/// One 64-bit word of each lane, aligned as the vector that it is loaded into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Zeroize)]
#[repr(C, align(64))]
pub(crate) struct Lanes(pub(crate) [u64; LANES]);

impl Lanes {
    pub(crate) const ZERO: Self = Self([0; LANES]);

    /// The same word in each lane.
    pub(crate) const fn splat(word: u64) -> Self {
        Self([word; LANES])
    }
}

/// What a batch is computed in: wiped when dropped, as all of it depends on secrets.
pub(crate) struct Wiped<W: Zeroize>(pub(crate) Box<W>);

impl<W: Zeroize> Drop for Wiped<W> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}
