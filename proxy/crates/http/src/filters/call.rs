//! What a filter sees of a request.

use std::marker::PhantomData;

use heddle_net::ConnectionInfo;
use tokio::time::Instant;

use super::HttpFilter;
use crate::hcm::{Environment, Exchange};
use crate::local_reply::LocalReply;
use crate::route::Selected;

/// What a filter decides about a request.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Go on.
    Continue,
    /// Answer with this.
    Reply(Box<LocalReply>),
}

impl From<LocalReply> for Verdict {
    fn from(reply: LocalReply) -> Self {
        Self::Reply(Box::new(reply))
    }
}

/// A request, or its answer, before a filter.
pub(crate) struct Call<'c> {
    pub(crate) exchange: &'c mut Exchange,
    pub(crate) env: Environment<'c>,
    pub(super) number: usize,
}

impl<'c> Call<'c> {
    pub(crate) fn connection(&self) -> &'c ConnectionInfo {
        self.env.connection
    }

    /// What the route says to this filter.
    pub(crate) fn route_configs<F: HttpFilter>(&self) -> RouteConfigs<F> {
        let said = |selected: &&Selected| {
            selected
                .said_to(self.number)
                .is_some_and(|said| !said.levels.is_empty())
        };
        RouteConfigs {
            selected: self.exchange.selected.as_ref().filter(said).cloned(),
            number: self.number,
            filter: PhantomData,
        }
    }
}

/// What table, virtual host, route and weighted cluster say to a filter. Outlives a change of the route.
pub(crate) struct RouteConfigs<F> {
    selected: Option<Selected>,
    number: usize,
    filter: PhantomData<F>,
}

impl<F> Default for RouteConfigs<F> {
    fn default() -> Self {
        Self {
            selected: None,
            number: 0,
            filter: PhantomData,
        }
    }
}

impl<F> std::fmt::Debug for RouteConfigs<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouteConfigs")
            .field("selected", &self.selected.is_some())
            .finish()
    }
}

impl<F: HttpFilter> RouteConfigs<F> {
    /// The most specific first.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = &F::Route> {
        let said = self.selected.as_ref().and_then(|s| s.said_to(self.number));
        said.into_iter()
            .flat_map(|said| &said.levels)
            .filter_map(F::route_config)
    }

    /// The most specific.
    pub(crate) fn first(&self) -> Option<&F::Route> {
        self.all().next()
    }
}

/// A request that is over.
#[derive(Clone, Copy)]
pub(crate) struct End<'e> {
    pub(crate) exchange: &'e Exchange,
    pub(crate) connection: &'e ConnectionInfo,
    pub(crate) now: Instant,
}
