//! What all workers share of a cluster: limits, health, resolved names. Read on the request path without locks.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use heddle_config::snapshot::{CircuitBreakers, EndpointHealth, Locality, OutlierDetection};
use heddle_telemetry::{Counter, Gauge};
use tokio::sync::watch;
use tokio::time::Instant;

/// Most hosts of one cluster whose state is kept. Beyond it a host is used without health state.
pub(crate) const MAX_HOSTS: usize = 16 * 1024;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here is left half changed by a panic: every critical section is one insert or one swap.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of all clusters that the workers and the main thread share. Cloning shares it.
#[derive(Clone)]
pub struct Upstreams(Arc<Inner>);

struct Inner {
    /// Times in shared atomics are milliseconds since this.
    epoch: Instant,
    clusters: Mutex<HashMap<Arc<str>, Arc<SharedCluster>>>,
}

impl Default for Upstreams {
    fn default() -> Self {
        Self::new()
    }
}

impl Upstreams {
    /// Empty state. One per process.
    pub fn new() -> Self {
        Self(Arc::new(Inner {
            epoch: Instant::now(),
            clusters: Mutex::default(),
        }))
    }

    /// Milliseconds since this was made. Never zero, which stands for "never".
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.0.epoch.elapsed().as_millis())
            .unwrap_or(u64::MAX)
            .saturating_add(1)
    }

    /// The shared state of a cluster, made at first use.
    pub(crate) fn cluster(&self, name: &Arc<str>) -> Arc<SharedCluster> {
        let mut clusters = lock(&self.0.clusters);
        Arc::clone(
            clusters
                .entry(Arc::clone(name))
                .or_insert_with(|| Arc::new(SharedCluster::new(name))),
        )
    }

    /// Forgets clusters that are gone from the configuration and from all workers. A worker may be ahead of the
    /// supervisor, so one that it holds already must stay the one that is checked.
    pub(crate) fn retain(&self, keep: impl Fn(&str) -> bool) {
        lock(&self.0.clusters).retain(|name, cluster| keep(name) || Arc::strong_count(cluster) > 1);
    }

    /// Every cluster with its hosts, by name, for the admin interface.
    pub fn status(&self) -> Vec<ClusterStatus> {
        let clusters: Vec<_> = lock(&self.0.clusters).values().cloned().collect();
        let mut all: Vec<_> = clusters.iter().map(|c| c.status()).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}

/// A cluster as `/clusters` shows it.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    /// Name.
    pub name: Arc<str>,
    /// `alt_stat_name`, or the name.
    pub stat_name: Arc<str>,
    /// Limits.
    pub circuit_breakers: CircuitBreakers,
    /// Outlier detection, when it is on.
    pub outlier_detection: Option<OutlierDetection>,
    /// Endpoints, by address.
    pub hosts: Vec<HostStatus>,
}

/// A host as `/clusters` shows it. Counters are sums over all workers.
#[derive(Clone, Debug)]
pub struct HostStatus {
    /// Address.
    pub address: SocketAddr,
    /// `hostname`.
    pub hostname: Option<Arc<str>>,
    /// Locality.
    pub locality: Locality,
    /// Priority.
    pub priority: u32,
    /// `load_balancing_weight`.
    pub weight: u32,
    /// Health from configuration.
    pub config_health: EndpointHealth,
    /// Whether active health checks failed.
    pub failed_active_check: bool,
    /// Whether outlier detection has ejected it.
    pub ejected: bool,
    /// `cx_active`.
    pub cx_active: u64,
    /// `cx_total`.
    pub cx_total: u64,
    /// `cx_connect_fail`.
    pub cx_connect_fail: u64,
    /// `rq_active`.
    pub rq_active: u64,
    /// `rq_total`.
    pub rq_total: u64,
    /// `rq_success`: answers below 500.
    pub rq_success: u64,
    /// `rq_error`: answers of 500 and above, and failures.
    pub rq_error: u64,
    /// `rq_timeout`.
    pub rq_timeout: u64,
}

impl HostStatus {
    /// Envoy's `health_flags`: `healthy`, or the reasons why not, each after a slash.
    pub fn health_flags(&self) -> String {
        let mut flags = String::new();
        if self.failed_active_check {
            flags.push_str("/failed_active_hc");
        }
        if self.ejected {
            flags.push_str("/failed_outlier_check");
        }
        match self.config_health {
            EndpointHealth::Healthy => {}
            EndpointHealth::Degraded => flags.push_str("/degraded_eds_health"),
            EndpointHealth::Unhealthy => flags.push_str("/failed_eds_health"),
            EndpointHealth::Draining => flags.push_str("/eds_status_draining"),
        }
        if flags.is_empty() { "healthy".to_owned() } else { flags }
    }
}

/// One worker's counters of one host.
#[derive(Debug, Default)]
pub(crate) struct HostCounters {
    pub(crate) cx_total: Counter,
    pub(crate) cx_active: Gauge,
    pub(crate) cx_connect_fail: Counter,
    pub(crate) rq_total: Counter,
    pub(crate) rq_active: Gauge,
    pub(crate) rq_success: Counter,
    pub(crate) rq_error: Counter,
    pub(crate) rq_timeout: Counter,
}

/// Configuration facts of a host, for display.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostFacts {
    pub(crate) hostname: Option<Arc<str>>,
    pub(crate) locality: Locality,
    pub(crate) priority: u32,
    pub(crate) weight: u32,
    pub(crate) health: EndpointHealth,
}

/// Health of one host, shared by all workers.
#[derive(Debug)]
pub(crate) struct SharedHost {
    pub(crate) address: SocketAddr,
    /// Set by the health checker. A host that is to be checked begins as failed.
    pub(crate) failed_active_check: AtomicBool,
    /// When it was ejected, in milliseconds of [`Upstreams::now_ms`]; zero when it is not.
    pub(crate) ejected_at: AtomicU64,
    /// How long the next ejection lasts, in multiples of the base time.
    pub(crate) ejections: AtomicU32,
    pub(crate) consecutive_5xx: AtomicU32,
    pub(crate) consecutive_gateway: AtomicU32,
    pub(crate) consecutive_local: AtomicU32,
    facts: Mutex<HostFacts>,
    counters: Mutex<Vec<Weak<HostCounters>>>,
}

impl SharedHost {
    fn new(address: SocketAddr) -> Self {
        Self {
            address,
            failed_active_check: AtomicBool::new(false),
            ejected_at: AtomicU64::new(0),
            ejections: AtomicU32::new(0),
            consecutive_5xx: AtomicU32::new(0),
            consecutive_gateway: AtomicU32::new(0),
            consecutive_local: AtomicU32::new(0),
            facts: Mutex::default(),
            counters: Mutex::default(),
        }
    }

    /// Whether neither an active check nor outlier detection keeps it out.
    pub(crate) fn usable(&self) -> bool {
        !self.failed_active_check.load(Ordering::Relaxed) && self.ejected_at.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn is_ejected(&self) -> bool {
        self.ejected_at.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn set_facts(&self, facts: HostFacts) {
        *lock(&self.facts) = facts;
    }

    /// Registers a worker's counters; they are forgotten with the worker's host.
    pub(crate) fn count_with(&self, counters: &Arc<HostCounters>) {
        let mut all = lock(&self.counters);
        all.retain(|c| c.strong_count() > 0);
        all.push(Arc::downgrade(counters));
    }

    fn in_use(&self) -> bool {
        lock(&self.counters).iter().any(|c| c.strong_count() > 0)
    }

    fn status(&self) -> HostStatus {
        let counters: Vec<_> = lock(&self.counters).iter().filter_map(Weak::upgrade).collect();
        let facts = lock(&self.facts).clone();
        let sum = |of: fn(&HostCounters) -> &Counter| counters.iter().map(|c| of(c).get()).sum();
        let now = |of: fn(&HostCounters) -> &Gauge| {
            u64::try_from(counters.iter().map(|c| of(c).get()).sum::<i64>()).unwrap_or(0)
        };
        HostStatus {
            address: self.address,
            hostname: facts.hostname,
            locality: facts.locality,
            priority: facts.priority,
            weight: facts.weight,
            config_health: facts.health,
            failed_active_check: self.failed_active_check.load(Ordering::Relaxed),
            ejected: self.is_ejected(),
            cx_active: now(|c| &c.cx_active),
            cx_total: sum(|c| &c.cx_total),
            cx_connect_fail: sum(|c| &c.cx_connect_fail),
            rq_active: now(|c| &c.rq_active),
            rq_total: sum(|c| &c.rq_total),
            rq_success: sum(|c| &c.rq_success),
            rq_error: sum(|c| &c.rq_error),
            rq_timeout: sum(|c| &c.rq_timeout),
        }
    }
}

/// What is in use of a cluster, over all workers.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) connections: AtomicU32,
    pub(crate) pending: AtomicU32,
    pub(crate) requests: AtomicU32,
    pub(crate) retries: AtomicU32,
}

/// Addresses by host name, for STRICT_DNS.
pub(crate) type Resolved = HashMap<Arc<str>, Vec<IpAddr>>;

#[derive(Debug)]
struct Shown {
    stat_name: Arc<str>,
    circuit_breakers: CircuitBreakers,
    outlier_detection: Option<OutlierDetection>,
}

/// The state of one cluster.
#[derive(Debug)]
pub(crate) struct SharedCluster {
    pub(crate) name: Arc<str>,
    pub(crate) usage: Usage,
    /// Grows whenever health, ejection or addresses change: workers rebuild their lists when they see it.
    revision: AtomicU64,
    /// Hosts ejected now.
    pub(crate) ejected: AtomicU32,
    /// Ejections since the start.
    pub(crate) ejections_total: AtomicU64,
    /// Ejections that `max_ejection_percent` prevented.
    pub(crate) ejections_overflow: AtomicU64,
    /// Hosts in the configuration.
    pub(crate) members: AtomicU32,
    hosts: Mutex<HashMap<SocketAddr, Arc<SharedHost>>>,
    resolved: Mutex<Arc<Resolved>>,
    /// Told whenever a name has been asked for.
    asked: watch::Sender<()>,
    shown: Mutex<Shown>,
}

impl SharedCluster {
    fn new(name: &Arc<str>) -> Self {
        Self {
            name: Arc::clone(name),
            usage: Usage::default(),
            revision: AtomicU64::new(1),
            ejected: AtomicU32::new(0),
            ejections_total: AtomicU64::new(0),
            ejections_overflow: AtomicU64::new(0),
            members: AtomicU32::new(0),
            hosts: Mutex::default(),
            resolved: Mutex::default(),
            asked: watch::Sender::new(()),
            shown: Mutex::new(Shown {
                stat_name: Arc::clone(name),
                circuit_breakers: CircuitBreakers {
                    max_connections: 1024,
                    max_pending_requests: 1024,
                    max_requests: 1024,
                    max_retries: 3,
                },
                outlier_detection: None,
            }),
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Tells the workers that something changed.
    pub(crate) fn changed(&self) {
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// Keeps what the admin interface shows of the configuration.
    pub(crate) fn show(&self, config: &heddle_config::snapshot::Cluster) {
        *lock(&self.shown) = Shown {
            stat_name: Arc::clone(&config.stat_name),
            circuit_breakers: config.circuit_breakers,
            outlier_detection: config.outlier_detection,
        };
    }

    /// The shared state of a host, made at first use. `checked`: an active health check must pass before it counts as
    /// healthy.
    pub(crate) fn host(&self, address: SocketAddr, checked: bool) -> Arc<SharedHost> {
        let mut hosts = lock(&self.hosts);
        if let Some(host) = hosts.get(&address) {
            return Arc::clone(host);
        }
        let host = Arc::new(SharedHost::new(address));
        host.failed_active_check.store(checked, Ordering::Relaxed);
        if hosts.len() < MAX_HOSTS {
            hosts.insert(address, Arc::clone(&host));
        }
        host
    }

    /// Hosts whose state is kept.
    pub(crate) fn hosts(&self) -> Vec<Arc<SharedHost>> {
        lock(&self.hosts).values().cloned().collect()
    }

    /// Forgets hosts that are neither wanted nor used by any worker.
    pub(crate) fn retain_hosts(&self, keep: impl Fn(&SocketAddr) -> bool) {
        lock(&self.hosts).retain(|address, host| {
            let stays = keep(address) || host.in_use();
            if !stays && host.is_ejected() {
                self.ejected.fetch_sub(1, Ordering::Relaxed);
            }
            stays
        });
    }

    pub(crate) fn resolved(&self) -> Arc<Resolved> {
        Arc::clone(&lock(&self.resolved))
    }

    /// Puts a name's addresses into force.
    pub(crate) fn set_resolved(&self, name: &Arc<str>, addresses: Vec<IpAddr>) {
        let mut resolved = lock(&self.resolved);
        if resolved.get(name) != Some(&addresses) {
            Arc::make_mut(&mut resolved).insert(Arc::clone(name), addresses);
            drop(resolved);
            self.changed();
        }
        self.asked.send_replace(());
    }

    /// A name could not be resolved: what was known of it stays, and when that is nothing, it is not waited for any more.
    pub(crate) fn set_unresolved(&self, name: &Arc<str>) {
        let mut resolved = lock(&self.resolved);
        if !resolved.contains_key(name) {
            Arc::make_mut(&mut resolved).insert(Arc::clone(name), Vec::new());
        }
        drop(resolved);
        self.asked.send_replace(());
    }

    /// Forgets the addresses of other names.
    pub(crate) fn retain_names(&self, keep: impl Fn(&str) -> bool) {
        let mut resolved = lock(&self.resolved);
        if resolved.keys().any(|name| !keep(name)) {
            Arc::make_mut(&mut resolved).retain(|name, _| keep(name));
        }
    }

    /// Wakes whenever a name has been asked for.
    pub(crate) fn asked(&self) -> watch::Receiver<()> {
        self.asked.subscribe()
    }

    fn status(&self) -> ClusterStatus {
        let mut hosts: Vec<_> = self.hosts().iter().map(|h| h.status()).collect();
        hosts.sort_by_key(|h| (h.priority, h.address));
        let shown = lock(&self.shown);
        ClusterStatus {
            name: Arc::clone(&self.name),
            stat_name: Arc::clone(&shown.stat_name),
            circuit_breakers: shown.circuit_breakers,
            outlier_detection: shown.outlier_detection,
            hosts,
        }
    }
}
