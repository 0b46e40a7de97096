//! What all HTTP connections of one worker share.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heddle_config::snapshot::{Node, RouteTable, Runtime, Snapshot};
use heddle_telemetry::Stats;
use heddle_telemetry::access_log::WorkerLogs;
use heddle_upstream::ClusterManager;

use crate::buffer;
use crate::filters::peer_metadata::PeerCache;
use crate::hcm::Exchange;
use crate::head;
use crate::jwks::RemoteKeySets;
use crate::kept::Keeper;
use crate::pool::HostPool;

/// The clusters of one worker, with this crate's connection pools in their hosts.
pub type Clusters = ClusterManager<HostPool>;

/// The two digits of each byte.
const HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut all = [[0; 2]; 256];
    let mut byte = 0;
    while byte < all.len() {
        all[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    all
};

/// Where the two digits of each byte of a UUID stand in its text (RFC 9562 section 4).
const UUID_PLACES: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];

/// Frees the buffers, heads, exchanges and places of requests that this thread keeps and has not needed since the last call. To be
/// called every few seconds. Returns whether it has needed any.
pub fn trim_spares() -> bool {
    buffer::trim() | head::trim_spares() | Exchange::trim() | heddle_memory::trim_places()
}

/// Per-worker state of the HTTP data path. Not shared between threads.
pub struct HttpWorker {
    pub(crate) clusters: Rc<Clusters>,
    pub(crate) stats: Stats,
    pub(crate) logs: WorkerLogs,
    node: Arc<Node>,
    pub(crate) runtime: Runtime,
    snapshot: RefCell<Arc<Snapshot>>,
    generation: Cell<u64>,
    date: RefCell<DateCache>,
    random: RefCell<fastrand::Rng>,
    connection_ids: Cell<u64>,
    pub(crate) peers: Rc<PeerCache>,
    pub(crate) jwks: RemoteKeySets,
    /// Of requests of the proxy's own.
    pub(crate) keeper: Rc<Keeper>,
}

impl HttpWorker {
    /// A worker that starts with this snapshot. `worker` is the worker's number; it makes connection numbers unique in
    /// the process.
    pub fn new(
        worker: usize,
        stats: Stats,
        logs: WorkerLogs,
        clusters: Rc<Clusters>,
        snapshot: Arc<Snapshot>,
    ) -> Rc<Self> {
        Rc::new_cyclic(|itself| Self {
            clusters,
            peers: Rc::new(PeerCache::new(&snapshot.node, &stats)),
            jwks: RemoteKeySets::new(Weak::clone(itself)),
            keeper: Rc::default(),
            node: Arc::clone(&snapshot.node),
            runtime: snapshot.runtime,
            stats,
            logs,
            snapshot: RefCell::new(snapshot),
            generation: Cell::new(1),
            date: RefCell::default(),
            random: RefCell::new(fastrand::Rng::new()),
            connection_ids: Cell::new((worker as u64) << 48),
        })
    }

    /// Puts a new snapshot in force: requests that come from now on use its route tables. The cluster manager is told
    /// apart from this, before, so that no route points to a cluster that is not there yet.
    pub fn set_snapshot(&self, snapshot: Arc<Snapshot>) {
        *self.snapshot.borrow_mut() = snapshot;
        self.generation.set(self.generation.get() + 1);
    }

    /// The worker's metrics.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The worker's clusters.
    pub fn clusters(&self) -> &Rc<Clusters> {
        &self.clusters
    }

    /// This proxy.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// The route table of that name in force.
    pub(crate) fn route_table(&self, name: &Arc<str>) -> Option<Arc<RouteTable>> {
        self.snapshot.borrow().routes.get(name).cloned()
    }

    pub(crate) fn next_connection_id(&self) -> u64 {
        let id = self.connection_ids.get() + 1;
        self.connection_ids.set(id);
        id
    }

    pub(crate) fn random(&self) -> std::cell::RefMut<'_, fastrand::Rng> {
        self.random.borrow_mut()
    }

    /// A number below a million, for a share of requests.
    pub(crate) fn dice(&self) -> u32 {
        self.random().u32(..1_000_000)
    }

    /// Calls `with` with the `date` header's value of that moment (RFC 9110 section 5.6.7).
    pub(crate) fn with_date<T>(&self, now: SystemTime, with: impl FnOnce(&[u8]) -> T) -> T {
        with(self.date.borrow_mut().at(now).as_bytes())
    }

    /// A random (version 4) UUID in `x-request-id` form.
    pub(crate) fn uuid(&self) -> [u8; 36] {
        let mut bits = self.random().u128(..).to_be_bytes();
        bits[6] = bits[6] & 0x0f | 0x40;
        bits[8] = bits[8] & 0x3f | 0x80;
        let mut text = [b'-'; 36];
        for (byte, at) in bits.into_iter().zip(UUID_PLACES) {
            [text[at], text[at + 1]] = HEX[usize::from(byte)];
        }
        text
    }
}

/// The text of one second.
struct DateCache {
    second: Range<SystemTime>,
    text: String,
}

impl Default for DateCache {
    fn default() -> Self {
        Self {
            second: UNIX_EPOCH..UNIX_EPOCH,
            text: String::new(),
        }
    }
}

impl DateCache {
    /// The text of that moment; the first second of 1970 for those before.
    fn at(&mut self, now: SystemTime) -> &str {
        if !self.second.contains(&now) {
            let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let begins = UNIX_EPOCH + Duration::from_secs(second);
            self.second = begins..begins + Duration::from_secs(1);
            self.text = httpdate::fmt_http_date(begins);
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the clock does: forwards, backwards, and before 1970.
    #[test]
    fn a_date_is_that_of_its_second() {
        let mut dates = DateCache::default();
        let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        for (now, text) in [
            (at(784_111_777_000), "Sun, 06 Nov 1994 08:49:37 GMT"),
            (at(784_111_777_999), "Sun, 06 Nov 1994 08:49:37 GMT"),
            (at(784_111_778_000), "Sun, 06 Nov 1994 08:49:38 GMT"),
            (at(784_111_777_999), "Sun, 06 Nov 1994 08:49:37 GMT"),
            (UNIX_EPOCH - Duration::from_millis(1), "Thu, 01 Jan 1970 00:00:00 GMT"),
            (UNIX_EPOCH, "Thu, 01 Jan 1970 00:00:00 GMT"),
        ] {
            assert_eq!(dates.at(now), text);
        }
    }
}
