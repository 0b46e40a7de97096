//! One request and its answer: everything that filters, the router, statistics and logs know about it.

use std::borrow::Cow;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use heddle_memory::Spares;
use heddle_net::{ConnectionInfo, PeerIdentity};
use heddle_telemetry::access_log::LogContext;
use heddle_telemetry::istio::PeerMetadata as Peer;
use heddle_telemetry::{ResponseFlag, ResponseFlags};
use tokio::time::Instant;

use crate::filters::{FilterState, ResponseContent};
use crate::head::{Fields, Known, RequestHead, ResponseHead};
use crate::pool::Cluster;
use crate::route::Selected;

/// Most exchanges kept for later requests of the worker.
const KEEP: usize = 256;

thread_local! {
    static FREE: RefCell<Spares<Box<Exchange>>> = const { RefCell::new(Spares::new(KEEP)) };
}

/// One request and its answer. Used again for later requests of the worker, so that its memory is not allocated for each; a
/// connection at rest has none.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) request: RequestHead,
    pub(crate) response: ResponseHead,
    pub(crate) trailers: Option<Fields>,
    /// The response's body before the filters.
    pub(crate) response_content: ResponseContent,
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
    /// Answers of the proxy's own are no gRPC, although the request is by now: it came as something else.
    pub(crate) plain_replies: bool,
    /// A filter keeps something for the connection on this worker, where it has to stay.
    pub(crate) settles: bool,
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
    /// One for a request of this connection that begins now.
    pub(crate) fn take(connection_id: u64, filter_chain: Option<&Arc<str>>, now: Instant) -> Box<Self> {
        let mut taken = FREE.with_borrow_mut(Spares::take).unwrap_or_else(|| Self::new(now));
        taken.connection_id = connection_id;
        // Other workers count the same name: its count is left alone where it is the one of the last request.
        if taken.filter_chain.as_ref().map(Arc::as_ptr) != filter_chain.map(Arc::as_ptr) {
            taken.filter_chain = filter_chain.cloned();
        }
        taken.begin(now);
        taken
    }

    /// Keeps it for a later request.
    pub(crate) fn give_back(mut self: Box<Self>) {
        self.clear();
        FREE.with_borrow_mut(|kept| kept.keep(self));
    }

    /// [`Spares::trim`] of those kept.
    pub(crate) fn trim() -> bool {
        FREE.with_borrow_mut(Spares::trim)
    }

    fn new(now: Instant) -> Box<Self> {
        Box::new(Self {
            request: RequestHead::default(),
            response: ResponseHead::default(),
            trailers: None,
            response_content: ResponseContent::default(),
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
            plain_replies: false,
            settles: false,
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
            connection_id: 0,
            filter_chain: None,
        })
    }

    /// For a request of the proxy's own, which says that it is one.
    pub(crate) fn own(mut request: RequestHead) -> Box<Self> {
        request.fields.set_known(Known::Internal, b"true");
        request.classify();
        let mut exchange = Self::take(0, None, Instant::now());
        exchange.request = request;
        exchange
    }

    /// The request has begun.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.start = SystemTime::now();
        self.begun = now;
        self.passed = now;
    }

    /// Lets go of everything of its request; the heads keep their memory. Every field is named here, so that one more
    /// cannot leak from a request into the next.
    fn clear(&mut self) {
        let Self {
            request,
            response,
            trailers,
            response_content,
            // Written when the next request begins.
            start: _,
            begun: _,
            passed: _,
            request_done,
            first_byte,
            ended,
            request_bytes,
            response_bytes,
            head_bytes,
            flags,
            details,
            status,
            plain_replies,
            settles,
            selected,
            dice,
            filter_states,
            filters_off,
            cluster,
            cluster_config,
            upstream_host,
            upstream_local,
            upstream_peer,
            upstream_local_identity,
            upstream_failure,
            upstream_workload,
            attempts,
            source,
            destination,
            // The next request's connection has its own, which `take` writes.
            connection_id: _,
            filter_chain: _,
        } = self;
        request.clear();
        response.clear();
        *trailers = None;
        response_content.clear();
        *request_done = None;
        *first_byte = None;
        *ended = None;
        *request_bytes = 0;
        *response_bytes = 0;
        *head_bytes = 0;
        *flags = ResponseFlags::NONE;
        *details = Cow::Borrowed("");
        *status = 0;
        *plain_replies = false;
        *settles = false;
        *selected = None;
        *dice = None;
        filter_states.clear();
        *filters_off = 0;
        *cluster = None;
        *cluster_config = None;
        *upstream_host = None;
        *upstream_local = None;
        *upstream_peer = None;
        *upstream_local_identity = None;
        *upstream_failure = None;
        *upstream_workload = None;
        *attempts = 0;
        *source = None;
        *destination = None;
    }

    pub(crate) fn flag(&mut self, flag: ResponseFlag) {
        self.flags.set(flag);
    }

    /// The view that log formats and header formats read, of a request that `took` so long, or goes on.
    pub(crate) fn log_context<'a>(&'a self, connection: &'a ConnectionInfo, took: Option<Duration>) -> LogContext<'a> {
        let grpc_status = if self.request.grpc && took.is_some() {
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
            duration: took,
            request_duration: self.request_done.map(|at| at.duration_since(self.begun)),
            response_duration: self.first_byte.map(|at| at.duration_since(self.begun)),
            connection: Some(connection),
            remote_ip: self.request.remote_ip,
            connection_id: self.connection_id,
            metadata: None,
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
