//! What all connections of one worker share.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::FutureExt as _;
use heddle_config::snapshot::{Listener, Snapshot, TlsKey};
use heddle_http::{Clusters, HttpWorker, Overload, OverloadCounters};
use heddle_net::Reserve;
use heddle_telemetry::Stats;
use heddle_telemetry::access_log::WorkerLogs;
use heddle_telemetry::istio::PeerMetadata;
use heddle_tls::ServerContext;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::listener::ListenerRuntime;
use crate::on_demand::OnDemand;
use crate::params::{Counted, Shared, WorkerSettings};

/// One worker's state. Single-threaded.
pub(crate) struct WorkerState {
    pub(crate) stats: Stats,
    pub(crate) logs: WorkerLogs,
    pub(crate) shared: Shared,
    pub(crate) settings: WorkerSettings,
    pub(crate) clusters: Rc<Clusters>,
    pub(crate) http: Rc<HttpWorker>,
    /// What the overload manager has this worker do.
    pub(crate) overload: Rc<Overload>,
    /// The same of listeners with `bypass_overload_manager`: nothing.
    bypass: Rc<Overload>,
    /// Listeners that are discovered on demand.
    pub(crate) on_demand: OnDemand,
    /// This workload, as Istio's metrics name it.
    pub(crate) local_peer: Arc<PeerMetadata>,
    snapshot: RefCell<Arc<Snapshot>>,
    /// Listeners by address, bound or not, for original-destination hand-off.
    by_address: RefCell<HashMap<SocketAddr, Rc<ListenerRuntime>, ahash::RandomState>>,
    /// TLS handshakes under way.
    handshakes: Rc<Cell<usize>>,
    /// Connections open.
    connections: Rc<Cell<usize>>,
    /// Told when the last connection has closed.
    idle: Rc<Notify>,
    connection_ids: Cell<u64>,
    random: RefCell<fastrand::Rng>,
    reserve: RefCell<Reserve>,
}

impl WorkerState {
    pub(crate) fn new(
        index: usize,
        stats: Stats,
        logs: WorkerLogs,
        shared: Shared,
        settings: WorkerSettings,
        clusters: Rc<Clusters>,
        snapshot: Arc<Snapshot>,
    ) -> Self {
        Self {
            overload: Overload::new(settings.overload, OverloadCounters::new(&stats)),
            bypass: Rc::default(),
            http: HttpWorker::new(
                index,
                stats.clone(),
                logs.clone(),
                Rc::clone(&clusters),
                Arc::clone(&snapshot),
            ),
            on_demand: OnDemand::new(shared.asks.clone(), &stats),
            local_peer: Arc::new(PeerMetadata::from_node(&snapshot.node.metadata)),
            stats,
            logs,
            shared,
            settings,
            clusters,
            snapshot: RefCell::new(snapshot),
            by_address: RefCell::default(),
            handshakes: Rc::default(),
            connections: Rc::default(),
            idle: Rc::default(),
            // Workers count in ranges of their own, so that numbers are unique in the process. HTTP connections are
            // numbered by the HTTP worker, from the lower half of the range.
            connection_ids: Cell::new(((index as u64) << 48) | (1 << 47)),
            random: RefCell::new(fastrand::Rng::new()),
            reserve: RefCell::new(Reserve::new()),
        }
    }

    /// What the overload manager does to a listener.
    pub(crate) fn overload_of(&self, listener: &Listener) -> &Rc<Overload> {
        match listener.bypass_overload_manager {
            true => &self.bypass,
            false => &self.overload,
        }
    }

    /// The TLS context of that name in force.
    pub(crate) fn server_tls(&self, key: &TlsKey) -> Option<Arc<ServerContext>> {
        self.snapshot.borrow().server_tls.get(key).map(Arc::clone)
    }

    /// Puts a snapshot in force: clusters before routes, so that no route leads to a cluster that is not there yet.
    pub(crate) fn set_snapshot(&self, snapshot: &Arc<Snapshot>) {
        self.clusters.update(snapshot);
        self.http.set_snapshot(Arc::clone(snapshot));
        *self.snapshot.borrow_mut() = Arc::clone(snapshot);
    }

    /// Makes these the listeners that connections can be handed to.
    pub(crate) fn set_addresses(&self, addresses: impl Iterator<Item = (SocketAddr, Rc<ListenerRuntime>)>) {
        *self.by_address.borrow_mut() = addresses.collect();
    }

    /// The listener for an original destination: its exact address, else the wildcard address of its port.
    pub(crate) fn listener_for(&self, destination: SocketAddr) -> Option<Rc<ListenerRuntime>> {
        let listeners = self.by_address.borrow();
        let wildcard = match destination {
            SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], destination.port())),
            SocketAddr::V6(_) => SocketAddr::from(([0_u16; 8], destination.port())),
        };
        listeners
            .get(&destination)
            .or_else(|| listeners.get(&wildcard))
            .cloned()
    }

    /// Takes a place for a connection; none when `max_connections` are open and this one counts among them.
    pub(crate) fn admit(&self, counts: bool) -> Option<ConnectionPlace> {
        let everywhere = match counts {
            true => Some(self.shared.count(self.settings.max_connections)?),
            false => None,
        };
        self.connections.set(self.connections.get() + 1);
        Some(ConnectionPlace {
            open: Rc::clone(&self.connections),
            idle: Rc::clone(&self.idle),
            _everywhere: everywhere,
        })
    }

    /// Takes and closes a connection that waits in a socket while the process has no descriptors left, by giving one up
    /// for the moment. False when it had none to give, or none was waiting.
    pub(crate) fn turn_away(&self, socket: &TcpListener) -> bool {
        let mut reserve = self.reserve.borrow_mut();
        if !reserve.release() {
            reserve.restore();
            return false;
        }
        let taken = matches!(socket.accept().now_or_never(), Some(Ok(_)));
        reserve.restore();
        taken
    }

    /// Takes a place among the handshakes under way; none when all are taken.
    pub(crate) fn begin_handshake(&self) -> Option<Place> {
        Place::take(&self.handshakes, self.settings.max_pending_handshakes)
    }

    /// Connections open now.
    pub(crate) fn open_connections(&self) -> usize {
        self.connections.get()
    }

    /// Returns when no connection is open.
    pub(crate) async fn until_idle(&self) {
        while self.connections.get() > 0 {
            self.idle.notified().await;
        }
    }

    pub(crate) fn next_connection_id(&self) -> u64 {
        let id = self.connection_ids.get();
        self.connection_ids.set(id.wrapping_add(1));
        id
    }

    /// A number from 0 to below 1.
    pub(crate) fn dice(&self) -> f64 {
        self.random.borrow_mut().f64()
    }

    /// A number below `bound`; zero for a bound of zero.
    pub(crate) fn random(&self, bound: u32) -> u32 {
        if bound == 0 {
            0
        } else {
            self.random.borrow_mut().u32(0..bound)
        }
    }
}

/// One taken place of a bounded number. Given back when dropped.
pub(crate) struct Place(Rc<Cell<usize>>);

impl Place {
    fn take(taken: &Rc<Cell<usize>>, bound: usize) -> Option<Self> {
        if taken.get() >= bound {
            return None;
        }
        taken.set(taken.get() + 1);
        Some(Self(Rc::clone(taken)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A connection's place on its worker, and among those of the process. Given back when dropped.
pub(crate) struct ConnectionPlace {
    open: Rc<Cell<usize>>,
    idle: Rc<Notify>,
    _everywhere: Option<Counted>,
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
        if self.open.get() == 0 {
            self.idle.notify_waiters();
        }
    }
}
