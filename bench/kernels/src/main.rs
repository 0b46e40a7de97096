//! Private RSA operations and ECDSA signatures per second of one thread: Heddle's eight lanes with blinding and
//! verification, or derived nonces and checks, BoringSSL and AWS-LC, each with the same fresh keys, in turns; and key
//! exchanges by X25519, in eight lanes, by the assembly that the proxy has for those that are alone, and as the two libraries do them. Prints one JSON object; `make bench S=kernels` adds OpenSSL and reports.
//!
//! Time is the thread's processor time, as in `openssl speed`: other processes on the machine then matter little.
//!
//!     heddle-bench-kernels [rounds] [milliseconds of processor time per measurement]

use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use boring::ec::{EcGroup, EcKey};
use boring::hash::MessageDigest;
use boring::nid::Nid;
use boring::pkey::{PKey, Private};
use boring::rsa::Rsa;
use boring::sha::sha256;
use boring::sign::Signer;
use heddle_simd::{
    Engine, KeySize, LANES, Operation, P256_BYTES, P256Operation, P256PrivateKey, RsaComponents,
    RsaPrivateKey,
};
use nix::time::{ClockId, clock_gettime};

mod limit;
#[path = "../../../proxy/crates/keys/src/multibuffer/nonce.rs"]
mod nonce;
mod x25519;

/// Does a number of operations at once and says how many.
type Work<'a> = Box<dyn FnMut() -> usize + 'a>;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| {
        arguments
            .next()
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (rounds, length) = (number(5), Duration::from_millis(number(500)));
    let engine = Engine::detect();
    if engine.is_none() {
        eprintln!("this processor has no AVX-512 IFMA: the others are measured alone");
    }
    let mut result = serde_json::Map::new();
    for size in KeySize::ALL {
        let key = Rsa::generate(u32::try_from(size.bits()).expect("bits")).expect("key");
        let ours = heddle_key(&key);
        let theirs = PKey::from_rsa(key.clone()).expect("key");
        let aws = RsaKeyPair::from_der(&key.private_key_to_der().expect("DER")).expect("key");
        let mut subjects: Vec<(String, Work<'_>)> = vec![
            ("boringssl".to_owned(), Box::new(|| boringssl(&theirs))),
            ("aws-lc".to_owned(), Box::new(|| aws_lc(&aws, size))),
        ];
        for (engine, width) in engine
            .into_iter()
            .flat_map(|engine| [LANES, 1, 2, 3, 4].map(|width| (engine, width)))
        {
            let key = &ours;
            subjects.push((
                subject_of(width),
                Box::new(move || heddle(engine, key, width)),
            ));
        }
        let what = format!("rsa{}_sign_per_second", size.bits());
        compare(&what, subjects, rounds, length, &mut result);
    }
    ecdsa(engine, rounds, length, &mut result);
    x25519::measure(engine, rounds, length, &mut result);
    limit::measure(engine, rounds, length, &mut result);
    println!("{}", serde_json::Value::Object(result));
}

/// Adds the medians of the subjects' rates, which are measured in turns.
fn compare(
    what: &str,
    mut subjects: Vec<(String, Work<'_>)>,
    rounds: u64,
    length: Duration,
    result: &mut serde_json::Map<String, serde_json::Value>,
) {
    let mut rates = vec![Vec::new(); subjects.len()];
    // The first round warms up and is not counted.
    for round in 0..=rounds {
        for ((_, work), rates) in subjects.iter_mut().zip(&mut rates) {
            let rate = measure(work, length);
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    for ((name, _), mut rates) in subjects.into_iter().zip(rates) {
        rates.sort_by(f64::total_cmp);
        let subject = result.entry(name).or_insert_with(|| serde_json::json!({}));
        subject[what] = rates[rates.len() / 2].round().into();
    }
}

/// ECDSA with P-256 and SHA-256; ours with nonces as the provider derives them.
fn ecdsa(
    engine: Option<Engine>,
    rounds: u64,
    length: Duration,
    result: &mut serde_json::Map<String, serde_json::Value>,
) {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("P-256");
    let key = EcKey::generate(&group).expect("key");
    let scalar = key.private_key().to_vec_padded(P256_BYTES).expect("scalar");
    let scalar: [u8; P256_BYTES] = scalar.try_into().expect("32 bytes");
    let ours = P256PrivateKey::new(&scalar).expect("a scalar");
    let theirs = PKey::from_ec_key(key).expect("key");
    let aws = EcdsaKeyPair::from_private_key_der(
        &ECDSA_P256_SHA256_ASN1_SIGNING,
        &theirs.private_key_to_der_pkcs8().expect("DER"),
    )
    .expect("key");
    let random = SystemRandom::new();
    let mut subjects: Vec<(String, Work<'_>)> = vec![
        ("boringssl".to_owned(), Box::new(|| boringssl(&theirs))),
        (
            "aws-lc".to_owned(),
            Box::new(|| {
                aws.sign(&random, MESSAGE).expect("signature");
                1
            }),
        ),
    ];
    for (engine, width) in engine
        .into_iter()
        .flat_map(|engine| [LANES, 1, 2, 3, 4].map(|width| (engine, width)))
    {
        let (ours, scalar) = (&ours, &scalar);
        subjects.push((
            subject_of(width),
            Box::new(move || {
                let digest = sha256(MESSAGE);
                let mut extra = [0; LANES * P256_BYTES];
                let extra = &mut extra[..width * P256_BYTES];
                boring::rand::rand_bytes(extra).expect("random bytes");
                let nonces: Vec<_> = extra
                    .chunks(P256_BYTES)
                    .map(|extra| nonce::nonce(scalar, &digest, extra))
                    .collect();
                let operations: Vec<_> = nonces
                    .iter()
                    .map(|nonce| P256Operation {
                        key: ours,
                        digest: &digest,
                        nonce,
                    })
                    .collect();
                let results = engine.sign_p256(&operations).expect("batch");
                assert!(results.iter().all(Result::is_ok));
                width
            }),
        ));
    }
    compare(
        "ecdsa_p256_sign_per_second",
        subjects,
        rounds,
        length,
        result,
    );
}

fn subject_of(width: usize) -> String {
    if width == LANES {
        "heddle".to_owned()
    } else {
        format!("heddle-{width}-of-8")
    }
}

fn measure(work: &mut Work<'_>, length: Duration) -> f64 {
    let begin = processor_time();
    let mut done = 0;
    loop {
        done += work();
        let spent = processor_time() - begin;
        if spent >= length {
            return done as f64 / spent.as_secs_f64();
        }
    }
}

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("the thread's clock")
        .into()
}

const MESSAGE: &[u8] = b"what a TLS server signs is about as long as this, and is hashed first";

fn boringssl(key: &PKey<Private>) -> usize {
    let mut signer = Signer::new(MessageDigest::sha256(), key).expect("signer");
    signer.update(MESSAGE).expect("update");
    assert!(!signer.sign_to_vec().expect("signature").is_empty());
    1
}

fn aws_lc(key: &RsaKeyPair, size: KeySize) -> usize {
    let mut signature = vec![0; size.bytes()];
    key.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        MESSAGE,
        &mut signature,
    )
    .expect("signature");
    1
}

fn heddle(engine: Engine, key: &RsaPrivateKey, width: usize) -> usize {
    let input = vec![0x5a; key.size().bytes()];
    let operations = vec![Operation { key, input: &input }; width];
    let mut random = |bytes: &mut [u8]| boring::rand::rand_bytes(bytes).expect("random bytes");
    let results = engine
        .private_operations(&operations, &mut random)
        .expect("batch");
    assert!(results.iter().all(Result::is_ok));
    width
}

fn heddle_key(key: &Rsa<Private>) -> RsaPrivateKey {
    let part = |number: Option<&boring::bn::BigNumRef>| number.expect("a whole key").to_vec();
    RsaPrivateKey::new(&RsaComponents {
        modulus: &key.n().to_vec(),
        public_exponent: &key.e().to_vec(),
        prime1: &part(key.p()),
        prime2: &part(key.q()),
        exponent1: &part(key.dmp1()),
        exponent2: &part(key.dmq1()),
        coefficient: &part(key.iqmp()),
    })
    .expect("a key of this size")
}
