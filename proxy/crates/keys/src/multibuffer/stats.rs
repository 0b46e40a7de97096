//! What a worker counts about its batches.

use std::time::Duration;

use heddle_simd::LANES;
use heddle_telemetry::{Counter, Histogram, Stats};

use super::key::KeyType;

/// Why a batch did not wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// All lanes are taken.
    Full,
    /// An operation has waited for its key's `poll_delay`.
    Delay,
    /// No other handshake of this worker can join.
    Alone,
}

/// Which way an operation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// In a lane.
    Vector,
    /// BoringSSL's, because the batch was smaller than pays.
    Software,
}

/// A worker's counters.
#[derive(Clone, Debug)]
pub(super) struct BatchStats {
    /// Envoy's `cryptomb.rsa_queue_sizes`.
    rsa_sizes: Histogram,
    /// The same of ECDSA, which Envoy does one by one.
    ecdsa_sizes: Histogram,
    /// The same of exchanges with X25519, which Envoy leaves to BoringSSL.
    x25519_sizes: Histogram,
    /// Batches of all types by their size exactly: the buckets of histograms are made for times.
    sizes: [Counter; LANES],
    wait: Histogram,
    full: Counter,
    delay: Counter,
    alone: Counter,
    vector: Counter,
    software: Counter,
    mismatches: Counter,
    abandoned: Counter,
}

impl BatchStats {
    pub(super) fn new(stats: &Stats) -> Self {
        let flush = |reason| stats.counter("heddle_multibuffer_flushes_total", &[("reason", reason)]);
        let by = |path| stats.counter("heddle_multibuffer_operations_total", &[("path", path)]);
        Self {
            rsa_sizes: stats.histogram("envoy_cryptomb_rsa_queue_sizes", &[]),
            ecdsa_sizes: stats.histogram("heddle_multibuffer_ecdsa_queue_sizes", &[]),
            x25519_sizes: stats.histogram("heddle_multibuffer_x25519_queue_sizes", &[]),
            sizes: std::array::from_fn(|i| {
                let size = (i + 1).to_string();
                stats.counter("heddle_multibuffer_batches_total", &[("size", &size)])
            }),
            wait: stats.histogram("heddle_multibuffer_wait_ms", &[]),
            full: flush("full"),
            delay: flush("delay"),
            alone: flush("alone"),
            vector: by("vector"),
            software: by("software"),
            mismatches: stats.counter("heddle_multibuffer_verify_failures_total", &[]),
            abandoned: stats.counter("heddle_multibuffer_abandoned_total", &[]),
        }
    }

    pub(super) fn flushed(&self, key_type: KeyType, operations: usize, reason: Flush) {
        match key_type {
            KeyType::Rsa(_) => self.rsa_sizes.record(operations as f64),
            KeyType::P256 => self.ecdsa_sizes.record(operations as f64),
            KeyType::X25519 => self.x25519_sizes.record(operations as f64),
        }
        if let Some(size) = operations.checked_sub(1).and_then(|i| self.sizes.get(i)) {
            size.inc();
        }
        match reason {
            Flush::Full => self.full.inc(),
            Flush::Delay => self.delay.inc(),
            Flush::Alone => self.alone.inc(),
        }
    }

    pub(super) fn waited(&self, time: Duration) {
        self.wait.record(time.as_secs_f64() * 1000.0);
    }

    /// Operations with private keys of certificates are counted, exchanges are not.
    pub(super) fn done(&self, key_type: KeyType, by: By) {
        if key_type == KeyType::X25519 {
            return;
        }
        match by {
            By::Vector => self.vector.inc(),
            By::Software => self.software.inc(),
        }
    }

    pub(super) fn mismatched(&self) {
        self.mismatches.inc();
    }

    pub(super) fn abandoned(&self) {
        self.abandoned.inc();
    }
}
