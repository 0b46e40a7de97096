//! Keys and raw operations of BoringSSL, which the kernels are compared with.
#![allow(dead_code, reason = "each test file uses its share")]

pub(crate) mod ecdsa;

use boring::bn::{BigNum, BigNumRef};
use boring::pkey::Private;
use boring::rsa::{Padding, Rsa};
use heddle_simd::{Engine, KeyError, KeySize, RsaComponents, RsaPrivateKey};

/// A key's numbers, to be damaged.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) modulus: Vec<u8>,
    pub(crate) public_exponent: Vec<u8>,
    pub(crate) prime1: Vec<u8>,
    pub(crate) prime2: Vec<u8>,
    pub(crate) exponent1: Vec<u8>,
    pub(crate) exponent2: Vec<u8>,
    pub(crate) coefficient: Vec<u8>,
}

impl Parts {
    pub(crate) fn of(key: &Rsa<Private>) -> Self {
        let part = |number: Option<&BigNumRef>| number.expect("a whole key").to_vec();
        Self {
            modulus: key.n().to_vec(),
            public_exponent: key.e().to_vec(),
            prime1: part(key.p()),
            prime2: part(key.q()),
            exponent1: part(key.dmp1()),
            exponent2: part(key.dmq1()),
            coefficient: part(key.iqmp()),
        }
    }

    pub(crate) fn key(&self) -> Result<RsaPrivateKey, KeyError> {
        RsaPrivateKey::new(&RsaComponents {
            modulus: &self.modulus,
            public_exponent: &self.public_exponent,
            prime1: &self.prime1,
            prime2: &self.prime2,
            exponent1: &self.exponent1,
            exponent2: &self.exponent2,
            coefficient: &self.coefficient,
        })
    }
}

/// One key in both forms.
pub(crate) struct Pair {
    pub(crate) boring: Rsa<Private>,
    pub(crate) key: RsaPrivateKey,
}

impl Pair {
    pub(crate) fn new(size: KeySize, e: u32) -> Self {
        let e = BigNum::from_u32(e).expect("e");
        let bits = u32::try_from(size.bits()).expect("bits");
        let boring = Rsa::generate_with_e(bits, &e).expect("key");
        let key = Parts::of(&boring).key().expect("a good key");
        Self { boring, key }
    }

    /// What BoringSSL says.
    pub(crate) fn expected(&self, input: &[u8]) -> Vec<u8> {
        let mut plain = vec![0; self.key.size().bytes()];
        let length = self
            .boring
            .private_decrypt(input, &mut plain, Padding::NONE)
            .expect("decrypts");
        assert_eq!(length, plain.len());
        plain
    }

    /// What BoringSSL's public operation makes of a number.
    pub(crate) fn public(&self, number: &[u8]) -> Vec<u8> {
        let mut out = vec![0; self.key.size().bytes()];
        let length = self
            .boring
            .public_encrypt(number, &mut out, Padding::NONE)
            .expect("encrypts");
        assert_eq!(length, out.len());
        out
    }

    /// A random input below the modulus.
    pub(crate) fn input(&self, random: &mut fastrand::Rng) -> Vec<u8> {
        let mut input = vec![0; self.key.size().bytes()];
        random.fill(&mut input);
        if input >= self.boring.n().to_vec() {
            input[0] = 0;
        }
        input
    }
}

/// The engines of this processor: the portable one, and the vector one where there is one.
pub(crate) fn engines() -> Vec<(&'static str, Engine)> {
    let vector = Engine::detect().map(|engine| ("ifma", engine));
    if vector.is_none() {
        println!("no AVX-512 IFMA here: only the portable kernels are tested");
    }
    vector.into_iter().chain([("portable", Engine::portable())]).collect()
}

/// Blinding drawn from a seed, so that a failure repeats.
pub(crate) fn blinding(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut random = fastrand::Rng::with_seed(seed);
    move |bytes| random.fill(bytes)
}
