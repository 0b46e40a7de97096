//! All clusters of one worker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use heddle_config::snapshot::Snapshot;
use heddle_telemetry::Stats;

use crate::cluster::ClusterHandle;
use crate::host::Host;
use crate::shared::Upstreams;

/// The clusters of the snapshot in force, in one worker. `P` is the pool that every host carries.
pub struct ClusterManager<P> {
    upstreams: Upstreams,
    stats: Stats,
    /// Behind an `Rc`, so that reading it touches no counter that another core writes.
    snapshot: Rc<RefCell<Rc<Arc<Snapshot>>>>,
    clusters: RefCell<HashMap<Arc<str>, Rc<ClusterHandle<P>>, ahash::RandomState>>,
    on_drain: fn(&Rc<Host<P>>),
    seed: u64,
}

impl<P: Default> ClusterManager<P> {
    /// An empty manager. `stats` is the worker's. `on_drain` is called with every host that leaves the configuration:
    /// it closes the idle connections of the pool. `seed` makes balancing repeatable; workers want different ones.
    pub fn new(upstreams: Upstreams, stats: Stats, on_drain: fn(&Rc<Host<P>>), seed: u64) -> Self {
        Self {
            upstreams,
            stats,
            snapshot: Rc::default(),
            clusters: RefCell::default(),
            on_drain,
            seed,
        }
    }

    /// Follows a snapshot. What it did not change, told by the identity of its `Arc`s, is not touched.
    pub fn update(&self, snapshot: &Arc<Snapshot>) {
        *self.snapshot.borrow_mut() = Rc::new(Arc::clone(snapshot));
        let mut clusters = self.clusters.borrow_mut();
        clusters.retain(|name, handle| {
            let stays = snapshot.clusters.contains_key(name);
            if !stays {
                handle.close();
            }
            stays
        });
        for (name, config) in &snapshot.clusters {
            let endpoints = snapshot.endpoints.get(name);
            // Most stay, and all workers share the name's count of references.
            if let Some(handle) = clusters.get(name) {
                handle.update(config, endpoints);
                continue;
            }
            let seed = self.seed ^ ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(name);
            let handle = ClusterHandle::new(
                config,
                &self.snapshot,
                &self.upstreams,
                &self.stats,
                self.on_drain,
                seed,
            );
            handle.update(config, endpoints);
            clusters.insert(Arc::clone(name), Rc::new(handle));
        }
    }

    /// The cluster of that name.
    pub fn get(&self, name: &str) -> Option<Rc<ClusterHandle<P>>> {
        self.clusters.borrow().get(name).cloned()
    }

    /// The snapshot in force.
    pub fn snapshot(&self) -> Rc<Arc<Snapshot>> {
        Rc::clone(&self.snapshot.borrow())
    }

    /// Housekeeping: forgets unused ORIGINAL_DST hosts. Call it every few seconds; it touches nothing that is in use.
    pub fn maintain(&self) {
        for handle in self.clusters.borrow().values() {
            handle.maintain();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
