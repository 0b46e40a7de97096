//! Applying one update: everything is decoded and checked first, then committed.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use prost::Message;
use prost_types::Any;

use super::order::{HOLD, LINGER, Table};
use super::{Builder, Held, NeedsTls, Slot, Stored};
use crate::bootstrap::not_a_target;
use crate::check;
use crate::decode::{self, ClusterParts, ListenerParts, SecretRef, TlsContext, pb};
use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;
use crate::resource::{Resource, ResourceKind, SecretSource, Update};
use crate::snapshot::{Discovery, LocalityEndpoints, RouteTable, TlsKey};

impl Builder {
    pub(super) fn apply_from(&mut self, update: Update, from_bootstrap: bool) -> Result<(), ConfigErrors> {
        let mut findings = Vec::new();
        let mut seen = HashSet::new();
        for resource in &update.resources {
            if !seen.insert(resource.name.as_str()) {
                let path = Path::resource(update.kind.plural(), &resource.name);
                findings.push(path.error("stands in one update twice; names must be unique"));
            }
        }
        ConfigErrors::check(findings)?;
        self.regex_engine.compile(|| match update.kind {
            ResourceKind::Cluster => self.apply_clusters(update, from_bootstrap),
            ResourceKind::Endpoints => self.apply_endpoints(update),
            ResourceKind::Secret => self.apply_secrets(update, from_bootstrap),
            ResourceKind::Listener => self.apply_listeners(update, from_bootstrap),
            ResourceKind::Route => self.apply_routes(update),
        })?;
        self.settle();
        Ok(())
    }

    fn apply_clusters(&mut self, update: Update, from_bootstrap: bool) -> Result<(), ConfigErrors> {
        let mut findings = Vec::new();
        let mut staged = Vec::new();
        let present: Vec<String> = update.resources.iter().map(|r| r.name.clone()).collect();
        for resource in update.resources {
            let slot = self.state.clusters.get(resource.name.as_str());
            if is_same(slot, &resource) {
                continue;
            }
            match self.stage_cluster(resource, from_bootstrap) {
                Ok(held) => staged.push(held),
                Err(e) => findings.extend(e.iter().cloned()),
            }
        }
        refuse_static(
            &self.state.clusters,
            &update.removed,
            ResourceKind::Cluster,
            &mut findings,
        );
        ConfigErrors::check(findings)?;
        for name in update.removed {
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
        for name in present {
            self.state.leaving.remove(name.as_str());
        }
        for held in staged {
            let name = held.parts.cluster.name.clone();
            self.state.clusters.entry(name).or_default().warming = Some(Arc::new(held));
        }
        Ok(())
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

    fn apply_listeners(&mut self, update: Update, from_bootstrap: bool) -> Result<(), ConfigErrors> {
        let mut findings = Vec::new();
        let mut staged = Vec::new();
        for resource in update.resources {
            if is_same(self.state.listeners.get(resource.name.as_str()), &resource) {
                continue;
            }
            match self.stage_listener(resource, from_bootstrap) {
                Ok(held) => staged.push(held),
                Err(e) => findings.extend(e.iter().cloned()),
            }
        }
        refuse_static(
            &self.state.listeners,
            &update.removed,
            ResourceKind::Listener,
            &mut findings,
        );
        ConfigErrors::check(findings)?;
        let removed: HashSet<&str> = update.removed.iter().map(String::as_str).collect();
        self.check_addresses(&staged, &removed)?;
        for name in removed {
            self.changed |= self.state.listeners.remove(name).is_some();
        }
        for held in staged {
            let name = held.parts.listener.name.clone();
            self.state.listeners.entry(name).or_default().warming = Some(Arc::new(held));
        }
        Ok(())
    }

    fn stage_listener(
        &mut self,
        resource: Resource,
        from_bootstrap: bool,
    ) -> Result<Held<ListenerParts>, ConfigErrors> {
        let path = Path::resource(ResourceKind::Listener.plural(), &resource.name);
        let mut config: pb::listener::Listener = checked(ResourceKind::Listener, &resource, &path)?;
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
        Ok(Held {
            raw: resource,
            from_bootstrap,
            arrived: self.now,
            parts,
            contexts,
        })
    }

    fn apply_routes(&mut self, update: Update) -> Result<(), ConfigErrors> {
        let mut findings = Vec::new();
        let mut staged = Vec::new();
        for resource in update.resources {
            if self
                .state
                .routes
                .get(resource.name.as_str())
                .and_then(Table::newest)
                .is_some_and(|s| s.raw.body == resource.body)
            {
                continue;
            }
            let path = Path::resource(ResourceKind::Route.plural(), &resource.name);
            match self.decode_routes(&resource, &path) {
                Ok(value) => staged.push(Stored {
                    raw: resource,
                    value: Arc::new(value),
                }),
                Err(e) => findings.extend(e.iter().cloned()),
            }
        }
        ConfigErrors::check(findings)?;
        for stored in staged {
            let table = self.state.routes.entry(stored.raw.name.as_str().into()).or_default();
            table.next = Some((Arc::new(stored), self.now + HOLD));
        }
        // The server says that it has no such table. One that is in use stays; one that is waited for will not come, so
        // the listener starts and answers 404, as in Envoy.
        let wanted = self.wanted_routes();
        for name in update
            .removed
            .iter()
            .map(|n| Arc::from(n.as_str()))
            .filter(|n| wanted.contains(n))
        {
            self.state.routes.entry(name).or_insert_with_key(|name| {
                let value = Arc::new(RouteTable {
                    name: name.clone(),
                    ..RouteTable::default()
                });
                let stored = Arc::new(Stored {
                    raw: absent(name, ResourceKind::Route),
                    value,
                });
                Table {
                    active: None,
                    next: Some((stored, self.now)),
                }
            });
        }
        Ok(())
    }

    fn decode_routes(&self, resource: &Resource, path: &Path<'_>) -> Result<RouteTable, ConfigErrors> {
        let config: pb::route::RouteConfiguration = checked(ResourceKind::Route, resource, path)?;
        same_name(&resource.name, &config.name, path)?;
        let (table, clusters) = decode::route_table(&config, false, path)?;
        self.check_clusters(&clusters)?;
        Ok(table)
    }

    fn apply_endpoints(&mut self, update: Update) -> Result<(), ConfigErrors> {
        let mut findings = Vec::new();
        let mut staged = Vec::new();
        for resource in update.resources {
            if self
                .state
                .endpoints
                .get(resource.name.as_str())
                .is_some_and(|s| s.raw.body == resource.body)
            {
                continue;
            }
            let path = Path::resource(ResourceKind::Endpoints.plural(), &resource.name);
            match decode_endpoints(&resource, &path) {
                Ok(value) => staged.push(Stored {
                    raw: resource,
                    value: Arc::new(value),
                }),
                Err(e) => findings.extend(e.iter().cloned()),
            }
        }
        ConfigErrors::check(findings)?;
        for stored in staged {
            self.changed = true;
            self.state
                .endpoints
                .insert(stored.raw.name.as_str().into(), Arc::new(stored));
        }
        // As with routes: a cluster whose endpoints do not exist is complete, and has none.
        let wanted = self.wanted_endpoints();
        for name in update
            .removed
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
        Ok(())
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

    fn check_clusters(&self, named: &[(Arc<str>, String)]) -> Result<(), ConfigErrors> {
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

fn refuse_static<P>(
    slots: &BTreeMap<Arc<str>, Slot<P>>,
    removed: &[String],
    kind: ResourceKind,
    findings: &mut Vec<ConfigError>,
) {
    for name in removed {
        if slots.get(name.as_str()).is_some_and(Slot::is_from_bootstrap) {
            findings.push(static_stays(&Path::resource(kind.plural(), name)));
        }
    }
}

/// Stands for a resource that the server does not have.
fn absent(name: &str, kind: ResourceKind) -> Resource {
    Resource {
        name: name.to_owned(),
        version: String::new(),
        body: Any {
            type_url: kind.type_url(),
            value: Vec::new(),
        },
    }
}
