//! Which kernels run, decided once.

#[cfg(target_arch = "x86_64")]
use crate::ifma::Ifma;
use crate::p256::{self, P256Operation, Signatures};
use crate::portable::Portable;
use crate::rsa::{self, BatchError, Operation, OperationError};
use crate::x25519::{self, Results, X25519Operation};

/// The kernels of one kind of processor.
#[derive(Clone, Copy, Debug)]
pub struct Engine(Kind);

#[derive(Clone, Copy, Debug)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Ifma(Ifma),
    Portable(Portable),
    #[cfg(any(test, feature = "testing"))]
    Faulty(crate::faulty::Faulty),
}

impl Engine {
    /// The vector kernels, or none where the processor or the operating system lacks AVX-512 IFMA.
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        {
            Ifma::detect().map(|kernels| Self(Kind::Ifma(kernels)))
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            None
        }
    }

    /// The twin on plain integers, for tests: it is correct anywhere, and slow.
    pub fn portable() -> Self {
        Self(Kind::Portable(Portable))
    }

    /// The twin, which errs in one lane of each batch several times, for tests of who uses the results.
    #[cfg(any(test, feature = "testing"))]
    pub fn faulty(lane: usize) -> Self {
        Self(Kind::Faulty(crate::faulty::Faulty {
            lane,
            bit: 17,
            strikes: |step| step % 701 == 700,
        }))
    }

    /// Raises each input to its key's private exponent (RSASP1 and RSADP of RFC 8017), in constant time for the key and
    /// the input's value. Results are in the order of `operations` and as long as the modulus.
    ///
    /// `random` must fill its argument from a cryptographically secure source; blinding is drawn from it.
    ///
    /// # Errors
    /// [`BatchError`] when the batch as a whole cannot be done; [`OperationError`] for single operations.
    pub fn private_operations(
        &self,
        operations: &[Operation<'_>],
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Vec<Result<Vec<u8>, OperationError>>, BatchError> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Ifma(kernels) => rsa::run(kernels, operations, random),
            Kind::Portable(kernels) => rsa::run(kernels, operations, random),
            #[cfg(any(test, feature = "testing"))]
            Kind::Faulty(kernels) => rsa::run(kernels, operations, random),
        }
    }

    /// Signs each digest with its key and nonce (ECDSA with P-256), in constant time for all three. Results are in the
    /// order of `operations`.
    ///
    /// # Errors
    /// [`BatchError`] when the batch as a whole cannot be done; [`P256Error`](crate::P256Error) for single operations.
    pub fn sign_p256(&self, operations: &[P256Operation<'_>]) -> Result<Signatures, BatchError> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Ifma(kernels) => p256::run(kernels, operations),
            Kind::Portable(kernels) => p256::run(kernels, operations),
            #[cfg(any(test, feature = "testing"))]
            Kind::Faulty(kernels) => p256::run(kernels, operations),
        }
    }
    /// Multiplies each point by its scalar (X25519 of RFC 7748), in constant time for both. Results are in the order of
    /// `operations`: shared secrets, or public keys where the point is [`BASE_POINT`](crate::BASE_POINT); all zeros for points of small order, which
    /// is for the caller to refuse.
    ///
    /// # Errors
    /// [`BatchError`] for a batch of none, or of more than [`LANES`](crate::LANES).
    pub fn x25519(&self, operations: &[X25519Operation<'_>]) -> Result<Results, BatchError> {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Ifma(kernels) => x25519::run(kernels, operations),
            Kind::Portable(kernels) => x25519::run(kernels, operations),
            #[cfg(any(test, feature = "testing"))]
            Kind::Faulty(kernels) => x25519::run(kernels, operations),
        }
    }
}
