//! A batch: blind, raise modulo both primes, recombine, unblind, verify.

use thiserror::Error;
use zeroize::Zeroizing;

use crate::kernels::Kernels;
use crate::lanes::{LANES, Lanes};
use crate::limbs::{self, Limbs};
use crate::rsa::blinding::Pair;
use crate::rsa::field::Field;
use crate::rsa::key::{KeySize, Prime, RsaPrivateKey};
use crate::rsa::power;
use crate::rsa::wide::{self, Wide};

/// Bits of the random multiple of p − 1 that is added to an exponent, drawn anew for each operation.
const EXPONENT_BLINDING_BITS: usize = 64;

/// One operation of a batch.
#[derive(Clone, Copy)]
pub struct Operation<'a> {
    /// The key; keys may differ within a batch, their size may not.
    pub key: &'a RsaPrivateKey,
    /// The padded message or the ciphertext, big-endian, as long as the modulus and below it.
    pub input: &'a [u8],
}

/// Why a batch was not begun. The caller asked wrongly; no operation was done.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BatchError {
    /// None, or more than [`LANES`](crate::LANES).
    #[error("a batch has one to eight operations, not {0}")]
    Width(usize),
    /// Keys of different sizes.
    #[error("all keys of a batch must have the same size; collect one batch per size")]
    MixedSizes,
}

/// Why one operation has no result. The others of its batch are not touched.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum OperationError {
    /// Not as long as the modulus, or not below it.
    #[error("the input must be as long as the modulus and below it")]
    Input,
    /// The result, raised to the public exponent, was not the input: a fault of the processor or of this code. What was
    /// computed is not given out, because it could tell the key.
    #[error("the result did not verify and was dropped; do the operation in software")]
    Mismatch,
}

/// Results in the order of the operations.
pub(crate) type Results = Vec<Result<Vec<u8>, OperationError>>;

/// Does a batch with the kernels given.
pub(crate) fn run<K: Kernels>(
    kernels: K,
    operations: &[Operation<'_>],
    random: &mut dyn FnMut(&mut [u8]),
) -> Result<Results, BatchError> {
    if operations.is_empty() || operations.len() > LANES {
        return Err(BatchError::Width(operations.len()));
    }
    let size = operations[0].key.size;
    if operations.iter().any(|operation| operation.key.size != size) {
        return Err(BatchError::MixedSizes);
    }
    Ok(match size {
        KeySize::Rsa2048 => Batch::<K, 20, 40>::new(kernels, operations, random).run(operations),
        KeySize::Rsa3072 => Batch::<K, 30, 60>::new(kernels, operations, random).run(operations),
        KeySize::Rsa4096 => Batch::<K, 40, 80>::new(kernels, operations, random).run(operations),
    })
}

/// Which exponents a batch raises to.
#[derive(Clone, Copy)]
enum Exponent {
    /// d.
    Private,
    /// −e.
    NegatedPublic,
}

/// `N` digits for a prime, `M` = 2·`N` for the modulus.
struct Batch<'a, K, const N: usize, const M: usize> {
    keys: Vec<&'a RsaPrivateKey>,
    random: &'a mut dyn FnMut(&mut [u8]),
    n: Box<Field<K, M>>,
    p: Box<Field<K, N>>,
    q: Box<Field<K, N>>,
}

impl<'a, K: Kernels, const N: usize, const M: usize> Batch<'a, K, N, M> {
    fn new(kernels: K, operations: &[Operation<'a>], random: &'a mut dyn FnMut(&mut [u8])) -> Self {
        let keys: Vec<_> = operations.iter().map(|operation| operation.key).collect();
        let each = |part: fn(&RsaPrivateKey) -> &_| keys.iter().map(|key| part(key)).collect::<Vec<_>>();
        Self {
            n: Field::new(kernels, &each(|key| &key.modulus)),
            p: Field::new(kernels, &each(|key| &key.p.prepared)),
            q: Field::new(kernels, &each(|key| &key.q.prepared)),
            keys,
            random,
        }
    }

    fn run(mut self, operations: &[Operation<'_>]) -> Results {
        let bytes = operations[0].key.size.bytes();
        let limbs = bytes / 8;
        let inputs: Vec<Limbs> = operations
            .iter()
            .map(|operation| {
                let input = if operation.input.len() == bytes {
                    operation.input
                } else {
                    &[]
                };
                let input = limbs::from_bytes(input, limbs).unwrap_or_default();
                limbs::to_digits(&input, M)
            })
            .collect();
        let mut input = wide::gather::<M>(inputs.iter().map(|digits| digits.as_slice()));
        let mut valid = self.n.contains(&input);
        for (valid, operation) in valid.iter_mut().zip(operations) {
            *valid &= operation.input.len() == bytes;
        }
        // A refused input is replaced by zero, which verifies: whoever sends it must not use up blinding factors.
        for l in (0..LANES).filter(|l| !valid[*l]) {
            for digit in input.iter_mut() {
                digit.0[l] = 0;
            }
        }

        let pairs = self.pairs();
        let blind = wide::gather(pairs.iter().map(|pair| pair.blind.as_slice()));
        let unblind = wide::gather(pairs.iter().map(|pair| pair.unblind.as_slice()));
        let blinded = self.n.multiply(&input, &blind);
        let power = self.power(&blinded, Exponent::Private);
        let mut result = self.n.multiply(&power, &unblind);
        wide::reduce_once(&mut result, &self.n.modulus.digits);
        let verified = self.is_power(&result, &input);
        self.renew(&pairs, &blind, &unblind, &verified);

        (0..operations.len())
            .map(|l| {
                if !valid[l] {
                    Err(OperationError::Input)
                } else if verified[l] {
                    Ok(limbs::to_bytes(&limbs::from_digits(&wide::lane(&result, l), limbs)))
                } else {
                    Err(OperationError::Mismatch)
                }
            })
            .collect()
    }

    /// `base` (below 2·n, not in Montgomery form) to a secret exponent, below 3·n.
    fn power(&mut self, base: &[Lanes; M], exponent: Exponent) -> Wide<M> {
        let (low, high) = base.split_at(N);
        let exponents_p = self.exponents(exponent, |key| &key.p);
        let exponents_q = self.exponents(exponent, |key| &key.q);
        let mut of_p = modulo_prime(&mut self.p, low, high, &exponents_p);
        let of_q = modulo_prime(&mut self.q, low, high, &exponents_q);
        // Garner: result = of_q + q·((of_p − of_q)·q⁻¹ modulo p). Twice p is added, because q may be the longer prime.
        wide::add(&mut of_p, &self.p.modulus.digits);
        wide::add(&mut of_p, &self.p.modulus.digits);
        wide::subtract(&mut of_p, &of_q);
        let coefficient = wide::gather(self.keys.iter().map(|key| key.coefficient.as_slice()));
        let mut quotient = self.p.multiply(&of_p, &coefficient);
        wide::reduce_once(&mut quotient, &self.p.modulus.digits);
        let mut long = wide::zero::<M>();
        long[..N].copy_from_slice(quotient.as_slice());
        let second_prime = wide::gather(self.keys.iter().map(|key| key.second_prime.as_slice()));
        let mut result = self.n.multiply(&long, &second_prime);
        wide::add(&mut result, of_q.as_slice());
        result
    }

    /// The exponents of all lanes modulo one of the primes, blinded.
    fn exponents(&mut self, exponent: Exponent, prime: fn(&RsaPrivateKey) -> &Prime) -> Vec<Limbs> {
        let blinded = |key: &&RsaPrivateKey| {
            let prime = prime(key);
            let mut factor = Zeroizing::new([0; 8]);
            (self.random)(factor.as_mut_slice());
            let factor = Zeroizing::new(u64::from_le_bytes(*factor));
            let mut blinded = Zeroizing::new(Vec::with_capacity(prime.order.len() + 1));
            blinded.extend_from_slice(match exponent {
                Exponent::Private => &prime.exponent,
                Exponent::NegatedPublic => &prime.negated_public,
            });
            blinded.push(0);
            limbs::add_product(&mut blinded, &prime.order, *factor);
            blinded
        };
        self.keys.iter().map(blinded).collect()
    }

    /// In which lanes `root`^e is `power`; both below n.
    fn is_power(&mut self, root: &[Lanes; M], power: &[Lanes; M]) -> [bool; LANES] {
        let exponents = std::array::from_fn(|l| self.keys.get(l).unwrap_or(&self.keys[0]).public_exponent);
        let entered = self.n.enter(root);
        let raised = power::public(&mut self.n, &entered, &exponents);
        let raised = self.n.leave(&raised);
        std::array::from_fn(|l| wide::equal(&raised, power, l))
    }

    /// A pair for each lane. When one is missing, all lanes draw one: that costs no more than one does.
    fn pairs(&mut self) -> Vec<Pair> {
        let mut pairs: Vec<_> = self.keys.iter().map(|key| key.pairs.take()).collect();
        if pairs.iter().any(Option::is_none) {
            let fresh = self.draw();
            for ((slot, pair), key) in pairs.iter_mut().zip(fresh).zip(&self.keys) {
                match slot {
                    None => *slot = Some(pair),
                    Some(_) => key.pairs.give_back(pair),
                }
            }
        }
        pairs.into_iter().flatten().collect()
    }

    /// Draws a number u for each lane and raises it to −e.
    fn draw(&mut self) -> Vec<Pair> {
        let drawn: Vec<Limbs> = self
            .keys
            .iter()
            .map(|key| {
                let mut bytes = Zeroizing::new(vec![0; key.size.bytes()]);
                (self.random)(&mut bytes);
                // Below 2^(bits − 1) and with that below n.
                bytes[0] &= 0x7f;
                let limbs = limbs::from_bytes(&bytes, bytes.len() / 8).unwrap_or_default();
                limbs::to_digits(&limbs, M)
            })
            .collect();
        let unblind = wide::gather::<M>(drawn.iter().map(|digits| digits.as_slice()));
        let blind = self.power(&unblind, Exponent::NegatedPublic);
        let (blind, unblind) = (self.n.enter(&blind), self.n.enter(&unblind));
        (0..self.keys.len())
            .map(|l| Pair::fresh(wide::lane(&blind, l), wide::lane(&unblind, l)))
            .collect()
    }

    /// Gives pairs back, squared; those of operations that did not verify may be the cause and are dropped.
    fn renew(&mut self, pairs: &[Pair], blind: &[Lanes; M], unblind: &[Lanes; M], verified: &[bool; LANES]) {
        let (blind, unblind) = (self.n.square(blind), self.n.square(unblind));
        for (l, (pair, key)) in pairs.iter().zip(&self.keys).enumerate() {
            if verified[l]
                && let Some(next) = pair.squared(wide::lane(&blind, l), wide::lane(&unblind, l))
            {
                key.pairs.give_back(next);
            }
        }
    }
}

/// `low` + R·`high` raised modulo a prime, below it.
fn modulo_prime<K: Kernels, const N: usize>(
    field: &mut Field<K, N>,
    low: &[Lanes],
    high: &[Lanes],
    exponents: &[Limbs],
) -> Wide<N> {
    let mut digits = wide::zero();
    digits.copy_from_slice(low);
    let mut base = field.enter(&digits);
    digits.copy_from_slice(high);
    let r3 = field.r3.clone();
    let high = field.multiply(&digits, &r3);
    wide::add(&mut base, high.as_slice());
    let bits = (exponents[0].len() - 1) * 64 + EXPONENT_BLINDING_BITS;
    let power = power::secret(field, &base, exponents, bits);
    field.leave(&power)
}
