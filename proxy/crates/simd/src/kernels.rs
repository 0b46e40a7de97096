//! What the code of RSA, ECDSA and X25519 asks of a vector unit.

use zeroize::Zeroize;

use crate::lanes::Lanes;
use crate::montgomery::Modulus;
use crate::p256;
use crate::x25519;

/// Parts in which a table is read, see [`Kernels::pick`].
pub(crate) const PARTS: usize = 5;

/// Multiplication, squaring and table look-up on eight numbers of `N` digits, in constant time.
///
/// Operands are below 2^k·m each, with the two k's sum below the spare bits of `N` digits; results are below 2·m.
pub(crate) trait Kernels: Copy {
    /// `out` = `a`·`b`·2^(−52·N) modulo `modulus`.
    fn multiply<const N: usize>(
        self,
        out: &mut [Lanes; N],
        a: &[Lanes; N],
        b: &[Lanes; N],
        modulus: &Modulus<N>,
        scratch: &mut Scratch<N>,
    );

    /// `out` = `a`²·2^(−52·N) modulo `modulus`.
    fn square<const N: usize>(
        self,
        out: &mut [Lanes; N],
        a: &[Lanes; N],
        modulus: &Modulus<N>,
        scratch: &mut Scratch<N>,
    );

    /// Digits `part`·N/5 to (`part` + 1)·N/5 of the entry that each lane's `index` names. Every entry is read. It is done
    /// in parts so that the loads of one run while the multiplier is busy with the squaring before it.
    fn pick<const N: usize>(self, out: &mut [Lanes; N], table: &[[Lanes; N]], index: &Lanes, part: usize);

    /// Eight ECDSA signatures.
    fn sign_p256(self, work: &mut p256::Work);

    /// Eight exchanges of X25519.
    fn x25519(self, work: &mut x25519::Work);
}

/// Where the kernels keep what does not fit registers; wiped by its owner, as it depends on secrets.
#[derive(Clone, Zeroize)]
pub(crate) struct Scratch<const N: usize> {
    pub(crate) sums: [Lanes; N],
    pub(crate) doubled: [Lanes; N],
}

impl<const N: usize> Scratch<N> {
    pub(crate) const fn new() -> Self {
        Self {
            sums: [Lanes::ZERO; N],
            doubled: [Lanes::ZERO; N],
        }
    }
}
