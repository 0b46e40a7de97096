//! The HTTP connection manager.

use std::sync::Arc;
use std::time::Duration;

use super::source;
use super::{Result, access_log, bytes, chain, duration, duration_or, enumeration, http2, pb, route};
use crate::path::Path;
use crate::snapshot::{
    EscapedSlashes, FilterConfig, Http2Options, HttpCodec, HttpConnectionManager, HttpFilter, RouteSource, RouteTable,
    ServerHeader, UnderscoresAction, XfccDetail, XfccMode,
};

/// Most filters of a connection manager besides the router: which of them run for a request is kept in 64 bits.
const MAX_FILTERS: usize = 64;

const ROUTER: &str = "envoy.extensions.filters.http.router.v3.Router";

/// Clusters that routes in place name, with the place.
type NamedClusters = Vec<(Arc<str>, String)>;

/// `HttpConnectionManager`, with the clusters that its routes in place name and that must exist.
pub(super) fn manager(
    config: &pb::hcm::HttpConnectionManager,
    path: &Path<'_>,
) -> Result<(HttpConnectionManager, NamedClusters)> {
    use pb::core::http_protocol_options::HeadersWithUnderscoresAction;
    use pb::hcm::http_connection_manager::{CodecType, PathWithEscapedSlashesAction, RouteSpecifier};
    let codec = match enumeration(config.codec_type, &path.field("codec_type"))? {
        CodecType::Auto => HttpCodec::Auto,
        CodecType::Http1 => HttpCodec::Http1,
        CodecType::Http2 => HttpCodec::Http2,
        CodecType::Http3 => return Err(path.field("codec_type").unsupported("HTTP3", "use AUTO")),
    };
    let here = path.field("path_with_escaped_slashes_action");
    let escaped_slashes = match enumeration(config.path_with_escaped_slashes_action, &here)? {
        PathWithEscapedSlashesAction::ImplementationSpecificDefault | PathWithEscapedSlashesAction::KeepUnchanged => {
            EscapedSlashes::Keep
        }
        PathWithEscapedSlashesAction::RejectRequest => EscapedSlashes::Reject,
        PathWithEscapedSlashesAction::UnescapeAndRedirect => EscapedSlashes::Redirect,
        PathWithEscapedSlashesAction::UnescapeAndForward => EscapedSlashes::Forward,
    };
    let filters = filters(&config.http_filters, path)?;
    let (routes, clusters) = match &config.route_specifier {
        Some(RouteSpecifier::RouteConfig(table)) => {
            let here = path.field("route_config");
            let (table, clusters) = route::route_table(table, 0..table.virtual_hosts.len(), true, &here)?;
            check_per_filter(&filters, &table, &here)?;
            (RouteSource::Inline(Arc::new(table)), clusters)
        }
        Some(RouteSpecifier::Rds(rds)) => {
            let here = path.field("rds");
            source::aggregated(rds.config_source.as_ref(), &here.field("config_source"))?;
            if rds.route_config_name.is_empty() {
                return Err(here.field("route_config_name").error("must not be empty"));
            }
            (RouteSource::Rds(rds.route_config_name.as_str().into()), Vec::new())
        }
        _ => return Err(path.error("one of rds, route_config must be set")),
    };
    let common = config.common_http_protocol_options.unwrap_or_default();
    let here = path.field("common_http_protocol_options");
    if common.max_requests_per_connection.is_some() {
        return Err(here
            .field("max_requests_per_connection")
            .error("not implemented for downstream connections; remove it"));
    }
    let underscores = here.field("headers_with_underscores_action");
    let underscores = match enumeration(common.headers_with_underscores_action, &underscores)? {
        HeadersWithUnderscoresAction::Allow => UnderscoresAction::Allow,
        HeadersWithUnderscoresAction::RejectRequest => UnderscoresAction::RejectRequest,
        HeadersWithUnderscoresAction::DropHeader => UnderscoresAction::DropHeader,
    };
    let h1 = config.http_protocol_options.clone().unwrap_or_default();
    if h1.allow_absolute_url == Some(false) {
        let here = path.field("http_protocol_options");
        return Err(here.field("allow_absolute_url").unsupported("false", "remove it"));
    }
    let time = |value: Option<&prost_types::Duration>, default: u64, name: &str| {
        duration_or(value, Duration::from_secs(default), &path.field(name))
    };
    let headers_timeout = match time(config.request_headers_timeout.as_ref(), 0, "request_headers_timeout")? {
        // Envoy waits for ever; a head that never ends must not hold a connection.
        Duration::ZERO => Duration::from_secs(60),
        d => d,
    };
    let manager = HttpConnectionManager {
        stat_prefix: config.stat_prefix.as_str().into(),
        codec,
        routes,
        filters,
        access_logs: access_log::access_logs(&config.access_log, path)?,
        use_remote_address: config.use_remote_address.unwrap_or(false),
        xff_trusted_hops: config.xff_num_trusted_hops,
        skip_xff_append: config.skip_xff_append,
        xfcc_mode: xfcc_mode(config, path)?,
        xfcc_detail: xfcc_detail(config),
        generate_request_id: config.generate_request_id.unwrap_or(true),
        preserve_request_id: config.preserve_external_request_id,
        server_header: server_header(config, path)?,
        via: (!config.via.is_empty()).then(|| config.via.clone()),
        idle_timeout: duration_or(
            common.idle_timeout.as_ref(),
            Duration::from_secs(3600),
            &here.field("idle_timeout"),
        )?,
        max_connection_duration: duration(
            common.max_connection_duration.as_ref(),
            &here.field("max_connection_duration"),
        )?
        .filter(|d| !d.is_zero()),
        stream_idle_timeout: time(config.stream_idle_timeout.as_ref(), 300, "stream_idle_timeout")?,
        request_timeout: time(config.request_timeout.as_ref(), 0, "request_timeout")?,
        request_headers_timeout: headers_timeout,
        drain_timeout: time(config.drain_timeout.as_ref(), 5, "drain_timeout")?,
        max_headers_bytes: bytes(config.max_request_headers_kb.unwrap_or(60)).saturating_mul(1024),
        max_headers_count: bytes(common.max_headers_count.unwrap_or(100)),
        http2: match &config.http2_protocol_options {
            Some(options) => http2::options(options, &path.field("http2_protocol_options"))?,
            None => Http2Options::default(),
        },
        accept_http_10: h1.accept_http_10,
        normalize_path: config.normalize_path.unwrap_or(false),
        merge_slashes: config.merge_slashes,
        escaped_slashes,
        underscores,
        upgrades: upgrades(config, path)?,
    };
    Ok((manager, clusters))
}

/// `http_filters`: the router must be there, last and once.
fn filters(configs: &[pb::hcm::HttpFilter], path: &Path<'_>) -> Result<Vec<HttpFilter>> {
    use pb::hcm::http_filter::ConfigType;
    let mut out = Vec::with_capacity(configs.len());
    let mut routed = false;
    for (i, config) in configs.iter().enumerate() {
        let path = path.item("http_filters", i);
        if routed {
            return Err(path.error("stands behind the router, which must be the last filter"));
        }
        let here = path.field("typed_config");
        let Some(ConfigType::TypedConfig(any)) = &config.config_type else {
            return Err(here.error("must be set"));
        };
        if heddle_api::message_name(&any.type_url) == ROUTER {
            if config.disabled {
                return Err(path.field("disabled").error("the router cannot be disabled; remove it"));
            }
            routed = true;
            continue;
        }
        out.push(HttpFilter {
            name: config.name.as_str().into(),
            disabled: config.disabled,
            config: match chain::typed_struct(any, &here)? {
                Some(inner) => FilterConfig::of_struct(&inner, &here)?,
                None => FilterConfig::decode(any, &here)?,
            },
        });
    }
    if out.len() > MAX_FILTERS {
        return Err(path
            .field("http_filters")
            .error(format!("has {} filters, at most {MAX_FILTERS} are allowed", out.len())));
    }
    if routed {
        Ok(out)
    } else {
        Err(path
            .field("http_filters")
            .error("the router is missing; add envoy.filters.http.router as the last filter"))
    }
}

/// What routes in place say to a filter must be meant for such a filter. For routes from RDS, which belong to any number
/// of connection managers, it has no effect otherwise, as in Envoy.
fn check_per_filter(filters: &[HttpFilter], table: &RouteTable, path: &Path<'_>) -> Result<()> {
    for (name, said) in &table.filters {
        let Some(said) = said else { continue };
        let mut named = filters.iter().filter(|f| f.name == *name).peekable();
        if named.peek().is_some() && !named.any(|f| f.config.takes(said)) {
            return Err(path.error(format!(
                "typed_per_filter_config[{name:?}] has a type that the filter of this name does not take"
            )));
        }
    }
    Ok(())
}

fn xfcc_mode(config: &pb::hcm::HttpConnectionManager, path: &Path<'_>) -> Result<XfccMode> {
    use pb::hcm::http_connection_manager::ForwardClientCertDetails as Mode;
    let here = path.field("forward_client_cert_details");
    Ok(match enumeration(config.forward_client_cert_details, &here)? {
        Mode::Sanitize => XfccMode::Sanitize,
        Mode::ForwardOnly => XfccMode::ForwardOnly,
        Mode::AppendForward => XfccMode::AppendForward,
        Mode::SanitizeSet => XfccMode::SanitizeSet,
        Mode::AlwaysForwardOnly => XfccMode::AlwaysForwardOnly,
    })
}

fn xfcc_detail(config: &pb::hcm::HttpConnectionManager) -> XfccDetail {
    let detail = config.set_current_client_cert_details.unwrap_or_default();
    XfccDetail {
        subject: detail.subject.unwrap_or(false),
        uri: detail.uri,
        dns: detail.dns,
    }
}

fn server_header(config: &pb::hcm::HttpConnectionManager, path: &Path<'_>) -> Result<ServerHeader> {
    use pb::hcm::http_connection_manager::ServerHeaderTransformation as Kind;
    let name = if config.server_name.is_empty() {
        "envoy"
    } else {
        &config.server_name
    }
    .to_owned();
    let here = path.field("server_header_transformation");
    Ok(match enumeration(config.server_header_transformation, &here)? {
        Kind::Overwrite => ServerHeader::Overwrite(name),
        Kind::AppendIfAbsent => ServerHeader::AppendIfAbsent(name),
        Kind::PassThrough => ServerHeader::PassThrough,
    })
}

fn upgrades(config: &pb::hcm::HttpConnectionManager, path: &Path<'_>) -> Result<Vec<String>> {
    let mut out: Vec<String> = Vec::new();
    for (i, upgrade) in config.upgrade_configs.iter().enumerate() {
        let here = path.item("upgrade_configs", i);
        let name = upgrade.upgrade_type.to_ascii_lowercase();
        match name.as_str() {
            "" => return Err(here.field("upgrade_type").error("must not be empty")),
            "connect" => return Err(here.field("upgrade_type").unsupported("CONNECT", "remove it")),
            _ if out.contains(&name) => {
                return Err(here.field("upgrade_type").error(format!("{name:?} stands there twice")));
            }
            _ => {}
        }
        if upgrade.enabled.unwrap_or(true) {
            out.push(name);
        }
    }
    Ok(out)
}
