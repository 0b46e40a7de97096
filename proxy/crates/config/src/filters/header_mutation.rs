//! `envoy.filters.http.header_mutation`.

use heddle_api::envoy::config::common::mutation_rules::v3 as rules;
use heddle_api::envoy::extensions::filters::http::header_mutation::v3 as pb;
use heddle_matching::StringMatcher;
use prost_types::Any;

use super::Kind;
use crate::check::fields::{Message, message};
use crate::decode::{Result, headers, matcher, required, unpack};
use crate::path::Path;
use crate::snapshot::HeaderOps;

/// `envoy.extensions.filters.http.header_mutation.v3.HeaderMutation`.
#[derive(Debug, Default)]
pub struct HeaderMutation {
    /// The filter's own, which come first.
    pub mutations: Mutations,
    /// `most_specific_header_mutations_wins`: what routes say comes after what is said around them; the other way round
    /// by default.
    pub most_specific_last: bool,
}

/// `envoy.extensions.filters.http.header_mutation.v3.Mutations`, in order.
#[derive(Debug, Default)]
pub struct Mutations {
    /// `request_mutations`.
    pub request: Vec<Mutation>,
    /// `response_mutations`.
    pub response: Vec<Mutation>,
}

/// `envoy.config.common.mutation_rules.v3.HeaderMutation`.
#[derive(Debug)]
pub enum Mutation {
    /// `append` or `remove`: one change.
    Change(HeaderOps),
    /// `remove_on_match`: every field whose lower-case name matches.
    RemoveMatching(StringMatcher),
}

impl Kind for HeaderMutation {
    const TYPE: &'static str = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation";
    const ROUTE_TYPE: &'static str = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutationPerRoute";
    const MESSAGES: &'static [Message] = &[
        message(
            "envoy.config.common.mutation_rules.v3.HeaderMutation",
            &["append", "remove", "remove_on_match"],
        ),
        message(
            "envoy.config.common.mutation_rules.v3.HeaderMutation.RemoveOnMatch",
            &["key_matcher"],
        ),
        message(Self::TYPE, &["most_specific_header_mutations_wins", "mutations"]),
        message(Self::ROUTE_TYPE, &["mutations"]),
        Message {
            name: "envoy.extensions.filters.http.header_mutation.v3.Mutations",
            implemented: &["request_mutations", "response_mutations"],
            ignored: &[],
            instead: &[("query_parameter_mutations", "use regex_rewrite of the route")],
        },
    ];
    type Route = Mutations;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        let config: pb::HeaderMutation = unpack(any, path)?;
        Ok(Self {
            mutations: mutations(config.mutations.as_ref(), path)?,
            most_specific_last: config.most_specific_header_mutations_wins,
        })
    }

    fn decode_route(any: &Any, path: &Path<'_>) -> Result<Mutations> {
        let config: pb::HeaderMutationPerRoute = unpack(any, path)?;
        mutations(config.mutations.as_ref(), path)
    }
}

fn mutations(config: Option<&pb::Mutations>, path: &Path<'_>) -> Result<Mutations> {
    let Some(config) = config else {
        return Ok(Mutations::default());
    };
    let here = path.field("mutations");
    Ok(Mutations {
        request: list(&config.request_mutations, "request_mutations", &here)?,
        response: list(&config.response_mutations, "response_mutations", &here)?,
    })
}

fn list(configs: &[rules::HeaderMutation], name: &str, path: &Path<'_>) -> Result<Vec<Mutation>> {
    let configs = configs.iter().enumerate();
    configs
        .map(|(i, config)| mutation(config, &path.item(name, i)))
        .collect()
}

fn mutation(config: &rules::HeaderMutation, path: &Path<'_>) -> Result<Mutation> {
    use rules::header_mutation::Action;
    Ok(match required(config.action.as_ref(), path)? {
        Action::Append(option) => Mutation::Change(headers::one(option, &path.field("append"))?),
        Action::Remove(name) => Mutation::Change(HeaderOps {
            remove: vec![headers::removable(name, &path.field("remove"))?],
            add: Vec::new(),
        }),
        Action::RemoveOnMatch(m) => {
            let here = path.field("remove_on_match");
            let here = here.field("key_matcher");
            Mutation::RemoveMatching(matcher::string(required(m.key_matcher.as_ref(), &here)?, &here)?)
        }
    })
}
