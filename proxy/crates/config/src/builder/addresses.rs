//! Which listener has which address.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Builder, Held, Slot};
use crate::decode::ListenerParts;
use crate::error::{ConfigError, ConfigErrors, Problems};
use crate::path::Path;
use crate::resource::ResourceKind;
use crate::snapshot::Listener;

/// An address, of those that are bound or of those that only receive what other listeners redirect.
type Place = (bool, SocketAddr);

/// Who has which address.
type Owners = HashMap<Place, Arc<str>>;

impl Builder {
    /// Addresses that are bound now.
    pub(super) fn bound_addresses(&self) -> HashSet<SocketAddr> {
        let versions = self.state.listeners.values().flat_map(Slot::versions);
        versions
            .filter(|held| held.parts.listener.bind)
            .flat_map(|held| held.parts.listener.addresses.iter().copied())
            .collect()
    }

    /// Those of `staged` that can have their addresses: no two listeners may have one, and one that is not among `bound` must
    /// be free to bind. A listener that is refused keeps what it had, so that who was to have that is refused as well.
    pub(super) fn with_addresses(
        &self,
        staged: Vec<Held<ListenerParts>>,
        bound: &HashSet<SocketAddr>,
        refused: &mut Problems,
    ) -> Vec<Held<ListenerParts>> {
        let named = staged.into_iter().map(|held| (held.parts.listener.name.clone(), held));
        let mut staged: BTreeMap<Arc<str>, Held<ListenerParts>> = named.collect();
        let listeners = self.state.listeners.keys();
        // Who has an address and keeps it goes before who wants it.
        let stays = |name: &Arc<str>, place: &Place| match staged.get(name) {
            Some(held) => places(&held.parts.listener).any(|wanted| wanted == *place),
            None => true,
        };
        let mut owners: Owners = listeners
            .flat_map(|name| self.places_now(name).map(|place| (place, name.clone())))
            .filter(|(place, name)| stays(name, place))
            .collect();
        let mut out = Vec::new();
        for (name, held) in &staged {
            match self.take_places(&held.parts.listener, &owners, bound) {
                Ok(places) => owners.extend(places.into_iter().map(|place| (place, name.clone()))),
                Err(e) => out.push((name.clone(), e)),
            }
        }
        while let Some((name, why)) = out.pop() {
            if staged.remove(&name).is_none() {
                continue;
            }
            refused.add(&*name, why);
            for place in self.places_now(&name) {
                if let Some(other) = owners.insert(place, name.clone())
                    && staged.contains_key(&other)
                {
                    let why = taken(&other, place.1, &name);
                    out.push((other, why.into()));
                }
            }
        }
        staged.into_values().collect()
    }

    /// What the newest version of a listener has.
    fn places_now(&self, name: &str) -> impl Iterator<Item = Place> {
        let newest = self.state.listeners.get(name).and_then(Slot::newest);
        newest.into_iter().flat_map(|held| places(&held.parts.listener))
    }

    /// The addresses of a listener, if it can have them all.
    fn take_places(
        &self,
        listener: &Listener,
        owners: &Owners,
        bound: &HashSet<SocketAddr>,
    ) -> Result<HashSet<Place>, ConfigErrors> {
        let mut out = HashSet::new();
        let mut findings = Vec::new();
        for place @ (bind, address) in places(listener) {
            if let Some(other) = owners.get(&place).filter(|other| **other != listener.name) {
                findings.push(taken(&listener.name, address, other));
            } else if !out.insert(place) {
                findings.push(taken(&listener.name, address, &listener.name));
            } else if bind
                && !bound.contains(&address)
                && let Err(reason) = (self.check_listener)(address)
            {
                let path = Path::resource(ResourceKind::Listener.plural(), &listener.name);
                findings.push(path.field("address").error(format!("cannot bind {address}: {reason}")));
            }
        }
        ConfigErrors::check(findings).map(|()| out)
    }
}

fn places(listener: &Listener) -> impl Iterator<Item = Place> {
    listener.addresses.iter().map(|address| (listener.bind, *address))
}

fn taken(listener: &str, address: SocketAddr, by: &str) -> ConfigError {
    let path = Path::resource(ResourceKind::Listener.plural(), listener);
    path.field("address")
        .error(format!("{address} is the address of listener {by:?} already"))
}
