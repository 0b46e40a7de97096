//! The TCP proxy: cluster, endpoint, connection, and bytes both ways.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_config::snapshot::{ClusterChoice, TcpProxy, TrafficDirection};
use heddle_http::{AccessLogs, Drain, HostPool};
use heddle_matching::Metadata;
use heddle_net::{ConnectionInfo, Keepalive, PeerIdentity};
use heddle_telemetry::access_log::LogContext;
use heddle_telemetry::istio::{CallParties, PeerMetadata, TcpConnectionMetrics, TcpMetrics, TcpReport};
use heddle_telemetry::{Counter, ResponseFlag, ResponseFlags};
use heddle_tls::Stream;
use heddle_upstream::{ClusterHandle, ConnectOptions, Connection, Host, Outcome, PickContext, RequestGuard};
use tokio::time::Instant;

use crate::begun::Begun;
use crate::copy::{self, Ended, Limits, Meter};
use crate::state::WorkerState;
use crate::stats::{Counted, TcpStats};

/// A TCP proxy of a filter chain, ready to serve on one worker.
pub(crate) struct TcpProxyRuntime {
    pub(crate) config: Arc<TcpProxy>,
    stats: TcpStats,
    logs: AccessLogs,
    log_dropped: Counter,
}

/// What the filters before the TCP proxy, and the listener, say about a connection.
pub(crate) struct TcpConnection<'a> {
    pub(crate) info: &'a ConnectionInfo,
    pub(crate) begun: Begun,
    pub(crate) id: u64,
    pub(crate) filter_chain: &'a str,
    /// The cluster that an earlier filter chose (`sni_cluster`).
    pub(crate) cluster: Option<Arc<str>>,
    /// Where the connection was redirected from; none when it was not.
    pub(crate) original_dst: Option<SocketAddr>,
    /// What they learned of the connection.
    pub(crate) metadata: Option<&'a Metadata>,
    pub(crate) metrics: Option<&'a TcpMetrics>,
    pub(crate) direction: TrafficDirection,
    pub(crate) buffer_limit: usize,
    /// How long the client may owe an acknowledgement (`tcp_keepalive` of the listener).
    pub(crate) patience: Option<Duration>,
    pub(crate) drain: &'a Drain,
}

/// What is known at the end, for the access log.
#[derive(Default)]
struct Record {
    flags: ResponseFlags,
    cluster: Option<Arc<str>>,
    host: Option<SocketAddr>,
    local: Option<SocketAddr>,
    failure: Option<String>,
    attempts: u32,
    received: Cell<u64>,
    sent: Cell<u64>,
    termination: Option<&'static str>,
}

/// An upstream connection with what must live as long as it.
struct Upstream {
    connection: Connection,
    host: Rc<Host<HostPool>>,
    _request: RequestGuard,
}

impl TcpProxyRuntime {
    pub(crate) fn new(state: &WorkerState, config: &Arc<TcpProxy>, log_dropped: &Counter) -> Result<Self, String> {
        Ok(Self {
            stats: TcpStats::new(&state.stats, &config.stat_prefix),
            logs: AccessLogs::open(&state.logs, &config.access_logs).map_err(|e| e.to_string())?,
            log_dropped: log_dropped.clone(),
            config: Arc::clone(config),
        })
    }

    /// Proxies one connection until it ends, and logs it.
    pub(crate) async fn serve(&self, state: &WorkerState, stream: Stream, connection: TcpConnection<'_>) {
        self.stats.cx_total.inc();
        let _active = Counted::new(&self.stats.cx_active);
        let mut record = Record::default();
        self.proxy(state, &stream, &connection, &mut record).await;
        drop(stream);
        self.log(&connection, &record);
    }

    async fn proxy(&self, state: &WorkerState, stream: &Stream, connection: &TcpConnection<'_>, record: &mut Record) {
        let name = connection.cluster.clone().unwrap_or_else(|| self.choose(state));
        record.cluster = Some(Arc::clone(&name));
        let Some(cluster) = state.clusters.get(&name) else {
            self.stats.cx_no_route.inc();
            record.flags.set(ResponseFlag::NoClusterFound);
            return;
        };
        if cluster.awaits_names() {
            // Boxed: rare, and a connection's future should not be larger for it.
            Box::pin(cluster.named()).await;
        }
        let Some(upstream) = self.connect(&cluster, connection, record).await else {
            // Counted as a connection all the same, with its flag, as Istio does.
            if let Some(metrics) = connection.metrics {
                let opened = parties(metrics, connection, &cluster, None, record.flags);
                opened.opened.inc();
                opened.closed.inc();
            }
            return;
        };
        let metrics = connection
            .metrics
            .map(|m| parties(m, connection, &cluster, Some(&upstream), ResponseFlags::NONE));
        if let Some(metrics) = &metrics {
            metrics.opened.inc();
        }
        let meter = Meters {
            stats: &self.stats,
            cluster: &cluster,
            istio: metrics.as_ref(),
            record,
        };
        let limits = Limits {
            idle: self.config.idle_timeout,
            buffer: connection.buffer_limit.clamp(heddle_net::BUFFER_SIZE, 1 << 20),
            downstream_patience: connection.patience,
            upstream_patience: cluster.config().keepalive.map(Keepalive::patience),
        };
        let ended = copy::both_ways(stream, &upstream.connection.stream, &limits, connection.drain, &meter).await;
        if let Some(metrics) = &metrics {
            metrics.closed.inc();
        }
        match ended {
            Ended::Finished => {}
            Ended::Idle => {
                self.stats.idle_timeout.inc();
                record.flags.set(ResponseFlag::StreamIdleTimeout);
                record.termination = Some("idle_timeout");
            }
            Ended::Unresponsive => {
                cluster.stats().upstream_cx_unresponsive.inc();
                record.flags.set(ResponseFlag::UpstreamConnectionTermination);
                record.termination = Some("upstream_unresponsive");
                // As a request that had no answer: several in a row are a reason to leave the endpoint alone.
                upstream.host.report(Outcome::Reset);
            }
            Ended::DownstreamUnresponsive => {
                record.flags.set(ResponseFlag::DownstreamConnectionTermination);
                record.termination = Some("downstream_unresponsive");
            }
            Ended::Drained => record.termination = Some("drain_timeout"),
            Ended::Downstream(e) => {
                record.flags.set(ResponseFlag::DownstreamConnectionTermination);
                tracing::debug!(error = %e, peer = %connection.info.remote, "downstream connection failed");
            }
            Ended::Upstream(e) => {
                record.flags.set(ResponseFlag::UpstreamConnectionTermination);
                record.failure = Some(e.to_string());
                upstream.host.report(Outcome::Reset);
            }
        }
    }

    fn choose(&self, state: &WorkerState) -> Arc<str> {
        match &self.config.cluster {
            ClusterChoice::Single(name) => Arc::clone(name),
            ClusterChoice::Weighted { clusters, total } => {
                let mut at = state.random(*total);
                for (name, weight) in clusters {
                    match at.checked_sub(*weight) {
                        Some(rest) => at = rest,
                        None => return Arc::clone(name),
                    }
                }
                // The weights' sum was checked, so this is the empty list, which configuration refuses.
                clusters
                    .last()
                    .map_or_else(|| Arc::from(""), |(name, _)| Arc::clone(name))
            }
        }
    }

    /// Tries up to `max_connect_attempts` endpoints, other ones first.
    async fn connect(
        &self,
        cluster: &Rc<ClusterHandle<HostPool>>,
        connection: &TcpConnection<'_>,
        record: &mut Record,
    ) -> Option<Upstream> {
        let attempts = self.config.max_connect_attempts.max(1);
        let mut tried = Vec::new();
        loop {
            let wanted = PickContext {
                original_dst: connection.original_dst,
                tried: &tried,
                max_attempts: cluster_spread(&tried),
            };
            let host = match cluster.pick(&wanted) {
                Ok(host) => host,
                Err(e) => {
                    record.flags.set(e.flag());
                    record.failure.get_or_insert_with(|| e.to_string());
                    return None;
                }
            };
            record.attempts += 1;
            record.host = Some(host.address());
            let request = match host.begin_request(Instant::now()) {
                Ok(request) => request,
                Err(overflow) => {
                    record.flags.set(ResponseFlag::UpstreamOverflow);
                    record.failure = Some(overflow.to_string());
                    return None;
                }
            };
            match host.connect(ConnectOptions::default()).await {
                Ok(connection) => {
                    host.report(Outcome::Connected);
                    record.failure = None;
                    record.local = connection.local;
                    return Some(Upstream {
                        connection,
                        host,
                        _request: request,
                    });
                }
                Err(e) => {
                    record.failure = Some(e.reason.clone());
                    if !e.is_retriable() || record.attempts >= attempts {
                        record.flags.set(e.flag());
                        if record.attempts > 1 {
                            record.flags.set(ResponseFlag::UpstreamRetryLimitExceeded);
                        }
                        return None;
                    }
                    tried.push(host.address());
                }
            }
        }
    }

    fn log(&self, connection: &TcpConnection<'_>, record: &Record) {
        if self.config.access_logs.is_empty() {
            return;
        }
        let context = LogContext {
            start: Some(connection.begun.wall),
            duration: Some(connection.begun.at.elapsed()),
            connection: Some(connection.info),
            connection_id: connection.id,
            metadata: connection.metadata,
            flags: record.flags,
            bytes_received: record.received.get(),
            bytes_sent: record.sent.get(),
            upstream_host: record.host,
            upstream_local: record.local,
            upstream_cluster: record.cluster.as_deref(),
            upstream_failure: record.failure.as_deref(),
            attempts: record.attempts,
            termination_details: record.termination,
            filter_chain: Some(connection.filter_chain).filter(|n| !n.is_empty()),
            ..LogContext::default()
        };
        self.logs.write(&self.config.access_logs, &context, &self.log_dropped);
    }
}

/// How hard to look for an endpoint that was not tried.
fn cluster_spread(tried: &[SocketAddr]) -> u32 {
    u32::try_from(tried.len()).unwrap_or(u32::MAX).saturating_mul(2).max(1)
}

struct Meters<'a> {
    stats: &'a TcpStats,
    cluster: &'a ClusterHandle<HostPool>,
    istio: Option<&'a TcpConnectionMetrics>,
    record: &'a Record,
}

impl Meter for Meters<'_> {
    fn moved(&self, from_downstream: u64, to_downstream: u64) {
        self.stats.rx_bytes.add(from_downstream);
        self.stats.tx_bytes.add(to_downstream);
        let upstream = self.cluster.stats();
        upstream.upstream_cx_tx_bytes_total.add(from_downstream);
        upstream.upstream_cx_rx_bytes_total.add(to_downstream);
        if let Some(istio) = self.istio {
            istio.received_bytes.add(from_downstream);
            istio.sent_bytes.add(to_downstream);
        }
        self.record.received.set(self.record.received.get() + from_downstream);
        self.record.sent.set(self.record.sent.get() + to_downstream);
    }
}

/// Istio's labels of a connection: who called whom.
fn parties(
    metrics: &TcpMetrics,
    connection: &TcpConnection<'_>,
    cluster: &ClusterHandle<HostPool>,
    upstream: Option<&Upstream>,
    flags: ResponseFlags,
) -> TcpConnectionMetrics {
    let config = cluster.config();
    let (service, service_name, service_namespace) = match &config.service {
        Some((host, name, namespace)) => (&**host, &**name, &**namespace),
        None => (&*config.name, "unknown", "unknown"),
    };
    // Each side knows its own principal by its own certificate, and the other's by the handshake.
    let (proven, local, endpoint) = if connection.direction == TrafficDirection::Inbound {
        let info = connection.info;
        (info.peer.as_deref(), info.local_identity.as_deref(), None)
    } else {
        (
            upstream.and_then(|u| u.connection.peer.as_deref()),
            upstream.and_then(|u| u.connection.local_identity.as_deref()),
            upstream.and_then(|u| u.host.workload()),
        )
    };
    let principal = proven.and_then(|p| p.uri_sans.first()).map(String::as_str);
    let (source_principal, destination_principal) = match connection.direction {
        TrafficDirection::Inbound => (principal, local),
        TrafficDirection::Outbound | TrafficDirection::Unspecified => (local, principal),
    };
    let cluster = proven.and_then(PeerIdentity::cluster);
    metrics.connection(&TcpReport {
        parties: CallParties {
            peer: &PeerMetadata::derived(endpoint.as_deref(), principal, cluster),
            source_principal,
            destination_principal,
            service,
            service_name,
            service_namespace,
            mutual_tls: proven.is_some(),
        },
        flags,
    })
}
