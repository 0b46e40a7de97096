//! Make before break: what is new takes over when what it leads to is there, what is old goes when nothing leads to it.
//!
//! A discovery server sends clusters, endpoints, listeners and routes in messages of their own. Between two of them the
//! configuration would lead to clusters that are not there yet, or not any more, and requests would fail. So a cluster
//! that the server removes stays while a listener or route table in force names it, and a route table or listener that
//! names a cluster which is on its way waits for it. Both only for a while: a server may mean what it says.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Builder, Slot, State, Stored};
use crate::snapshot::RouteTable;

/// How long a removed cluster stays at most.
pub(super) const LINGER: Duration = Duration::from_secs(10);

/// How long a route table or listener waits at most for clusters that are warming for the first time.
pub(super) const HOLD: Duration = Duration::from_secs(3);

pub(super) type StoredTable = Arc<Stored<Arc<RouteTable>>>;

/// The versions of one route table.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) active: Option<StoredTable>,
    /// The version that waits for its clusters, and how long at most.
    pub(super) next: Option<(StoredTable, Instant)>,
}

impl Table {
    /// The newest version, in force or not.
    pub(super) fn newest(&self) -> Option<&StoredTable> {
        self.next.as_ref().map(|(table, _)| table).or(self.active.as_ref())
    }

    fn versions(&self) -> impl Iterator<Item = &StoredTable> {
        self.active.iter().chain(self.next.iter().map(|(table, _)| table))
    }
}

impl State {
    /// Whether one of these clusters is warming for the first time.
    pub(super) fn is_awaited<'n>(&self, mut names: impl Iterator<Item = &'n Arc<str>>) -> bool {
        names.any(|name| self.clusters.get(name).is_some_and(|slot| slot.active.is_none()))
    }

    /// Every cluster that a listener or route table leads to, in force or about to be.
    fn named(&self) -> HashSet<&Arc<str>> {
        let listeners = self.listeners.values().flat_map(Slot::versions);
        let from_listeners = listeners.flat_map(|held| held.parts.listener.clusters());
        let tables = self.routes.values().flat_map(Table::versions);
        from_listeners
            .chain(tables.flat_map(|table| table.value.clusters()))
            .collect()
    }
}

impl Builder {
    /// Tells the time. Waits begin at the time told last.
    pub fn set_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Ends the waits that are over by now. Call it at [`Builder::deadline`]; the snapshot after it may be a new one.
    pub fn tick(&mut self, now: Instant) {
        self.set_time(now);
        self.settle();
    }

    /// When something is to wait no longer. None: nothing waits.
    pub fn deadline(&self) -> Option<Instant> {
        let tables = self.state.routes.values().filter_map(|t| t.next.as_ref());
        let listeners = self.state.listeners.values().filter_map(|slot| slot.warming.as_ref());
        let leaving = self.state.leaving.values().copied();
        leaving
            .chain(tables.map(|(_, until)| *until))
            // One that waits for routes or secrets waits as long as it takes.
            .chain(
                listeners
                    .map(|held| held.arrived + HOLD)
                    .filter(|until| *until > self.now),
            )
            .min()
    }

    /// Puts route tables into force whose clusters are there.
    pub(super) fn settle_routes(&mut self) {
        let ready: Vec<Arc<str>> =
            self.state
                .routes
                .iter()
                .filter(|(_, table)| {
                    table.next.as_ref().is_some_and(|(next, until)| {
                        self.now >= *until || !self.state.is_awaited(next.value.clusters())
                    })
                })
                .map(|(name, _)| name.clone())
                .collect();
        for name in ready {
            if let Some(table) = self.state.routes.get_mut(&name)
                && let Some((next, _)) = table.next.take()
            {
                table.active = Some(next);
                self.changed = true;
            }
        }
    }

    /// Lets clusters go that the server has removed and nothing leads to any more.
    pub(super) fn settle_leaving(&mut self) {
        if self.state.leaving.is_empty() {
            return;
        }
        let named = self.state.named();
        let gone: Vec<Arc<str>> = self
            .state
            .leaving
            .iter()
            .filter(|(name, until)| self.now >= **until || !named.contains(name))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.state.leaving.remove(&name);
            self.changed |= self.state.clusters.remove(&name).is_some();
        }
    }
}
