//! A cluster in one worker: its hosts, and which of them a request goes to.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use heddle_config::snapshot::{Cluster, Discovery, Endpoint, EndpointHealth, LocalityEndpoints, Snapshot};
use heddle_telemetry::{ResponseFlag, Stats};

use crate::balance::{Balancer, Group, Settings};
use crate::breaker::{Overflow, PendingGuard, RetryGuard};
use crate::host::{Host, HostConfig};
use crate::original_dst::{self, OriginalDst};
use crate::shared::{Resolved, SharedCluster, Upstreams};
use crate::stats::ClusterStats;

/// What hosts, guards and connections of a cluster need of it.
pub(crate) struct ClusterContext {
    pub(crate) shared: Arc<SharedCluster>,
    pub(crate) stats: ClusterStats,
    pub(crate) upstreams: Upstreams,
    /// Behind an `Rc`, so that reading it touches no counter that another core writes.
    config: RefCell<Rc<Arc<Cluster>>>,
    snapshot: Rc<RefCell<Rc<Arc<Snapshot>>>>,
}

impl ClusterContext {
    pub(crate) fn config(&self) -> Rc<Arc<Cluster>> {
        Rc::clone(&self.config.borrow())
    }

    pub(crate) fn snapshot(&self) -> Rc<Arc<Snapshot>> {
        Rc::clone(&self.snapshot.borrow())
    }
}

/// What is known about a request when its host is chosen.
#[derive(Clone, Copy, Debug, Default)]
pub struct PickContext<'a> {
    /// Address that the client dialled, for ORIGINAL_DST clusters.
    pub original_dst: Option<SocketAddr>,
    /// Hosts already tried (`retry_host_predicate: previous_hosts`). Another one is looked for `max_attempts` times.
    pub tried: &'a [SocketAddr],
    /// `host_selection_retry_max_attempts`; zero means one.
    pub max_attempts: u32,
}

/// Why there is no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// The cluster has no endpoints, or none of them is healthy.
    #[error("no healthy upstream")]
    NoHealthyHost,
    /// An ORIGINAL_DST cluster, but the connection was not redirected.
    #[error("no original destination address")]
    NoOriginalDst,
    /// An ORIGINAL_DST cluster whose table is full of hosts in use.
    #[error("too many original destinations in use")]
    TooManyHosts,
}

impl PickError {
    /// The response flag that stands for it.
    pub fn flag(self) -> ResponseFlag {
        match self {
            Self::NoHealthyHost | Self::NoOriginalDst => ResponseFlag::NoHealthyUpstream,
            Self::TooManyHosts => ResponseFlag::UpstreamOverflow,
        }
    }
}

struct State<P> {
    endpoints: Option<Arc<Vec<LocalityEndpoints>>>,
    hosts: HashMap<SocketAddr, Rc<Host<P>>>,
    balancer: Balancer<Rc<Host<P>>>,
    original: OriginalDst<P>,
    /// Revision of the shared state that the balancer was made from; zero when it must be made anew.
    revision: u64,
}

/// A cluster in force, in one worker. The same handle stays while the cluster exists, whatever changes in it.
pub struct ClusterHandle<P> {
    context: Rc<ClusterContext>,
    state: RefCell<State<P>>,
    /// Whether names may still have to be asked for the first time.
    unnamed: Cell<bool>,
    on_drain: fn(&Rc<Host<P>>),
    seed: u64,
}

impl<P> std::fmt::Debug for ClusterHandle<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClusterHandle({})", self.context.shared.name)
    }
}

impl<P: Default> ClusterHandle<P> {
    pub(crate) fn new(
        config: &Arc<Cluster>,
        snapshot: &Rc<RefCell<Rc<Arc<Snapshot>>>>,
        upstreams: &Upstreams,
        stats: &Stats,
        on_drain: fn(&Rc<Host<P>>),
        seed: u64,
    ) -> Self {
        let context = Rc::new(ClusterContext {
            shared: upstreams.cluster(&config.name),
            stats: ClusterStats::new(stats, &config.stat_name),
            upstreams: upstreams.clone(),
            config: RefCell::new(Rc::new(Arc::clone(config))),
            snapshot: Rc::clone(snapshot),
        });
        let settings = settings(config);
        let state = State {
            endpoints: None,
            hosts: HashMap::new(),
            balancer: Balancer::new(Vec::new(), settings, fastrand::Rng::with_seed(seed)),
            original: OriginalDst::new(original_dst::MAX_HOSTS),
            revision: 0,
        };
        Self {
            context,
            state: RefCell::new(state),
            unnamed: Cell::new(false),
            on_drain,
            seed,
        }
    }

    /// Takes over a changed configuration. Hosts stay, with pool and health, unless how they are connected to changed.
    pub(crate) fn update(&self, config: &Arc<Cluster>, endpoints: Option<&Arc<Vec<LocalityEndpoints>>>) {
        let mut state = self.state.borrow_mut();
        let old = self.context.config();
        let same_config = Arc::ptr_eq(&old, config);
        let same_endpoints = match (&state.endpoints, endpoints) {
            (None, None) => true,
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        if same_config && same_endpoints && state.revision != 0 {
            return;
        }
        if !same_config {
            *self.context.config.borrow_mut() = Rc::new(Arc::clone(config));
            if !pools_survive(&old, config) {
                for (_, host) in state.hosts.drain() {
                    self.drain_host(&host);
                }
                state.original.clear(&mut |host| self.drain_host(host));
            }
        }
        state.endpoints = endpoints.cloned();
        self.unnamed.set(config.discovery == Discovery::StrictDns);
        self.rebuild(&mut state);
    }

    /// Drains every host: the cluster is gone.
    pub(crate) fn close(&self) {
        let mut state = self.state.borrow_mut();
        for (_, host) in state.hosts.drain() {
            self.drain_host(&host);
        }
        state.original.clear(&mut |host| self.drain_host(host));
        state.endpoints = None;
        state.revision = 0;
        self.rebuild(&mut state);
        self.context.stats.remove();
    }

    /// Chooses the host for a request or connection.
    ///
    /// # Errors
    /// [`PickError`] says why there is none.
    pub fn pick(&self, wanted: &PickContext<'_>) -> Result<Rc<Host<P>>, PickError> {
        let mut state = self.state.borrow_mut();
        if self.context.config().discovery == Discovery::OriginalDst {
            return self.pick_original(&mut state, wanted);
        }
        if state.revision != self.context.shared.revision() {
            self.rebuild(&mut state);
        }
        let stats = &self.context.stats;
        let mut attempts = if wanted.tried.is_empty() {
            1
        } else {
            wanted.max_attempts.max(1) + 1
        };
        loop {
            attempts -= 1;
            let Some(picked) = state.balancer.pick() else {
                stats.upstream_cx_none_healthy.inc();
                return Err(PickError::NoHealthyHost);
            };
            if attempts > 0 && wanted.tried.contains(&picked.host.address()) {
                continue;
            }
            if picked.panic {
                stats.lb_healthy_panic.inc();
            }
            return Ok(picked.host);
        }
    }

    fn pick_original(&self, state: &mut State<P>, wanted: &PickContext<'_>) -> Result<Rc<Host<P>>, PickError> {
        let address = wanted.original_dst.ok_or(PickError::NoOriginalDst)?;
        let make = || {
            let endpoint = Endpoint {
                address,
                hostname: None,
                weight: 1,
                health: EndpointHealth::Healthy,
                transport_labels: Vec::new(),
                workload: None,
            };
            Host::new(
                address,
                &self.context,
                HostConfig {
                    endpoint,
                    locality: Arc::default(),
                    priority: 0,
                },
            )
        };
        state
            .original
            .get(address, make, |host| self.drain_host(host))
            .ok_or_else(|| {
                self.context.stats.original_dst_host_overflow.inc();
                PickError::TooManyHosts
            })
    }

    /// Forgets hosts of an ORIGINAL_DST cluster that are not used any more.
    pub(crate) fn maintain(&self) {
        let mut state = self.state.borrow_mut();
        state
            .original
            .sweep(tokio::time::Instant::now(), &mut |host| self.drain_host(host));
    }

    fn drain_host(&self, host: &Rc<Host<P>>) {
        host.start_draining();
        (self.on_drain)(host);
    }

    /// Makes hosts and balancer anew from endpoints, resolved names and health.
    fn rebuild(&self, state: &mut State<P>) {
        let config = self.context.config();
        // Read before the health, so that a change in between leads to another rebuild.
        state.revision = self.context.shared.revision();
        let resolved = self.context.shared.resolved();
        let mut old = std::mem::take(&mut state.hosts);
        let mut groups = Vec::new();
        let endpoints = state.endpoints.clone();
        for locality in endpoints.iter().flat_map(|list| list.iter()) {
            let place = Arc::new(locality.locality.clone());
            let mut hosts = Vec::new();
            for endpoint in &locality.endpoints {
                for address in addresses(&config, endpoint, &resolved) {
                    let host_config = HostConfig {
                        endpoint: endpoint.clone(),
                        locality: Arc::clone(&place),
                        priority: locality.priority,
                    };
                    let host = match state.hosts.get(&address) {
                        Some(host) => Rc::clone(host),
                        None => {
                            let kept = old.remove(&address).filter(|host| {
                                let stays = host.matches(&config, endpoint);
                                if !stays {
                                    self.drain_host(host);
                                }
                                stays
                            });
                            let host = match kept {
                                Some(host) => {
                                    host.configure(host_config);
                                    host
                                }
                                None => Rc::new(Host::new(address, &self.context, host_config)),
                            };
                            state.hosts.insert(address, Rc::clone(&host));
                            host
                        }
                    };
                    let health = host.health();
                    hosts.push((host, health));
                }
            }
            groups.push(Group {
                priority: locality.priority,
                weight: locality.weight,
                hosts,
            });
        }
        for host in old.values() {
            self.drain_host(host);
        }
        let rng = fastrand::Rng::with_seed(self.seed ^ state.revision);
        state.balancer = Balancer::new(groups, settings(&config), rng);
    }
}

impl<P> ClusterHandle<P> {
    /// Whether [`ClusterHandle::named`] has something to wait for.
    pub fn awaits_names(&self) -> bool {
        self.unnamed.get()
    }

    /// Waits until every name of a STRICT_DNS cluster has been asked for once, whatever came of it, for no longer than
    /// `connect_timeout`. A cluster that has just come would have no endpoints before that.
    pub async fn named(&self) {
        let mut asked = self.context.shared.asked();
        let waiting = async {
            loop {
                let resolved = self.context.shared.resolved();
                let all = names(self.state.borrow().endpoints.as_ref()).all(|name| resolved.contains_key(name));
                if all || asked.changed().await.is_err() {
                    return;
                }
            }
        };
        // Once is enough, also when it took too long: the next request must not wait as well.
        let _ = tokio::time::timeout(self.config().connect_timeout, waiting).await;
        self.unnamed.set(false);
    }

    /// The configuration in force.
    pub fn config(&self) -> Rc<Arc<Cluster>> {
        self.context.config()
    }

    /// Name.
    pub fn name(&self) -> &Arc<str> {
        &self.context.shared.name
    }

    /// Metrics of this cluster in this worker.
    pub fn stats(&self) -> &ClusterStats {
        &self.context.stats
    }

    /// Hosts of this cluster, in no order. ORIGINAL_DST hosts are not among them.
    pub fn hosts(&self) -> Vec<Rc<Host<P>>> {
        self.state.borrow().hosts.values().cloned().collect()
    }

    /// Takes a unit of `max_pending_requests`, for a request that waits for a connection.
    ///
    /// # Errors
    /// [`Overflow`] when the circuit breaker is open.
    pub fn begin_pending(&self) -> Result<PendingGuard, Overflow> {
        PendingGuard::take(&self.context)
    }

    /// Takes a unit of `max_retries`.
    ///
    /// # Errors
    /// [`Overflow`] when the circuit breaker is open.
    pub fn begin_retry(&self) -> Result<RetryGuard, Overflow> {
        RetryGuard::take(&self.context)
    }
}

fn settings(config: &Cluster) -> Settings {
    Settings {
        policy: config.lb_policy,
        panic_threshold: config.panic_threshold,
        locality_weighted: config.locality_weighted,
    }
}

/// Whether connections made under one configuration may be used under the other.
fn pools_survive(old: &Cluster, new: &Cluster) -> bool {
    // Transports are compared per host, since endpoint labels choose among them.
    old.http == new.http
        && old.bind_source == new.bind_source
        && old.keepalive == new.keepalive
        && old.http2 == new.http2
        && old.discovery == new.discovery
        && (new.discovery != Discovery::OriginalDst || old.transport == new.transport)
}

/// The host names among the endpoints of a STRICT_DNS cluster.
pub(crate) fn names(endpoints: Option<&Arc<Vec<LocalityEndpoints>>>) -> impl Iterator<Item = &Arc<str>> {
    let localities = endpoints.into_iter().flat_map(|list| list.iter());
    let endpoints = localities.flat_map(|locality| &locality.endpoints);
    // An endpoint that is an address needs no resolution; what it calls itself is for `host` headers.
    endpoints
        .filter(|endpoint| endpoint.address.ip().is_unspecified())
        .filter_map(|endpoint| endpoint.hostname.as_ref())
}

/// The addresses behind an endpoint: its own, or what its name resolves to.
pub(crate) fn addresses(config: &Cluster, endpoint: &Endpoint, resolved: &Resolved) -> Vec<SocketAddr> {
    match (&config.discovery, &endpoint.hostname) {
        (Discovery::StrictDns, Some(name)) if endpoint.address.ip().is_unspecified() => resolved
            .get(name)
            .into_iter()
            .flatten()
            .map(|ip| SocketAddr::new(*ip, endpoint.address.port()))
            .collect(),
        _ => vec![endpoint.address],
    }
}
