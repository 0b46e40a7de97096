//! Active health checks. They run once in the process, on the main thread; workers read the result.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;
use heddle_config::snapshot::{Cluster, HealthCheck, HealthChecker, Snapshot, UpstreamTransport};
use heddle_telemetry::{Counter, Stats};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::connect::{self, ConnectOptions};
use crate::shared::{SharedCluster, SharedHost};

/// Most checks under way at once in the process, so that a push of thousands of hosts does not use up file descriptors.
pub(crate) const MAX_AT_ONCE: usize = 256;

/// Most bytes read while looking for the expected answer.
const MAX_ANSWER: usize = 64 * 1024;

/// Counters of one cluster's checks.
#[derive(Clone)]
pub(crate) struct HealthStats {
    pub(crate) attempt: Counter,
    pub(crate) success: Counter,
    pub(crate) failure: Counter,
    pub(crate) network_failure: Counter,
}

impl HealthStats {
    pub(crate) fn new(stats: &Stats, name: &str) -> Self {
        let labels = [("cluster_name", name)];
        Self {
            attempt: stats.counter("envoy_cluster_health_check_attempt", &labels),
            success: stats.counter("envoy_cluster_health_check_success", &labels),
            failure: stats.counter("envoy_cluster_health_check_failure", &labels),
            network_failure: stats.counter("envoy_cluster_health_check_network_failure", &labels),
        }
    }
}

/// What a check of one host needs.
pub(crate) struct Target {
    pub(crate) cluster: Arc<SharedCluster>,
    pub(crate) config: Arc<Cluster>,
    pub(crate) host: Arc<SharedHost>,
    pub(crate) transport: UpstreamTransport,
    pub(crate) snapshot: watch::Receiver<Arc<Snapshot>>,
    pub(crate) permits: Rc<Semaphore>,
    pub(crate) stats: HealthStats,
}

/// Counts results until they are enough to change a host's health.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    checked: bool,
    passes: u32,
    failures: u32,
}

impl Judge {
    /// The host's health after this result: some when it must change. `failed` is its state now.
    pub(crate) fn result(&mut self, check: &HealthCheck, passed: bool, failed: bool) -> Option<bool> {
        let first = !std::mem::replace(&mut self.checked, true);
        if passed {
            self.failures = 0;
            self.passes = self.passes.saturating_add(1);
            // The very first result is believed at once, so that a new host need not wait.
            (failed && (first || self.passes >= check.healthy_threshold)).then_some(true)
        } else {
            self.passes = 0;
            self.failures = self.failures.saturating_add(1);
            (!failed && (first || self.failures >= check.unhealthy_threshold)).then_some(false)
        }
    }
}

/// Checks one host for ever.
pub(crate) async fn run(target: Target, check: HealthCheck) {
    let mut judge = Judge::default();
    loop {
        let passed = {
            // Closed never: the semaphore lives as long as the supervisor.
            let _permit = target.permits.acquire().await;
            target.stats.attempt.inc();
            timeout(check.timeout, probe(&target, &check)).await
        };
        let passed = match passed {
            Ok(Ok(())) => {
                target.stats.success.inc();
                true
            }
            Ok(Err(ProbeError::Answer)) => {
                target.stats.failure.inc();
                false
            }
            Ok(Err(ProbeError::Network)) | Err(_) => {
                target.stats.failure.inc();
                target.stats.network_failure.inc();
                false
            }
        };
        let failed = target.host.failed_active_check.load(Ordering::Relaxed);
        if let Some(healthy) = judge.result(&check, passed, failed) {
            target.host.failed_active_check.store(!healthy, Ordering::Relaxed);
            target.cluster.changed();
        }
        sleep(check.interval).await;
    }
}

enum ProbeError {
    /// No connection, or it broke.
    Network,
    /// An answer, but not the expected one.
    Answer,
}

async fn probe(target: &Target, check: &HealthCheck) -> Result<(), ProbeError> {
    let HealthChecker::Tcp { send, receive } = &check.checker;
    let snapshot = Arc::clone(&target.snapshot.borrow());
    let address: SocketAddr = target.host.address;
    let opened = connect::open(
        address,
        &target.transport,
        &snapshot,
        &target.config,
        check.timeout,
        ConnectOptions::default(),
    )
    .await
    .map_err(|_| ProbeError::Network)?;
    if !send.is_empty() {
        opened.stream.write_all(send).await.map_err(|_| ProbeError::Network)?;
    }
    if receive.is_empty() {
        return Ok(());
    }
    let mut answer = BytesMut::new();
    while !contains_in_order(&answer, receive) {
        if answer.len() >= MAX_ANSWER {
            return Err(ProbeError::Answer);
        }
        match opened.stream.read(&mut answer).await {
            Ok(0) => return Err(ProbeError::Answer),
            Ok(_) => {}
            Err(_) => return Err(ProbeError::Network),
        }
    }
    Ok(())
}

/// Whether all `wanted` stand in `answer`, one behind the other, with anything between them.
pub(crate) fn contains_in_order(answer: &[u8], wanted: &[Vec<u8>]) -> bool {
    let mut rest = answer;
    wanted.iter().all(|piece| {
        if piece.is_empty() {
            return true;
        }
        let Some(at) = rest.windows(piece.len()).position(|w| w == &piece[..]) else {
            return false;
        };
        rest = &rest[at + piece.len()..];
        true
    })
}
