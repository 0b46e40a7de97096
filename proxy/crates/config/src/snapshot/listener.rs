//! Listeners, filter chains and the HTTP connection manager.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use heddle_telemetry::access_log::{Destination, Format};

use super::TlsKey;
use super::filter::{HttpFilter, NetworkFilter};
use super::http2::Http2Options;
use super::route::{ClusterChoice, RouteTable};

/// `Listener.traffic_direction`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficDirection {
    /// Not said: a gateway or a plain proxy.
    #[default]
    Unspecified,
    /// Traffic to the local workload.
    Inbound,
    /// Traffic from the local workload.
    Outbound,
}

/// `Listener.connection_balance_config`: which worker serves a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionBalance {
    /// The one that the kernel's hash of the addresses gives it to.
    #[default]
    Kernel,
    /// `exact_balance`: the one with the fewest connections of the listener.
    Exact,
    /// `extend_balance` named `envoy.network.connection_balance.dlb`: the one with the least measured load.
    LoadAware,
}

/// SHA-256 of a message: equal for equal configuration.
pub type Digest = [u8; 32];

/// `envoy.config.listener.v3.Listener`.
#[derive(Debug)]
pub struct Listener {
    /// Unique name.
    pub name: Arc<str>,
    /// Addresses bound: `address` and `additional_addresses`.
    pub addresses: Vec<SocketAddr>,
    /// `bind_to_port`, default true. An unbound listener is reached through another one's `use_original_dst`.
    pub bind: bool,
    /// `use_original_dst`: hand the connection to the listener whose address is the original destination.
    pub use_original_dst: bool,
    /// Traffic direction.
    pub direction: TrafficDirection,
    /// Listener filters in order.
    pub listener_filters: Vec<ListenerFilter>,
    /// `listener_filters_timeout`, default 15 s; zero means none.
    pub listener_filters_timeout: Duration,
    /// `continue_on_listener_filters_timeout`, default false.
    pub continue_on_timeout: bool,
    /// Filter chains.
    pub filter_chains: Vec<FilterChain>,
    /// `default_filter_chain`.
    pub default_filter_chain: Option<FilterChain>,
    /// `per_connection_buffer_limit_bytes`, default 1 MiB.
    pub buffer_limit: usize,
    /// `max_connections_to_accept_per_socket_event` has no meaning here and is refused; this is
    /// `tcp_backlog_size`, default 1024.
    pub backlog: u32,
    /// `tcp_keepalive` of accepted connections; none by default.
    pub keepalive: Option<heddle_net::Keepalive>,
    /// `connection_balance_config`.
    pub balance: ConnectionBalance,
    /// `connection_limit` of this listener over all workers; none by default.
    pub max_connections: Option<u64>,
    /// `ignore_global_conn_limit`: its connections do not count among those of all listeners; default false.
    pub ignore_global_connection_limit: bool,
    /// `bypass_overload_manager`: no overload action touches it; default false.
    pub bypass_overload_manager: bool,
    /// Listeners are discovered on demand: before a connection is handed to the listener of its original destination, the
    /// discovery server is asked for that one once, and the connection waits so long at most. None by default. It is
    /// `metadata.filter_metadata["heddle.on_demand"].timeout`, a text such as `5s`: Envoy has on-demand discovery of
    /// clusters and virtual hosts, and none of listeners.
    pub on_demand: Option<Duration>,
    /// `access_log` of the listener.
    pub access_logs: Vec<AccessLog>,
    /// Everything but the filter chains: while it stays the same, connections on chains that stay go on. None means
    /// that it is like no other.
    pub frame: Option<Digest>,
}

impl Listener {
    /// The clusters that its filters and the route tables inside it lead to, repeated as often as they are named. Those
    /// of RDS tables, and those that a ClientHello names, are not among them.
    pub fn clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        let chains = self.filter_chains.iter().chain(&self.default_filter_chain);
        chains.flat_map(|chain| &chain.filters).flat_map(|filter| {
            let (choice, table) = match filter {
                NetworkFilter::TcpProxy(proxy) => (Some(&proxy.cluster), None),
                NetworkFilter::Http(manager) => match &manager.routes {
                    RouteSource::Inline(table) => (None, Some(table)),
                    RouteSource::Rds(_) => (None, None),
                },
                NetworkFilter::Rbac(_)
                | NetworkFilter::ExtAuthz(_)
                | NetworkFilter::IstioStats
                | NetworkFilter::SniCluster => (None, None),
            };
            let chosen = choice.into_iter().flat_map(ClusterChoice::names);
            chosen.chain(table.into_iter().flat_map(|t| t.clusters()))
        })
    }
}

/// Filters that look at a connection before a filter chain is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerFilter {
    /// `envoy.filters.listener.original_dst`.
    OriginalDst,
    /// `envoy.filters.listener.tls_inspector`.
    TlsInspector,
}

/// An address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// Network address, host bits zero.
    pub address: IpAddr,
    /// Prefix length in bits.
    pub prefix: u8,
}

/// `envoy.config.listener.v3.FilterChainMatch`; an empty field matches everything.
/// Precedence: destination port, destination address, server name, transport protocol, ALPN, source.
#[derive(Clone, Debug, Default)]
pub struct FilterChainMatch {
    /// `destination_port`.
    pub destination_port: Option<u16>,
    /// `prefix_ranges` of the destination; longest prefix wins.
    pub destination: Vec<Cidr>,
    /// `server_names`: exact, or `*.suffix`.
    pub server_names: Vec<String>,
    /// `transport_protocol`: `tls` or `raw_buffer`.
    pub transport_protocol: Option<heddle_net::TransportProtocol>,
    /// `application_protocols`: any of these was offered.
    pub application_protocols: Vec<String>,
    /// `source_prefix_ranges`.
    pub source: Vec<Cidr>,
}

/// `envoy.config.listener.v3.FilterChain`.
#[derive(Debug)]
pub struct FilterChain {
    /// Name, may be empty.
    pub name: Arc<str>,
    /// When this chain is used.
    pub matches: FilterChainMatch,
    /// Server TLS context, by its key in the snapshot; none means plain bytes.
    pub tls: Option<TlsKey>,
    /// `transport_socket_connect_timeout`, default 15 s: bound on the TLS handshake.
    pub handshake_timeout: Duration,
    /// Network filters in order; the last is terminal (HTTP connection manager or TCP proxy).
    pub filters: Vec<NetworkFilter>,
    /// The whole chain; none means that it is like no other.
    pub identity: Option<Digest>,
}

/// Which codec a connection manager speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpCodec {
    /// `AUTO`: by ALPN, else by the HTTP/2 preface.
    #[default]
    Auto,
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 only.
    Http2,
}

/// Where a connection manager's routes come from.
#[derive(Clone, Debug)]
pub enum RouteSource {
    /// `route_config` in place.
    Inline(Arc<RouteTable>),
    /// `rds.route_config_name`: look it up in the snapshot in force when a request comes.
    Rds(Arc<str>),
}

/// `path_with_escaped_slashes_action`: what to do with `%2F` and `%5C` in a path, before it is normalized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EscapedSlashes {
    /// `KEEP_UNCHANGED`, and `IMPLEMENTATION_SPECIFIC_DEFAULT`.
    #[default]
    Keep,
    /// `REJECT_REQUEST` with 400.
    Reject,
    /// `UNESCAPE_AND_REDIRECT`: 307 to the path with slashes in their place; gRPC is refused.
    Redirect,
    /// `UNESCAPE_AND_FORWARD`.
    Forward,
}

/// `headers_with_underscores_action`: what to do with fields of a request whose names hold `_`, which is the same as `-` to
/// CGI and what came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnderscoresAction {
    /// `ALLOW`: they are passed on. Policies see them as other spellings of the names with `-`.
    #[default]
    Allow,
    /// `REJECT_REQUEST`: with 400, over HTTP/2 by a reset of the stream.
    RejectRequest,
    /// `DROP_HEADER`, before filters run.
    DropHeader,
}

/// `server_header_transformation` with `server_name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerHeader {
    /// Set to this value always (`OVERWRITE`, the default; Envoy's default value is `envoy`).
    Overwrite(String),
    /// Set when the upstream sent none (`APPEND_IF_ABSENT`).
    AppendIfAbsent(String),
    /// Leave it alone.
    PassThrough,
}

/// `forward_client_cert_details`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XfccMode {
    /// Remove the header.
    #[default]
    Sanitize,
    /// Leave the header when the connection is mutual TLS.
    ForwardOnly,
    /// Append this hop's element when the connection is mutual TLS.
    AppendForward,
    /// Replace by this hop's element when the connection is mutual TLS.
    SanitizeSet,
    /// Leave the header whatever the connection.
    AlwaysForwardOnly,
}

/// `set_current_client_cert_details`; `By` and `Hash` are always there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XfccDetail {
    /// `Subject=`.
    pub subject: bool,
    /// `URI=`.
    pub uri: bool,
    /// `DNS=`.
    pub dns: bool,
}

/// One `access_log`.
#[derive(Debug)]
pub struct AccessLog {
    /// Where lines go.
    pub destination: Destination,
    /// What a line holds.
    pub format: Format,
}

/// `envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager`.
#[derive(Debug)]
pub struct HttpConnectionManager {
    /// `stat_prefix`.
    pub stat_prefix: Arc<str>,
    /// Codec.
    pub codec: HttpCodec,
    /// Routes.
    pub routes: RouteSource,
    /// HTTP filters in order, without the router, which is always last.
    pub filters: Vec<HttpFilter>,
    /// Access logs.
    pub access_logs: Vec<AccessLog>,
    /// `use_remote_address`, default false.
    pub use_remote_address: bool,
    /// `xff_num_trusted_hops`.
    pub xff_trusted_hops: u32,
    /// `skip_xff_append`.
    pub skip_xff_append: bool,
    /// `forward_client_cert_details`.
    pub xfcc_mode: XfccMode,
    /// `set_current_client_cert_details`.
    pub xfcc_detail: XfccDetail,
    /// `generate_request_id`, default true.
    pub generate_request_id: bool,
    /// `preserve_external_request_id`.
    pub preserve_request_id: bool,
    /// Server header.
    pub server_header: ServerHeader,
    /// `via`.
    pub via: Option<String>,
    /// `common_http_protocol_options.idle_timeout`, default one hour; zero means none.
    pub idle_timeout: Duration,
    /// `common_http_protocol_options.max_connection_duration`; none by default.
    pub max_connection_duration: Option<Duration>,
    /// `stream_idle_timeout`, default five minutes; zero means none.
    pub stream_idle_timeout: Duration,
    /// `request_timeout` for the whole request to arrive; zero, the default, means none.
    pub request_timeout: Duration,
    /// `request_headers_timeout` for the head to arrive; zero, Envoy's default, means Heddle's own bound of 60 s.
    pub request_headers_timeout: Duration,
    /// `drain_timeout`, default 5 s.
    pub drain_timeout: Duration,
    /// `max_request_headers_kb` in bytes, default 60 KiB.
    pub max_headers_bytes: usize,
    /// `common_http_protocol_options.max_headers_count`, default 100.
    pub max_headers_count: usize,
    /// `http2_protocol_options`.
    pub http2: Http2Options,
    /// `http_protocol_options.accept_http_10`.
    pub accept_http_10: bool,
    /// `normalize_path`.
    pub normalize_path: bool,
    /// `merge_slashes`.
    pub merge_slashes: bool,
    /// `path_with_escaped_slashes_action`.
    pub escaped_slashes: EscapedSlashes,
    /// `common_http_protocol_options.headers_with_underscores_action`.
    pub underscores: UnderscoresAction,
    /// Upgrade types allowed by `upgrade_configs`, lower case, for example `websocket`.
    pub upgrades: Vec<String>,
}
