//! Outlier detection: hosts that fail several times in a row are left out for a while.
//!
//! Workers report outcomes and eject; the main thread's sweep lets hosts back in. All counting is in atomics shared by
//! the workers, and a success writes only when there was a failure before it, so that a healthy host's line stays
//! shared between the cores.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use heddle_config::snapshot::OutlierDetection;

use crate::shared::{SharedCluster, SharedHost};

/// How a request or connection attempt ended, for outlier detection and the host's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The upstream answered with this HTTP status (for gRPC: its status mapped to HTTP).
    Status(u16),
    /// A TCP connection was made and used (TCP proxy).
    Connected,
    /// Connecting failed: refused, unreachable, TLS handshake.
    ConnectFailed,
    /// Connecting took longer than `connect_timeout`.
    ConnectTimeout,
    /// The answer took longer than the request's or the try's timeout.
    RequestTimeout,
    /// The upstream reset the stream or closed the connection before an answer.
    Reset,
}

impl Outcome {
    /// Whether the fault showed on this side of the wire rather than in an answer.
    fn is_local_origin(self) -> bool {
        !matches!(self, Self::Status(_) | Self::Connected)
    }

    /// The status that stands for it when local faults are not counted apart.
    fn status(self) -> Option<u16> {
        match self {
            Self::Status(status) => Some(status),
            Self::Connected => Some(200),
            Self::ConnectFailed | Self::Reset => Some(503),
            Self::ConnectTimeout | Self::RequestTimeout => Some(504),
        }
    }
}

fn reset(counter: &AtomicU32) {
    if counter.load(Ordering::Relaxed) != 0 {
        counter.store(0, Ordering::Relaxed);
    }
}

/// Adds one; true when this made the count reach `threshold`.
fn strike(counter: &AtomicU32, threshold: u32) -> bool {
    threshold > 0 && counter.fetch_add(1, Ordering::Relaxed).saturating_add(1) >= threshold
}

/// Counts an outcome and ejects the host when it was one too many.
pub(crate) fn report(
    settings: &OutlierDetection,
    cluster: &SharedCluster,
    host: &SharedHost,
    outcome: Outcome,
    now_ms: u64,
) {
    let split = settings.consecutive_local_origin_failure > 0;
    let mut out = false;
    if split && outcome.is_local_origin() {
        out |= strike(&host.consecutive_local, settings.consecutive_local_origin_failure);
    } else {
        if split {
            reset(&host.consecutive_local);
        }
        match outcome.status() {
            Some(status) if status >= 500 => {
                if matches!(status, 502..=504) {
                    out |= strike(&host.consecutive_gateway, settings.consecutive_gateway_failure);
                } else {
                    reset(&host.consecutive_gateway);
                }
                out |= strike(&host.consecutive_5xx, settings.consecutive_5xx);
            }
            _ => {
                reset(&host.consecutive_5xx);
                reset(&host.consecutive_gateway);
            }
        }
    }
    if out {
        eject(settings, cluster, host, now_ms);
    }
}

fn eject(settings: &OutlierDetection, cluster: &SharedCluster, host: &SharedHost, now_ms: u64) {
    reset(&host.consecutive_5xx);
    reset(&host.consecutive_gateway);
    reset(&host.consecutive_local);
    let members = cluster.members.load(Ordering::Relaxed).max(1);
    let ejected = cluster.ejected.fetch_add(1, Ordering::Relaxed);
    // As Envoy: over all priorities together, and the host at hand counts.
    let share = (u64::from(ejected) + 1) * 100;
    let first = settings.always_eject_one && ejected == 0;
    if !first && share > u64::from(settings.max_ejection_percent) * u64::from(members) {
        cluster.ejected.fetch_sub(1, Ordering::Relaxed);
        cluster.ejections_overflow.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if host
        .ejected_at
        .compare_exchange(0, now_ms, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        cluster.ejected.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    host.ejections.fetch_add(1, Ordering::Relaxed);
    cluster.ejections_total.fetch_add(1, Ordering::Relaxed);
    cluster.changed();
}

/// Lets hosts back in whose time is over, and shortens the next ejection of those that behaved. Run every `interval`.
pub(crate) fn sweep(settings: &OutlierDetection, cluster: &SharedCluster, now_ms: u64) {
    let mut changed = false;
    for host in cluster.hosts() {
        let at = host.ejected_at.load(Ordering::Acquire);
        let times = host.ejections.load(Ordering::Relaxed);
        if at == 0 {
            // One writer at a time is enough: an ejection in between only makes the next one as long as this one.
            if times > 0 {
                host.ejections.store(times - 1, Ordering::Relaxed);
            }
            continue;
        }
        let lasts = settings
            .base_ejection_time
            .saturating_mul(times.max(1))
            .min(longest(settings));
        if now_ms.saturating_sub(at) >= u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX) {
            readmit(cluster, &host);
            changed = true;
        }
    }
    if changed {
        cluster.changed();
    }
}

/// Lets every host back in: outlier detection was turned off.
pub(crate) fn clear(cluster: &SharedCluster) {
    for host in cluster.hosts() {
        host.ejections.store(0, Ordering::Relaxed);
        if host.is_ejected() {
            readmit(cluster, &host);
            cluster.changed();
        }
    }
}

fn readmit(cluster: &SharedCluster, host: &SharedHost) {
    if host.ejected_at.swap(0, Ordering::AcqRel) != 0 {
        cluster.ejected.fetch_sub(1, Ordering::Relaxed);
    }
    reset(&host.consecutive_5xx);
    reset(&host.consecutive_gateway);
    reset(&host.consecutive_local);
}

/// `max_ejection_time`, but never below the base time (as Envoy).
fn longest(settings: &OutlierDetection) -> Duration {
    settings.max_ejection_time.max(settings.base_ejection_time)
}
