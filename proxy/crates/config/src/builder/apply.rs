//! Applying one update: every resource is decoded and checked by itself, then what is right is committed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use prost::Message;
use prost_types::Any;

use super::order::LINGER;
use super::{Builder, Held, NeedsTls, Slot, Stored};
use crate::bootstrap::not_a_target;
use crate::check;
use crate::decode::{self, ClusterParts, ListenerParts, TlsContext, pb};
use crate::error::{ConfigError, ConfigErrors, Problems};
use crate::path::Path;
use crate::resource::{Resource, ResourceKind, SecretSource, Update};
use crate::snapshot::{Discovery, LocalityEndpoints, TlsKey, TrafficDirection};

impl Builder {
    /// Takes what is right of an update, and says what is not.
    pub(super) fn apply_from(&mut self, mut update: Update, from_bootstrap: bool) -> Problems {
        let mut refused = Problems::default();
        let mut seen = HashSet::new();
        for resource in &update.resources {
            if !seen.insert(resource.name.as_str()) {
                let path = Path::resource(update.kind.plural(), &resource.name);
                let problem = "stands in one update twice; names must be unique";
                refused.add(&resource.name, path.error(problem));
            }
        }
        // Which of them is meant nobody knows.
        update.resources.retain(|resource| !refused.contains(&resource.name));
        self.regex_engine.compile(|| match update.kind {
            ResourceKind::Cluster => self.apply_clusters(update, from_bootstrap, &mut refused),
            ResourceKind::Endpoints => self.apply_endpoints(update, &mut refused),
            ResourceKind::Secret => self.apply_secrets(update, from_bootstrap, &mut refused),
            ResourceKind::Listener => self.apply_listeners(update, from_bootstrap, &mut refused),
            ResourceKind::Route => self.apply_routes(update, &mut refused),
        });
        self.settle();
        refused
    }

    fn apply_clusters(&mut self, update: Update, from_bootstrap: bool, refused: &mut Problems) {
        for name in may_go(&self.state.clusters, update.removed, ResourceKind::Cluster, refused) {
            match self.state.clusters.get_mut(name.as_str()) {
                // What is in force goes when nothing leads to it any more.
                Some(slot) if slot.active.is_some() => {
                    slot.warming = None;
                    self.state
                        .leaving
                        .entry(name.into())
                        .or_insert_with(|| self.now + LINGER);
                }
                _ => drop(self.state.clusters.remove(name.as_str())),
            }
        }
        for resource in update.resources {
            let name: Arc<str> = resource.name.as_str().into();
            if !is_same(self.state.clusters.get(&name), &resource) {
                match self.stage_cluster(resource, from_bootstrap) {
                    Ok(held) => self.state.clusters.entry(name.clone()).or_default().warming = Some(Arc::new(held)),
                    Err(e) => {
                        refused.add(&*name, e);
                        continue;
                    }
                }
            }
            self.state.leaving.remove(&name);
        }
    }

    fn stage_cluster(&mut self, resource: Resource, from_bootstrap: bool) -> Result<Held<ClusterParts>, ConfigErrors> {
        let path = Path::resource(ResourceKind::Cluster.plural(), &resource.name);
        let config: pb::cluster::Cluster = checked(ResourceKind::Cluster, &resource, &path)?;
        same_name(&resource.name, &config.name, &path)?;
        if !from_bootstrap
            && self
                .state
                .clusters
                .get(resource.name.as_str())
                .is_some_and(Slot::is_from_bootstrap)
        {
            return Err(static_stays(&path).into());
        }
        let parts = decode::cluster(&config, &path)?;
        if matches!(parts.cluster.discovery, Discovery::Eds(_)) && !self.has_ads {
            return Err(no_ads(&path.field("eds_cluster_config")).into());
        }
        self.check_sources(&parts, &path)?;
        let contexts = self.contexts_of(&parts)?;
        Ok(Held {
            raw: resource,
            from_bootstrap,
            arrived: self.now,
            parts,
            contexts,
        })
    }

    fn apply_listeners(&mut self, update: Update, from_bootstrap: bool, refused: &mut Problems) {
        // What is removed is bound until the workers have heard of it, and hands its sockets on.
        let bound = self.bound_addresses();
        for name in may_go(&self.state.listeners, update.removed, ResourceKind::Listener, refused) {
            self.changed |= self.state.listeners.remove(name.as_str()).is_some();
            self.state.missed.remove(name.as_str());
        }
        let mut staged = Vec::new();
        for resource in update.resources {
            if is_same(self.state.listeners.get(resource.name.as_str()), &resource) {
                continue;
            }
            match self.stage_listener(&resource, from_bootstrap) {
                Ok((parts, contexts)) => staged.push(Held {
                    raw: resource,
                    from_bootstrap,
                    arrived: self.now,
                    parts,
                    contexts,
                }),
                Err(e) => {
                    if is_inbound(&resource) {
                        self.miss(resource.name.as_str().into());
                    }
                    refused.add(resource.name, e);
                }
            }
        }
        for held in &staged {
            if held.parts.listener.direction == TrafficDirection::Inbound {
                self.miss(held.parts.listener.name.clone());
            }
        }
        for held in self.with_addresses(staged, &bound, refused) {
            let name = held.parts.listener.name.clone();
            self.state.missed.remove(&name);
            self.state.listeners.entry(name).or_default().warming = Some(Arc::new(held));
        }
    }

    /// A listener that this proxy's workload is not reached without, unless there is a version of it.
    fn miss(&mut self, name: Arc<str>) {
        if !self.state.listeners.contains_key(&name) {
            self.state.missed.insert(name);
        }
    }

    fn stage_listener(
        &mut self,
        resource: &Resource,
        from_bootstrap: bool,
    ) -> Result<(ListenerParts, Option<BTreeMap<TlsKey, TlsContext>>), ConfigErrors> {
        let path = Path::resource(ResourceKind::Listener.plural(), &resource.name);
        let mut config: pb::listener::Listener = checked(ResourceKind::Listener, resource, &path)?;
        if from_bootstrap && config.name.is_empty() {
            config.name.clone_from(&resource.name);
        }
        same_name(&resource.name, &config.name, &path)?;
        if !from_bootstrap
            && self
                .state
                .listeners
                .get(resource.name.as_str())
                .is_some_and(Slot::is_from_bootstrap)
        {
            return Err(static_stays(&path).into());
        }
        let mut parts = decode::listener(&config, &path)?;
        if let Some(limit) = self.connection_limits.get(&*parts.listener.name)
            && let Some(listener) = Arc::get_mut(&mut parts.listener)
        {
            listener.max_connections = Some(*limit);
        }
        if !parts.routes.is_empty() && !self.has_ads {
            return Err(no_ads(&path).into());
        }
        self.check_clusters(&parts.clusters)?;
        self.check_sources(&parts, &path)?;
        let contexts = self.contexts_of(&parts)?;
        Ok((parts, contexts))
    }

    fn apply_endpoints(&mut self, update: Update, refused: &mut Problems) {
        let mut missing = update.removed;
        for resource in update.resources {
            let stored = self.state.endpoints.get(resource.name.as_str());
            if stored.is_some_and(|s| s.raw.body == resource.body) {
                continue;
            }
            let path = Path::resource(ResourceKind::Endpoints.plural(), &resource.name);
            match decode_endpoints(&resource, &path) {
                Ok(value) => {
                    self.changed = true;
                    let name = resource.name.as_str().into();
                    let stored = Stored {
                        raw: resource,
                        value: Arc::new(value),
                    };
                    self.state.endpoints.insert(name, Arc::new(stored));
                }
                Err(e) => {
                    missing.push(resource.name.clone());
                    refused.add(resource.name, e);
                }
            }
        }
        // As with routes: a cluster whose endpoints do not exist, or were refused, is complete, and has none.
        let wanted = self.wanted_endpoints();
        for name in missing
            .iter()
            .map(|n| Arc::from(n.as_str()))
            .filter(|n| wanted.contains(n))
        {
            self.state.endpoints.entry(name).or_insert_with_key(|name| {
                Arc::new(Stored {
                    raw: absent(name, ResourceKind::Endpoints),
                    value: Arc::new(Vec::new()),
                })
            });
        }
    }

    fn contexts_of(&mut self, parts: &impl NeedsTls) -> Result<Option<BTreeMap<TlsKey, TlsContext>>, ConfigError> {
        let secrets = &self.state.secrets;
        self.shared
            .build(parts.tls(), |wanted| secrets.get(wanted).map(|s| (&s.value, s.serial)))
    }

    /// Secrets must be asked for where somebody can answer.
    fn check_sources(&self, parts: &impl NeedsTls, path: &Path<'_>) -> Result<(), ConfigError> {
        for wanted in parts.tls().iter().flat_map(|(_, spec)| spec.secrets()) {
            match &wanted.source {
                SecretSource::Ads if !self.has_ads => return Err(no_ads(&path.key("secret", &wanted.name))),
                SecretSource::Cluster(cluster) if !self.targets.contains(cluster) => {
                    return Err(not_a_target(cluster, &path.key("secret", &wanted.name)));
                }
                SecretSource::Static if !self.state.secrets.contains_key(&wanted) => {
                    let problem = "stands not in static_resources.secrets; add it, or give sds_config";
                    return Err(path.key("secret", &wanted.name).error(problem));
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn check_clusters(&self, named: &[(Arc<str>, String)]) -> Result<(), ConfigErrors> {
        let is_there = |name| self.state.clusters.contains_key(name) && !self.state.leaving.contains_key(name);
        let unknown = named.iter().filter(|(name, _)| !is_there(name));
        let findings = unknown.map(|(name, place)| {
            ConfigError::new(
                place,
                format!("there is no cluster {name:?}; add it, or set validate_clusters: false"),
            )
        });
        ConfigErrors::check(findings.collect())
    }
}

/// Checks a resource field by field and decodes it.
pub(super) fn checked<M: Message + Default>(
    kind: ResourceKind,
    resource: &Resource,
    path: &Path<'_>,
) -> Result<M, ConfigErrors> {
    let Any { type_url, value } = &resource.body;
    if heddle_api::message_name(type_url) != kind.message_name() {
        return Err(path
            .error(format!("is a {type_url}, a {} was expected", kind.message_name()))
            .into());
    }
    let message = check::decode(type_url, value).map_err(|problem| path.error(problem))?;
    let mut findings = Vec::new();
    check::check(&message, path, &mut findings);
    ConfigErrors::check(findings)?;
    M::decode(value.as_slice()).map_err(|e| path.error(e.to_string()).into())
}

fn decode_endpoints(resource: &Resource, path: &Path<'_>) -> Result<Vec<LocalityEndpoints>, ConfigErrors> {
    let config: pb::endpoint::ClusterLoadAssignment = checked(ResourceKind::Endpoints, resource, path)?;
    same_name(&resource.name, &config.cluster_name, &path.field("cluster_name"))?;
    Ok(decode::load_assignment(&config, false, path)?)
}

pub(super) fn same_name(outside: &str, inside: &str, path: &Path<'_>) -> Result<(), ConfigError> {
    if outside == inside {
        return Ok(());
    }
    Err(path.error(format!(
        "the resource is called {outside:?}, the message inside {inside:?}; they must agree"
    )))
}

fn no_ads(path: &Path<'_>) -> ConfigError {
    path.error("comes over ads, but the bootstrap has no dynamic_resources.ads_config; add it")
}

fn static_stays(path: &Path<'_>) -> ConfigError {
    path.error("has the name of a static resource of the bootstrap, which cannot be replaced; use another name")
}

/// Whether the newest version is the same message. Versions may differ: servers renumber.
fn is_same<P>(slot: Option<&Slot<P>>, resource: &Resource) -> bool {
    slot.and_then(Slot::newest)
        .is_some_and(|held| held.raw.body == resource.body)
}

/// The names that may be removed: all but those of the bootstrap.
fn may_go<P>(
    slots: &BTreeMap<Arc<str>, Slot<P>>,
    removed: Vec<String>,
    kind: ResourceKind,
    refused: &mut Problems,
) -> Vec<String> {
    let (stays, goes): (Vec<_>, Vec<_>) = removed
        .into_iter()
        .partition(|name| slots.get(name.as_str()).is_some_and(Slot::is_from_bootstrap));
    for name in stays {
        let why = static_stays(&Path::resource(kind.plural(), &name));
        refused.add(name, why);
    }
    goes
}

/// Whether it is a listener for what is sent to this proxy's workload.
fn is_inbound(listener: &Resource) -> bool {
    let decoded = pb::listener::Listener::decode(listener.body.value.as_slice());
    decoded.is_ok_and(|config| config.traffic_direction() == pb::core::TrafficDirection::Inbound)
}

/// Stands for a resource that the server does not have.
pub(super) fn absent(name: &str, kind: ResourceKind) -> Resource {
    Resource {
        name: name.to_owned(),
        version: String::new(),
        body: Any {
            type_url: kind.type_url(),
            value: Vec::new(),
        },
    }
}
