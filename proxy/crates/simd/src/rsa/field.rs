//! Arithmetic modulo one number per lane, by the kernels.

use zeroize::Zeroize;

use crate::kernels::{Kernels, Scratch};
use crate::lanes::{LANES, Lanes};
use crate::montgomery::Modulus;
use crate::rsa::key::Prepared;
use crate::rsa::wide::{self, Wide};

/// A modulus per lane, with what conversion takes.
pub(crate) struct Field<K, const N: usize> {
    pub(crate) kernels: K,
    pub(crate) modulus: Modulus<N>,
    /// R² modulo m.
    pub(crate) r2: Wide<N>,
    /// R³ modulo m.
    pub(crate) r3: Wide<N>,
    /// 1, which takes a number out of Montgomery form.
    unit: Wide<N>,
    scratch: Scratch<N>,
}

impl<K, const N: usize> Drop for Field<K, N> {
    fn drop(&mut self) {
        self.modulus.digits.zeroize();
        self.modulus.inverse.zeroize();
        self.scratch.zeroize();
    }
}

impl<K: Kernels, const N: usize> Field<K, N> {
    /// One prepared modulus per lane.
    pub(crate) fn new(kernels: K, lanes: &[&Prepared]) -> Box<Self> {
        let mut inverse = Lanes::splat(lanes[0].inverse);
        for (word, lane) in inverse.0.iter_mut().zip(lanes) {
            *word = lane.inverse;
        }
        let mut unit = wide::zero();
        unit[0] = Lanes::splat(1);
        let mut field = Box::new(Self {
            kernels,
            modulus: Modulus {
                digits: [Lanes::ZERO; N],
                inverse,
            },
            r2: wide::gather(lanes.iter().map(|lane| lane.r2.as_slice())),
            r3: wide::gather(lanes.iter().map(|lane| lane.r3.as_slice())),
            unit,
            scratch: Scratch::new(),
        });
        let digits = wide::gather::<N>(lanes.iter().map(|lane| lane.digits.as_slice()));
        field.modulus.digits.copy_from_slice(digits.as_slice());
        field
    }

    /// `out` = `a`·`b`/R.
    pub(crate) fn multiply_into(&mut self, out: &mut [Lanes; N], a: &[Lanes; N], b: &[Lanes; N]) {
        self.kernels.multiply(out, a, b, &self.modulus, &mut self.scratch);
    }

    /// `out` = `a`²/R.
    pub(crate) fn square_into(&mut self, out: &mut [Lanes; N], a: &[Lanes; N]) {
        self.kernels.square(out, a, &self.modulus, &mut self.scratch);
    }

    /// `a`·`b`/R, below 2·m.
    pub(crate) fn multiply(&mut self, a: &[Lanes; N], b: &[Lanes; N]) -> Wide<N> {
        let mut out = wide::zero();
        self.multiply_into(&mut out, a, b);
        out
    }

    /// `a`²/R, below 2·m.
    pub(crate) fn square(&mut self, a: &[Lanes; N]) -> Wide<N> {
        let mut out = wide::zero();
        self.square_into(&mut out, a);
        out
    }

    /// `a`·R, below 2·m.
    pub(crate) fn enter(&mut self, a: &[Lanes; N]) -> Wide<N> {
        let mut out = wide::zero();
        self.kernels
            .multiply(&mut out, a, &self.r2, &self.modulus, &mut self.scratch);
        out
    }

    /// `a`/R, below m.
    pub(crate) fn leave(&mut self, a: &[Lanes; N]) -> Wide<N> {
        let mut out = wide::zero();
        self.kernels
            .multiply(&mut out, a, &self.unit, &self.modulus, &mut self.scratch);
        wide::reduce_once(&mut out, &self.modulus.digits);
        out
    }

    /// 1 in Montgomery form.
    pub(crate) fn one(&mut self) -> Wide<N> {
        let unit = self.unit.clone();
        self.enter(&unit)
    }

    /// Whether each of the first lanes holds a number below its modulus.
    pub(crate) fn contains(&self, a: &[Lanes; N]) -> [bool; LANES] {
        let mut difference = wide::zero();
        difference.copy_from_slice(a);
        wide::subtract(&mut difference, &self.modulus.digits)
            .0
            .map(|negative| negative != 0)
    }
}
