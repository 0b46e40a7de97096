//! What all connections of one worker share.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use futures_util::FutureExt as _;
use heddle_config::snapshot::{ConnectionBalance, Listener, Node, Snapshot, TlsKey};
use heddle_http::{Clusters, HttpWorker, Moves, Overload, OverloadCounters, Travelling};
use heddle_net::Reserve;
use heddle_telemetry::Stats;
use heddle_telemetry::access_log::WorkerLogs;
use heddle_telemetry::istio::PeerMetadata;
use heddle_tls::ServerContext;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::chains::Chosen;
use crate::exchange::{OnTheWay, Seat};
use crate::listener::{ListenerRuntime, MovingPlace, same_chain};
use crate::on_demand::OnDemand;
use crate::params::{Counted, Shared, WorkerSettings};
use crate::stats::HandOverFailures;

/// A listener's name and one of its addresses.
type NameAndAddress = (Arc<str>, SocketAddr);

/// One worker's state. Single-threaded.
pub(crate) struct WorkerState {
    /// Number of the worker.
    pub(crate) index: usize,
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
    /// Listeners that place their connections, by name and each address, with those that are gone and drain: others may have
    /// handed us connections of theirs.
    balanced: RefCell<HashMap<NameAndAddress, Weak<ListenerRuntime>>>,
    /// Every version of those that place by load: connections that move keep theirs.
    versions: RefCell<Vec<Weak<ListenerRuntime>>>,
    /// Which connections go to other workers.
    pub(crate) moves: Rc<Moves>,
    /// Whether one of those in force places by load.
    by_load: Cell<bool>,
    balance_changed: Notify,
    pub(crate) hand_over_failures: HandOverFailures,
    /// TLS handshakes under way.
    handshakes: Rc<Cell<usize>>,
    /// Connections open.
    connections: Rc<Cell<usize>>,
    /// Told when a connection opens.
    opened: Notify,
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
            index,
            balanced: RefCell::default(),
            versions: RefCell::default(),
            moves: Moves::new(shared.exchange.started()),
            by_load: Cell::default(),
            balance_changed: Notify::new(),
            hand_over_failures: HandOverFailures::new(&stats),
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
            opened: Notify::new(),
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

    /// This proxy, as its bootstrap names it.
    pub(crate) fn node(&self) -> Arc<Node> {
        Arc::clone(&self.snapshot.borrow().node)
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

    /// Makes these the listeners that other workers can hand connections of theirs to us.
    pub(crate) fn set_balanced<'a>(&self, listeners: impl Iterator<Item = &'a Rc<ListenerRuntime>>) {
        let mut balanced = self.balanced.borrow_mut();
        balanced.retain(|_, listener| listener.strong_count() > 0);
        let mut versions = self.versions.borrow_mut();
        versions.retain(|listener| listener.strong_count() > 0);
        let mut by_load = false;
        for listener in listeners {
            if listener.config.balance == ConnectionBalance::LoadAware {
                by_load = true;
                if !versions
                    .iter()
                    .any(|known| std::ptr::eq(known.as_ptr(), Rc::as_ptr(listener)))
                {
                    versions.push(Rc::downgrade(listener));
                }
            }
            for address in &listener.config.addresses {
                balanced.insert((Arc::clone(&listener.config.name), *address), Rc::downgrade(listener));
            }
        }
        if self.by_load.replace(by_load) != by_load {
            self.balance_changed.notify_one();
        }
    }

    /// The listener of that name that places connections accepted at that address: the one in force, or else the last one
    /// that drains.
    pub(crate) fn balanced(&self, name: Arc<str>, door: SocketAddr) -> Option<Rc<ListenerRuntime>> {
        self.balanced.borrow().get(&(name, door))?.upgrade()
    }

    /// Where a connection goes on that has moved here from this version of a listener, and this chain: with the same version, in
    /// force or draining, or else with the one that has the same chain.
    pub(crate) fn chain_of(
        &self,
        version: &Arc<Listener>,
        chain: Chosen,
        door: SocketAddr,
    ) -> Option<(Rc<ListenerRuntime>, Chosen)> {
        let versions = self.versions.borrow();
        let mut live = versions.iter().filter_map(Weak::upgrade);
        if let Some(same) = live.find(|listener| Arc::ptr_eq(&listener.config, version)) {
            return Some((same, chain));
        }
        let other = self.balanced(Arc::clone(&version.name), door)?;
        let chain = same_chain(version, chain, &other.config)?;
        Some((other, chain))
    }

    /// Whether a listener in force places its connections by load.
    pub(crate) fn places_by_load(&self) -> bool {
        self.by_load.get()
    }

    /// Returns when the answer of [`WorkerState::places_by_load`] is another.
    pub(crate) async fn balance_changed(&self) {
        self.balance_changed.notified().await;
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

    /// Counts a connection; none when `max_connections` are open and this one counts among them.
    pub(crate) fn admit(&self, counts: bool) -> Option<Admission> {
        let everywhere = match counts {
            true => Some(self.shared.count(self.settings.max_connections)?),
            false => None,
        };
        Some(Admission { everywhere, seat: None })
    }

    /// A place on this worker for a connection.
    pub(crate) fn place(&self, admission: Admission) -> ConnectionPlace {
        self.connections.set(self.connections.get() + 1);
        self.opened.notify_one();
        ConnectionPlace {
            open: Rc::clone(&self.connections),
            idle: Rc::clone(&self.idle),
            admission: Some(admission),
        }
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

    /// Returns when a connection opens, or has opened since this was last called.
    pub(crate) async fn opened(&self) {
        self.opened.notified().await;
    }

    /// Returns when no connection is open, nor on its way from another worker.
    pub(crate) async fn until_idle(&self) {
        self.shared.exchange.until_landed(self.index).await;
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

/// A connection's place among those of the process and, where connections are placed, of its listener. Given back when
/// dropped.
#[derive(Debug)]
pub(crate) struct Admission {
    everywhere: Option<Counted>,
    pub(crate) seat: Option<Seat>,
}

#[cfg(test)]
impl Admission {
    pub(crate) fn seated(seat: Seat) -> Self {
        Self {
            everywhere: None,
            seat: Some(seat),
        }
    }
}

/// A connection from another worker.
#[derive(Debug)]
pub(crate) enum Arrival {
    Accepted(Accepted),
    // Boxed: what has been accepted is small, and all places are of one size.
    Moved(Box<Moved>),
}

/// An open connection that comes from another worker.
#[derive(Debug)]
pub(crate) struct Moved {
    /// The version of the listener, and the chain, that it is on.
    pub(crate) listener: Arc<Listener>,
    pub(crate) chain: Chosen,
    /// Where it was accepted.
    pub(crate) door: SocketAddr,
    pub(crate) connection: Travelling,
    /// Its place on the listener.
    pub(crate) place: MovingPlace,
    pub(crate) admission: Admission,
    pub(crate) on_the_way: OnTheWay,
}

/// A connection that another worker has accepted for this one.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// Name of the listener.
    pub(crate) listener: Arc<str>,
    /// The listener's address at which it was accepted.
    pub(crate) door: SocketAddr,
    /// Registered with no event loop.
    pub(crate) tcp: std::net::TcpStream,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) admission: Admission,
    pub(crate) on_the_way: OnTheWay,
}

/// A connection's place on its worker, and among those of the process. Given back when dropped.
pub(crate) struct ConnectionPlace {
    open: Rc<Cell<usize>>,
    idle: Rc<Notify>,
    admission: Option<Admission>,
}

impl ConnectionPlace {
    /// Where the connection counts on its listener, if that places them.
    pub(crate) fn seat(&self) -> Option<&Seat> {
        self.admission.as_ref()?.seat.as_ref()
    }

    /// Gives up the place on this worker alone, for one on another with that seat.
    pub(crate) fn leave(mut self, seat: Seat) -> Admission {
        Admission {
            everywhere: self
                .admission
                .take()
                .and_then(|mut admission| admission.everywhere.take()),
            seat: Some(seat),
        }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.open.set(self.open.get() - 1);
        if self.open.get() == 0 {
            self.idle.notify_waiters();
        }
    }
}
