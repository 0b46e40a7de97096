//! Kernels that err, for tests of what happens then.

use std::cell::Cell;

use crate::kernels::{Kernels, Scratch};
use crate::lanes::Lanes;
use crate::montgomery::{Modulus, Vector};
use crate::p256;
use crate::portable::{Portable, Words};
use crate::x25519;

thread_local! {
    /// Kernel calls of this thread so far.
    pub(crate) static STEPS: Cell<u64> = const { Cell::new(0) };
    /// What [`Struck`] does.
    static FAULT: Cell<Option<Faulty>> = const { Cell::new(None) };
}

/// The portable kernels, with one bit of one lane flipped in the results of those calls that `strikes` names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faulty {
    pub(crate) lane: usize,
    pub(crate) bit: u32,
    pub(crate) strikes: fn(u64) -> bool,
}

impl Faulty {
    fn strike(self, out: &mut [Lanes]) {
        let step = STEPS.get();
        STEPS.set(step + 1);
        if (self.strikes)(step) {
            out[out.len() / 2].0[self.lane] ^= 1 << self.bit;
        }
    }
}

impl Kernels for Faulty {
    fn multiply<const N: usize>(
        self,
        out: &mut [Lanes; N],
        a: &[Lanes; N],
        b: &[Lanes; N],
        modulus: &Modulus<N>,
        scratch: &mut Scratch<N>,
    ) {
        Portable.multiply(out, a, b, modulus, scratch);
        self.strike(out);
    }

    fn square<const N: usize>(
        self,
        out: &mut [Lanes; N],
        a: &[Lanes; N],
        modulus: &Modulus<N>,
        scratch: &mut Scratch<N>,
    ) {
        Portable.square(out, a, modulus, scratch);
        self.strike(out);
    }

    fn pick<const N: usize>(self, out: &mut [Lanes; N], table: &[[Lanes; N]], index: &Lanes, part: usize) {
        Portable.pick(out, table, index, part);
        self.strike(&mut out[..]);
    }

    fn sign_p256(self, work: &mut p256::Work) {
        FAULT.set(Some(self));
        p256::sign::<Struck>(work);
        FAULT.set(None);
    }

    /// Does not err: an exchange has no check that a fault could be found by, and no key that one could tell.
    fn x25519(self, work: &mut x25519::Work) {
        Portable.x25519(work);
    }
}

/// Vectors whose multiplications, look-ups and stores err: the code of ECDSA calls no kernels of its own, it is one.
#[derive(Clone, Copy)]
struct Struck(Words);

impl Struck {
    #[inline(never)]
    fn stricken(mut self) -> Self {
        if let Some(fault) = FAULT.get() {
            let step = STEPS.get();
            STEPS.set(step + 1);
            if (fault.strikes)(step) {
                self.0.0[fault.lane] ^= 1 << fault.bit;
            }
        }
        self
    }
}

impl Vector for Struck {
    const WRITTEN_OUT: usize = 0;

    fn splat(word: u64) -> Self {
        Self(Words::splat(word))
    }

    fn load(from: &Lanes) -> Self {
        Self(Words::load(from))
    }

    fn store(self, to: &mut Lanes) {
        self.stricken().0.store(to);
    }

    fn add(self, other: Self) -> Self {
        Self(self.0.add(other.0))
    }

    fn add_low(self, a: Self, b: Self) -> Self {
        Self(self.0.add_low(a.0, b.0)).stricken()
    }

    fn add_high(self, a: Self, b: Self) -> Self {
        Self(self.0.add_high(a.0, b.0)).stricken()
    }

    fn carry(self) -> Self {
        Self(self.0.carry())
    }

    fn digit(self) -> Self {
        Self(self.0.digit())
    }

    fn select(self, other: Self, index: Self, position: u64) -> Self {
        Self(self.0.select(other.0, index.0, position))
    }

    fn subtract(self, other: Self) -> Self {
        Self(self.0.subtract(other.0))
    }

    fn and(self, other: Self) -> Self {
        Self(self.0.and(other.0))
    }

    fn shift_left<const BITS: u32>(self) -> Self {
        Self(self.0.shift_left::<BITS>())
    }

    fn signed_shift_right<const BITS: u32>(self) -> Self {
        Self(self.0.signed_shift_right::<BITS>())
    }

    fn look_up(table: &[Lanes; 8], index: Self) -> Self {
        Self(Words::look_up(table, index.0)).stricken()
    }
}
