//! `rate_limits` of routes, virtual hosts and the local rate limit.

use super::{Result, matcher, pb, required};
use crate::path::Path;
use crate::snapshot::{RateLimit, RateLimitAction};

/// A list of `envoy.config.route.v3.RateLimit` in the field of this name.
pub(crate) fn rate_limits(configs: &[pb::route::RateLimit], path: &Path<'_>) -> Result<Vec<RateLimit>> {
    let configs = configs.iter().enumerate();
    configs
        .map(|(i, config)| rate_limit(config, &path.item("rate_limits", i)))
        .collect()
}

fn rate_limit(config: &pb::route::RateLimit, path: &Path<'_>) -> Result<RateLimit> {
    let actions = config.actions.iter().enumerate();
    Ok(RateLimit {
        stage: config.stage.unwrap_or(0),
        actions: actions
            .map(|(i, a)| action(a, &path.item("actions", i)))
            .collect::<Result<_>>()?,
    })
}

fn action(config: &pb::route::rate_limit::Action, path: &Path<'_>) -> Result<RateLimitAction> {
    use pb::route::rate_limit::action::ActionSpecifier as Kind;
    let key = |given: &str, default: &str| -> Box<str> { if given.is_empty() { default } else { given }.into() };
    Ok(match required(config.action_specifier.as_ref(), path)? {
        Kind::SourceCluster(_) => RateLimitAction::SourceCluster,
        Kind::DestinationCluster(_) => RateLimitAction::DestinationCluster,
        Kind::RemoteAddress(_) => RateLimitAction::RemoteAddress,
        Kind::RequestHeaders(h) => RateLimitAction::Header {
            name: h.header_name.to_ascii_lowercase().into(),
            key: h.descriptor_key.as_str().into(),
            skip_if_absent: h.skip_if_absent,
        },
        Kind::GenericKey(g) => RateLimitAction::Generic {
            key: key(&g.descriptor_key, "generic_key"),
            value: g.descriptor_value.as_str().into(),
        },
        Kind::HeaderValueMatch(m) => {
            let here = path.field("header_value_match");
            let headers = m.headers.iter().enumerate();
            RateLimitAction::HeaderMatch {
                key: key(&m.descriptor_key, "header_match"),
                value: m.descriptor_value.as_str().into(),
                expect: m.expect_match.unwrap_or(true),
                headers: headers
                    .map(|(i, h)| matcher::header(h, &here.item("headers", i)))
                    .collect::<Result<_>>()?,
            }
        }
        _ => {
            return Err(path.error(
                "this kind of action is not implemented; use request_headers, generic_key, header_value_match, \
                 remote_address, source_cluster or destination_cluster",
            ));
        }
    })
}
