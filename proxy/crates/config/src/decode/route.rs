//! Route tables and virtual hosts.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::per_filter::Slots;
use heddle_matching::StringMatcher;

use super::{Result, enumeration, fraction, headers, matcher, mirror, pb, rate_limit, required, retry, route_action};
use crate::path::Path;
use crate::snapshot::{Fraction, Mirror, PathMatch, Route, RouteFilters, RouteMatch, RouteTable, VirtualHost};

/// Largest body of a direct response unless the table says otherwise, as in Envoy.
const MAX_DIRECT_BODY: u32 = 4096;

/// Clusters that a table names, with the place.
pub(crate) type NamedClusters = Vec<(Arc<str>, String)>;

/// What the routes of one table have in common.
pub(super) struct TableContext {
    pub(super) max_direct_body: usize,
    pub(super) clusters: NamedClusters,
    pub(super) slots: Slots,
    /// What is mirrored around the route or virtual host at hand.
    pub(super) mirrors: Arc<[Mirror]>,
}

/// `RouteConfiguration` with these of its virtual hosts. The second part holds the clusters that must exist: those that it names when
/// `validate_clusters` is set, whose default is true for a table in place and false for one from RDS.
pub(crate) fn route_table(
    config: &pb::route::RouteConfiguration,
    hosts: Range<usize>,
    validate_by_default: bool,
    path: &Path<'_>,
) -> Result<(RouteTable, NamedClusters)> {
    let mut context = TableContext {
        max_direct_body: super::bytes(config.max_direct_response_body_size_bytes.unwrap_or(MAX_DIRECT_BODY)),
        clusters: Vec::new(),
        slots: Slots::default(),
        mirrors: Arc::default(),
    };
    let mut table = RouteTable {
        name: config.name.as_str().into(),
        ignore_port: config.ignore_port_in_host_matching,
        request_headers: headers::operations(
            &config.request_headers_to_add,
            &config.request_headers_to_remove,
            "request_headers_to_add",
            "request_headers_to_remove",
            path,
        )?,
        response_headers: headers::operations(
            &config.response_headers_to_add,
            &config.response_headers_to_remove,
            "response_headers_to_add",
            "response_headers_to_remove",
            path,
        )?,
        internal_only: config
            .internal_only_headers
            .iter()
            .map(|h| h.to_ascii_lowercase())
            .collect(),
        ..RouteTable::default()
    };
    let filters = context
        .slots
        .level(&config.typed_per_filter_config, &Arc::default(), path)?;
    let mirrors = &config.request_mirror_policies;
    let mirrors = mirror::policies(mirrors, &Arc::default(), &mut context.clusters, path)?;
    let mut names = HashMap::new();
    for (i, host) in config
        .virtual_hosts
        .iter()
        .enumerate()
        .take(hosts.end)
        .skip(hosts.start)
    {
        let here = path.item("virtual_hosts", i);
        if let Some(other) = names.insert(host.name.as_str(), i) {
            return Err(here
                .field("name")
                .error(format!("{:?} is virtual_hosts[{other}]'s name too", host.name)));
        }
        index(&mut table, host, i, &here)?;
        context.mirrors = mirror::policies(&host.request_mirror_policies, &mirrors, &mut context.clusters, &here)?;
        table
            .virtual_hosts
            .push(virtual_host(host, &filters, &mut context, &here)?);
    }
    table.disables_filters = context.slots.disables();
    table.filters = context.slots.into_names();
    let validate = config.validate_clusters.unwrap_or(validate_by_default);
    Ok((table, if validate { context.clusters } else { Vec::new() }))
}

/// Puts the domains of a virtual host into the table's indexes. A domain may belong to one virtual host only.
fn index(table: &mut RouteTable, host: &pb::route::VirtualHost, position: usize, path: &Path<'_>) -> Result<()> {
    for (i, domain) in host.domains.iter().enumerate() {
        let here = path.item("domains", i);
        let domain = domain.to_ascii_lowercase();
        let twice = || {
            here.error(format!(
                "{domain:?} belongs to another virtual host already, or stands there twice"
            ))
        };
        let taken = if domain == "*" {
            table.any.replace(position).is_some()
        } else if let Some(suffix) = domain.strip_prefix('*') {
            table.suffix.insert(suffix, position).is_some()
        } else if let Some(prefix) = domain.strip_suffix('*') {
            table.prefix.insert(prefix, position).is_some()
        } else if domain.is_empty() {
            return Err(here.error("must not be empty"));
        } else {
            table.exact.insert(domain.as_str().into(), position).is_some()
        };
        if taken {
            return Err(twice());
        }
        if domain.trim_start_matches('*').trim_end_matches('*').contains('*') {
            return Err(here.error(format!(
                "{domain:?}: a star may stand at the beginning or at the end only"
            )));
        }
    }
    Ok(())
}

fn virtual_host(
    host: &pb::route::VirtualHost,
    around: &Arc<RouteFilters>,
    context: &mut TableContext,
    path: &Path<'_>,
) -> Result<VirtualHost> {
    use pb::route::virtual_host::TlsRequirementType;
    let require_tls = match enumeration(host.require_tls, &path.field("require_tls"))? {
        TlsRequirementType::None => false,
        TlsRequirementType::All => true,
        TlsRequirementType::ExternalOnly => {
            return Err(path.field("require_tls").unsupported("EXTERNAL_ONLY", "use ALL"));
        }
    };
    let filters = context.slots.level(&host.typed_per_filter_config, around, path)?;
    let mut routes = Vec::with_capacity(host.routes.len());
    for (i, r) in host.routes.iter().enumerate() {
        routes.push(route(r, &filters, context, &path.item("routes", i))?);
    }
    let routes = {
        // What is logged of expressions says where they stand.
        let _span = tracing::info_span!("routes", %path).entered();
        routes.into()
    };
    Ok(VirtualHost {
        name: host.name.as_str().into(),
        routes,
        require_tls,
        request_headers: headers::operations(
            &host.request_headers_to_add,
            &host.request_headers_to_remove,
            "request_headers_to_add",
            "request_headers_to_remove",
            path,
        )?,
        response_headers: headers::operations(
            &host.response_headers_to_add,
            &host.response_headers_to_remove,
            "response_headers_to_add",
            "response_headers_to_remove",
            path,
        )?,
        retry: retry::optional(host.retry_policy.as_ref(), path)?,
        include_attempt_count: host.include_request_attempt_count,
        rate_limits: rate_limit::rate_limits(&host.rate_limits, path)?,
    })
}

fn route(
    config: &pb::route::Route,
    around: &Arc<RouteFilters>,
    context: &mut TableContext,
    path: &Path<'_>,
) -> Result<Route> {
    let here = path.field("match");
    let filters = context.slots.level(&config.typed_per_filter_config, around, path)?;
    Ok(Route {
        name: config.name.as_str().into(),
        matches: route_match(required(config.r#match.as_ref(), &here)?, &here)?,
        action: route_action::action(config, &filters, context, path)?,
        request_headers: headers::operations(
            &config.request_headers_to_add,
            &config.request_headers_to_remove,
            "request_headers_to_add",
            "request_headers_to_remove",
            path,
        )?,
        response_headers: headers::operations(
            &config.response_headers_to_add,
            &config.response_headers_to_remove,
            "response_headers_to_add",
            "response_headers_to_remove",
            path,
        )?,
        filters,
    })
}

/// `RouteMatch`.
pub(crate) fn route_match(config: &pb::route::RouteMatch, path: &Path<'_>) -> Result<RouteMatch> {
    use pb::route::route_match::PathSpecifier;
    let matched = match required(config.path_specifier.as_ref(), path)? {
        PathSpecifier::Prefix(p) => PathMatch::Prefix(p.as_str().into()),
        PathSpecifier::Path(p) => PathMatch::Exact(p.as_str().into()),
        PathSpecifier::PathSeparatedPrefix(p) => {
            let here = path.field("path_separated_prefix");
            if !p.starts_with('/') || p.len() < 2 || p.ends_with('/') || p.contains(['?', '#']) {
                return Err(here.error(format!(
                    "{p:?} must begin with a slash, not end with one, and hold no ? or #"
                )));
            }
            PathMatch::Segments(p.as_str().into())
        }
        PathSpecifier::SafeRegex(r) => {
            let regex = matcher::regex(r, &path.field("safe_regex"))?;
            PathMatch::Regex(StringMatcher::regex(regex))
        }
        _ => return Err(path.error("this kind of path match is not implemented; use prefix, path or safe_regex")),
    };
    if matches!(matched, PathMatch::Regex(_)) && config.case_sensitive == Some(false) {
        return Err(path
            .field("case_sensitive")
            .error("has no effect on safe_regex; write (?i) into the expression"));
    }
    let headers = config.headers.iter().enumerate();
    let query = config.query_parameters.iter().enumerate();
    let metadata = config.dynamic_metadata.iter().enumerate();
    Ok(RouteMatch {
        path: matched,
        case_sensitive: config.case_sensitive.unwrap_or(true),
        headers: headers
            .map(|(i, h)| matcher::header(h, &path.item("headers", i)))
            .collect::<Result<_>>()?,
        query: query
            .map(|(i, q)| matcher::query(q, &path.item("query_parameters", i)))
            .collect::<Result<_>>()?,
        metadata: metadata
            .map(|(i, m)| matcher::metadata(m, &path.item("dynamic_metadata", i)))
            .collect::<Result<_>>()?,
        grpc: config.grpc.is_some(),
        fraction: fraction::runtime(
            config.runtime_fraction.as_ref(),
            Fraction::ALL,
            &path.field("runtime_fraction"),
        )?
        .millionths(),
    })
}
