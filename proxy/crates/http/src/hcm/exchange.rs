//! One request and its answer: everything that filters, the router, statistics and logs know about it.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use heddle_net::{ConnectionInfo, PeerIdentity};
use heddle_telemetry::access_log::LogContext;
use heddle_telemetry::istio::PeerMetadata as Peer;
use heddle_telemetry::{ResponseFlag, ResponseFlags};
use tokio::time::Instant;

use crate::filters::FilterState;
use crate::head::{Fields, Known, RequestHead, ResponseHead};
use crate::pool::Cluster;
use crate::route::Selected;

/// One request and its answer. Kept by an HTTP/1.1 connection and used again for each request, so that its memory is
/// allocated once.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) request: RequestHead,
    pub(crate) response: ResponseHead,
    pub(crate) trailers: Option<Fields>,
    pub(crate) start: SystemTime,
    pub(crate) begun: Instant,
    /// When the filters let it pass; the same as `begun` unless one of them waited.
    pub(crate) passed: Instant,
    pub(crate) request_done: Option<Instant>,
    pub(crate) first_byte: Option<Instant>,
    /// When the answer was passed on whole; one clock reading serves all that follows.
    pub(crate) ended: Option<Instant>,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    /// Bytes of the request's head as received.
    pub(crate) head_bytes: u64,
    pub(crate) flags: ResponseFlags,
    pub(crate) details: Cow<'static, str>,
    /// Status sent to the client; zero before that.
    pub(crate) status: u16,
    pub(crate) selected: Option<Selected>,
    /// The random number that chooses among routes and weighted clusters, the same each time that a route is chosen.
    pub(crate) dice: Option<u64>,
    /// What filters keep for this request, in their order; empty before they run.
    pub(crate) filter_states: Vec<FilterState>,
    /// Filters that are switched off for this request, a bit each.
    pub(crate) filters_off: u64,
    pub(crate) cluster: Option<Rc<Cluster>>,
    /// Its configuration when the request was routed.
    pub(crate) cluster_config: Option<Rc<Arc<heddle_config::snapshot::Cluster>>>,
    pub(crate) upstream_host: Option<SocketAddr>,
    pub(crate) upstream_local: Option<SocketAddr>,
    pub(crate) upstream_peer: Option<Arc<PeerIdentity>>,
    /// Who this side is towards the upstream.
    pub(crate) upstream_local_identity: Option<Arc<str>>,
    pub(crate) upstream_failure: Option<String>,
    /// Istio's `workload` metadata of the endpoint used.
    pub(crate) upstream_workload: Option<Arc<str>>,
    pub(crate) attempts: u32,
    /// Who the other side says it is, by the metadata exchange: the client of an inbound request.
    pub(crate) source: Option<Rc<Peer>>,
    /// The same for the upstream of an outbound request.
    pub(crate) destination: Option<Rc<Peer>>,
    pub(crate) connection_id: u64,
    pub(crate) filter_chain: Option<Arc<str>>,
}

impl Exchange {
    pub(crate) fn new(connection_id: u64, filter_chain: Option<Arc<str>>) -> Box<Self> {
        let now = Instant::now();
        Box::new(Self {
            request: RequestHead::default(),
            response: ResponseHead::default(),
            trailers: None,
            start: SystemTime::UNIX_EPOCH,
            begun: now,
            passed: now,
            request_done: None,
            first_byte: None,
            ended: None,
            request_bytes: 0,
            response_bytes: 0,
            head_bytes: 0,
            flags: ResponseFlags::NONE,
            details: Cow::Borrowed(""),
            status: 0,
            selected: None,
            dice: None,
            filter_states: Vec::new(),
            filters_off: 0,
            cluster: None,
            cluster_config: None,
            upstream_host: None,
            upstream_local: None,
            upstream_peer: None,
            upstream_local_identity: None,
            upstream_failure: None,
            upstream_workload: None,
            attempts: 0,
            source: None,
            destination: None,
            connection_id,
            filter_chain,
        })
    }

    /// Makes it ready for the next request; the heads keep their memory.
    pub(crate) fn reset(&mut self, now: Instant) {
        self.request.clear();
        self.response.clear();
        self.trailers = None;
        self.start = SystemTime::now();
        self.begun = now;
        self.passed = now;
        self.request_done = None;
        self.first_byte = None;
        self.ended = None;
        self.request_bytes = 0;
        self.response_bytes = 0;
        self.head_bytes = 0;
        self.flags = ResponseFlags::NONE;
        self.details = Cow::Borrowed("");
        self.status = 0;
        self.selected = None;
        self.dice = None;
        self.filter_states.clear();
        self.filters_off = 0;
        self.cluster = None;
        self.cluster_config = None;
        self.upstream_host = None;
        self.upstream_local = None;
        self.upstream_peer = None;
        self.upstream_local_identity = None;
        self.upstream_failure = None;
        self.upstream_workload = None;
        self.attempts = 0;
        self.source = None;
        self.destination = None;
    }

    pub(crate) fn flag(&mut self, flag: ResponseFlag) {
        self.flags.set(flag);
    }

    /// The view that log formats and header formats read.
    pub(crate) fn log_context<'a>(&'a self, connection: &'a ConnectionInfo, end: Option<Instant>) -> LogContext<'a> {
        let grpc_status = if self.request.grpc && end.is_some() {
            self.trailers
                .as_ref()
                .and_then(|t| t.get_known_text(Known::GrpcStatus))
                .or_else(|| self.response.fields.get_known_text(Known::GrpcStatus))
                .and_then(|s| s.parse().ok())
        } else {
            None
        };
        LogContext {
            start: Some(self.start),
            duration: end.map(|end| end.duration_since(self.begun)),
            request_duration: self.request_done.map(|at| at.duration_since(self.begun)),
            response_duration: self.first_byte.map(|at| at.duration_since(self.begun)),
            connection: Some(connection),
            remote_ip: self.request.remote_ip,
            connection_id: self.connection_id,
            request: Some(&self.request),
            response: (self.status != 0).then_some(&self.response.fields as _),
            trailers: self.trailers.as_ref().map(|t| t as _),
            protocol: Some(self.request.protocol.as_str()),
            response_code: (self.status != 0).then_some(self.status),
            response_code_details: (!self.details.is_empty()).then_some(&*self.details),
            flags: self.flags,
            bytes_received: self.request_bytes,
            bytes_sent: self.response_bytes,
            upstream_host: self.upstream_host,
            upstream_local: self.upstream_local,
            upstream_cluster: self.cluster_config.as_ref().map(|c| &*c.name),
            upstream_cluster_stat_name: self.cluster_config.as_ref().map(|c| &*c.stat_name),
            upstream_peer: self.upstream_peer.as_deref(),
            upstream_failure: self.upstream_failure.as_deref(),
            attempts: self.attempts,
            termination_details: None,
            route_name: self.selected.as_ref().and_then(Selected::route).map(|r| &*r.name),
            virtual_host: self
                .selected
                .as_ref()
                .and_then(Selected::virtual_host)
                .map(|h| &*h.name),
            filter_chain: self.filter_chain.as_deref(),
            grpc_status,
        }
    }
}
