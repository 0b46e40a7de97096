//! The kernels in AVX-512 IFMA. All `unsafe` of the crate is here.

use core::arch::x86_64::{
    __m512i, _mm512_add_epi64, _mm512_and_si512, _mm512_cmpeq_epi64_mask, _mm512_madd52hi_epu64, _mm512_madd52lo_epu64,
    _mm512_mask_mov_epi64, _mm512_permutex2var_epi64, _mm512_set1_epi64, _mm512_slli_epi64, _mm512_srai_epi64,
    _mm512_srli_epi64, _mm512_store_si512, _mm512_sub_epi64, _mm512_test_epi64_mask,
};
use core::ptr;

use crate::kernels::{Kernels, Scratch};
use crate::lanes::{DIGIT_BITS, DIGIT_MASK, Lanes};
use crate::montgomery::{self, Modulus, Vector};
use crate::p256;
use crate::x25519;

/// Proof that the processor, and the operating system, have AVX-512F and IFMA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ifma(());

impl Ifma {
    /// None on a processor without.
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512ifma")).then_some(Self(()))
    }
}

/// Private to this module: values exist only inside the five functions below that enable the features.
#[derive(Clone, Copy)]
struct Wide(__m512i);

impl Vector for Wide {
    // The instructions of longer ones would leave the first cache, and only public exponents need those.
    const WRITTEN_OUT: usize = 40;

    #[inline(always)]
    fn splat(word: u64) -> Self {
        // SAFETY: only called from functions that enable avx512f.
        Self(unsafe { _mm512_set1_epi64(word.cast_signed()) })
    }

    #[inline(always)]
    fn load(from: &Lanes) -> Self {
        // SAFETY: `Lanes` is 64 bytes of integers, aligned to 64, and borrowed. Volatile, so that the compiler does not
        // keep in registers, and then spill, what is cheaper to load again.
        Self(unsafe { ptr::read_volatile(ptr::from_ref(from).cast::<__m512i>()) })
    }

    #[inline(always)]
    fn store(self, to: &mut Lanes) {
        // SAFETY: `Lanes` is 64 bytes of integers, aligned to 64, and borrowed exclusively; avx512f as above.
        unsafe { _mm512_store_si512(ptr::from_mut(to).cast(), self.0) }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: only called from functions that enable avx512f.
        Self(unsafe { _mm512_add_epi64(self.0, other.0) })
    }

    #[inline(always)]
    fn add_low(self, a: Self, b: Self) -> Self {
        // SAFETY: only called from functions that enable avx512ifma.
        Self(unsafe { _mm512_madd52lo_epu64(self.0, a.0, b.0) })
    }

    #[inline(always)]
    fn add_high(self, a: Self, b: Self) -> Self {
        // SAFETY: only called from functions that enable avx512ifma.
        Self(unsafe { _mm512_madd52hi_epu64(self.0, a.0, b.0) })
    }

    #[inline(always)]
    fn carry(self) -> Self {
        // SAFETY: only called from functions that enable avx512f.
        Self(unsafe { _mm512_srli_epi64::<DIGIT_BITS>(self.0) })
    }

    #[inline(always)]
    fn digit(self) -> Self {
        // SAFETY: only called from functions that enable avx512f.
        Self(unsafe { _mm512_and_si512(self.0, _mm512_set1_epi64(DIGIT_MASK.cast_signed())) })
    }

    #[inline(always)]
    fn select(self, other: Self, index: Self, position: u64) -> Self {
        // SAFETY: only called from functions that enable avx512f.
        unsafe {
            let equal = _mm512_cmpeq_epi64_mask(index.0, _mm512_set1_epi64(position.cast_signed()));
            Self(_mm512_mask_mov_epi64(self.0, equal, other.0))
        }
    }

    #[inline(always)]
    fn subtract(self, other: Self) -> Self {
        // SAFETY: only called from functions that enable avx512f.
        Self(unsafe { _mm512_sub_epi64(self.0, other.0) })
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: only called from functions that enable avx512f.
        Self(unsafe { _mm512_and_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self) -> Self {
        // SAFETY: only called from functions that enable avx512f.
        Self(unsafe { _mm512_slli_epi64::<BITS>(self.0) })
    }

    #[inline(always)]
    fn signed_shift_right<const BITS: u32>(self) -> Self {
        // SAFETY: only called from functions that enable avx512f.
        Self(unsafe { _mm512_srai_epi64::<BITS>(self.0) })
    }

    /// A permutation takes from sixteen words by four bits of the index; the two bits above choose among four.
    #[inline(always)]
    fn look_up(table: &[Lanes; 8], index: Self) -> Self {
        let [t0, t1, t2, t3, t4, t5, t6, t7] = table;
        let sixteen = |low, high| {
            let (low, high) = (Self::load(low).0, Self::load(high).0);
            // SAFETY: only called from functions that enable avx512f.
            unsafe { _mm512_permutex2var_epi64(low, index.0, high) }
        };
        // SAFETY: as above.
        unsafe {
            let odd = _mm512_test_epi64_mask(index.0, _mm512_set1_epi64(16));
            let upper = _mm512_test_epi64_mask(index.0, _mm512_set1_epi64(32));
            let first = _mm512_mask_mov_epi64(sixteen(t0, t1), odd, sixteen(t2, t3));
            let second = _mm512_mask_mov_epi64(sixteen(t4, t5), odd, sixteen(t6, t7));
            Self(_mm512_mask_mov_epi64(first, upper, second))
        }
    }
}

impl Kernels for Ifma {
    #[inline]
    fn multiply<const N: usize>(
        self,
        out: &mut [Lanes; N],
        a: &[Lanes; N],
        b: &[Lanes; N],
        modulus: &Modulus<N>,
        scratch: &mut Scratch<N>,
    ) {
        // SAFETY: `self` exists, so the processor has both features.
        unsafe { multiply(out, a, b, modulus, scratch) }
    }

    #[inline]
    fn square<const N: usize>(
        self,
        out: &mut [Lanes; N],
        a: &[Lanes; N],
        modulus: &Modulus<N>,
        scratch: &mut Scratch<N>,
    ) {
        // SAFETY: `self` exists, so the processor has both features.
        unsafe { square(out, a, modulus, scratch) }
    }

    #[inline]
    fn pick<const N: usize>(self, out: &mut [Lanes; N], table: &[[Lanes; N]], index: &Lanes, part: usize) {
        // SAFETY: `self` exists, so the processor has avx512f.
        unsafe { pick(out, table, index, part) }
    }

    #[inline]
    fn sign_p256(self, work: &mut p256::Work) {
        // SAFETY: `self` exists, so the processor has both features.
        unsafe { sign_p256(work) }
    }

    #[inline]
    fn x25519(self, work: &mut x25519::Work) {
        // SAFETY: `self` exists, so the processor has both features.
        unsafe { x25519(work) }
    }
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn multiply<const N: usize>(
    out: &mut [Lanes; N],
    a: &[Lanes; N],
    b: &[Lanes; N],
    modulus: &Modulus<N>,
    scratch: &mut Scratch<N>,
) {
    montgomery::multiply::<Wide, N>(out, a, b, modulus, scratch);
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn square<const N: usize>(out: &mut [Lanes; N], a: &[Lanes; N], modulus: &Modulus<N>, scratch: &mut Scratch<N>) {
    montgomery::square::<Wide, N>(out, a, modulus, scratch);
}

#[target_feature(enable = "avx512f")]
fn pick<const N: usize>(out: &mut [Lanes; N], table: &[[Lanes; N]], index: &Lanes, part: usize) {
    montgomery::pick::<Wide, N>(out, table, index, part);
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn sign_p256(work: &mut p256::Work) {
    p256::sign::<Wide>(work);
}

#[target_feature(enable = "avx512f,avx512ifma")]
fn x25519(work: &mut x25519::Work) {
    x25519::exchange::<Wide>(work);
}
