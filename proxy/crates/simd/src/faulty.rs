//! Kernels that err, for tests of what happens then.

use std::cell::Cell;

use crate::kernels::{Kernels, Scratch};
use crate::lanes::Lanes;
use crate::montgomery::Modulus;
use crate::portable::Portable;

thread_local! {
    /// Kernel calls of this thread so far.
    pub(crate) static STEPS: Cell<u64> = const { Cell::new(0) };
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
}
