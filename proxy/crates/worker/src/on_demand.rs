//! Listeners that are discovered on demand: the first connection to a destination waits until the discovery server has
//! said what there is for it.
//!
//! Whoever asks has the destination noted, so that the server learns of every destination that is used, also of those
//! whose listener is there already: those do not have to wait for anything new, and the answer comes at once.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_telemetry::{Counter, Gauge, Stats};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Destinations that one worker remembers. Above that, it forgets all and asks the main thread again, which remembers.
const REMEMBERED: usize = 8192;

/// Asks for the listener of an original destination.
#[derive(Debug)]
pub struct Ask {
    /// Where the connection was going.
    pub destination: SocketAddr,
    /// Told when the configuration in force has all that there is for it.
    pub answer: oneshot::Sender<()>,
}

/// The worker's way to whoever asks the discovery server. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Asks {
    /// Bounded: workers wait when it is full, as long as their connections may.
    pub queue: mpsc::Sender<Ask>,
    /// Changes when an answer that was given may not hold any more.
    pub epoch: Arc<AtomicU64>,
}

/// What one worker knows of listeners that are discovered on demand.
pub(crate) struct OnDemand {
    asks: Asks,
    known: RefCell<HashSet<SocketAddr, ahash::RandomState>>,
    epoch: Cell<u64>,
    /// `heddle_on_demand_listener_attempts`: destinations that were asked for.
    attempts: Counter,
    /// `heddle_on_demand_listener_success`: answered in time.
    success: Counter,
    /// `heddle_on_demand_listener_timeouts`: connections that went on without an answer.
    timeouts: Counter,
    /// `heddle_on_demand_listener_waiting`: connections that wait.
    waiting: Gauge,
}

impl OnDemand {
    pub(crate) fn new(asks: Asks, stats: &Stats) -> Self {
        Self {
            epoch: Cell::new(asks.epoch.load(Ordering::Acquire)),
            asks,
            known: RefCell::default(),
            attempts: stats.counter("heddle_on_demand_listener_attempts", &[]),
            success: stats.counter("heddle_on_demand_listener_success", &[]),
            timeouts: stats.counter("heddle_on_demand_listener_timeouts", &[]),
            waiting: stats.gauge("heddle_on_demand_listener_waiting", &[]),
        }
    }

    /// Whether all that there is for a destination is in force.
    pub(crate) fn knows(&self, destination: SocketAddr) -> bool {
        let now = self.asks.epoch.load(Ordering::Acquire);
        if self.epoch.replace(now) != now {
            self.known.borrow_mut().clear();
        }
        self.known.borrow().contains(&destination)
    }

    /// Returns when the server has said what there is for a destination, or after the limit.
    pub(crate) async fn discover(&self, destination: SocketAddr, limit: Duration) {
        self.attempts.inc();
        self.waiting.add(1);
        let answered = timeout(limit, self.ask(destination)).await;
        self.waiting.add(-1);
        match answered {
            Ok(true) => {
                self.success.inc();
                let mut known = self.known.borrow_mut();
                if known.len() >= REMEMBERED {
                    known.clear();
                }
                known.insert(destination);
            }
            Ok(false) | Err(_) => {
                self.timeouts.inc();
                tracing::debug!(%destination, "no answer about its listener; the connection goes on with what is there");
            }
        }
    }

    async fn ask(&self, destination: SocketAddr) -> bool {
        let (answer, answered) = oneshot::channel();
        // Fails when the main thread ends.
        self.asks.queue.send(Ask { destination, answer }).await.is_ok() && answered.await.is_ok()
    }
}
