//! What is done with vectors: eight private RSA operations, ECDSA signatures with P-256 or exchanges of X25519 side by side,
//! the arithmetic behind a TLS handshake, and sixteen bytes of text at a time ([`Chunk`]).
//!
//! A batch of one to eight operations, with any keys of one size, costs the same: each has a 64-bit lane of AVX-512
//! vectors for itself, and numbers are kept in digits of 52 bits (of X25519 51), which is what the IFMA instructions multiply. Where
//! the processor has no IFMA the same code runs on plain integers ([`Engine::portable`]), much slower than a software library:
//! it is there for tests.
//!
//! No branch and no address depends on a secret: table look-ups read the whole table, and RSA's inputs and exponents are blinded.
//! Each result of RSA is raised to the public exponent and compared before it is given out; of ECDSA, the point must be one of
//! the curve and the signature's equation hold. Exchanges are of keys that serve once, and are not checked: a wrong result ends its
//! handshake. The decisions are in `docs/design/0017-multibuffer-rsa.md`, `0029-multibuffer-ecdsa.md` and
//! `0036-what-a-new-connection-costs.md`.

mod chunk;
mod digits;
mod engine;
#[cfg(any(test, feature = "testing"))]
mod faulty;
#[cfg(target_arch = "x86_64")]
mod ifma;
mod kernels;
mod lanes;
mod limbs;
mod montgomery;
mod p256;
mod portable;
mod rsa;
#[cfg(test)]
mod twins;
mod x25519;

pub use chunk::{CHUNK, Chunk, from_utf8};
pub use engine::Engine;
pub use lanes::LANES;
pub use p256::{P256_BYTES, P256Error, P256KeyError, P256Operation, P256PrivateKey, P256Signature};
#[cfg(any(test, feature = "testing"))]
pub use portable::ifma_instructions;
pub use rsa::{BatchError, KeyError, KeySize, Operation, OperationError, RsaComponents, RsaPrivateKey};
pub use x25519::{BASE_POINT, X25519_BYTES, X25519Operation, offer as x25519_offer};
