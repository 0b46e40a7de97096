//! Clusters and endpoints.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::TlsKey;
use super::http2::Http2Options;

/// How a cluster learns its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// `STATIC`: in the cluster's own `load_assignment`.
    Static,
    /// `EDS`; the name asked for (`service_name`, or the cluster's).
    Eds(Arc<str>),
    /// `ORIGINAL_DST` with `CLUSTER_PROVIDED` balancing.
    OriginalDst,
    /// `STRICT_DNS`: every address that the host names resolve to is an endpoint.
    StrictDns,
}

/// `lb_policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LbPolicy {
    /// `ROUND_ROBIN`.
    RoundRobin,
    /// `LEAST_REQUEST` with `choice_count`, default 2.
    LeastRequest(u32),
    /// `RANDOM`.
    Random,
    /// `CLUSTER_PROVIDED`, with ORIGINAL_DST.
    ClusterProvided,
}

/// What HTTP version is spoken to a cluster's endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpstreamHttp {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 with prior knowledge (or ALPN h2 under TLS).
    Http2,
    /// The same version as the downstream request (`use_downstream_protocol_config`).
    Downstream,
}

/// How bytes travel to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamTransport {
    /// `raw_buffer`.
    Plain,
    /// TLS with this context of the snapshot.
    Tls(TlsKey),
}

/// One of `transport_socket_matches`; the first whose labels all stand in the endpoint's
/// `envoy.transport_socket_match` metadata is used.
#[derive(Clone, Debug)]
pub struct TransportSocketMatch {
    /// Name.
    pub name: Arc<str>,
    /// Labels and values; empty matches every endpoint.
    pub labels: Vec<(String, String)>,
    /// The transport.
    pub transport: UpstreamTransport,
}

/// `circuit_breakers` of the default priority. Bounds hold over all workers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitBreakers {
    /// `max_connections`, default 1024.
    pub max_connections: u32,
    /// `max_pending_requests`, default 1024.
    pub max_pending_requests: u32,
    /// `max_requests`, default 1024.
    pub max_requests: u32,
    /// `max_retries`, default 3.
    pub max_retries: u32,
}

/// `dns_lookup_family`: which addresses of a name are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DnsFamily {
    /// `AUTO`, Envoy's default: IPv6, or IPv4 when there are none.
    #[default]
    V6Preferred,
    /// `V4_PREFERRED`: IPv4, or IPv6 when there are none.
    V4Preferred,
    /// `V4_ONLY`.
    V4Only,
    /// `V6_ONLY`.
    V6Only,
    /// `ALL`: both.
    All,
}

/// How the names of a STRICT_DNS cluster are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dns {
    /// `dns_lookup_family`.
    pub family: DnsFamily,
    /// `dns_refresh_rate`: time between two resolutions of a name, default 5 s.
    pub refresh: Duration,
    /// `respect_dns_ttl`: the answer's time to live instead of `refresh`.
    pub respect_ttl: bool,
    /// `dns_failure_refresh_rate`: base and longest time to the next try after failures, doubled each time; `refresh`
    /// by default.
    pub failure: (Duration, Duration),
    /// `dns_jitter`: up to so much is added to each pause, default none.
    pub jitter: Duration,
}

impl Default for Dns {
    fn default() -> Self {
        let refresh = Duration::from_secs(5);
        Self {
            family: DnsFamily::default(),
            refresh,
            respect_ttl: false,
            failure: (refresh, refresh),
            jitter: Duration::ZERO,
        }
    }
}

/// `outlier_detection`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutlierDetection {
    /// `consecutive_5xx`, default 5; zero turns it off.
    pub consecutive_5xx: u32,
    /// `consecutive_gateway_failure`, default 5; zero, or `enforcing_consecutive_gateway_failure` of zero (Envoy's
    /// default), turns it off.
    pub consecutive_gateway_failure: u32,
    /// `split_external_local_origin_errors` with `consecutive_local_origin_failure`; zero when off.
    pub consecutive_local_origin_failure: u32,
    /// `interval` between sweeps, default 10 s.
    pub interval: Duration,
    /// `base_ejection_time`, default 30 s; multiplied by the number of ejections.
    pub base_ejection_time: Duration,
    /// `max_ejection_time`, default 300 s.
    pub max_ejection_time: Duration,
    /// `max_ejection_percent` of the cluster's endpoints, whatever their priority; default 10.
    pub max_ejection_percent: u32,
    /// `always_eject_one_host`: one endpoint may go whatever the percentage; default false.
    pub always_eject_one: bool,
}

/// What an active health check does.
#[derive(Clone, Debug)]
pub enum HealthChecker {
    /// `tcp_health_check`: connect, send `send` if any, and find `receive` in the answer.
    Tcp {
        /// Bytes to send.
        send: Vec<u8>,
        /// Byte strings that must come back in this order.
        receive: Vec<Vec<u8>>,
    },
}

/// `envoy.config.core.v3.HealthCheck`.
#[derive(Clone, Debug)]
pub struct HealthCheck {
    /// Kind.
    pub checker: HealthChecker,
    /// `timeout` of one try.
    pub timeout: Duration,
    /// `interval`.
    pub interval: Duration,
    /// `unhealthy_threshold`.
    pub unhealthy_threshold: u32,
    /// `healthy_threshold`.
    pub healthy_threshold: u32,
}

/// `envoy.config.cluster.v3.Cluster`.
#[derive(Debug)]
pub struct Cluster {
    /// Unique name.
    pub name: Arc<str>,
    /// `alt_stat_name`, or the name.
    pub stat_name: Arc<str>,
    /// Where endpoints come from.
    pub discovery: Discovery,
    /// Balancing.
    pub lb_policy: LbPolicy,
    /// `connect_timeout`, default 5 s; bounds TCP and TLS together.
    pub connect_timeout: Duration,
    /// Default transport (`transport_socket`).
    pub transport: UpstreamTransport,
    /// `transport_socket_matches`.
    pub transport_matches: Vec<TransportSocketMatch>,
    /// HTTP version upstream.
    pub http: UpstreamHttp,
    /// `common_http_protocol_options.idle_timeout` of pooled connections, default one hour.
    pub idle_timeout: Duration,
    /// `max_requests_per_connection`; none by default.
    pub max_requests_per_connection: Option<u32>,
    /// `http2_protocol_options`, of use when `http` allows HTTP/2.
    pub http2: Http2Options,
    /// Circuit breakers.
    pub circuit_breakers: CircuitBreakers,
    /// Outlier detection, when on.
    pub outlier_detection: Option<OutlierDetection>,
    /// Active health checks.
    pub health_checks: Vec<HealthCheck>,
    /// `common_lb_config.healthy_panic_threshold` in percent, default 50.
    pub panic_threshold: f64,
    /// `common_lb_config.locality_weighted_lb_config` is set.
    pub locality_weighted: bool,
    /// `upstream_connection_options.tcp_keepalive`. Beyond Envoy, a connection with bytes under way is given up after the
    /// same patience without an acknowledgement ([`heddle_net::Liveness`]).
    pub keepalive: Option<heddle_net::Keepalive>,
    /// Resolution of names, with STRICT_DNS.
    pub dns: Dns,
    /// `upstream_bind_config.source_address` (inbound passthrough uses 127.0.0.6, or ::6).
    pub bind_source: Option<std::net::IpAddr>,
    /// `per_connection_buffer_limit_bytes`, default 1 MiB.
    pub buffer_limit: usize,
    /// The service behind the cluster, from `metadata.filter_metadata.istio.services[0]`: host, name, namespace.
    pub service: Option<(Arc<str>, Arc<str>, Arc<str>)>,
}

/// `locality`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Locality {
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Sub-zone.
    pub sub_zone: String,
}

/// Health as configuration says it (`LbEndpoint.health_status`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointHealth {
    /// `UNKNOWN` or `HEALTHY`.
    #[default]
    Healthy,
    /// `DEGRADED`.
    Degraded,
    /// `UNHEALTHY`, `TIMEOUT`.
    Unhealthy,
    /// `DRAINING`.
    Draining,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// Address; for STRICT_DNS the port, with an unspecified address until `hostname` is resolved.
    pub address: SocketAddr,
    /// `hostname`, or the DNS name of a STRICT_DNS endpoint.
    pub hostname: Option<Arc<str>>,
    /// `load_balancing_weight`, default 1.
    pub weight: u32,
    /// Health.
    pub health: EndpointHealth,
    /// `envoy.transport_socket_match` metadata.
    pub transport_labels: Vec<(String, String)>,
    /// Istio's `workload` metadata: `name;namespace;canonical name;canonical revision;cluster`.
    pub workload: Option<Arc<str>>,
}

/// `LocalityLbEndpoints`.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalityEndpoints {
    /// Locality.
    pub locality: Locality,
    /// Priority, 0 first.
    pub priority: u32,
    /// `load_balancing_weight` for locality-weighted balancing; without one the locality gets no share of it (zero).
    pub weight: u32,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
}
