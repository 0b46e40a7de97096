//! What runs once per process for all workers: health checks, name resolution, the end of ejections, membership.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use heddle_config::snapshot::{Cluster, Discovery, EndpointHealth, LocalityEndpoints, Snapshot, UpstreamTransport};
use heddle_telemetry::{Counter, Gauge, Owner, Stats};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep};

use crate::cluster::{addresses, names};
use crate::dns::{self, Names, Resolve, Resolver};
use crate::health::{self, HealthStats, Target};
use crate::host::transport_for;
use crate::outlier;
use crate::shared::{SharedCluster, Upstreams};

/// How often membership is looked at: new addresses get checks, gauges follow.
const TICK: Duration = Duration::from_secs(1);

/// A task that ends with its handle.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Watched {
    config: Arc<Cluster>,
    endpoints: Option<Arc<Vec<LocalityEndpoints>>>,
    shared: Arc<SharedCluster>,
    /// Revision that checks and gauges were made from.
    revision: u64,
    checks: HashMap<(SocketAddr, usize), (UpstreamTransport, Task)>,
    sweep: Option<Task>,
    names: Names,
    gauges: Gauges,
    health_stats: HealthStats,
}

struct Gauges {
    total: Gauge,
    healthy: Gauge,
    degraded: Gauge,
    ejected: Gauge,
    ejections: Counter,
    overflow: Counter,
}

impl Gauges {
    fn new(stats: &Stats, name: &str) -> Self {
        let labels = [("cluster_name", name)];
        Self {
            total: stats.gauge("envoy_cluster_membership_total", &labels),
            healthy: stats.gauge("envoy_cluster_membership_healthy", &labels),
            degraded: stats.gauge("envoy_cluster_membership_degraded", &labels),
            ejected: stats.gauge("envoy_cluster_outlier_detection_ejections_active", &labels),
            ejections: stats.counter("envoy_cluster_outlier_detection_ejections_enforced_total", &labels),
            overflow: stats.counter("envoy_cluster_outlier_detection_ejections_overflow", &labels),
        }
    }
}

/// Runs on the main thread. [`Supervisor::run`] follows the snapshots until their sender is gone.
pub struct Supervisor {
    upstreams: Upstreams,
    stats: Stats,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    clusters: HashMap<Arc<str>, Watched>,
    permits: Rc<Semaphore>,
    resolver: Resolver,
}

impl Supervisor {
    /// A supervisor of the clusters in `snapshots`. `stats` belongs to the thread that runs it.
    pub fn new(upstreams: Upstreams, stats: Stats, snapshots: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self::with_resolver(upstreams, stats, snapshots, dns::system())
    }

    pub(crate) fn with_resolver(
        upstreams: Upstreams,
        stats: Stats,
        snapshots: watch::Receiver<Arc<Snapshot>>,
        resolve: Resolve,
    ) -> Self {
        Self {
            upstreams,
            stats,
            snapshots,
            clusters: HashMap::new(),
            permits: Rc::new(Semaphore::new(health::MAX_AT_ONCE)),
            resolver: Resolver {
                resolve,
                permits: Rc::new(Semaphore::new(dns::MAX_AT_ONCE)),
            },
        }
    }

    /// Follows the snapshots. Returns when their sender is dropped. Brings its own `LocalSet`, so it may be awaited
    /// from any current-thread runtime.
    pub async fn run(mut self) {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async move {
                let mut tick = interval(TICK);
                tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
                let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
                self.follow(&snapshot);
                loop {
                    tokio::select! {
                        changed = self.snapshots.changed() => {
                            if changed.is_err() {
                                return;
                            }
                            let snapshot = Arc::clone(&self.snapshots.borrow_and_update());
                            self.follow(&snapshot);
                        }
                        _ = tick.tick() => {}
                    }
                    self.refresh();
                }
            })
            .await;
    }

    fn follow(&mut self, snapshot: &Arc<Snapshot>) {
        let stats = &self.stats;
        self.clusters.retain(|name, watched| {
            let stays = snapshot.clusters.contains_key(name);
            if !stays {
                stats.remove(Owner::Cluster, &watched.config.stat_name);
            }
            stays
        });
        for (name, config) in &snapshot.clusters {
            let endpoints = snapshot.endpoints.get(name);
            match self.clusters.get_mut(name) {
                Some(watched) => {
                    let same_endpoints = match (&watched.endpoints, endpoints) {
                        (None, None) => true,
                        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                        _ => false,
                    };
                    let same_config = Arc::ptr_eq(&watched.config, config);
                    if same_config && same_endpoints {
                        continue;
                    }
                    watched.config = Arc::clone(config);
                    watched.endpoints = endpoints.cloned();
                    watched.revision = 0;
                    if !same_config {
                        watched.checks.clear();
                        watched.start_sweep(&self.upstreams);
                    }
                    watched.follow_names(&self.stats, &self.resolver);
                }
                None => {
                    let shared = self.upstreams.cluster(name);
                    let mut watched = Watched {
                        config: Arc::clone(config),
                        endpoints: endpoints.cloned(),
                        shared,
                        revision: 0,
                        checks: HashMap::new(),
                        sweep: None,
                        names: Names::default(),
                        gauges: Gauges::new(&self.stats, &config.stat_name),
                        health_stats: HealthStats::new(&self.stats, &config.stat_name),
                    };
                    watched.start_sweep(&self.upstreams);
                    watched.follow_names(&self.stats, &self.resolver);
                    self.clusters.insert(Arc::clone(name), watched);
                }
            }
        }
    }

    /// Brings checks and gauges up to date with addresses and health.
    fn refresh(&mut self) {
        let clusters = &self.clusters;
        self.upstreams.retain(|name| clusters.contains_key(name));
        for watched in self.clusters.values_mut() {
            let revision = watched.shared.revision();
            if watched.config.discovery == Discovery::OriginalDst {
                watched.shared.retain_hosts(|_| false);
            }
            if watched.revision == revision {
                continue;
            }
            watched.revision = revision;
            watched.refresh(&self.snapshots, &self.permits);
        }
    }
}

impl Watched {
    fn start_sweep(&mut self, upstreams: &Upstreams) {
        self.shared.show(&self.config);
        self.sweep = None;
        match self.config.outlier_detection {
            None => outlier::clear(&self.shared),
            Some(settings) => {
                let (shared, upstreams) = (Arc::clone(&self.shared), upstreams.clone());
                self.sweep = Some(Task(tokio::task::spawn_local(async move {
                    loop {
                        sleep(settings.interval).await;
                        outlier::sweep(&settings, &shared, upstreams.now_ms());
                    }
                })));
            }
        }
    }

    fn follow_names(&mut self, stats: &Stats, resolver: &Resolver) {
        let names: HashSet<_> = match self.config.discovery {
            Discovery::StrictDns => names(self.endpoints.as_ref()).cloned().collect(),
            _ => HashSet::new(),
        };
        let stats = (stats, &*self.config.stat_name);
        self.names.follow(&self.shared, self.config.dns, names, resolver, stats);
    }

    fn refresh(&mut self, snapshots: &watch::Receiver<Arc<Snapshot>>, permits: &Rc<Semaphore>) {
        let resolved = self.shared.resolved();
        let checked = !self.config.health_checks.is_empty();
        let mut wanted = HashMap::new();
        for endpoint in self
            .endpoints
            .iter()
            .flat_map(|list| list.iter())
            .flat_map(|l| &l.endpoints)
        {
            for address in addresses(&self.config, endpoint, &resolved) {
                wanted.entry(address).or_insert(endpoint);
            }
        }
        let (mut healthy, mut degraded) = (0, 0);
        for (address, endpoint) in &wanted {
            let host = self.shared.host(*address, checked);
            if !checked && host.failed_active_check.swap(false, Ordering::Relaxed) {
                self.shared.changed();
            }
            if host.usable() {
                match endpoint.health {
                    EndpointHealth::Healthy => healthy += 1,
                    EndpointHealth::Degraded => degraded += 1,
                    EndpointHealth::Unhealthy | EndpointHealth::Draining => {}
                }
            }
            for (index, check) in self.config.health_checks.iter().enumerate() {
                let transport = transport_for(&self.config, &endpoint.transport_labels);
                if self
                    .checks
                    .get(&(*address, index))
                    .is_some_and(|(running, _)| running == transport)
                {
                    continue;
                }
                let target = Target {
                    cluster: Arc::clone(&self.shared),
                    config: Arc::clone(&self.config),
                    host: Arc::clone(&host),
                    transport: transport.clone(),
                    snapshot: snapshots.clone(),
                    permits: Rc::clone(permits),
                    stats: self.health_stats.clone(),
                };
                let task = Task(tokio::task::spawn_local(health::run(target, check.clone())));
                self.checks.insert((*address, index), (transport.clone(), task));
            }
        }
        self.checks.retain(|(address, _), _| wanted.contains_key(address));
        self.shared.retain_hosts(|address| wanted.contains_key(address));
        if self.shared.hosts().len() > wanted.len() {
            // A worker still uses a host that left: look again at the next tick.
            self.revision = 0;
        }
        self.shared
            .members
            .store(u32::try_from(wanted.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.gauges.total.set(i64::try_from(wanted.len()).unwrap_or(i64::MAX));
        self.gauges.healthy.set(healthy);
        self.gauges.degraded.set(degraded);
        self.gauges
            .ejected
            .set(i64::from(self.shared.ejected.load(Ordering::Relaxed)));
        let catch_up = |counter: &Counter, total: u64| counter.add(total.saturating_sub(counter.get()));
        catch_up(
            &self.gauges.ejections,
            self.shared.ejections_total.load(Ordering::Relaxed),
        );
        catch_up(
            &self.gauges.overflow,
            self.shared.ejections_overflow.load(Ordering::Relaxed),
        );
    }
}

#[cfg(test)]
mod tests;
