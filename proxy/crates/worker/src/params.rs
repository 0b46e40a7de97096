//! What a worker is given, and what it tells the main thread.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use heddle_config::snapshot::{OverloadLimits, Snapshot};
use heddle_http::OverloadStates;
use heddle_telemetry::Stats;
use heddle_telemetry::access_log::LogFiles;
use heddle_upstream::Upstreams;
use thiserror::Error;
use tokio::sync::{mpsc, watch};

use crate::exchange::{Exchange, Inbox, Occupancy};
use crate::on_demand::Asks;

/// Everything one worker needs. The main thread keeps the other ends.
pub struct WorkerParams {
    /// Number of this worker, from 0.
    pub index: usize,
    /// Snapshots, the newest only. The value at the start is applied at once.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// This worker's metrics; the main thread keeps a reader.
    pub stats: Stats,
    /// Access log destinations of the process.
    pub logs: LogFiles,
    /// Process-wide state of the clusters.
    pub upstreams: Upstreams,
    /// Process-wide state of the listeners.
    pub shared: Shared,
    /// Connections that other workers hand to this one.
    pub inbox: Inbox,
    /// What the overload manager has the worker do.
    pub overload: watch::Receiver<OverloadStates>,
    /// What the proxy is doing: serving, draining, stopping.
    pub phase: watch::Receiver<Phase>,
    /// One report per snapshot and one at the end. Bounded by the number of snapshots; a capacity of a few is enough,
    /// the worker waits when it is full.
    pub reports: mpsc::Sender<WorkerReport>,
    /// Bounds and times.
    pub settings: WorkerSettings,
}

/// Bounds and times that configuration does not set per listener.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerSettings {
    /// How long connections of a removed or changed listener, or of a draining proxy, may take to finish. Envoy's
    /// `--drain-time-s`, default 600 s; Istio sets 45 s.
    pub drain_timeout: Duration,
    /// TLS handshakes that may be under way on one worker; a connection above that is closed and counted
    /// (`downstream_cx_pending_handshake_overflow`). Default 4096: about 100 MB at 25 kB each.
    pub max_pending_handshakes: usize,
    /// Connections open at once over all workers and listeners but those with `ignore_global_conn_limit`; one above
    /// is closed and counted (`downstream_global_cx_overflow`). Envoy's
    /// `envoy.resource_monitors.global_downstream_max_connections`. Default 500 000: about 4 GB of memory when idle.
    pub max_connections: u64,
    /// What a worker needs to know for the actions of the overload manager. By default there is none.
    pub overload: OverloadLimits,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            drain_timeout: Duration::from_secs(600),
            max_pending_handshakes: 4096,
            max_connections: 500_000,
            overload: OverloadLimits::default(),
        }
    }
}

/// Which listeners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// None of them.
    #[default]
    None,
    /// Those with traffic direction INBOUND.
    Inbound,
    /// All.
    All,
}

/// What the proxy is doing: how far its listeners have gone away. Only advances, each part for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phase {
    /// `/drain_listeners?graceful`: connections of these are told to finish, and get no deadline; new ones are accepted.
    pub draining: Scope,
    /// `/drain_listeners`, SIGTERM: these are closed, and their connections finish within the drain timeout. Snapshots are
    /// put into force as before, for those.
    pub closed: Scope,
    /// Connections are closed and [`crate::Worker::run`] returns.
    pub stopping: bool,
}

impl Phase {
    /// Accepting and serving.
    pub const SERVING: Self = Self {
        draining: Scope::None,
        closed: Scope::None,
        stopping: false,
    };

    /// The end.
    pub const STOPPING: Self = Self {
        draining: Scope::All,
        closed: Scope::All,
        stopping: true,
    };

    /// These listeners drain.
    pub fn draining(scope: Scope) -> Self {
        Self {
            draining: scope,
            ..Self::SERVING
        }
    }

    /// These listeners are closed.
    pub fn closed(scope: Scope) -> Self {
        Self {
            draining: scope,
            closed: scope,
            stopping: false,
        }
    }

    /// Both.
    pub fn and(self, other: Self) -> Self {
        Self {
            draining: self.draining.max(other.draining),
            closed: self.closed.max(other.closed),
            stopping: self.stopping || other.stopping,
        }
    }
}

/// Why a listener of a snapshot cannot serve.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("listener {listener}{}: {reason}", address.map(|a| format!(" on {a}")).unwrap_or_default())]
pub struct ListenerFailure {
    /// Name of the listener.
    pub listener: Arc<str>,
    /// The address that cannot be bound, when that is the reason.
    pub address: Option<SocketAddr>,
    /// What is wrong and what to do.
    pub reason: String,
}

/// What a worker tells the main thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerReport {
    /// The snapshot is in force in this worker.
    Applied {
        /// Number of the worker.
        worker: usize,
        /// [`Snapshot::version`].
        version: u64,
    },
    /// The snapshot is refused as a whole; the one before stays in force. The main thread should NACK it and publish a
    /// snapshot that leaves the faulty listeners as they were, since other workers may have applied it.
    Refused {
        /// Number of the worker.
        worker: usize,
        /// [`Snapshot::version`].
        version: u64,
        /// Every listener that cannot serve.
        failures: Vec<ListenerFailure>,
    },
    /// All listeners are closed, and so is the last connection.
    Drained {
        /// Number of the worker.
        worker: usize,
    },
    /// [`crate::Worker::run`] is about to return; all connections are closed.
    Stopped {
        /// Number of the worker.
        worker: usize,
    },
}

/// Why a worker could not start.
#[derive(Debug, Error)]
pub enum WorkerError {
    /// The runtime (epoll descriptor, wake-up descriptor) could not be made.
    #[error("worker {worker}: cannot start its event loop: {source}; check the limit on open files")]
    Runtime {
        /// Number of the worker.
        worker: usize,
        /// The kernel's reason.
        source: std::io::Error,
    },
}

/// Connections open on one listener.
#[derive(Debug, Default)]
pub(crate) struct Open {
    /// Over all workers, for `connection_limit`.
    pub(crate) total: AtomicU64,
    /// By worker, where there is a `connection_balance_config`.
    pub(crate) occupancy: OnceLock<Arc<Occupancy>>,
}

/// Counts that hold over all workers together, and their way to the main thread. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Where listeners are asked for that are discovered on demand.
    pub(crate) asks: Asks,
    /// The way of connections between workers.
    pub(crate) exchange: Exchange,
    /// Connections by listener.
    listeners: Arc<Mutex<HashMap<Arc<str>, Arc<Open>>>>,
    /// Connections that count among those of all listeners.
    connections: Arc<AtomicU64>,
}

impl Shared {
    /// Nothing counted yet. For so many workers, with the inbox of each.
    pub fn new(asks: Asks, workers: usize) -> (Self, Vec<Inbox>) {
        let (exchange, inboxes) = Exchange::new(workers);
        let shared = Self {
            asks,
            exchange,
            listeners: Arc::default(),
            connections: Arc::default(),
        };
        (shared, inboxes)
    }

    /// Connections open on the listener of that name, over all workers. Takes a lock: once per listener, not per
    /// connection.
    pub(crate) fn connections_of(&self, listener: &Arc<str>) -> Arc<Open> {
        let mut counts = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        // Forget listeners that no worker holds any more, so that names that come and go do not pile up.
        counts.retain(|name, count| Arc::strong_count(count) > 1 || name == listener);
        Arc::clone(counts.entry(Arc::clone(listener)).or_default())
    }

    /// Connections open that count among those of all listeners.
    pub fn open_connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a connection among those of all listeners; none when `most` are open.
    pub(crate) fn count(&self, most: u64) -> Option<Counted> {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= most {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Counted(Arc::clone(&self.connections)))
    }
}

/// A connection counted. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
