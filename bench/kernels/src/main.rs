//! Private RSA operations per second of one thread: Heddle's eight lanes with blinding and verification, BoringSSL and
//! AWS-LC, each with the same fresh keys, in turns. Prints one JSON object; `make bench S=kernels` adds OpenSSL and reports.
//!
//! Time is the thread's processor time, as in `openssl speed`: other processes on the machine then matter little.
//!
//!     heddle-bench-kernels [rounds] [milliseconds of processor time per measurement]

use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use boring::hash::MessageDigest;
use boring::pkey::{PKey, Private};
use boring::rsa::Rsa;
use boring::sign::Signer;
use heddle_simd::{Engine, KeySize, LANES, Operation, RsaComponents, RsaPrivateKey};
use nix::time::{ClockId, clock_gettime};

/// Does a number of operations at once and says how many.
type Work<'a> = Box<dyn FnMut() -> usize + 'a>;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| {
        arguments
            .next()
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (rounds, milliseconds) = (number(5), number(500));
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
            let name = if width == LANES {
                "heddle".to_owned()
            } else {
                format!("heddle-{width}-of-8")
            };
            let key = &ours;
            subjects.push((name, Box::new(move || heddle(engine, key, width))));
        }
        let mut rates = vec![Vec::new(); subjects.len()];
        // The first round warms up and is not counted.
        for round in 0..=rounds {
            for ((_, work), rates) in subjects.iter_mut().zip(&mut rates) {
                let rate = measure(work, Duration::from_millis(milliseconds));
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
        for ((name, _), mut rates) in subjects.into_iter().zip(rates) {
            rates.sort_by(f64::total_cmp);
            let subject = result.entry(name).or_insert_with(|| serde_json::json!({}));
            subject[format!("rsa{}_sign_per_second", size.bits())] =
                rates[rates.len() / 2].round().into();
        }
    }
    println!("{}", serde_json::Value::Object(result));
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
