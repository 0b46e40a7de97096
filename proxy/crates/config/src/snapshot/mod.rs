//! The checked, immutable configuration that workers run. One [`Snapshot`] per accepted push.
//!
//! No value in here can be wrong: names resolve, regular expressions are compiled, certificates are parsed. An object
//! that a push did not change keeps its `Arc`, so a worker finds out what changed by comparing pointers.

mod cluster;
mod domains;
mod filter;
mod fraction;
mod http2;
mod listener;
mod overload;
mod rate_limit;
mod route;
mod runtime;
mod service;

use std::collections::HashMap;
use std::sync::Arc;

use heddle_tls::{ClientContext, ServerContext};

pub use crate::filters::{FilterConfig, RouteFilterConfig};
pub use cluster::{
    CircuitBreakers, Cluster, Discovery, Dns, DnsFamily, Endpoint, EndpointHealth, HealthCheck, HealthChecker,
    LbPolicy, Locality, LocalityEndpoints, OutlierDetection, TransportSocketMatch, UpstreamHttp, UpstreamTransport,
};
pub use domains::Wildcards;
pub use filter::{HttpFilter, NetworkExtAuthz, NetworkFilter, RouteFilter, RouteFilters, TcpProxy};
pub use fraction::Fraction;
pub use http2::{H2Keepalive, Http2Options};
pub use listener::{
    AccessLog, Cidr, ConnectionBalance, Digest, EscapedSlashes, FilterChain, FilterChainMatch, HttpCodec,
    HttpConnectionManager, Listener, ListenerFilter, RouteSource, ServerHeader, TrafficDirection, UnderscoresAction,
    XfccDetail, XfccMode,
};
pub use overload::{
    LoadShedPoint, OverloadAction, OverloadActionKind, OverloadLimits, OverloadManager, Resource, ResourceMonitor,
    ScaledTimer, ShedPoint, TimerMinimum, Trigger,
};
pub use rate_limit::{RateLimit, RateLimitAction};
pub use route::{
    Action, ClusterChoice, DirectResponse, HeaderOp, HeaderOps, HeaderValue, HostRewrite, Mirror, MirrorHost, MirrorTo,
    PathMatch, PathRewrite, Redirect, RetryOn, RetryPolicy, Route, RouteAction, RouteMatch, RouteTable, Routes,
    VirtualHost,
};
pub use runtime::{PrematureResetLimits, Runtime};
pub use service::{GrpcTarget, HttpTarget};

/// Name of a TLS context inside a snapshot. It stays the same while certificates rotate behind it.
pub type TlsKey = Arc<str>;

/// Who this proxy is, from the bootstrap's `node`.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// `node.id`.
    pub id: String,
    /// `node.cluster`.
    pub cluster: String,
    /// `node.metadata` as JSON. Istio's keys are used: `NAME`, `NAMESPACE`, `WORKLOAD_NAME`, `CLUSTER_ID`,
    /// `SERVICE_ACCOUNT`, `LABELS`, `MESH_ID`.
    pub metadata: serde_json::Value,
    /// `node.locality`.
    pub locality: Locality,
}

/// Everything a worker needs to serve, as of one push.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Grows by one with each accepted push.
    pub version: u64,
    /// This proxy.
    pub node: Arc<Node>,
    /// What the bootstrap's runtime layers set.
    pub runtime: Runtime,
    /// Listeners by name. Only warm ones: their routes and secrets are here too.
    pub listeners: HashMap<Arc<str>, Arc<Listener>>,
    /// Route tables that listeners name through RDS, by route configuration name.
    pub routes: HashMap<Arc<str>, Arc<RouteTable>>,
    /// Clusters by name. Only warm ones: their endpoints and secrets are here too.
    pub clusters: HashMap<Arc<str>, Arc<Cluster>>,
    /// Endpoints of EDS and STATIC clusters by cluster name.
    pub endpoints: HashMap<Arc<str>, Arc<Vec<LocalityEndpoints>>>,
    /// Downstream TLS contexts.
    pub server_tls: HashMap<TlsKey, Arc<ServerContext>>,
    /// Upstream TLS contexts.
    pub client_tls: HashMap<TlsKey, Arc<ClientContext>>,
}
