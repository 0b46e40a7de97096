//! A listener of the snapshot, made ready to serve on one worker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use heddle_config::snapshot::{ConnectionBalance, Digest, FilterChain, Listener, NetworkFilter, TrafficDirection};
use heddle_http::{AccessLogs, Drain, DrainStage, DrainTrigger, HcmRuntime, NetworkExtAuthz};
use heddle_net::{ConnectionInfo, PeerIdentity};
use heddle_telemetry::Counter;
use heddle_telemetry::istio::{Reporter, TcpMetrics};

use crate::chains::{ChainIndex, Chosen};
use crate::exchange::{Occupancy, Placement, Taking};
use crate::params::{Open, Scope};
use crate::rbac::RbacRuntime;
use crate::state::WorkerState;
use crate::stats::{HandOverStats, ListenerStats, ListenerWorkerStats};
use crate::tcp_proxy::TcpProxyRuntime;

/// A listener in force, or one that drains.
pub(crate) struct ListenerRuntime {
    pub(crate) config: Arc<Listener>,
    pub(crate) stats: ListenerStats,
    /// Of a listener that accepts connections of its own.
    worker_stats: Option<ListenerWorkerStats>,
    /// Metrics of a listener that places its connections.
    pub(crate) hand_over: Option<HandOverStats>,
    /// Value of the metrics' label.
    pub(crate) label: String,
    pub(crate) logs: AccessLogs,
    index: ChainIndex,
    /// In the order of the configuration.
    chains: Vec<Rc<ChainRuntime>>,
    default: Option<Rc<ChainRuntime>>,
    /// Connections on this listener over all workers.
    open: Arc<Open>,
}

/// A filter chain with its filters ready. It outlives a change of its listener that leaves it as it is, and with it its
/// connections, as in Envoy.
pub(crate) struct ChainRuntime {
    identity: Option<Digest>,
    drain: DrainTrigger,
    /// Connections whose clients prove their cluster end by that as well: it may be removed from the mesh. By the DNS
    /// name in the certificate; there are as many as the mesh has clusters.
    by_cluster: RefCell<HashMap<Box<str>, DrainTrigger>>,
    pub(crate) filters: Vec<FilterRuntime>,
    /// A filter asks for the client's certificate.
    pub(crate) keeps_certificate: bool,
}

impl ChainRuntime {
    /// Its HTTP connection manager.
    pub(crate) fn http(&self) -> Option<&Rc<HcmRuntime>> {
        self.filters.iter().find_map(|filter| match filter {
            FilterRuntime::Http(hcm) => Some(hcm),
            _ => None,
        })
    }

    /// Whether a client's cluster is accepted no more: by none of those that are, if the listener is without this chain from now
    /// on.
    pub(crate) fn knows_no_more(&self, state: &WorkerState, config: &FilterChain, info: &ConnectionInfo) -> bool {
        self.is_leaving()
            && info
                .peer
                .as_deref()
                .and_then(PeerIdentity::cluster_name)
                .is_some_and(|name| {
                    let now = config.tls.as_ref().and_then(|key| state.server_tls(key));
                    now.is_none_or(|now| !now.accepts_dns(&name))
                })
    }

    /// The signal by which a connection on this chain ends.
    pub(crate) fn drain_for(&self, info: &ConnectionInfo) -> Drain {
        let Some(name) = info.peer.as_deref().and_then(PeerIdentity::cluster_name) else {
            return self.drain.listener();
        };
        let mut by_cluster = self.by_cluster.borrow_mut();
        if let Some(drain) = by_cluster.get(name.as_str()) {
            return drain.listener();
        }
        let drain = DrainTrigger::new();
        match self.drain.stage() {
            DrainStage::Serving => {}
            DrainStage::Draining => drain.start(),
            DrainStage::Closing => drain.close_now(),
        }
        let listener = drain.listener();
        by_cluster.insert(name.into_boxed_str(), drain);
        listener
    }

    /// Whether the listener is without it from now on.
    pub(crate) fn is_leaving(&self) -> bool {
        self.drain.stage() != DrainStage::Serving
    }

    /// Has its connections finish.
    pub(crate) fn start_drain(&self) {
        self.drain.start();
        self.by_cluster.borrow().values().for_each(DrainTrigger::start);
    }

    /// Has its connections look at their deadlines again.
    pub(crate) fn wake(&self) {
        self.drain.wake();
        self.by_cluster.borrow().values().for_each(DrainTrigger::wake);
    }

    /// Closes its connections.
    pub(crate) fn close_now(&self) {
        self.drain.close_now();
        self.by_cluster.borrow().values().for_each(DrainTrigger::close_now);
    }

    /// Closes connections from clusters whose name does not pass.
    pub(crate) fn close_strangers(&self, passes: impl Fn(&str) -> bool) {
        for (name, drain) in self.by_cluster.borrow().iter().filter(|(name, _)| !passes(name)) {
            tracing::debug!(%name, "connections of a cluster that is no longer accepted are closed");
            drain.close_now();
        }
    }
}

/// A network filter ready to serve.
pub(crate) enum FilterRuntime {
    /// `envoy.filters.network.rbac`.
    Rbac(RbacRuntime),
    /// `envoy.filters.network.ext_authz`.
    ExtAuthz(NetworkExtAuthz),
    /// `istio.stats`.
    IstioStats(TcpMetrics),
    /// `envoy.filters.network.sni_cluster`.
    SniCluster,
    /// `envoy.filters.network.tcp_proxy`.
    TcpProxy(TcpProxyRuntime),
    /// `envoy.filters.network.http_connection_manager`.
    Http(Rc<HcmRuntime>),
}

impl ListenerRuntime {
    /// Prepares a listener: index, metrics, logs. Chains that `before`, its version in force, has already are taken over.
    /// The error says what is wrong with it.
    pub(crate) fn new(state: &WorkerState, config: &Arc<Listener>, before: Option<&Self>) -> Result<Rc<Self>, String> {
        let index = ChainIndex::new(&config.filter_chains, config.default_filter_chain.is_some()).map_err(|same| {
            let name = |at: usize| {
                config
                    .filter_chains
                    .get(at)
                    .map(|c| c.name.to_string())
                    .unwrap_or_default()
            };
            format!(
                "filter chains {} ({:?}) and {} ({:?}) have the same match; give them different criteria",
                same.first,
                name(same.first),
                same.second,
                name(same.second)
            )
        })?;
        let label = label(config);
        let stats = ListenerStats::new(&state.stats, &label);
        let places = config.balance != ConnectionBalance::Kernel;
        let before = before.filter(|before| config.frame.is_some() && before.config.frame == config.frame);
        let known: HashMap<Digest, &Rc<ChainRuntime>> = before
            .into_iter()
            .flat_map(Self::chains)
            .filter_map(|chain| Some((chain.identity?, chain)))
            .collect();
        let prepare = |chain: &FilterChain| match chain.identity.and_then(|identity| known.get(&identity)) {
            Some(kept) => Ok(Rc::clone(kept)),
            None => ChainRuntime::new(state, config, chain, &stats).map(Rc::new),
        };
        let chains = config.filter_chains.iter().map(prepare).collect::<Result<_, _>>()?;
        let default = config.default_filter_chain.as_ref().map(prepare).transpose()?;
        Ok(Rc::new(Self {
            index,
            chains,
            default,
            logs: AccessLogs::open(&state.logs, &config.access_logs).map_err(|e| e.to_string())?,
            open: state.shared.connections_of(&config.name),
            worker_stats: config
                .bind
                .then(|| ListenerWorkerStats::new(&state.stats, state.index, &label)),
            hand_over: places.then(|| HandOverStats::new(&state.stats, state.index, &label)),
            stats,
            label,
            config: Arc::clone(config),
        }))
    }

    /// Where the filter chain for a connection is found.
    pub(crate) fn choose(&self, destination: SocketAddr, info: &ConnectionInfo) -> Option<Chosen> {
        self.index.find(destination, info)
    }

    /// A filter chain with its configuration.
    pub(crate) fn chain(&self, chosen: Chosen) -> Option<(&ChainRuntime, &FilterChain)> {
        let config = &self.config;
        match chosen {
            Chosen::Chain(at) => Some((self.chains.get(at)?, config.filter_chains.get(at)?)),
            Chosen::Default => Some((self.default.as_ref()?, config.default_filter_chain.as_ref()?)),
        }
    }

    /// Whether one of its chains lets clients of this cluster in. So it is without any chain that asks for certificates.
    pub(crate) fn accepts_cluster(&self, state: &WorkerState, name: &str) -> bool {
        let config = &self.config;
        let chains = config.filter_chains.iter().chain(&config.default_filter_chain);
        let mut contexts = chains
            .filter_map(|chain| state.server_tls(chain.tls.as_ref()?))
            .peekable();
        contexts.peek().is_none() || contexts.any(|context| context.accepts_dns(name))
    }

    /// All filter chains.
    pub(crate) fn chains(&self) -> impl Iterator<Item = &Rc<ChainRuntime>> {
        self.chains.iter().chain(&self.default)
    }

    /// Takes one of the listener's connections; none when `connection_limit` is reached.
    pub(crate) fn admit(self: &Rc<Self>) -> Option<ListenerPlace> {
        let open = self.open.total.fetch_add(1, Ordering::Relaxed);
        if self.config.max_connections.is_some_and(|limit| open >= limit) {
            self.open.total.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.stats.cx_total.inc();
        self.stats.cx_active.add(1);
        if let Some(stats) = &self.worker_stats {
            stats.cx_total.inc();
            stats.cx_active.add(1);
        }
        Some(ListenerPlace {
            listener: Rc::clone(self),
            moved: false,
        })
    }

    /// Goes on counting a connection that has moved here.
    pub(crate) fn take_over(self: &Rc<Self>, mut place: MovingPlace) -> ListenerPlace {
        place.ended = None;
        self.stats.cx_active.add(1);
        if let Some(stats) = &self.worker_stats {
            stats.cx_active.add(1);
        }
        ListenerPlace {
            listener: Rc::clone(self),
            moved: false,
        }
    }

    /// Its connections by worker; there from the first time that somebody asks.
    pub(crate) fn occupancy(&self, state: &WorkerState) -> &Arc<Occupancy> {
        let new = || Arc::new(state.shared.exchange.occupancy());
        self.open.occupancy.get_or_init(new)
    }

    /// Chooses the worker for a connection that this one has accepted at the address `door`, and counts it there.
    pub(crate) fn place<'a>(&self, state: &'a WorkerState, door: SocketAddr) -> Placement<'a> {
        let exchange = &state.shared.exchange;
        exchange.place(self.config.balance, self.occupancy(state), state.index, door)
    }

    /// Other workers may hand its connections to this one for as long as the value lives.
    pub(crate) fn take_part(&self, state: &WorkerState) -> Taking {
        self.occupancy(state).take_part(state.index, &self.config)
    }

    /// Whether it is one of these.
    pub(crate) fn is_in(&self, scope: Scope) -> bool {
        match scope {
            Scope::None => false,
            Scope::Inbound => self.config.direction == TrafficDirection::Inbound,
            Scope::All => true,
        }
    }
}

/// A connection's place on its listener.
pub(crate) struct ListenerPlace {
    listener: Rc<ListenerRuntime>,
    /// It counts on another worker from now on.
    moved: bool,
}

impl ListenerPlace {
    /// The listener.
    pub(crate) fn listener(&self) -> &Rc<ListenerRuntime> {
        &self.listener
    }

    /// Gives up the place on this worker alone.
    pub(crate) fn leave(mut self) -> MovingPlace {
        self.moved = true;
        let listener = &self.listener;
        MovingPlace {
            ended: Some((Arc::clone(&listener.open), listener.stats.cx_destroy.clone())),
        }
    }
}

impl Drop for ListenerPlace {
    fn drop(&mut self) {
        self.listener.stats.cx_active.add(-1);
        if let Some(stats) = &self.listener.worker_stats {
            stats.cx_active.add(-1);
        }
        if !self.moved {
            self.listener.open.total.fetch_sub(1, Ordering::Relaxed);
            self.listener.stats.cx_destroy.inc();
        }
    }
}

/// A connection's place on its listener while it is between two workers: it counts for `connection_limit` all the time. Dropped,
/// it has ended on the way.
#[derive(Debug)]
pub(crate) struct MovingPlace {
    ended: Option<(Arc<Open>, Counter)>,
}

impl Drop for MovingPlace {
    fn drop(&mut self) {
        if let Some((open, cx_destroy)) = &self.ended {
            open.total.fetch_sub(1, Ordering::Relaxed);
            cx_destroy.inc();
        }
    }
}

/// Where another version of a listener has this chain, if it has it: with the same digest, in the same frame. A version is the
/// same for all workers.
pub(crate) fn same_chain(mine: &Arc<Listener>, chain: Chosen, theirs: &Arc<Listener>) -> Option<Chosen> {
    if Arc::ptr_eq(mine, theirs) {
        return Some(chain);
    }
    if mine.frame.is_none() || mine.frame != theirs.frame {
        return None;
    }
    let identity = match chain {
        Chosen::Chain(at) => mine.filter_chains.get(at)?.identity?,
        Chosen::Default => mine.default_filter_chain.as_ref()?.identity?,
    };
    let is_it = |chain: &FilterChain| chain.identity == Some(identity);
    match theirs.filter_chains.iter().position(is_it) {
        Some(at) => Some(Chosen::Chain(at)),
        None => theirs
            .default_filter_chain
            .as_ref()
            .filter(|chain| is_it(chain))
            .map(|_| Chosen::Default),
    }
}

/// Envoy's form of an address in metrics: `0.0.0.0_15006`, `[__]_15006`. Unbound listeners have their name, since
/// several may share an address with a bound one.
fn label(config: &Listener) -> String {
    match config.addresses.first() {
        Some(address) if config.bind => address.to_string().replace(':', "_"),
        _ => config.name.to_string(),
    }
}

impl ChainRuntime {
    fn new(
        state: &WorkerState,
        listener: &Arc<Listener>,
        chain: &FilterChain,
        stats: &ListenerStats,
    ) -> Result<Self, String> {
        let prepare = |filter: &NetworkFilter| -> Result<FilterRuntime, String> {
            Ok(match filter {
                NetworkFilter::Rbac(policies) => FilterRuntime::Rbac(RbacRuntime::new(&state.stats, policies)),
                NetworkFilter::ExtAuthz(config) => {
                    FilterRuntime::ExtAuthz(NetworkExtAuthz::new(config, &state.node(), &state.stats))
                }
                NetworkFilter::IstioStats => {
                    let reporter = match listener.direction {
                        TrafficDirection::Inbound => Reporter::Destination,
                        _ => Reporter::Source,
                    };
                    FilterRuntime::IstioStats(TcpMetrics::new(
                        state.stats.clone(),
                        reporter,
                        Arc::clone(&state.local_peer),
                    ))
                }
                NetworkFilter::SniCluster => FilterRuntime::SniCluster,
                NetworkFilter::TcpProxy(proxy) => {
                    FilterRuntime::TcpProxy(TcpProxyRuntime::new(state, proxy, &stats.log_dropped)?)
                }
                NetworkFilter::Http(hcm) => FilterRuntime::Http(
                    HcmRuntime::new(
                        &state.http,
                        Arc::clone(hcm),
                        listener.direction,
                        &chain.name,
                        Rc::clone(state.overload_of(listener)),
                        (listener.balance == ConnectionBalance::LoadAware).then(|| Rc::clone(&state.moves)),
                    )
                    .map_err(|e| e.to_string())?,
                ),
            })
        };
        Ok(Self {
            identity: chain.identity,
            drain: DrainTrigger::new(),
            by_cluster: RefCell::default(),
            keeps_certificate: chain.filters.iter().any(NetworkFilter::shows_peer_certificate),
            filters: chain.filters.iter().map(prepare).collect::<Result<_, _>>()?,
        })
    }
}
