//! Network and HTTP filters.

use std::sync::Arc;
use std::time::Duration;

use heddle_matching::{MetadataMatcher, rbac};

use super::listener::{AccessLog, HttpConnectionManager};
use super::route::ClusterChoice;
use super::service::GrpcTarget;
use crate::filters::{FilterConfig, RouteFilterConfig};

/// A network filter in its place in a chain.
#[derive(Clone, Debug)]
pub enum NetworkFilter {
    /// `envoy.filters.network.rbac`.
    Rbac(Arc<rbac::Policies>),
    /// `envoy.filters.network.ext_authz`.
    ExtAuthz(Arc<NetworkExtAuthz>),
    /// `envoy.filters.network.tcp_proxy`, terminal.
    TcpProxy(Arc<TcpProxy>),
    /// `envoy.filters.network.http_connection_manager`, terminal.
    Http(Arc<HttpConnectionManager>),
    /// `istio.stats` on a TCP chain: Istio's standard TCP metrics.
    IstioStats,
    /// `envoy.filters.network.sni_cluster`: the ClientHello's server name is the cluster's name.
    SniCluster,
}

impl NetworkFilter {
    /// Whether it, or one of its HTTP filters, shows the client's certificate to somebody (`include_peer_certificate`).
    pub fn shows_peer_certificate(&self) -> bool {
        let manager = match self {
            Self::Http(manager) => manager,
            Self::ExtAuthz(config) => return config.peer_certificate,
            _ => return false,
        };
        let filters = manager.filters.iter();
        filters
            .filter_map(|filter| match &filter.config {
                FilterConfig::ExtAuthz(config) => Some(config),
                _ => None,
            })
            .any(|config| config.peer_certificate)
    }
}

/// `envoy.extensions.filters.network.ext_authz.v3.ExtAuthz`.
#[derive(Debug)]
pub struct NetworkExtAuthz {
    /// `stat_prefix`.
    pub stat_prefix: Arc<str>,
    /// `grpc_service`: `envoy.service.auth.v3.Authorization`; its `timeout` is 200 ms by default.
    pub service: GrpcTarget,
    /// `failure_mode_allow`: connections pass when the server cannot be asked.
    pub failure_mode_allow: bool,
    /// `include_peer_certificate`: the server is shown the client's certificate, if it was verified.
    pub peer_certificate: bool,
    /// `include_tls_session`.
    pub tls_session: bool,
    /// `filter_enabled_metadata`: which connections are asked about, by what filters before have said of them; default
    /// all.
    pub enabled_metadata: Option<MetadataMatcher>,
    /// `bootstrap_metadata_labels_key`: the field of the node's metadata that has the destination's labels.
    pub labels_key: Option<Box<str>>,
    /// `metadata_context_namespaces`: whose dynamic metadata the server is shown.
    pub metadata_namespaces: Vec<Box<str>>,
}

/// `envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy`.
#[derive(Debug)]
pub struct TcpProxy {
    /// `stat_prefix`.
    pub stat_prefix: Arc<str>,
    /// `cluster` or `weighted_clusters`.
    pub cluster: ClusterChoice,
    /// `idle_timeout`, default one hour; zero means none.
    pub idle_timeout: Duration,
    /// `max_connect_attempts`, default 1.
    pub max_connect_attempts: u32,
    /// Access logs.
    pub access_logs: Vec<AccessLog>,
}

/// An HTTP filter in its place in a connection manager. The router is implied at the end.
#[derive(Clone, Debug)]
pub struct HttpFilter {
    /// The name by which `typed_per_filter_config` speaks of it.
    pub name: Arc<str>,
    /// `disabled`: it runs on routes only that say something to it.
    pub disabled: bool,
    /// What it is and does.
    pub config: FilterConfig,
}

/// What one path through a route table says to filters: table, virtual host, route, weighted cluster. Filters are known
/// by their places in [`super::RouteTable::filters`], so that no name is looked up when a request comes.
#[derive(Clone, Debug, Default)]
pub struct RouteFilters {
    slots: Vec<RouteFilter>,
}

/// What is said to one filter.
#[derive(Clone, Debug, Default)]
pub struct RouteFilter {
    /// The most specific first; empty when the filter's own configuration holds.
    pub levels: Vec<RouteFilterConfig>,
    /// Whether the most specific level switches it off; none when no level says anything.
    pub disabled: Option<bool>,
}

impl RouteFilters {
    /// What is said to the filter in this place.
    pub fn get(&self, slot: usize) -> Option<&RouteFilter> {
        self.slots.get(slot)
    }

    /// Puts a more specific level before those that are there.
    pub fn say(&mut self, slot: usize, config: Option<RouteFilterConfig>, disabled: bool) {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, RouteFilter::default);
        }
        let Some(filter) = self.slots.get_mut(slot) else {
            return;
        };
        if let Some(config) = config {
            filter.levels.insert(0, config);
        }
        filter.disabled = Some(disabled);
    }
}
