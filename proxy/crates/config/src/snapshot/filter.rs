//! Network and HTTP filters.

use std::sync::Arc;
use std::time::Duration;

use heddle_matching::rbac;

use super::listener::{AccessLog, HttpConnectionManager};
use super::route::ClusterChoice;

/// A network filter in its place in a chain.
#[derive(Clone, Debug)]
pub enum NetworkFilter {
    /// `envoy.filters.network.rbac`.
    Rbac(Arc<rbac::Policies>),
    /// `envoy.filters.network.tcp_proxy`, terminal.
    TcpProxy(Arc<TcpProxy>),
    /// `envoy.filters.network.http_connection_manager`, terminal.
    Http(Arc<HttpConnectionManager>),
    /// `istio.stats` on a TCP chain: Istio's standard TCP metrics.
    IstioStats,
    /// `envoy.filters.network.sni_cluster`: the ClientHello's server name is the cluster's name.
    SniCluster,
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
pub enum HttpFilter {
    /// `envoy.filters.http.rbac`.
    Rbac(Arc<rbac::Policies>),
    /// `istio.stats`: Istio's standard metrics for requests.
    IstioStats,
    /// `istio.metadata_exchange`: swap workload names with the peer in `x-envoy-peer-metadata` headers.
    PeerMetadata,
}
