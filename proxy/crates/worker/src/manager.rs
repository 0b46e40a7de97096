//! Listeners from snapshot to snapshot: sockets that stay, sockets that come and go, connections that drain.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use heddle_config::snapshot::{ConnectionBalance, Listener, Snapshot};
use heddle_net::{ListenOptions, listen};
use heddle_telemetry::Owner;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use crate::accept;
use crate::exchange::Taking;
use crate::listener::{ChainRuntime, ListenerRuntime};
use crate::params::{ListenerFailure, Scope};
use crate::state::WorkerState;

/// A bound address. Whose connections it takes changes with the configuration; the socket stays.
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    owner: RefCell<Rc<ListenerRuntime>>,
    closing: tokio::sync::Notify,
}

impl Door {
    /// The listener that new connections belong to.
    pub(crate) fn owner(&self) -> Rc<ListenerRuntime> {
        Rc::clone(&self.owner.borrow())
    }

    /// Returns when the socket is to be closed.
    pub(crate) async fn closing(&self) {
        self.closing.notified().await;
    }
}

struct OpenDoor {
    door: Rc<Door>,
    task: JoinHandle<()>,
}

/// What a snapshot needs, with all that can fail already done.
pub(crate) struct Plan {
    listeners: BTreeMap<Arc<str>, Rc<ListenerRuntime>>,
    sockets: HashMap<SocketAddr, TcpListener>,
}

/// The listeners of one worker.
#[derive(Default)]
pub(crate) struct ListenerManager {
    listeners: BTreeMap<Arc<str>, Rc<ListenerRuntime>>,
    doors: HashMap<SocketAddr, OpenDoor>,
    /// While they are here, other workers may hand us connections of these listeners.
    taking: Vec<Taking>,
    draining: Scope,
    closed: Scope,
}

impl ListenerManager {
    /// Prepares everything that a snapshot needs: filters, indexes, logs, sockets. On failure nothing has changed.
    pub(crate) fn prepare(&self, state: &WorkerState, snapshot: &Snapshot) -> Result<Plan, Vec<ListenerFailure>> {
        let mut failures = Vec::new();
        let mut plan = Plan {
            listeners: BTreeMap::new(),
            sockets: HashMap::new(),
        };
        let mut owners: HashMap<SocketAddr, Arc<str>> = HashMap::new();
        let mut configs: Vec<&Arc<Listener>> = snapshot.listeners.values().collect();
        configs.sort_by(|a, b| a.name.cmp(&b.name));
        for config in configs {
            let before = self.listeners.get(&config.name);
            let runtime = match before.filter(|kept| Arc::ptr_eq(&kept.config, config)) {
                Some(kept) => Rc::clone(kept),
                None => match ListenerRuntime::new(state, config, before.map(|b| &**b)) {
                    Ok(runtime) => runtime,
                    Err(reason) => {
                        failures.push(ListenerFailure {
                            listener: Arc::clone(&config.name),
                            address: None,
                            reason,
                        });
                        continue;
                    }
                },
            };
            if self.is_open(&runtime) {
                for address in &config.addresses {
                    let failed = |reason| ListenerFailure {
                        listener: Arc::clone(&config.name),
                        address: Some(*address),
                        reason,
                    };
                    if let Some(other) = owners.insert(*address, Arc::clone(&config.name)) {
                        failures.push(failed(format!(
                            "listener {other} has the same address; give one of them another"
                        )));
                    } else if !self.doors.contains_key(address) {
                        let options = ListenOptions {
                            backlog: config.backlog,
                            ..ListenOptions::new(*address)
                        };
                        match listen(&options) {
                            Ok(socket) => {
                                plan.sockets.insert(*address, socket);
                            }
                            Err(e) => failures.push(failed(format!("cannot bind: {e}; {}", remedy(&e)))),
                        }
                    }
                }
            }
            plan.listeners.insert(Arc::clone(&config.name), runtime);
        }
        if failures.is_empty() { Ok(plan) } else { Err(failures) }
    }

    /// Whether a listener accepts connections of its own.
    fn is_open(&self, runtime: &ListenerRuntime) -> bool {
        runtime.config.bind && !runtime.is_in(self.closed)
    }

    /// Puts a plan in force. Sockets of addresses that stay are kept with the connections that wait in them.
    pub(crate) fn commit(&mut self, state: &Rc<WorkerState>, plan: Plan) {
        let old = std::mem::replace(&mut self.listeners, plan.listeners);
        self.drain(self.draining);
        let mut sockets = plan.sockets;
        let mut open: HashMap<SocketAddr, Rc<ListenerRuntime>> = HashMap::new();
        for runtime in self.listeners.values().filter(|r| self.is_open(r)) {
            open.extend(runtime.config.addresses.iter().map(|a| (*a, Rc::clone(runtime))));
        }
        self.doors.retain(|address, open_door| match open.get(address) {
            Some(owner) => {
                *open_door.door.owner.borrow_mut() = Rc::clone(owner);
                true
            }
            None => {
                open_door.door.closing.notify_one();
                false
            }
        });
        for (address, owner) in open {
            if let Some(socket) = sockets.remove(&address) {
                let door = Rc::new(Door {
                    address,
                    owner: RefCell::new(owner),
                    closing: tokio::sync::Notify::new(),
                });
                let task = spawn_local(accept::run(Rc::clone(state), socket, Rc::clone(&door)));
                self.doors.insert(address, OpenDoor { door, task });
            }
        }
        self.take_part(state);
        let addresses = self
            .listeners
            .values()
            .flat_map(|r| r.config.addresses.iter().map(|a| (*a, Rc::clone(r))))
            // A bound listener gives way to an unbound one of the same address: the bound one took the connection.
            .collect::<Vec<_>>();
        let (bound, unbound): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|(_, r)| r.config.bind);
        state.set_addresses(bound.into_iter().chain(unbound));
        for (name, gone) in old {
            let now = self.listeners.get(&name);
            if now.is_some_and(|now| Rc::ptr_eq(now, &gone)) {
                continue;
            }
            let kept = |chain: &Rc<ChainRuntime>| now.is_some_and(|now| now.chains().any(|c| Rc::ptr_eq(c, chain)));
            let leaving: Vec<_> = gone.chains().filter(|chain| !kept(chain)).cloned().collect();
            let label_in_use = self.listeners.values().any(|now| now.label == gone.label);
            if let Some(now) = now {
                for chain in &leaving {
                    chain.close_strangers(|name| now.accepts_cluster(state, name));
                }
            }
            spawn_local(drain(Rc::clone(state), gone, leaving, label_in_use));
        }
    }

    /// Tells the other workers which listeners' connections they may hand to this one.
    fn take_part(&mut self, state: &WorkerState) {
        let balanced = || {
            let open = self.listeners.values().filter(|runtime| self.is_open(runtime));
            open.filter(|runtime| runtime.config.balance != ConnectionBalance::Kernel)
        };
        state.set_balanced(balanced());
        // Those that stay are there twice for a moment, rather than gone.
        let taking = balanced().map(|runtime| runtime.take_part(state)).collect();
        self.taking = taking;
    }

    /// Has the connections of these listeners finish, those that come later too. They get no deadline.
    pub(crate) fn drain(&mut self, scope: Scope) {
        self.draining = scope;
        for chain in self
            .listeners
            .values()
            .filter(|r| r.is_in(scope))
            .flat_map(|r| r.chains())
        {
            chain.start_drain();
        }
    }

    /// Closes the sockets of these listeners, and lets their connections finish.
    pub(crate) fn stop_accepting(&mut self, state: &Rc<WorkerState>, scope: Scope) {
        self.closed = scope;
        self.doors.retain(|_, open_door| {
            let close = open_door.door.owner().is_in(scope);
            if close {
                open_door.door.closing.notify_one();
            }
            !close
        });
        self.take_part(state);
        for runtime in self.listeners.values().filter(|r| r.is_in(scope)) {
            let chains = runtime.chains().cloned().collect();
            spawn_local(drain(Rc::clone(state), Rc::clone(runtime), chains, true));
        }
    }

    /// Has connections look at their deadlines again. Those of listeners that are gone have one of their own.
    pub(crate) fn wake_connections(&self) {
        for chain in self.listeners.values().flat_map(|runtime| runtime.chains()) {
            chain.wake();
        }
    }

    /// Closes every connection.
    pub(crate) fn close_connections(&mut self) {
        self.taking.clear();
        for chain in self.listeners.values().flat_map(|runtime| runtime.chains()) {
            chain.close_now();
        }
        for open_door in self.doors.values() {
            open_door.task.abort();
        }
    }
}

/// Tells the connections on these chains of a listener to finish, and closes those that have not when the time is over.
async fn drain(
    state: Rc<WorkerState>,
    listener: Rc<ListenerRuntime>,
    chains: Vec<Rc<ChainRuntime>>,
    label_in_use: bool,
) {
    for chain in &chains {
        chain.start_drain();
    }
    sleep(state.settings.drain_timeout).await;
    for chain in &chains {
        chain.close_now();
    }
    if !label_in_use {
        state.stats.remove(Owner::Listener, &listener.label);
    }
}

fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => "another process listens there: stop it or choose another port (`ss -ltnp`)",
        std::io::ErrorKind::AddrNotAvailable => "the address is not one of this host's (`ip address`)",
        std::io::ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE",
        _ => "see the kernel's reason",
    }
}
