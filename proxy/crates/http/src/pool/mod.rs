//! Upstream connections kept per host and worker, and the hygiene around them.

mod h1;
mod h2;
mod patience;

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use heddle_upstream::{ClusterHandle, Host};
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use h1::{H1Lease, open_h1};
pub(crate) use h2::{H2Lease, acquire_h2};

/// A cluster with this crate's pools.
pub(crate) type Cluster = ClusterHandle<HostPool>;
/// A host with this crate's pools.
pub(crate) type UpstreamHost = Host<HostPool>;

/// The connections to one host. The pool type to give to [`heddle_upstream::ClusterManager`].
#[derive(Default)]
pub struct HostPool {
    h1: h1::Idle,
    h2: h2::Shared,
    /// A connection became free, was opened, or closed.
    changed: Notify,
    registered: Cell<bool>,
}

impl HostPool {
    /// Closes what is idle and keeps nothing any more; what carries requests finishes them.
    fn retire(&self) {
        self.h1.close_idle();
        self.h2.retire_all();
        self.changed.notify_waiters();
    }
}

/// To be called when a host leaves the configuration: the `on_drain` of [`heddle_upstream::ClusterManager::new`].
pub fn drain_host(host: &Rc<Host<HostPool>>) {
    host.pool.retire();
}

thread_local! {
    /// Hosts of this worker that have held a connection, for the sweep.
    static HOSTS: RefCell<Vec<Weak<UpstreamHost>>> = const { RefCell::new(Vec::new()) };
}

fn register(host: &Rc<UpstreamHost>) {
    if !host.pool.registered.replace(true) {
        HOSTS.with_borrow_mut(|hosts| hosts.push(Rc::downgrade(host)));
    }
}

/// Closes pooled connections of this worker that were idle for too long, or that their host has closed. To be called
/// about once a second on the worker's thread.
pub fn sweep_pools() {
    let now = Instant::now();
    let mut hosts = HOSTS.with_borrow_mut(std::mem::take);
    hosts.retain(|host| {
        let Some(host) = host.upgrade() else {
            return false;
        };
        host.pool.h1.sweep(now);
        host.pool.h2.sweep(now);
        let keep = !host.pool.h1.is_empty() || !host.pool.h2.is_empty();
        host.pool.registered.set(keep);
        keep
    });
    HOSTS.with_borrow_mut(|all| all.append(&mut hosts));
}
