//! What a route does.

use std::sync::Arc;
use std::time::Duration;

use heddle_matching::Regex;

use super::route::TableContext;
use super::{Result, duration, duration_or, enumeration, mirror, pb, rate_limit, required, retry, tcp_proxy, tls};
use crate::path::Path;
use crate::snapshot::{
    Action, ClusterChoice, DirectResponse, HostRewrite, PathRewrite, Redirect, RouteAction, RouteFilters,
};

/// The action of a `Route`.
pub(super) fn action(
    config: &pb::route::Route,
    filters: &Arc<RouteFilters>,
    context: &mut TableContext,
    path: &Path<'_>,
) -> Result<Action> {
    use pb::route::route::Action as Kind;
    match required(config.action.as_ref(), path)? {
        Kind::Route(r) => Ok(Action::Route(Box::new(forward(
            r,
            filters,
            context,
            &path.field("route"),
        )?))),
        Kind::Redirect(r) => Ok(Action::Redirect(Box::new(redirect(r, &path.field("redirect"))?))),
        Kind::DirectResponse(d) => Ok(Action::Direct(direct(d, context, &path.field("direct_response"))?)),
        _ => Err(path.error("this kind of action is not implemented; use route, redirect or direct_response")),
    }
}

#[expect(deprecated, reason = "`include_vh_rate_limits` is still accepted, as Envoy does")]
fn forward(
    config: &pb::route::RouteAction,
    filters: &Arc<RouteFilters>,
    context: &mut TableContext,
    path: &Path<'_>,
) -> Result<RouteAction> {
    use pb::route::route_action::ClusterNotFoundResponseCode as NotFound;
    let here = path.field("priority");
    if enumeration::<pb::core::RoutingPriority>(config.priority, &here)? != pb::core::RoutingPriority::Default {
        return Err(here.unsupported("HIGH", "remove it"));
    }
    let not_found = path.field("cluster_not_found_response_code");
    let not_found_status = match enumeration(config.cluster_not_found_response_code, &not_found)? {
        NotFound::ServiceUnavailable => 503,
        NotFound::NotFound => 404,
        NotFound::InternalServerError => 500,
    };
    Ok(RouteAction {
        cluster: cluster(config, context, path)?,
        timeout: duration_or(config.timeout.as_ref(), Duration::from_secs(15), &path.field("timeout"))?,
        idle_timeout: duration(config.idle_timeout.as_ref(), &path.field("idle_timeout"))?,
        grpc_timeout_max: grpc_timeout(config, path)?,
        path_rewrite: path_rewrite(config, path)?,
        host_rewrite: host_rewrite(config, path)?,
        retry: retry::optional(config.retry_policy.as_ref(), path)?,
        not_found_status,
        weighted_filters: weighted_filters(config, filters, context, path)?,
        rate_limits: rate_limit::rate_limits(&config.rate_limits, path)?,
        include_host_rate_limits: config.include_vh_rate_limits.unwrap_or(false),
        mirrors: mirror::policies(
            &config.request_mirror_policies,
            &context.mirrors,
            &mut context.clusters,
            path,
        )?,
    })
}

/// What each weighted cluster says to filters, where any says something.
fn weighted_filters(
    config: &pb::route::RouteAction,
    around: &Arc<RouteFilters>,
    context: &mut TableContext,
    path: &Path<'_>,
) -> Result<Vec<Arc<RouteFilters>>> {
    use pb::route::route_action::ClusterSpecifier;
    let Some(ClusterSpecifier::WeightedClusters(weighted)) = &config.cluster_specifier else {
        return Ok(Vec::new());
    };
    if weighted.clusters.iter().all(|c| c.typed_per_filter_config.is_empty()) {
        return Ok(Vec::new());
    }
    let here = path.field("weighted_clusters");
    let clusters = weighted.clusters.iter().enumerate();
    clusters
        .map(|(i, c)| {
            let here = here.item("clusters", i);
            context.slots.level(&c.typed_per_filter_config, around, &here)
        })
        .collect()
}

fn cluster(config: &pb::route::RouteAction, context: &mut TableContext, path: &Path<'_>) -> Result<ClusterChoice> {
    use pb::route::route_action::ClusterSpecifier;
    let mut named = |name: &str, path: &Path<'_>| -> Result<Arc<str>> {
        if name.is_empty() {
            return Err(path.error("must not be empty"));
        }
        let name: Arc<str> = name.into();
        context.clusters.push((name.clone(), path.to_string()));
        Ok(name)
    };
    match required(config.cluster_specifier.as_ref(), path)? {
        ClusterSpecifier::Cluster(name) => Ok(ClusterChoice::Single(named(name, &path.field("cluster"))?)),
        ClusterSpecifier::WeightedClusters(weighted) => {
            let here = path.field("weighted_clusters");
            let mut clusters = Vec::with_capacity(weighted.clusters.len());
            for (i, c) in weighted.clusters.iter().enumerate() {
                let here = here.item("clusters", i);
                clusters.push((named(&c.name, &here.field("name"))?, c.weight.unwrap_or(0)));
            }
            let choice = tcp_proxy::weighted_choice(clusters, &here)?;
            #[expect(
                deprecated,
                reason = "a sum that is told must be right, as in Envoy before it was deprecated"
            )]
            if let (Some(told), ClusterChoice::Weighted { total, .. }) = (weighted.total_weight, &choice)
                && told != *total
            {
                return Err(here
                    .field("total_weight")
                    .error(format!("is {told}, but the weights add up to {total}; remove it")));
            }
            Ok(choice)
        }
        _ => Err(path.error("this kind of cluster choice is not implemented; use cluster or weighted_clusters")),
    }
}

/// `max_stream_duration`: the bound on `grpc-timeout`. A bound on the stream itself is refused, except zero, which
/// means none.
fn grpc_timeout(config: &pb::route::RouteAction, path: &Path<'_>) -> Result<Option<Duration>> {
    let Some(limits) = &config.max_stream_duration else {
        return Ok(None);
    };
    let here = path.field("max_stream_duration");
    let stream = here.field("max_stream_duration");
    if duration(limits.max_stream_duration.as_ref(), &stream)?.is_some_and(|d| !d.is_zero()) {
        return Err(stream.unsupported("a limit", "use timeout"));
    }
    duration(
        limits.grpc_timeout_header_max.as_ref(),
        &here.field("grpc_timeout_header_max"),
    )
}

fn path_rewrite(config: &pb::route::RouteAction, path: &Path<'_>) -> Result<Option<PathRewrite>> {
    let Some(rewrite) = &config.regex_rewrite else {
        return Ok(
            (!config.prefix_rewrite.is_empty()).then(|| PathRewrite::Prefix(config.prefix_rewrite.as_str().into()))
        );
    };
    let here = path.field("regex_rewrite");
    if !config.prefix_rewrite.is_empty() {
        return Err(here.error("prefix_rewrite is set too; use one of them"));
    }
    let pattern = here.field("pattern");
    let matcher = required(rewrite.pattern.as_ref(), &pattern)?;
    let regex = Regex::for_rewrite(&matcher.regex, &rewrite.substitution).map_err(|e| here.error(e.to_string()))?;
    Ok(Some(PathRewrite::Regex(regex, rewrite.substitution.as_str().into())))
}

fn host_rewrite(config: &pb::route::RouteAction, path: &Path<'_>) -> Result<Option<HostRewrite>> {
    use pb::route::route_action::HostRewriteSpecifier as Kind;
    match &config.host_rewrite_specifier {
        None | Some(Kind::AutoHostRewrite(false)) => Ok(None),
        Some(Kind::AutoHostRewrite(true)) => Ok(Some(HostRewrite::Auto)),
        Some(Kind::HostRewriteLiteral(host)) => Ok(Some(HostRewrite::Literal(host.as_str().into()))),
        Some(_) => {
            Err(path
                .error("this kind of host rewrite is not implemented; use host_rewrite_literal or auto_host_rewrite"))
        }
    }
}

fn redirect(config: &pb::route::RedirectAction, path: &Path<'_>) -> Result<Redirect> {
    use pb::route::redirect_action::{PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier};
    let mut out = Redirect {
        scheme: match &config.scheme_rewrite_specifier {
            Some(SchemeRewriteSpecifier::HttpsRedirect(true)) => Some("https".into()),
            Some(SchemeRewriteSpecifier::SchemeRedirect(scheme)) => Some(scheme.as_str().into()),
            _ => None,
        },
        host: (!config.host_redirect.is_empty()).then(|| config.host_redirect.as_str().into()),
        port: match config.port_redirect {
            0 => None,
            port => Some(
                u16::try_from(port).map_err(|_| path.field("port_redirect").error(format!("{port} is above 65535")))?,
            ),
        },
        strip_query: config.strip_query,
        status: match enumeration(config.response_code, &path.field("response_code"))? {
            RedirectResponseCode::MovedPermanently => 301,
            RedirectResponseCode::Found => 302,
            RedirectResponseCode::SeeOther => 303,
            RedirectResponseCode::TemporaryRedirect => 307,
            RedirectResponseCode::PermanentRedirect => 308,
        },
        ..Redirect::default()
    };
    match &config.path_rewrite_specifier {
        None => {}
        Some(PathRewriteSpecifier::PathRedirect(p)) => {
            if p.contains('?') && config.strip_query {
                return Err(path
                    .field("strip_query")
                    .error("removes the query that path_redirect has; use one of them"));
            }
            out.path = Some(p.as_str().into());
        }
        Some(PathRewriteSpecifier::PrefixRewrite(p)) => out.prefix_rewrite = Some(p.as_str().into()),
        Some(_) => {
            return Err(path.error("this kind of path rewrite is not implemented; use path_redirect or prefix_rewrite"));
        }
    }
    Ok(out)
}

fn direct(config: &pb::route::DirectResponseAction, context: &TableContext, path: &Path<'_>) -> Result<DirectResponse> {
    let status = match u16::try_from(config.status) {
        Ok(status) if (200..600).contains(&status) => status,
        _ => {
            return Err(path
                .field("status")
                .error(format!("{} is not between 200 and 599", config.status)));
        }
    };
    let here = path.field("body");
    let body = config
        .body
        .as_ref()
        .map(|b| tls::data_source(b, &here))
        .transpose()?
        .unwrap_or_default();
    if body.len() > context.max_direct_body {
        return Err(here.error(format!(
            "has {} bytes, at most {} are allowed; raise max_direct_response_body_size_bytes",
            body.len(),
            context.max_direct_body
        )));
    }
    Ok(DirectResponse {
        status,
        body: body.into(),
    })
}
