//! Which listener has which address.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Builder, Held};
use crate::decode::ListenerParts;
use crate::error::ConfigErrors;
use crate::path::Path;
use crate::resource::ResourceKind;
use crate::snapshot::Listener;

impl Builder {
    /// No two listeners may have one address, and a new one must be free to bind.
    pub(super) fn check_addresses(
        &self,
        staged: &[Held<ListenerParts>],
        removed: &HashSet<&str>,
    ) -> Result<(), ConfigErrors> {
        let replaced: HashSet<&str> = staged.iter().map(|h| &*h.parts.listener.name).collect();
        let stays = |name: &str| !removed.contains(name) && !replaced.contains(name);
        let staying = self
            .state
            .listeners
            .iter()
            .filter(|(name, _)| stays(name))
            .filter_map(|(_, slot)| slot.newest());
        let mut taken: HashMap<(bool, SocketAddr), Arc<str>> = HashMap::new();
        for held in staying {
            let listener = &held.parts.listener;
            taken.extend(
                listener
                    .addresses
                    .iter()
                    .map(|a| ((listener.bind, *a), listener.name.clone())),
            );
        }
        let bound: HashSet<SocketAddr> = self
            .state
            .listeners
            .values()
            .flat_map(|slot| slot.versions())
            .filter(|held| held.parts.listener.bind)
            .flat_map(|held| held.parts.listener.addresses.iter().copied())
            .collect();
        let mut findings = Vec::new();
        for held in staged {
            let listener: &Listener = &held.parts.listener;
            let path = Path::resource(ResourceKind::Listener.plural(), &listener.name);
            for address in &listener.addresses {
                let here = path.field("address");
                if let Some(other) = taken.insert((listener.bind, *address), listener.name.clone()) {
                    findings.push(here.error(format!("{address} is the address of listener {other:?} already")));
                } else if listener.bind
                    && !bound.contains(address)
                    && let Err(reason) = (self.check_listener)(*address)
                {
                    findings.push(here.error(format!("cannot bind {address}: {reason}")));
                }
            }
        }
        ConfigErrors::check(findings)
    }
}
