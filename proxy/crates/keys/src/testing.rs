//! What tests of the providers share.

use std::future::Future;
use std::sync::LazyLock;

use boring::hash::MessageDigest;
use boring::pkey::{PKey, Private};
use boring::rsa::{Padding, Rsa};
use boring::sign::{RsaPssSaltlen, Verifier};
use heddle_telemetry::Stats;
use heddle_telemetry::prometheus::Gathered;
use tokio::task::LocalSet;

use crate::SignatureAlgorithm;

/// An algorithm, its digest, and whether it pads by PSS.
type Scheme = (SignatureAlgorithm, fn() -> MessageDigest, bool);

pub(crate) const SCHEMES: [Scheme; 6] = [
    (SignatureAlgorithm::RsaPkcs1Sha256, MessageDigest::sha256, false),
    (SignatureAlgorithm::RsaPkcs1Sha384, MessageDigest::sha384, false),
    (SignatureAlgorithm::RsaPkcs1Sha512, MessageDigest::sha512, false),
    (SignatureAlgorithm::RsaPssSha256, MessageDigest::sha256, true),
    (SignatureAlgorithm::RsaPssSha384, MessageDigest::sha384, true),
    (SignatureAlgorithm::RsaPssSha512, MessageDigest::sha512, true),
];

/// Two keys of one size: making them takes longer than the tests.
pub(crate) static KEYS: LazyLock<[PKey<Private>; 2]> =
    LazyLock::new(|| [(); 2].map(|()| PKey::from_rsa(Rsa::generate(2048).expect("rsa")).expect("key")));

/// A worker with time that stands still unless everybody waits.
pub(crate) fn worker<F: Future>(f: impl FnOnce(Stats) -> F) -> F::Output {
    worker_by_clock(true, f)
}

/// A worker with the time of the clock, for those that share something with other threads.
pub(crate) fn worker_in_time<F: Future>(f: impl FnOnce(Stats) -> F) -> F::Output {
    worker_by_clock(false, f)
}

fn worker_by_clock<F: Future>(paused: bool, f: impl FnOnce(Stats) -> F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(paused)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let stats = Stats::new();
        crate::collect_here(&stats);
        f(stats).await
    })
}

pub(crate) fn counted(stats: &Stats, line: &str) -> bool {
    let text = Gathered::read(&[stats.reader()], |_| true).prometheus(true);
    text.lines().any(|l| l == line)
}

/// Whether a signature is one of [`KEYS`] and [`SCHEMES`].
pub(crate) fn verifies(key: usize, scheme: usize, message: &[u8], signature: &[u8]) -> bool {
    let (_, digest, pss) = SCHEMES[scheme];
    let mut verifier = Verifier::new(digest(), &KEYS[key]).expect("verifier");
    if pss {
        verifier.set_rsa_padding(Padding::PKCS1_PSS).expect("padding");
        verifier
            .set_rsa_pss_saltlen(RsaPssSaltlen::DIGEST_LENGTH)
            .expect("salt");
    }
    verifier.update(message).expect("update");
    verifier.verify(signature).expect("verify")
}
