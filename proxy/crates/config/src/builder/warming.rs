//! What is waited for, and what becomes active when it has come.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::order::HOLD;
use super::{Builder, Held, NeedsTls, Slot};
use crate::decode::{ClusterParts, ListenerParts, SecretRef};
use crate::resource::SecretSource;
use crate::snapshot::{Discovery, LocalityEndpoints};

impl Builder {
    /// Moves every complete version into force and forgets what nobody refers to any more.
    pub(super) fn settle(&mut self) {
        let endpoints = &self.state.endpoints;
        for slot in self.state.clusters.values_mut() {
            self.changed |= promote(slot, |held| match &held.parts.cluster.discovery {
                Discovery::Eds(name) => endpoints.contains_key(name),
                _ => true,
            });
        }
        self.settle_routes();
        let mut listeners = std::mem::take(&mut self.state.listeners);
        for slot in listeners.values_mut() {
            self.changed |= promote(slot, |held| {
                let clusters = held.parts.listener.clusters();
                self.missing_routes(&held.parts).next().is_none()
                    && (self.now >= held.arrived + HOLD || !self.state.is_awaited(clusters))
            });
        }
        self.state.listeners = listeners;
        self.settle_leaving();
        let (routes, endpoints, secrets) = (self.wanted_routes(), self.wanted_endpoints(), self.wanted_secrets());
        self.state.routes.retain(|name, _| routes.contains(name));
        self.state.endpoints.retain(|name, _| endpoints.contains(name));
        self.state
            .secrets
            .retain(|name, _| name.source == SecretSource::Static || secrets.contains(name));
    }

    /// What every warming listener and cluster waits for, one line each, for logs and `/config_dump`.
    pub fn waiting(&self) -> Vec<String> {
        let mut out = Vec::new();
        for (name, slot) in &self.state.clusters {
            let Some(held) = &slot.warming else { continue };
            if let Discovery::Eds(eds) = &held.parts.cluster.discovery
                && !self.state.endpoints.contains_key(eds)
            {
                out.push(format!("cluster {name} waits for endpoints {eds}"));
            }
            out.extend(self.awaited_secrets(held).map(|s| format!("cluster {name} {s}")));
        }
        out.extend(
            self.state
                .missed
                .iter()
                .map(|name| format!("listener {name} was refused")),
        );
        for (name, slot) in &self.state.listeners {
            let Some(held) = &slot.warming else { continue };
            let missing = self.missing_routes(&held.parts);
            out.extend(missing.map(|r| format!("listener {name} waits for routes {r}")));
            out.extend(self.awaited_secrets(held).map(|s| format!("listener {name} {s}")));
        }
        out
    }

    fn missing_routes<'p>(&self, parts: &'p ListenerParts) -> impl Iterator<Item = &'p Arc<str>> {
        let routes = &self.state.routes;
        let is_there = |name: &Arc<str>| routes.get(name).is_some_and(|table| table.active.is_some());
        parts.routes.iter().filter(move |name| !is_there(name))
    }

    fn awaited_secrets<P: NeedsTls>(&self, held: &Held<P>) -> impl Iterator<Item = String> {
        let wanted: BTreeSet<_> = held.parts.tls().iter().flat_map(|(_, spec)| spec.secrets()).collect();
        let missing = wanted.iter().filter(|secret| !self.state.secrets.contains_key(secret));
        let mut out: Vec<String> = missing.map(|s| format!("waits for secret {}", s.name)).collect();
        if out.is_empty() && held.contexts.is_none() {
            out.push("waits for secrets that it can use: those that have come do not fit".to_owned());
        }
        out.into_iter()
    }

    pub(super) fn wanted_routes(&self) -> BTreeSet<Arc<str>> {
        let versions = self.state.listeners.values().flat_map(Slot::versions);
        versions.flat_map(|held| held.parts.routes.iter().cloned()).collect()
    }

    pub(super) fn wanted_endpoints(&self) -> BTreeSet<Arc<str>> {
        let versions = self.state.clusters.values().flat_map(Slot::versions);
        versions
            .filter_map(|held| match &held.parts.cluster.discovery {
                Discovery::Eds(name) => Some(name.clone()),
                _ => None,
            })
            .collect()
    }

    pub(super) fn wanted_secrets(&self) -> BTreeSet<SecretRef> {
        let listeners = self
            .state
            .listeners
            .values()
            .flat_map(Slot::versions)
            .flat_map(|h: &Held<ListenerParts>| h.parts.tls());
        let clusters = self
            .state
            .clusters
            .values()
            .flat_map(Slot::versions)
            .flat_map(|h: &Held<ClusterParts>| h.parts.tls());
        listeners.chain(clusters).flat_map(|(_, spec)| spec.secrets()).collect()
    }

    /// Endpoints of a cluster, from itself or from EDS.
    pub(super) fn endpoints_of(&self, parts: &ClusterParts) -> Option<Arc<Vec<LocalityEndpoints>>> {
        match &parts.cluster.discovery {
            Discovery::Eds(name) => self.state.endpoints.get(name).map(|stored| stored.value.clone()),
            _ => parts.endpoints.clone(),
        }
    }
}

/// Puts the warming version into force if it is complete.
fn promote<P>(slot: &mut Slot<P>, is_complete: impl Fn(&Held<P>) -> bool) -> bool {
    if slot
        .warming
        .as_ref()
        .is_some_and(|held| held.contexts.is_some() && is_complete(held))
    {
        slot.active = slot.warming.take();
        return true;
    }
    false
}
