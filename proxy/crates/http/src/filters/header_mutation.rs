//! `envoy.filters.http.header_mutation`: changes to fields of requests and responses.

use std::sync::Arc;

use heddle_config::filters::RouteFilterConfig;
use heddle_config::filters::header_mutation::{HeaderMutation as Config, Mutation, Mutations};
use heddle_matching::is_separator;

use super::{Call, HttpFilter, RouteConfigs, Setup, Verdict};
use crate::route::ops;

/// One header mutation filter.
pub(crate) struct HeaderMutation {
    config: Arc<Config>,
}

impl HttpFilter for HeaderMutation {
    type Config = Config;
    type Route = Mutations;
    /// What the route said when the request came: the response is changed by the same, whatever becomes of the route.
    type State = Option<Box<RouteConfigs<Self>>>;

    fn new(config: &Arc<Config>, _: &Setup<'_>) -> Self {
        Self {
            config: Arc::clone(config),
        }
    }

    fn route_config(config: &RouteFilterConfig) -> Option<&Mutations> {
        match config {
            RouteFilterConfig::HeaderMutation(config) => Some(config),
            _ => None,
        }
    }

    fn on_request(&self, call: &mut Call<'_>, state: &mut Self::State) -> Verdict {
        let route = call.route_configs::<Self>();
        self.each(&route, |mutations| request(&mutations.request, call));
        *state = route.first().is_some().then(|| Box::new(route));
        Verdict::Continue
    }

    fn on_response(&self, call: &mut Call<'_>, state: &mut Self::State) {
        let route = state
            .take()
            .map_or_else(|| call.route_configs::<Self>(), |route| *route);
        self.each(&route, |mutations| response(&mutations.response, call));
    }
}

impl HeaderMutation {
    /// The filter's own mutations, then those of the route and of what is around it.
    fn each(&self, route: &RouteConfigs<Self>, mut apply: impl FnMut(&Mutations)) {
        apply(&self.config.mutations);
        if self.config.most_specific_last {
            route.all().rev().for_each(apply);
        } else {
            route.all().for_each(apply);
        }
    }
}

fn request(mutations: &[Mutation], call: &mut Call<'_>) {
    for mutation in mutations {
        match mutation {
            Mutation::Change(change) => ops::on_request(change, call.exchange, call.env.connection),
            Mutation::RemoveMatching(matcher) => {
                let fields = &mut call.exchange.request.fields;
                fields.remove_named(|name| matches(matcher, name) || matches_respelled(matcher, name));
            }
        }
    }
}

fn response(mutations: &[Mutation], call: &mut Call<'_>) {
    for mutation in mutations {
        match mutation {
            Mutation::Change(change) => ops::on_response(change, call.exchange, call.env.connection),
            Mutation::RemoveMatching(matcher) => {
                call.exchange
                    .response
                    .fields
                    .remove_named(|name| matches(matcher, name));
            }
        }
    }
}

/// Whether a request's field goes because some servers take it for one that does.
fn matches_respelled(matcher: &heddle_matching::StringMatcher, name: &[u8]) -> bool {
    let parted_by = |separator| -> Vec<u8> {
        let bytes = name.iter();
        bytes.map(|b| if is_separator(*b) { separator } else { *b }).collect()
    };
    name.iter().any(|b| is_separator(*b)) && [b'-', b'_'].into_iter().any(|b| matches(matcher, &parted_by(b)))
}

fn matches(matcher: &heddle_matching::StringMatcher, name: &[u8]) -> bool {
    std::str::from_utf8(name).is_ok_and(|name| matcher.matches(name))
}

#[cfg(test)]
mod tests {
    use heddle_matching::StringMatcher;

    use super::*;

    #[test]
    fn a_pattern_that_removes_has_every_spelling_removed() {
        for (pattern, name, goes) in [
            ("x-debug-", "x_debug_user", true),
            ("x-debug-", "x.debug-user", true),
            ("x_debug_", "x-debug-user", true),
            ("x-debug-", "xdebug-user", false),
        ] {
            let matcher = StringMatcher::prefix(pattern);
            assert_eq!(matches_respelled(&matcher, name.as_bytes()), goes, "{pattern} {name}");
        }
    }
}
