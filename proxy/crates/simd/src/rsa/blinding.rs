//! Blinding factors: pairs (u^−e, u) modulo n. The input is multiplied by the first and the result by the second, so that
//! what is raised to the secret exponent is unknown to whoever sent the input.

use std::sync::{Mutex, PoisonError};

use crate::lanes::LANES;
use crate::limbs::Limbs;

/// How often a pair is used, squared each time, before it is drawn anew. Drawing costs as much as an operation.
const USES: u32 = 64;

/// Pairs kept per key: those of eight batches, which is as many workers that sign at the same time.
const KEPT: usize = 8 * LANES;

/// A pair in Montgomery form, digits of 52 bits.
pub(crate) struct Pair {
    pub(crate) blind: Limbs,
    pub(crate) unblind: Limbs,
    left: u32,
}

impl Pair {
    pub(crate) fn fresh(blind: Limbs, unblind: Limbs) -> Self {
        Self {
            blind,
            unblind,
            left: USES,
        }
    }

    /// What stands for the pair after a use: its square. None when it has been used often enough.
    pub(crate) fn squared(&self, blind: Limbs, unblind: Limbs) -> Option<Self> {
        let left = self.left.checked_sub(1).filter(|left| *left > 0)?;
        Some(Self { blind, unblind, left })
    }
}

/// A key's pairs that no batch holds at the moment.
#[derive(Default)]
pub(crate) struct Pairs(Mutex<Vec<Pair>>);

impl Pairs {
    pub(crate) fn take(&self) -> Option<Pair> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    pub(crate) fn give_back(&self, pair: Pair) {
        let mut pairs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pairs.len() < KEPT {
            pairs.push(pair);
        }
    }
}
