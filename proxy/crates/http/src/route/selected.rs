//! The route of a request.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use heddle_config::snapshot::{
    Action, ClusterChoice, HttpFilter, Route, RouteAction, RouteFilter, RouteFilters, RouteTable, VirtualHost,
};

/// A route table in force for one connection manager: the table, and where in it each of the manager's filters finds
/// what is said to it. Made once per connection manager and version of the table.
#[derive(Debug)]
pub(crate) struct BoundTable {
    table: Arc<RouteTable>,
    /// By the filters' order: its place in [`RouteFilters`]. Empty when the table says nothing to any of them.
    places: Box<[Option<usize>]>,
    /// A filter may be switched off on some of its routes.
    pub(crate) may_disable: bool,
}

impl BoundTable {
    pub(crate) fn new(table: Arc<RouteTable>, filters: &[HttpFilter]) -> Self {
        let place = |filter: &HttpFilter| {
            table.filters.iter().position(|(name, said)| {
                *name == filter.name && said.as_ref().is_none_or(|said| filter.config.takes(said))
            })
        };
        let places: Box<[_]> = filters.iter().map(place).collect();
        let said = places.iter().any(Option::is_some);
        Self {
            may_disable: filters.iter().any(|f| f.disabled) || (said && table.disables_filters),
            places: if said { places } else { Box::default() },
            table,
        }
    }
}

impl Deref for BoundTable {
    type Target = RouteTable;

    fn deref(&self) -> &RouteTable {
        &self.table
    }
}

/// What was found for a request in the route table in force.
#[derive(Clone, Debug)]
pub(crate) struct Selected {
    pub(crate) table: Rc<BoundTable>,
    pub(crate) host: usize,
    pub(crate) route: usize,
    /// Which of the weighted clusters.
    pub(crate) cluster: usize,
}

impl Selected {
    pub(crate) fn virtual_host(&self) -> Option<&VirtualHost> {
        self.table.virtual_hosts.get(self.host)
    }

    pub(crate) fn route(&self) -> Option<&Route> {
        self.virtual_host()?.routes.get(self.route)
    }

    /// How the request is forwarded; none when the route answers by itself.
    pub(crate) fn action(&self) -> Option<&RouteAction> {
        match &self.route()?.action {
            Action::Route(action) => Some(action),
            Action::Redirect(_) | Action::Direct(_) => None,
        }
    }

    /// The cluster that the request is to go to; none when the route answers by itself.
    pub(crate) fn cluster(&self) -> Option<&Arc<str>> {
        match &self.action()?.cluster {
            ClusterChoice::Single(name) => Some(name),
            ClusterChoice::Weighted { clusters, .. } => clusters.get(self.cluster).map(|(name, _)| name),
        }
    }

    /// What the route, and what is around it, says to the connection manager's filter of this number.
    pub(crate) fn said_to(&self, filter: usize) -> Option<&RouteFilter> {
        let place = self.table.places.get(filter).copied().flatten()?;
        let route = self.route()?;
        let weighted = self.action().and_then(|a| a.weighted_filters.get(self.cluster));
        let filters: &RouteFilters = weighted.unwrap_or(&route.filters);
        filters.get(place)
    }
}
