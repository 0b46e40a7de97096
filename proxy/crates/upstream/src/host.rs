//! One endpoint of a cluster, in one worker.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use heddle_config::snapshot::{Cluster, Endpoint, EndpointHealth, Locality, UpstreamTransport};
use tokio::time::Instant;

use crate::balance::{Balanced, Health};
use crate::breaker::{Overflow, RequestGuard};
use crate::cluster::ClusterContext;
use crate::outlier::{self, Outcome};
use crate::shared::{HostCounters, HostFacts, SharedHost};

/// What configuration says of an endpoint, apart from its address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HostConfig {
    pub(crate) endpoint: Endpoint,
    pub(crate) locality: Arc<Locality>,
    pub(crate) priority: u32,
}

/// An endpoint with its pool `P` of connections, which belongs to whoever speaks the protocol.
///
/// A host lives as long as its address and transport stay in the configuration; its pool stays with it.
pub struct Host<P> {
    address: SocketAddr,
    /// Connections kept for reuse.
    pub pool: P,
    pub(crate) context: Rc<ClusterContext>,
    pub(crate) counters: Arc<HostCounters>,
    pub(crate) transport: UpstreamTransport,
    shared: Arc<SharedHost>,
    active: Rc<Cell<u32>>,
    config: RefCell<Rc<HostConfig>>,
    draining: Cell<bool>,
    last_used: Cell<Instant>,
}

impl<P> std::fmt::Debug for Host<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({} of {})", self.address, self.context.shared.name)
    }
}

/// The transport that the endpoint's labels choose.
pub(crate) fn transport_for<'c>(cluster: &'c Cluster, labels: &[(String, String)]) -> &'c UpstreamTransport {
    cluster
        .transport_matches
        .iter()
        .find(|m| m.labels.iter().all(|wanted| labels.contains(wanted)))
        .map_or(&cluster.transport, |m| &m.transport)
}

impl<P: Default> Host<P> {
    pub(crate) fn new(address: SocketAddr, context: &Rc<ClusterContext>, config: HostConfig) -> Self {
        let cluster = context.config();
        let shared = context.shared.host(address, !cluster.health_checks.is_empty());
        let counters = Arc::<HostCounters>::default();
        shared.count_with(&counters);
        let transport = transport_for(&cluster, &config.endpoint.transport_labels).clone();
        let host = Self {
            address,
            pool: P::default(),
            context: Rc::clone(context),
            counters,
            transport,
            shared,
            active: Rc::default(),
            config: RefCell::new(Rc::new(config)),
            draining: Cell::new(false),
            last_used: Cell::new(Instant::now()),
        };
        host.show();
        host
    }
}

impl<P> Host<P> {
    /// Address that is connected to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `hostname` of the endpoint, for `auto_host_rewrite` and `auto_sni`.
    pub fn hostname(&self) -> Option<Arc<str>> {
        self.config.borrow().endpoint.hostname.clone()
    }

    /// Istio's `workload` metadata: `name;namespace;canonical name;canonical revision;cluster`.
    pub fn workload(&self) -> Option<Arc<str>> {
        self.config.borrow().endpoint.workload.clone()
    }

    /// Where the endpoint is.
    pub fn locality(&self) -> Arc<Locality> {
        Arc::clone(&self.config.borrow().locality)
    }

    /// Whether connections to it are TLS.
    pub fn is_tls(&self) -> bool {
        matches!(self.transport, UpstreamTransport::Tls(_))
    }

    /// Whether it left the configuration: connections finish what they carry and are not kept.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Requests (TCP: connections) that this worker has under way on it.
    pub fn active(&self) -> u32 {
        self.active.get()
    }

    /// Begins a request (TCP: a connection) on this host `now`: counts it and takes a unit of `max_requests`.
    ///
    /// # Errors
    /// [`Overflow`] when the circuit breaker is open.
    pub fn begin_request(&self, now: Instant) -> Result<RequestGuard, Overflow> {
        self.last_used.set(now);
        RequestGuard::take(&self.context, &self.counters, &self.active)
    }

    /// Tells how a request ended. [`Host::connect`] reports its own failures; report what comes after it. A request
    /// that only the client ended is not reported.
    pub fn report(&self, outcome: Outcome) {
        let counters = &self.counters;
        match outcome {
            Outcome::Status(status) if status < 500 => counters.rq_success.inc(),
            Outcome::Connected => counters.rq_success.inc(),
            Outcome::Status(_) | Outcome::Reset => counters.rq_error.inc(),
            Outcome::RequestTimeout => {
                counters.rq_timeout.inc();
                counters.rq_error.inc();
            }
            Outcome::ConnectFailed | Outcome::ConnectTimeout => counters.cx_connect_fail.inc(),
        }
        let cluster = self.context.config();
        if let Some(settings) = &cluster.outlier_detection {
            outlier::report(
                settings,
                &self.context.shared,
                &self.shared,
                outcome,
                self.context.upstreams.now_ms(),
            );
        }
    }

    pub(crate) fn matches(&self, cluster: &Cluster, endpoint: &Endpoint) -> bool {
        self.transport == *transport_for(cluster, &endpoint.transport_labels)
    }

    pub(crate) fn configure(&self, config: HostConfig) {
        if **self.config.borrow() == config {
            return;
        }
        *self.config.borrow_mut() = Rc::new(config);
        self.show();
    }

    pub(crate) fn start_draining(&self) {
        self.draining.set(true);
    }

    /// Whether nothing uses it and nothing has for `idle`.
    pub(crate) fn is_idle(&self, now: Instant, idle: std::time::Duration) -> bool {
        self.active.get() == 0
            && self.counters.cx_active.get() <= 0
            && now.saturating_duration_since(self.last_used.get()) >= idle
    }

    pub(crate) fn last_used(&self) -> Instant {
        self.last_used.get()
    }

    pub(crate) fn touch(&self) {
        self.last_used.set(Instant::now());
    }

    pub(crate) fn health(&self) -> Health {
        match self.config.borrow().endpoint.health {
            EndpointHealth::Draining => Health::Excluded,
            _ if !self.shared.usable() => Health::Unhealthy,
            EndpointHealth::Healthy => Health::Healthy,
            EndpointHealth::Degraded => Health::Degraded,
            EndpointHealth::Unhealthy => Health::Unhealthy,
        }
    }

    fn show(&self) {
        let config = self.config.borrow();
        self.shared.set_facts(HostFacts {
            hostname: config.endpoint.hostname.clone(),
            locality: (*config.locality).clone(),
            priority: config.priority,
            weight: config.endpoint.weight,
            health: config.endpoint.health,
        });
    }
}

impl<P> Balanced for Rc<Host<P>> {
    fn weight(&self) -> u32 {
        self.config.borrow().endpoint.weight
    }

    fn active(&self) -> u32 {
        self.active.get()
    }
}
