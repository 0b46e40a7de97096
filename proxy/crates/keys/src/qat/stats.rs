//! What a worker counts about its operations on devices.

use std::time::Duration;

use heddle_telemetry::{Counter, Histogram, Stats};

/// Why software has done an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    /// The instance had no place for it.
    Busy,
    /// The library did not take it.
    Refused,
    /// The device answered that it could not.
    Failed,
    /// The device did not answer in time.
    Late,
    /// The device's result did not verify.
    Unverified,
}

/// A worker's counters.
#[derive(Clone, Debug)]
pub(super) struct QatStats {
    device: Counter,
    software: Counter,
    fallbacks: [Counter; 5],
    wait: Histogram,
    verify_failures: Counter,
    abandoned: Counter,
    poll_failures: Counter,
}

impl QatStats {
    pub(super) fn new(stats: &Stats) -> Self {
        let by = |path| stats.counter("heddle_qat_operations_total", &[("path", path)]);
        let reasons = ["busy", "refused", "failed", "late", "unverified"];
        Self {
            device: by("device"),
            software: by("software"),
            fallbacks: reasons.map(|reason| stats.counter("heddle_qat_fallbacks_total", &[("reason", reason)])),
            wait: stats.histogram("heddle_qat_wait_ms", &[]),
            verify_failures: stats.counter("heddle_qat_verify_failures_total", &[]),
            abandoned: stats.counter("heddle_qat_abandoned_total", &[]),
            poll_failures: stats.counter("heddle_qat_poll_failures_total", &[]),
        }
    }

    pub(super) fn done(&self, time: Duration) {
        self.device.inc();
        self.wait.record(time.as_secs_f64() * 1000.0);
    }

    pub(super) fn fell_back(&self, reason: Fallback) {
        self.software.inc();
        self.fallbacks[reason as usize].inc();
        if reason == Fallback::Unverified {
            self.verify_failures.inc();
        }
    }

    pub(super) fn abandoned(&self) {
        self.abandoned.inc();
    }

    pub(super) fn poll_failed(&self) {
        self.poll_failures.inc();
    }
}
