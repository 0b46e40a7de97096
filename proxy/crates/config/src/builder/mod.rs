//! Holds the configuration that was accepted last and turns updates into snapshots.
//!
//! A resource of an update is taken as a whole or not at all, but for route tables, of which single virtual hosts may be refused; one
//! that is refused leaves the others alone. A listener or cluster that still misses something (routes, endpoints, secrets) is warming: it is kept, but not in the snapshot, and the version before it stays in force until it is
//! complete. Routes and clusters take turns so that no route leads nowhere (`order`). What did not change keeps its
//! `Arc`.

mod addresses;
mod apply;
mod contexts;
mod dump;
mod order;
mod routes;
mod secrets;
mod warming;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use heddle_matching::RegexEngine;

use crate::bootstrap::Bootstrap;
use crate::decode::{ClusterParts, ListenerParts, SecretRef, SecretValue, TlsContext, TlsSpec};
use crate::error::{ConfigErrors, Refusal};
use crate::resource::{Resource, ResourceKind, SecretSource, Update};
use crate::snapshot::{LocalityEndpoints, Node, Snapshot, TlsKey};

use contexts::SharedContexts;
use order::Table;

/// Tries an address that a new listener wants to bind. The text of an error says why it cannot be had; it becomes part
/// of the error that refuses the listener.
pub type ListenerCheck = Box<dyn Fn(SocketAddr) -> Result<(), String> + Send + Sync>;

/// The names that the configuration refers to and that must be asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscriptions {
    /// EDS names.
    pub endpoints: BTreeSet<String>,
    /// RDS names.
    pub routes: BTreeSet<String>,
    /// SDS names by source. [`SecretSource::Static`] is not among them.
    pub secrets: BTreeMap<SecretSource, BTreeSet<String>>,
}

/// Bytes from which on an update takes long.
const LARGE_UPDATE: usize = 64 << 10;

/// And one that may have expressions: `[^a]{1000}` is one, so that eight thousand bytes may have dozens.
const MANY_EXPRESSIONS: usize = 8 << 10;

/// Clusters and listeners whose TLS contexts are made in no time to speak of.
const CONTEXTS_AT_ONCE: usize = 64;

/// A resource with what was made of it.
#[derive(Debug)]
struct Stored<T> {
    raw: Resource,
    value: T,
}

/// The endpoints of one cluster.
type Assignment = Arc<Vec<LocalityEndpoints>>;

/// A secret. `serial` tells versions apart.
#[derive(Debug)]
struct StoredSecret {
    raw: Resource,
    value: SecretValue,
    serial: u64,
}

/// A listener or cluster of one version.
#[derive(Clone, Debug)]
struct Held<P> {
    raw: Resource,
    from_bootstrap: bool,
    arrived: Instant,
    parts: P,
    /// Its TLS contexts, once all secrets are there.
    contexts: Option<BTreeMap<TlsKey, TlsContext>>,
}

/// The versions of one listener or cluster.
#[derive(Debug)]
struct Slot<P> {
    active: Option<Arc<Held<P>>>,
    warming: Option<Arc<Held<P>>>,
}

impl<P> Clone for Slot<P> {
    fn clone(&self) -> Self {
        Self {
            active: self.active.clone(),
            warming: self.warming.clone(),
        }
    }
}

impl<P> Default for Slot<P> {
    fn default() -> Self {
        Self {
            active: None,
            warming: None,
        }
    }
}

impl<P> Slot<P> {
    fn versions(&self) -> impl Iterator<Item = &Held<P>> {
        self.active.iter().chain(&self.warming).map(|held| &**held)
    }

    fn versions_mut(&mut self) -> impl Iterator<Item = &mut Arc<Held<P>>> {
        self.active.iter_mut().chain(&mut self.warming)
    }

    /// The newest version, in force or not.
    fn newest(&self) -> Option<&Held<P>> {
        self.warming.as_deref().or(self.active.as_deref())
    }

    fn is_from_bootstrap(&self) -> bool {
        self.versions().any(|held| held.from_bootstrap)
    }
}

/// What listeners and clusters have in common here.
trait NeedsTls {
    fn tls(&self) -> &[(TlsKey, TlsSpec)];
}

impl NeedsTls for ListenerParts {
    fn tls(&self) -> &[(TlsKey, TlsSpec)] {
        &self.tls
    }
}

impl NeedsTls for ClusterParts {
    fn tls(&self) -> &[(TlsKey, TlsSpec)] {
        &self.tls
    }
}

/// Everything that updates change. Cloning shares what it holds.
#[derive(Clone, Debug, Default)]
struct State {
    listeners: BTreeMap<Arc<str>, Slot<ListenerParts>>,
    clusters: BTreeMap<Arc<str>, Slot<ClusterParts>>,
    /// Clusters that the server has removed and that stay while they are named, until then.
    leaving: BTreeMap<Arc<str>, Instant>,
    routes: BTreeMap<Arc<str>, Table>,
    endpoints: BTreeMap<Arc<str>, Arc<Stored<Assignment>>>,
    secrets: BTreeMap<SecretRef, Arc<StoredSecret>>,
    /// Kinds still to come before the first configuration is whole.
    outstanding: BTreeSet<ResourceKind>,
    /// Inbound listeners that were refused and that there is no version of: the workload is not reached without them.
    missed: BTreeSet<Arc<str>>,
}

/// The configuration at one moment, to go back to. See [`Builder::checkpoint`].
#[derive(Debug)]
pub struct Checkpoint(State);

/// See the module. A clone shares what it holds, and goes its own way from there: an update can be applied to it on another
/// thread, and the clone take its place when that is done.
#[derive(Clone)]
pub struct Builder {
    node: Arc<Node>,
    /// The bootstrap document, encoded.
    bootstrap: Arc<[u8]>,
    has_ads: bool,
    targets: Arc<HashSet<Arc<str>>>,
    connection_limits: Arc<HashMap<String, u64>>,
    check_listener: Arc<dyn Fn(SocketAddr) -> Result<(), String> + Send + Sync>,
    regex_engine: RegexEngine,
    state: State,
    shared: SharedContexts,
    serial: u64,
    current: Arc<Snapshot>,
    changed: bool,
    now: Instant,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("version", &self.current.version)
            .field("listeners", &self.state.listeners.len())
            .field("clusters", &self.state.clusters.len())
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Starts with the static resources of the bootstrap.
    pub fn new(bootstrap: &Bootstrap, check_listener: ListenerCheck) -> Result<Self, ConfigErrors> {
        let mut outstanding = BTreeSet::new();
        if bootstrap.dynamic_clusters {
            outstanding.insert(ResourceKind::Cluster);
        }
        if bootstrap.dynamic_listeners {
            outstanding.insert(ResourceKind::Listener);
        }
        let mut builder = Self {
            node: bootstrap.node.clone(),
            bootstrap: bootstrap.document.clone(),
            has_ads: bootstrap.ads.is_some(),
            targets: Arc::new(bootstrap.targets.keys().cloned().collect()),
            connection_limits: Arc::new(bootstrap.connection_limits.clone()),
            check_listener: check_listener.into(),
            regex_engine: bootstrap.regex_engine,
            state: State {
                outstanding,
                ..State::default()
            },
            shared: SharedContexts::default(),
            serial: 0,
            current: Arc::new(Snapshot {
                node: bootstrap.node.clone(),
                runtime: bootstrap.runtime,
                ..Snapshot::default()
            }),
            changed: true,
            now: Instant::now(),
        };
        for update in &bootstrap.statics {
            let refused = builder.apply_from(update.clone(), true);
            refused.check().map_err(|refusal| refusal.errors().clone())?;
        }
        Ok(builder)
    }

    /// Applies a discovery response. What is refused stays as it was, everything else is taken, as in Envoy; the text of the
    /// refusal is what a NACK should say. A response counts as having come whatever is wrong with it: one bad resource
    /// does not keep the proxy from starting, unless it is an inbound listener.
    pub fn apply(&mut self, update: Update) -> Result<(), Refusal> {
        let kind = update.kind;
        let refused = self.apply_from(update, false);
        self.state.outstanding.remove(&kind);
        refused.check()
    }

    /// Whether an update of so many bytes may take more than a few milliseconds: large ones do; in few bytes there may be many
    /// expressions that take one each or, with Hyperscan, one that does; and a secret may be that of all clusters, whose TLS
    /// contexts are made anew then.
    pub fn is_slow(&self, kind: ResourceKind, bytes: usize) -> bool {
        bytes >= LARGE_UPDATE
            || match kind {
                ResourceKind::Listener | ResourceKind::Route => {
                    bytes >= MANY_EXPRESSIONS || self.regex_engine.compiles_slowly()
                }
                ResourceKind::Secret => self.state.clusters.len() + self.state.listeners.len() > CONTEXTS_AT_ONCE,
                ResourceKind::Cluster | ResourceKind::Endpoints => false,
            }
    }

    /// Remembers the configuration, for [`Builder::restore`] when an update proves impossible only when it is put into
    /// force: an address that was free a moment ago and cannot be bound.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint(self.state.clone())
    }

    /// Goes back. The next snapshot is a new version with the old content.
    pub fn restore(&mut self, checkpoint: Checkpoint) {
        self.state = checkpoint.0;
        self.changed = true;
    }

    /// Whether clusters have come once, or none are to come.
    pub fn has_clusters(&self) -> bool {
        !self.state.outstanding.contains(&ResourceKind::Cluster)
    }

    /// The snapshot of the configuration in force. The same `Arc` as before when nothing changed.
    pub fn snapshot(&mut self) -> Arc<Snapshot> {
        if std::mem::take(&mut self.changed) {
            self.current = Arc::new(self.assemble());
        }
        self.current.clone()
    }

    /// Whether every kind of dynamic resource has come once, nothing is warming for the first time, and no inbound listener is missing
    /// because it was refused.
    pub fn is_complete(&self) -> bool {
        self.state.outstanding.is_empty()
            && self.state.missed.is_empty()
            && self.clusters_are_warm()
            && self.state.listeners.values().all(|slot| slot.active.is_some())
    }

    /// Whether there is a listener of that name in force.
    pub fn has_listener(&self, name: &str) -> bool {
        self.state.listeners.get(name).is_some_and(|slot| slot.active.is_some())
    }

    /// Whether a listener in force has others discovered on demand.
    pub fn is_on_demand(&self) -> bool {
        let mut active = self.state.listeners.values().filter_map(|slot| slot.active.as_ref());
        active.any(|held| held.parts.listener.on_demand.is_some())
    }

    /// Whether no listener waits for its first version in force, and no route table for its clusters.
    pub fn is_settled(&self) -> bool {
        self.state.listeners.values().all(|slot| slot.active.is_some())
            && self.state.routes.values().all(|table| table.next.is_none())
    }

    /// Whether every cluster has had a complete version.
    pub fn clusters_are_warm(&self) -> bool {
        self.state.clusters.values().all(|slot| slot.active.is_some())
    }

    /// What has to be asked for.
    pub fn subscriptions(&self) -> Subscriptions {
        let mut out = Subscriptions {
            endpoints: self.wanted_endpoints().iter().map(|n| n.to_string()).collect(),
            routes: self.wanted_routes().iter().map(|n| n.to_string()).collect(),
            secrets: BTreeMap::new(),
        };
        for wanted in self
            .wanted_secrets()
            .into_iter()
            .filter(|s| s.source != SecretSource::Static)
        {
            out.secrets
                .entry(wanted.source)
                .or_default()
                .insert(wanted.name.to_string());
        }
        out
    }

    /// The snapshot of what is active now.
    fn assemble(&self) -> Snapshot {
        let mut out = Snapshot {
            version: self.current.version + 1,
            node: self.node.clone(),
            runtime: self.current.runtime,
            ..Snapshot::default()
        };
        for (name, slot) in &self.state.listeners {
            let Some(held) = &slot.active else { continue };
            out.listeners.insert(name.clone(), held.parts.listener.clone());
            for route in &held.parts.routes {
                let table = self.state.routes.get(route).and_then(|table| table.active.as_ref());
                out.routes.extend(table.map(|t| (route.clone(), t.value.clone())));
            }
            add_contexts(&mut out, held.contexts.as_ref());
        }
        for (name, slot) in &self.state.clusters {
            let Some(held) = &slot.active else { continue };
            out.clusters.insert(name.clone(), held.parts.cluster.clone());
            out.endpoints
                .extend(self.endpoints_of(&held.parts).map(|e| (name.clone(), e)));
            add_contexts(&mut out, held.contexts.as_ref());
        }
        out
    }
}

fn add_contexts(out: &mut Snapshot, contexts: Option<&BTreeMap<TlsKey, TlsContext>>) {
    for (key, context) in contexts.into_iter().flatten() {
        match context {
            TlsContext::Server(c) => drop(out.server_tls.insert(key.clone(), c.clone())),
            TlsContext::Client(c) => drop(out.client_tls.insert(key.clone(), c.clone())),
        }
    }
}
