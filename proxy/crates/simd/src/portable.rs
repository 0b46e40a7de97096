//! The kernels on any processor, a lane at a time: the twin that tests hold the vector code against.

use crate::kernels::{Kernels, Scratch};
use crate::lanes::{DIGIT_BITS, DIGIT_MASK, Lanes};
use crate::montgomery::{self, Modulus, Vector};
use crate::p256;
use crate::x25519;

/// A vector of plain integers.
#[derive(Clone, Copy)]
pub(crate) struct Words(pub(crate) [u64; 8]);

impl Words {
    #[inline(always)]
    fn each(self, f: impl Fn(usize, u64) -> u64) -> Self {
        Self(std::array::from_fn(|lane| f(lane, self.0[lane])))
    }
}

fn product(a: u64, b: u64) -> u128 {
    u128::from(a & DIGIT_MASK) * u128::from(b & DIGIT_MASK)
}

impl Vector for Words {
    const WRITTEN_OUT: usize = 0;

    fn splat(word: u64) -> Self {
        Self([word; 8])
    }

    fn load(from: &Lanes) -> Self {
        Self(from.0)
    }

    fn store(self, to: &mut Lanes) {
        to.0 = self.0;
    }

    #[inline(never)]
    fn add(self, other: Self) -> Self {
        self.each(|lane, word| word.wrapping_add(other.0[lane]))
    }

    // Not inlined: a signature's arithmetic is written out thousands of times, which takes compilers minutes for eight lanes
    // of plain integers.
    #[inline(never)]
    fn add_low(self, a: Self, b: Self) -> Self {
        self.each(|lane, word| word.wrapping_add(product(a.0[lane], b.0[lane]) as u64 & DIGIT_MASK))
    }

    #[inline(never)]
    fn add_high(self, a: Self, b: Self) -> Self {
        self.each(|lane, word| word.wrapping_add((product(a.0[lane], b.0[lane]) >> DIGIT_BITS) as u64))
    }

    #[inline(never)]
    fn carry(self) -> Self {
        self.each(|_, word| word >> DIGIT_BITS)
    }

    #[inline(never)]
    fn digit(self) -> Self {
        self.each(|_, word| word & DIGIT_MASK)
    }

    #[inline(never)]
    fn select(self, other: Self, index: Self, position: u64) -> Self {
        self.each(|lane, word| {
            let difference = index.0[lane] ^ position;
            // All ones when the difference is zero: only then does its negative have no top bit of the two.
            let equal = ((difference | difference.wrapping_neg()) >> 63).wrapping_sub(1);
            word ^ ((word ^ other.0[lane]) & equal)
        })
    }

    #[inline(never)]
    fn subtract(self, other: Self) -> Self {
        self.each(|lane, word| word.wrapping_sub(other.0[lane]))
    }

    #[inline(never)]
    fn and(self, other: Self) -> Self {
        self.each(|lane, word| word & other.0[lane])
    }

    #[inline(never)]
    fn shift_left<const BITS: u32>(self) -> Self {
        self.each(|_, word| word << BITS)
    }

    #[inline(never)]
    fn signed_shift_right<const BITS: u32>(self) -> Self {
        self.each(|_, word| (word.cast_signed() >> BITS).cast_unsigned())
    }

    fn look_up(table: &[Lanes; 8], index: Self) -> Self {
        let words = table.iter().flat_map(|lanes| lanes.0);
        words.zip(0..).fold(Self::splat(0), |found, (word, position)| {
            found.select(Self::splat(word), index, position)
        })
    }
}

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static INSTRUCTIONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The IFMA instructions that the vector kernels would have taken for what the calling thread has done of RSA with the portable
/// ones: as many as the design says, which is what was counted as they ran (`docs/design/0036-what-a-new-connection-costs.md`).
#[cfg(any(test, feature = "testing"))]
pub fn ifma_instructions() -> u64 {
    INSTRUCTIONS.get()
}

fn count(_instructions: usize) {
    #[cfg(any(test, feature = "testing"))]
    INSTRUCTIONS.set(INSTRUCTIONS.get() + _instructions as u64);
}

/// The portable kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

impl Kernels for Portable {
    fn multiply<const N: usize>(
        self,
        out: &mut [Lanes; N],
        a: &[Lanes; N],
        b: &[Lanes; N],
        modulus: &Modulus<N>,
        scratch: &mut Scratch<N>,
    ) {
        count(4 * N * N);
        montgomery::multiply::<Words, N>(out, a, b, modulus, scratch);
    }

    fn square<const N: usize>(
        self,
        out: &mut [Lanes; N],
        a: &[Lanes; N],
        modulus: &Modulus<N>,
        scratch: &mut Scratch<N>,
    ) {
        count(N * (N + 1) + 2 * N * N);
        montgomery::square::<Words, N>(out, a, modulus, scratch);
    }

    fn pick<const N: usize>(self, out: &mut [Lanes; N], table: &[[Lanes; N]], index: &Lanes, part: usize) {
        montgomery::pick::<Words, N>(out, table, index, part);
    }

    fn sign_p256(self, work: &mut p256::Work) {
        p256::sign::<Words>(work);
    }

    fn x25519(self, work: &mut x25519::Work) {
        x25519::exchange::<Words>(work);
    }
}
