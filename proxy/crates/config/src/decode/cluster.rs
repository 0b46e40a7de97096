//! Clusters.

use std::sync::Arc;
use std::time::Duration;

use super::tls::TlsSpec;
use super::{Result, address, bytes, dns, duration_or, endpoint, enumeration, http2, keepalive, metadata, outlier, pb};
use super::{positive, required, source, tls, unpack};
use crate::path::Path;
use crate::snapshot::{
    CircuitBreakers, Cluster, Discovery, Http2Options, LbPolicy, LocalityEndpoints, TlsKey, TransportSocketMatch,
    UpstreamHttp, UpstreamTransport,
};

const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// A cluster with what it needs from elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct ClusterParts {
    pub(crate) cluster: Arc<Cluster>,
    /// Endpoints in the cluster itself (STATIC, STRICT_DNS).
    pub(crate) endpoints: Option<Arc<Vec<LocalityEndpoints>>>,
    pub(crate) tls: Vec<(TlsKey, TlsSpec)>,
}

/// `Cluster`.
pub(crate) fn cluster(config: &pb::cluster::Cluster, path: &Path<'_>) -> Result<ClusterParts> {
    if config.wait_for_warm_on_init == Some(false) {
        return Err(path.field("wait_for_warm_on_init").unsupported("false", "remove it"));
    }
    let (discovery, endpoints) = discovery(config, path)?;
    let mut contexts = Vec::new();
    let key = |name: &str| TlsKey::from(format!("cluster/{}/{name}", config.name));
    let transport = match &config.transport_socket {
        None => UpstreamTransport::Plain,
        Some(socket) => keyed(tls::upstream(socket, path)?, key("default"), &mut contexts),
    };
    let mut transport_matches = Vec::new();
    for (i, m) in config.transport_socket_matches.iter().enumerate() {
        let here = path.item("transport_socket_matches", i);
        let socket = required(m.transport_socket.as_ref(), &here.field("transport_socket"))?;
        // The index keeps keys apart when names repeat.
        let spec = tls::upstream(socket, &here)?;
        transport_matches.push(TransportSocketMatch {
            name: m.name.as_str().into(),
            labels: m.r#match.as_ref().map(metadata::labels).unwrap_or_default(),
            transport: keyed(spec, key(&format!("match/{i}/{}", m.name)), &mut contexts),
        });
    }
    let lb = config.common_lb_config.clone().unwrap_or_default();
    let mut out = Cluster {
        name: config.name.as_str().into(),
        stat_name: if config.alt_stat_name.is_empty() {
            &config.name
        } else {
            &config.alt_stat_name
        }
        .as_str()
        .into(),
        lb_policy: lb_policy(config, &discovery, path)?,
        discovery,
        connect_timeout: positive(
            config.connect_timeout.as_ref(),
            Duration::from_secs(5),
            &path.field("connect_timeout"),
        )?,
        transport,
        transport_matches,
        http: UpstreamHttp::Http1,
        idle_timeout: Duration::from_secs(3600),
        max_requests_per_connection: None,
        http2: Http2Options::default(),
        circuit_breakers: circuit_breakers(config, path)?,
        outlier_detection: config
            .outlier_detection
            .as_ref()
            .map(|o| outlier::detection(o, &path.field("outlier_detection")))
            .transpose()?,
        health_checks: config
            .health_checks
            .iter()
            .enumerate()
            .map(|(i, h)| outlier::health_check(h, &path.item("health_checks", i)))
            .collect::<Result<_>>()?,
        panic_threshold: lb.healthy_panic_threshold.as_ref().map_or(50.0, |p| p.value),
        locality_weighted: matches!(
            lb.locality_config_specifier,
            Some(pb::cluster::cluster::common_lb_config::LocalityConfigSpecifier::LocalityWeightedLbConfig(_))
        ),
        keepalive: tcp_keepalive(config, path)?,
        dns: dns::dns(config, path)?,
        bind_source: bind_source(config, path)?,
        buffer_limit: config.per_connection_buffer_limit_bytes.map_or(1 << 20, bytes),
        service: metadata::istio_service(config.metadata.as_ref()),
    };
    http_options(config, &mut out, path)?;
    Ok(ClusterParts {
        cluster: Arc::new(out),
        endpoints: endpoints.map(Arc::new),
        tls: contexts,
    })
}

fn keyed(spec: Option<TlsSpec>, key: TlsKey, contexts: &mut Vec<(TlsKey, TlsSpec)>) -> UpstreamTransport {
    match spec {
        None => UpstreamTransport::Plain,
        Some(spec) => {
            contexts.push((key.clone(), spec));
            UpstreamTransport::Tls(key)
        }
    }
}

fn discovery(config: &pb::cluster::Cluster, path: &Path<'_>) -> Result<(Discovery, Option<Vec<LocalityEndpoints>>)> {
    use pb::cluster::cluster::{ClusterDiscoveryType, DiscoveryType};
    let here = path.field("type");
    let kind = match &config.cluster_discovery_type {
        None => DiscoveryType::Static,
        Some(ClusterDiscoveryType::Type(number)) => enumeration(*number, &here)?,
        Some(ClusterDiscoveryType::ClusterType(_)) => {
            return Err(path.field("cluster_type").error("not implemented; use type"));
        }
    };
    let own = path.field("load_assignment");
    // Without a load assignment the cluster has no endpoints, as in Envoy: Istio's BlackHoleCluster is one.
    let endpoints = |by_name| match &config.load_assignment {
        Some(assignment) => endpoint::load_assignment(assignment, by_name, &own).map(Some),
        None => Ok(Some(Vec::new())),
    };
    let none = || match &config.load_assignment {
        Some(_) => Err(own.error(format!("has no meaning with type {}; remove it", kind.as_str_name()))),
        None => Ok(()),
    };
    match kind {
        DiscoveryType::Static => Ok((Discovery::Static, endpoints(false)?)),
        DiscoveryType::StrictDns => Ok((Discovery::StrictDns, endpoints(true)?)),
        DiscoveryType::Eds => {
            none()?;
            let here = path.field("eds_cluster_config");
            let eds = required(config.eds_cluster_config.as_ref(), &here)?;
            source::aggregated(eds.eds_config.as_ref(), &here.field("eds_config"))?;
            let name = if eds.service_name.is_empty() {
                &config.name
            } else {
                &eds.service_name
            };
            Ok((Discovery::Eds(name.as_str().into()), None))
        }
        DiscoveryType::OriginalDst => {
            none()?;
            Ok((Discovery::OriginalDst, None))
        }
        DiscoveryType::LogicalDns => Err(here.unsupported("LOGICAL_DNS", "use STRICT_DNS")),
    }
}

fn lb_policy(config: &pb::cluster::Cluster, discovery: &Discovery, path: &Path<'_>) -> Result<LbPolicy> {
    use pb::cluster::cluster::{LbConfig, LbPolicy as Policy};
    let here = path.field("lb_policy");
    let policy: Policy = enumeration(config.lb_policy, &here)?;
    let provided = policy == Policy::ClusterProvided;
    if provided != (*discovery == Discovery::OriginalDst) {
        return Err(here.error("CLUSTER_PROVIDED and type ORIGINAL_DST go together, neither works without the other"));
    }
    match (&config.lb_config, policy) {
        (None, _)
        | (Some(LbConfig::LeastRequestLbConfig(_)), Policy::LeastRequest)
        | (Some(LbConfig::RoundRobinLbConfig(_)), Policy::RoundRobin) => {}
        (Some(_), _) => {
            return Err(here.error(format!(
                "{} has the settings of another policy; remove them",
                policy.as_str_name()
            )));
        }
    }
    match policy {
        Policy::RoundRobin => Ok(LbPolicy::RoundRobin),
        Policy::Random => Ok(LbPolicy::Random),
        Policy::ClusterProvided => Ok(LbPolicy::ClusterProvided),
        Policy::LeastRequest => {
            let choices = match &config.lb_config {
                Some(LbConfig::LeastRequestLbConfig(c)) => c.choice_count.unwrap_or(2),
                _ => 2,
            };
            Ok(LbPolicy::LeastRequest(choices))
        }
        other => Err(here.unsupported(other.as_str_name(), "use ROUND_ROBIN, LEAST_REQUEST or RANDOM")),
    }
}

fn circuit_breakers(config: &pb::cluster::Cluster, path: &Path<'_>) -> Result<CircuitBreakers> {
    let mut out = CircuitBreakers {
        max_connections: 1024,
        max_pending_requests: 1024,
        max_requests: 1024,
        max_retries: 3,
    };
    let thresholds = config.circuit_breakers.iter().flat_map(|c| &c.thresholds).enumerate();
    let here = path.field("circuit_breakers");
    let mut seen = false;
    for (i, t) in thresholds {
        let here = here.item("thresholds", i);
        match enumeration(t.priority, &here.field("priority"))? {
            pb::core::RoutingPriority::Default if seen => {
                return Err(here.field("priority").error("DEFAULT stands there twice"));
            }
            pb::core::RoutingPriority::Default => seen = true,
            pb::core::RoutingPriority::High => {
                return Err(here
                    .field("priority")
                    .unsupported("HIGH", "remove it: no route can have that priority"));
            }
        }
        out.max_connections = t.max_connections.unwrap_or(out.max_connections);
        out.max_pending_requests = t.max_pending_requests.unwrap_or(out.max_pending_requests);
        out.max_requests = t.max_requests.unwrap_or(out.max_requests);
        out.max_retries = t.max_retries.unwrap_or(out.max_retries);
    }
    Ok(out)
}

fn tcp_keepalive(config: &pb::cluster::Cluster, path: &Path<'_>) -> Result<Option<heddle_net::Keepalive>> {
    let options = config.upstream_connection_options.as_ref();
    match options.and_then(|o| o.tcp_keepalive.as_ref()) {
        Some(options) => keepalive::tcp(
            options,
            &path.field("upstream_connection_options").field("tcp_keepalive"),
        ),
        None => Ok(None),
    }
}

fn bind_source(config: &pb::cluster::Cluster, path: &Path<'_>) -> Result<Option<std::net::IpAddr>> {
    let Some(bind) = &config.upstream_bind_config else {
        return Ok(None);
    };
    let here = path.field("upstream_bind_config");
    let here = here.field("source_address");
    let source = address::ip_and_port(required(bind.source_address.as_ref(), &here)?, &here)?;
    if source.port() != 0 {
        return Err(here.field("port_value").unsupported("a fixed port", "set it to 0"));
    }
    Ok(Some(source.ip()))
}

/// `typed_extension_protocol_options`, and the older `http2_protocol_options` of the cluster itself.
#[expect(deprecated, reason = "`http2_protocol_options` is still accepted, as Envoy does")]
fn http_options(config: &pb::cluster::Cluster, out: &mut Cluster, path: &Path<'_>) -> Result<()> {
    if let Some(h2) = &config.http2_protocol_options {
        out.http = UpstreamHttp::Http2;
        out.http2 = http2::options(h2, &path.field("http2_protocol_options"))?;
    }
    for (name, any) in &config.typed_extension_protocol_options {
        let here = path.key("typed_extension_protocol_options", name);
        if name != HTTP_OPTIONS || heddle_api::message_name(&any.type_url) != HTTP_OPTIONS {
            return Err(here.unsupported("this extension", &format!("only {HTTP_OPTIONS} is")));
        }
        if config.http2_protocol_options.is_some() {
            return Err(path
                .field("http2_protocol_options")
                .error("is set in typed_extension_protocol_options too; remove it here"));
        }
        upstream_http(&unpack(any, &here)?, out, &here)?;
    }
    Ok(())
}

fn upstream_http(options: &pb::upstream_http::HttpProtocolOptions, out: &mut Cluster, path: &Path<'_>) -> Result<()> {
    use pb::upstream_http::http_protocol_options::UpstreamProtocolOptions as Kind;
    use pb::upstream_http::http_protocol_options::explicit_http_config::ProtocolConfig;
    match required(options.upstream_protocol_options.as_ref(), path)? {
        Kind::ExplicitHttpConfig(explicit) => {
            let here = path.field("explicit_http_config");
            match required(explicit.protocol_config.as_ref(), &here)? {
                ProtocolConfig::HttpProtocolOptions(h1) => {
                    no_http1_options(h1, &here.field("http_protocol_options"))?;
                    out.http = UpstreamHttp::Http1;
                }
                ProtocolConfig::Http2ProtocolOptions(h2) => {
                    out.http = UpstreamHttp::Http2;
                    out.http2 = http2::options(h2, &here.field("http2_protocol_options"))?;
                }
                ProtocolConfig::Http3ProtocolOptions(_) => {
                    return Err(here
                        .field("http3_protocol_options")
                        .error("not implemented; use http2_protocol_options"));
                }
            }
        }
        Kind::UseDownstreamProtocolConfig(both) => {
            let here = path.field("use_downstream_protocol_config");
            out.http = UpstreamHttp::Downstream;
            if let Some(h1) = &both.http_protocol_options {
                no_http1_options(h1, &here.field("http_protocol_options"))?;
            }
            if let Some(h2) = &both.http2_protocol_options {
                out.http2 = http2::options(h2, &here.field("http2_protocol_options"))?;
            }
        }
        Kind::AutoConfig(_) => {
            return Err(path
                .field("auto_config")
                .error("not implemented; use explicit_http_config"));
        }
    }
    if let Some(common) = &options.common_http_protocol_options {
        let here = path.field("common_http_protocol_options");
        for (name, set) in [
            ("max_connection_duration", common.max_connection_duration.is_some()),
            ("max_headers_count", common.max_headers_count.is_some()),
            (
                "headers_with_underscores_action",
                common.headers_with_underscores_action != 0,
            ),
        ] {
            if set {
                return Err(here
                    .field(name)
                    .error("not implemented for upstream connections; remove it"));
            }
        }
        out.idle_timeout = duration_or(
            common.idle_timeout.as_ref(),
            out.idle_timeout,
            &here.field("idle_timeout"),
        )?;
        // Zero means no limit, as when it is not set.
        out.max_requests_per_connection = common.max_requests_per_connection.filter(|n| *n > 0);
    }
    Ok(())
}

fn no_http1_options(options: &pb::core::Http1ProtocolOptions, path: &Path<'_>) -> Result<()> {
    if options.accept_http_10 || options.allow_absolute_url.is_some() {
        return Err(path.error("accept_http_10 and allow_absolute_url concern requests that come in; remove them"));
    }
    Ok(())
}
