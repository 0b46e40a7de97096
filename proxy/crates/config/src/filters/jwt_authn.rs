//! `envoy.filters.http.jwt_authn`.

mod extractor;
mod provider;
mod requirement;

use std::collections::BTreeMap;

use heddle_api::envoy::extensions::filters::http::jwt_authn::v3 as pb;
use prost_types::Any;

pub use extractor::{Extractor, Location, Place};
pub use provider::{Expiration, Keys, Provider, RemoteJwks};
pub use requirement::{Allow, Requirement};

use super::Kind;
use crate::check::fields::{Message, message};
use crate::decode::{Result, required, route_match, unpack};
use crate::path::Path;
use crate::snapshot::RouteMatch;

/// `envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication`.
#[derive(Debug, Default)]
pub struct JwtAuthn {
    /// `providers`, by name.
    pub providers: Vec<Provider>,
    /// Where tokens of all providers may be, for requirements that name none.
    pub everywhere: Extractor,
    /// `rules`; the first that matches holds.
    pub rules: Vec<Rule>,
    /// `requirement_map`, which rules and routes name.
    pub named: BTreeMap<Box<str>, Requirement>,
    /// `bypass_cors_preflight`.
    pub bypass_cors_preflight: bool,
    /// `strip_failure_response`: do not tell clients why.
    pub strip_failure_response: bool,
}

/// `RequirementRule`.
#[derive(Debug)]
pub struct Rule {
    /// For which requests.
    pub matches: RouteMatch,
    /// What they must have; none lets them pass.
    pub requires: RuleRequirement,
}

/// What a rule asks for.
#[derive(Debug)]
pub enum RuleRequirement {
    /// Nothing.
    Nothing,
    /// `requires`.
    Own(Requirement),
    /// `requirement_name`, which is there.
    Named(Box<str>),
}

/// `PerRouteConfig`.
#[derive(Debug)]
pub enum JwtAuthnPerRoute {
    /// `disabled`.
    Disabled,
    /// `requirement_name`, which need not be there: requests are refused then.
    Requirement(Box<str>),
}

impl Kind for JwtAuthn {
    const TYPE: &'static str = "envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication";
    const ROUTE_TYPE: &'static str = "envoy.extensions.filters.http.jwt_authn.v3.PerRouteConfig";
    const MESSAGES: &'static [Message] = &[
        Message {
            name: Self::TYPE,
            implemented: &[
                "bypass_cors_preflight",
                "providers",
                "requirement_map",
                "rules",
                "strip_failure_response",
            ],
            ignored: &[],
            instead: &[("filter_state_rules", "use rules")],
        },
        Message {
            name: "envoy.extensions.filters.http.jwt_authn.v3.JwksAsyncFetch",
            implemented: &["failed_refetch_duration"],
            ignored: &[("fast_listener", "requests wait for the first keys, listeners never")],
            instead: &[],
        },
        message("envoy.extensions.filters.http.jwt_authn.v3.JwtCacheConfig", &[
            "jwt_cache_size",
            "jwt_max_token_size",
        ]),
        Message {
            name: "envoy.extensions.filters.http.jwt_authn.v3.JwtClaimToHeader",
            implemented: &["claim_name", "header_name"],
            ignored: &[],
            instead: &[("claim_path", "use claim_name, with dots")],
        },
        message("envoy.extensions.filters.http.jwt_authn.v3.JwtHeader", &[
            "name",
            "value_prefix",
        ]),
        Message {
            name: "envoy.extensions.filters.http.jwt_authn.v3.JwtProvider",
            implemented: &[
                "audiences",
                "claim_to_headers",
                "clear_route_cache",
                "clock_skew_seconds",
                "forward",
                "forward_payload_header",
                "from_cookies",
                "from_headers",
                "from_params",
                "header_in_metadata",
                "issuer",
                "jwt_cache_config",
                "local_jwks",
                "max_lifetime",
                "normalize_payload_in_metadata",
                "pad_forward_payload_header",
                "payload_in_metadata",
                "remote_jwks",
                "require_expiration",
                "subjects",
            ],
            ignored: &[],
            instead: &[],
        },
        message(
            "envoy.extensions.filters.http.jwt_authn.v3.JwtProvider.NormalizePayload",
            &["space_delimited_claims"],
        ),
        message("envoy.extensions.filters.http.jwt_authn.v3.JwtRequirement", &[
            "allow_missing",
            "allow_missing_or_failed",
            "provider_and_audiences",
            "provider_name",
            "requires_all",
            "requires_any",
        ]),
        message("envoy.extensions.filters.http.jwt_authn.v3.JwtRequirementAndList", &[
            "requirements",
        ]),
        message("envoy.extensions.filters.http.jwt_authn.v3.JwtRequirementOrList", &[
            "requirements",
        ]),
        message(Self::ROUTE_TYPE, &["disabled", "requirement_name"]),
        message("envoy.extensions.filters.http.jwt_authn.v3.ProviderWithAudiences", &[
            "audiences",
            "provider_name",
        ]),
        message("envoy.extensions.filters.http.jwt_authn.v3.RemoteJwks", &[
            "async_fetch",
            "cache_duration",
            "http_uri",
            "retry_policy",
        ]),
        message("envoy.extensions.filters.http.jwt_authn.v3.RequirementRule", &[
            "match",
            "requirement_name",
            "requires",
        ]),
    ];
    type Route = JwtAuthnPerRoute;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        let config: pb::JwtAuthentication = unpack(any, path)?;
        let mut names: Vec<_> = config.providers.keys().collect();
        names.sort();
        let providers = names.iter().filter_map(|name| Some((*name, config.providers.get(*name)?)));
        let providers = providers.map(|(name, provider)| provider::decode(name, provider, &path.key("providers", name)));
        let providers: Vec<Provider> = providers.collect::<Result<_>>()?;
        let mut named = BTreeMap::new();
        for (name, config) in &config.requirement_map {
            let requirement = requirement::decode(config, &providers, &path.key("requirement_map", name))?;
            named.insert(name.as_str().into(), requirement);
        }
        let rules = config.rules.iter().enumerate();
        let rules = rules.map(|(i, rule)| self::rule(rule, &providers, &named, &path.item("rules", i)));
        Ok(Self {
            rules: rules.collect::<Result<_>>()?,
            everywhere: Extractor::new(&config.providers.values().collect::<Vec<_>>()),
            providers,
            named,
            bypass_cors_preflight: config.bypass_cors_preflight,
            strip_failure_response: config.strip_failure_response,
        })
    }

    fn decode_route(any: &Any, path: &Path<'_>) -> Result<JwtAuthnPerRoute> {
        use pb::per_route_config::RequirementSpecifier;
        let config: pb::PerRouteConfig = unpack(any, path)?;
        Ok(match required(config.requirement_specifier.as_ref(), path)? {
            RequirementSpecifier::Disabled(_) => JwtAuthnPerRoute::Disabled,
            RequirementSpecifier::RequirementName(name) => JwtAuthnPerRoute::Requirement(name.as_str().into()),
        })
    }
}

fn rule(
    config: &pb::RequirementRule,
    providers: &[Provider],
    named: &BTreeMap<Box<str>, Requirement>,
    path: &Path<'_>,
) -> Result<Rule> {
    use pb::requirement_rule::RequirementType;
    let here = path.field("match");
    let config_match = required(config.r#match.as_ref(), &here)?;
    for (name, set) in [
        ("dynamic_metadata", !config_match.dynamic_metadata.is_empty()),
        ("grpc", config_match.grpc.is_some()),
        ("runtime_fraction", config_match.runtime_fraction.is_some()),
    ] {
        if set {
            return Err(here.field(name).error("has no effect on a rule of this filter; remove it"));
        }
    }
    let matches = route_match(config_match, &here)?;
    Ok(Rule {
        requires: match &config.requirement_type {
            None => RuleRequirement::Nothing,
            Some(RequirementType::Requires(requirement)) => {
                RuleRequirement::Own(requirement::decode(requirement, providers, &path.field("requires"))?)
            }
            Some(RequirementType::RequirementName(name)) if named.contains_key(name.as_str()) => {
                RuleRequirement::Named(name.as_str().into())
            }
            Some(RequirementType::RequirementName(name)) => {
                return Err(path
                    .field("requirement_name")
                    .error(format!("{name:?} is not in requirement_map")));
            }
        },
        matches,
    })
}

impl JwtAuthn {
    /// What a rule asks for.
    pub fn requirement_of<'c>(&'c self, rule: &'c Rule) -> Option<&'c Requirement> {
        match &rule.requires {
            RuleRequirement::Nothing => None,
            RuleRequirement::Own(requirement) => Some(requirement),
            RuleRequirement::Named(name) => self.named.get(name),
        }
    }

    /// The provider of an issuer: the one that names it, else one that names none.
    pub fn provider_of_issuer(&self, issuer: &str) -> Option<usize> {
        let of = |issuer: &str| self.providers.iter().position(|p| *p.issuer == *issuer);
        of(issuer).or_else(|| of(""))
    }
}
