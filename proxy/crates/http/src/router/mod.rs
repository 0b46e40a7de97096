//! The router: cluster, host, connection, tries.

mod deadlines;
mod drive;
mod mirror;
mod replay;
mod retry;
mod upstream;
mod websocket;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use heddle_config::snapshot::{HostRewrite, RetryPolicy, Route, RouteAction, UpstreamHttp};
use heddle_telemetry::ResponseFlag;
use heddle_upstream::{Outcome as HostOutcome, PickContext, PickError};
use tokio::time::Instant;

use crate::body::{BodyLength, StreamError};
use crate::failure::Failure;
use crate::h1::H1Error;
use crate::hcm::{Environment, Exchange, Facts, HcmRuntime, Outcome, Reply, RequestBody, response_ops};
use crate::head::{Fields, Known, Method, Protocol};
use crate::kept::Keeper;
use crate::pool::{Cluster, H1Lease, UpstreamHost, acquire_h2, open_h1};
use crate::route::{Selected, ops, rewrite};
use crate::timer::{Timer, far_future};
use crate::worker::HttpWorker;
use deadlines::{Deadlines, route_timeout};
use drive::{Driven, Parts};
use mirror::Copies;
pub(crate) use replay::ReplayBody;
use retry::RetryState;

/// Most silent moves of a request to another connection.
const MAX_MOVES: u32 = 5;

/// A client's request on the route chosen for it.
#[derive(Clone, Copy)]
pub(crate) struct Routed<'r> {
    pub(crate) env: Environment<'r>,
    pub(crate) selected: &'r Selected,
    pub(crate) route: &'r Route,
    pub(crate) action: &'r RouteAction,
    pub(crate) facts: Facts,
}

/// A request on its way to a cluster.
#[derive(Clone, Copy)]
pub(crate) struct Job<'r> {
    pub(crate) worker: &'r Rc<HttpWorker>,
    /// What the request came by; none for one of the proxy's own.
    pub(crate) client: Option<Environment<'r>>,
    pub(crate) facts: Facts,
    pub(crate) retry: Option<&'r Arc<RetryPolicy>>,
    /// For the whole request to arrive; zero means none.
    pub(crate) request_timeout: Duration,
    /// For the answer, from the request's end; zero means none.
    pub(crate) timeout: Duration,
    /// Without a byte in either direction; zero means none.
    pub(crate) idle_timeout: Duration,
    /// `auto_host_rewrite`.
    pub(crate) host_of_endpoint: bool,
    /// `include_request_attempt_count`.
    pub(crate) count_attempts: bool,
}

impl<'r> Job<'r> {
    fn of_client(routed: &Routed<'r>, exchange: &Exchange) -> Self {
        let config = &routed.env.hcm.config;
        let action = routed.action;
        let host = routed.selected.virtual_host();
        Self {
            worker: routed.env.worker,
            client: Some(routed.env),
            facts: routed.facts,
            retry: action.retry.as_ref().or(host.and_then(|h| h.retry.as_ref())),
            request_timeout: config.request_timeout,
            timeout: route_timeout(action, exchange),
            idle_timeout: action.idle_timeout.unwrap_or(config.stream_idle_timeout),
            host_of_endpoint: matches!(action.host_rewrite, Some(HostRewrite::Auto)),
            count_attempts: host.is_some_and(|h| h.include_attempt_count),
        }
    }

    /// A request of the proxy's own; `timeout` of zero means none.
    pub(crate) fn own(
        worker: &'r Rc<HttpWorker>,
        length: BodyLength,
        timeout: Duration,
        retry: Option<&'r Arc<RetryPolicy>>,
    ) -> Self {
        Self {
            worker,
            client: None,
            facts: Facts {
                length,
                upgrade: false,
                expect_continue: false,
            },
            retry,
            request_timeout: Duration::ZERO,
            timeout,
            idle_timeout: Duration::ZERO,
            host_of_endpoint: false,
            count_attempts: false,
        }
    }

    /// What bodies are kept for: the client's connection, or the proxy itself.
    fn keeper(&self) -> &'r Rc<Keeper> {
        self.client.map_or(&self.worker.keeper, |client| client.keeper)
    }

    /// The connection manager; none for a request of the proxy's own.
    fn hcm(&self) -> Option<&'r HcmRuntime> {
        self.client.map(|client| &**client.hcm)
    }
}

/// Sends the request to the route's cluster, as often as the retry policy allows, and the answer to the client.
///
/// # Errors
/// What to answer when no upstream's answer was begun.
pub(crate) fn run<B: RequestBody, R: Reply>(
    routed: Routed<'_>,
    exchange: &mut Exchange,
    body: &mut B,
    reply: &mut R,
    timer: &mut Timer,
) -> impl Future<Output = Result<Outcome, Failure>> {
    async move {
        let found = match routed.selected.cluster() {
            Some(name) => enter(routed.env.worker, name, exchange).await,
            None => None,
        };
        let cluster = found.ok_or(Failure::NoCluster(routed.action.not_found_status))?;
        change_request(&routed, exchange);
        let job = Job::of_client(&routed, exchange);
        let mut body = ReplayBody::new(body, routed.facts.length, job.keeper());
        if !routed.action.mirrors.is_empty() {
            body.copy_to(Copies::begin(&routed, &job, exchange));
        }
        send(&job, &cluster, exchange, &mut body, reply, timer).await
    }
}

/// Notes the cluster that a request goes to. None when there is none of that name.
pub(crate) fn enter(
    worker: &HttpWorker,
    name: &Arc<str>,
    exchange: &mut Exchange,
) -> impl Future<Output = Option<Rc<Cluster>>> {
    async move {
        let cluster = worker.clusters.get(name)?;
        if cluster.awaits_names() {
            // Boxed: rare, and a request's future should not be larger for it.
            Box::pin(cluster.named()).await;
        }
        exchange.cluster = Some(Rc::clone(&cluster));
        exchange.cluster_config = Some(cluster.config());
        Some(cluster)
    }
}

/// Sends a request to a cluster, as often as the retry policy allows, and the answer to `reply`.
///
/// # Errors
/// What went wrong when no answer was begun.
pub(crate) fn send<B: RequestBody, R: Reply>(
    job: &Job<'_>,
    cluster: &Rc<Cluster>,
    exchange: &mut Exchange,
    body: &mut ReplayBody<'_, B>,
    reply: &mut R,
    timer: &mut Timer,
) -> impl Future<Output = Result<Outcome, Failure>> {
    async move {
        let config = cluster.config();
        let mut retry = RetryState::new(job.retry);
        let mut deadlines = Deadlines::new(job, exchange);
        if retry.wanted() || config.http != UpstreamHttp::Http1 {
            body.keep_up_to(config.buffer_limit);
        }
        let expected = if retry.per_try().is_zero() {
            deadlines.route_timeout
        } else {
            retry.per_try()
        };
        if !expected.is_zero() {
            let ms = u64::try_from(expected.as_millis()).unwrap_or(u64::MAX);
            exchange.request.fields.remove_known(Known::ExpectedTimeout);
            exchange.request.fields.push_number(Known::ExpectedTimeout, ms);
        }
        let mut moves = 0;
        loop {
            exchange.attempts += 1;
            if job.count_attempts {
                exchange.request.fields.remove_known(Known::AttemptCount);
                exchange
                    .request
                    .fields
                    .push_number(Known::AttemptCount, u64::from(exchange.attempts));
            }
            if !retry.per_try().is_zero() {
                deadlines.per_try = Instant::now() + retry.per_try();
            }
            let mut parts = Parts {
                exchange,
                body: &mut *body,
                reply,
                timer,
                deadlines: &mut deadlines,
                retry: &mut retry,
            };
            let tried = attempt(job, cluster, &mut parts).await;
            if body.take_abandoned() && retry.wanted() {
                cluster.stats().retry_or_shadow_abandoned.inc();
            }
            let failure = match tried {
                Ok(Driven::Finished(outcome)) => return Ok(outcome),
                Ok(Driven::Broken) => return Ok(Outcome::Aborted),
                Ok(Driven::RetryStatus) => None,
                Err(failure) => Some(failure),
            };
            if let Some(failure) = &failure {
                count(cluster, failure);
                if moves < MAX_MOVES && may_move(failure, &job.facts, exchange.request.method) && body.rewind() {
                    cluster.stats().upstream_rq_moved.inc();
                    moves += 1;
                    exchange.attempts -= 1;
                    continue;
                }
                if !retry.may_retry_failure(failure) {
                    return Err(exhausted(exchange, cluster, &retry, failure));
                }
            }
            // `drive` asked the policy about a status already.
            let guard = cluster.begin_retry();
            if guard.is_err() || !body.rewind() {
                if guard.is_err() {
                    exchange.flag(ResponseFlag::UpstreamOverflow);
                }
                // The response that was to be retried is gone with its connection.
                return Err(failure.unwrap_or(Failure::Upstream(StreamError::Reset)));
            }
            let pause = retry.back_off(&mut job.worker.random());
            deadlines.per_try = far_future(exchange.begun);
            let mut parts = Parts {
                exchange,
                body: &mut *body,
                reply,
                timer,
                deadlines: &mut deadlines,
                retry: &mut retry,
            };
            let pausing = async {
                tokio::time::sleep(pause).await;
                Ok(())
            };
            let waited = until_ready(pin!(pausing), &mut parts).await;
            drop(guard);
            if let Err(failure) = waited {
                count(cluster, &failure);
                return Err(failure);
            }
        }
    }
}

/// Whether a request that failed so may be sent on another connection without asking a retry policy: the upstream says
/// that it did nothing with it, or its method is safe and it went to a kept connection that the upstream had closed. The
/// latter happens without anybody's fault whenever a server closes an idle connection just as it is used again, such as
/// when it drains (RFC 9112 §9.3.1, RFC 9110 §9.2.2).
fn may_move(failure: &Failure, facts: &Facts, method: Method) -> bool {
    match failure {
        Failure::Upstream(StreamError::GoneAway | StreamError::Refused) => true,
        Failure::Upstream(StreamError::Stale) => method.is_safe() && !facts.upgrade,
        _ => false,
    }
}

/// A failure that no retry will mend; marks requests whose retries are used up.
fn exhausted(exchange: &mut Exchange, cluster: &Cluster, retry: &RetryState<'_>, failure: &Failure) -> Failure {
    if retry.exhausted_by(failure) {
        exchange.flag(ResponseFlag::UpstreamRetryLimitExceeded);
        cluster.stats().upstream_rq_retry_limit_exceeded.inc();
    }
    failure.clone()
}

fn count(cluster: &Cluster, failure: &Failure) {
    let stats = cluster.stats();
    match failure {
        Failure::Timeout => stats.upstream_rq_timeout.inc(),
        Failure::TryTimeout => stats.upstream_rq_per_try_timeout.inc(),
        Failure::Upstream(error) => {
            if matches!(error, StreamError::Reset | StreamError::Refused) {
                stats.upstream_rq_rx_reset.inc();
            }
            let cut_short = *error == StreamError::H1(H1Error::Incomplete);
            if !cut_short && matches!(error, StreamError::H1(_) | StreamError::H2 | StreamError::Length) {
                stats.upstream_cx_protocol_error.inc();
            }
        }
        Failure::ClientGone | Failure::StreamIdle { .. } | Failure::RequestTimeout | Failure::Overload => {
            stats.upstream_rq_tx_reset.inc();
        }
        _ => {}
    }
    if matches!(failure, Failure::Timeout | Failure::TryTimeout) {
        stats.upstream_rq_tx_reset.inc();
    }
}

/// Path, host and header changes of the route, once per request.
fn change_request(routed: &Routed<'_>, exchange: &mut Exchange) {
    let connection = routed.env.connection;
    ops::on_request(&routed.route.request_headers, exchange, connection);
    if let Some(host) = routed.selected.virtual_host() {
        ops::on_request(&host.request_headers, exchange, connection);
    }
    ops::on_request(&routed.selected.table.request_headers, exchange, connection);
    for name in &routed.selected.table.internal_only {
        exchange.request.fields.remove_any_spelling(name.as_bytes());
    }
    if let Some(HostRewrite::Literal(host)) = &routed.action.host_rewrite {
        exchange.request.set_host(host);
    }
    if let Some(change) = &routed.action.path_rewrite
        && let Some(new) = rewrite::path(change, &routed.route.matches, &exchange.request)
    {
        rewrite::apply_path(&mut exchange.request, &new);
    }
}

/// One try.
fn attempt<B: RequestBody, R: Reply>(
    job: &Job<'_>,
    cluster: &Rc<Cluster>,
    parts: &mut Parts<'_, '_, '_, B, R>,
) -> impl Future<Output = Result<Driven, Failure>> {
    async move {
        let wanted = PickContext {
            original_dst: job.client.and_then(|client| client.connection.original_destination()),
            tried: parts.retry.tried(),
            max_attempts: parts.retry.host_attempts(),
        };
        let host = cluster.pick(&wanted).map_err(|e| match e {
            PickError::TooManyHosts => Failure::Overflow,
            _ => Failure::NoHealthyUpstream,
        })?;
        parts.retry.remember(host.address());
        let exchange = &mut *parts.exchange;
        exchange.upstream_host = Some(host.address());
        exchange.upstream_workload = host.workload();
        exchange.upstream_local = None;
        exchange.upstream_peer = None;
        exchange.upstream_local_identity = None;
        if job.host_of_endpoint
            && let Some(name) = host.hostname()
        {
            exchange.request.set_host(&name);
        }
        // The request's own clock reading is good enough on the first try, also to tell an expired connection.
        let now = match exchange.attempts {
            1 => exchange.passed,
            _ => Instant::now(),
        };
        let guard = host.begin_request(now).map_err(|_| Failure::Overflow)?;
        let use_h2 = match cluster.config().http {
            UpstreamHttp::Http1 => false,
            UpstreamHttp::Http2 => true,
            UpstreamHttp::Downstream => exchange.request.protocol == Protocol::Http2,
        };
        let result = try_host(job, cluster, &host, use_h2, now, parts).await;
        drop(guard);
        report(&host, parts.exchange, &result);
        if matches!(result, Ok(Driven::Finished(_)))
            && parts.exchange.attempts > 1
            && parts.exchange.response.status < 500
        {
            cluster.stats().upstream_rq_retry_success.inc();
        }
        result
    }
}

fn try_host<B: RequestBody, R: Reply>(
    job: &Job<'_>,
    cluster: &Rc<Cluster>,
    host: &Rc<UpstreamHost>,
    use_h2: bool,
    now: Instant,
    parts: &mut Parts<'_, '_, '_, B, R>,
) -> impl Future<Output = Result<Driven, Failure>> {
    async move {
        if use_h2 {
            if job.facts.upgrade && !cluster.config().http2.allow_connect {
                return Err(Failure::UpgradeRefused);
            }
            let lease = until_ready(pin!(acquire_h2(cluster, host)), parts).await?;
            parts.exchange.upstream_local = lease.conn.local;
            parts.exchange.upstream_peer.clone_from(&lease.conn.peer);
            let identity = &lease.conn.local_identity;
            parts.exchange.upstream_local_identity.clone_from(identity);
            return upstream::over_h2(job, lease, parts).await;
        }
        let mut lease = match H1Lease::kept(host, now) {
            Some(lease) => lease,
            // Boxed: rare, and a request's future should not be larger for it.
            None => until_ready(Box::pin(open_h1(cluster, host)).as_mut(), parts).await?,
        };
        if let Some(conn) = lease.parts() {
            parts.exchange.upstream_local = conn.local;
            parts.exchange.upstream_peer.clone_from(&conn.peer);
            parts.exchange.upstream_local_identity.clone_from(&conn.local_identity);
        }
        upstream::over_h1(job, lease, cluster, parts).await
    }
}

/// Tells outlier detection how the try went.
fn report(host: &Rc<UpstreamHost>, exchange: &Exchange, result: &Result<Driven, Failure>) {
    match result {
        Ok(Driven::Broken) => host.report(HostOutcome::Reset),
        Ok(_) => host.report(HostOutcome::Status(effective_status(exchange))),
        Err(Failure::Timeout | Failure::TryTimeout) => host.report(HostOutcome::RequestTimeout),
        // An idle connection may be closed at any time.
        Err(Failure::Upstream(StreamError::GoneAway | StreamError::Refused | StreamError::Stale)) => {}
        Err(Failure::Upstream(_)) => host.report(HostOutcome::Reset),
        // Connecting reports for itself; the client's faults are not the host's.
        Err(_) => {}
    }
}

/// The HTTP status of an answer, gRPC's status mapped to it (gRPC's and Envoy's table).
fn effective_status(exchange: &Exchange) -> u16 {
    let status = exchange.response.status;
    if !exchange.request.grpc || status != 200 {
        return status;
    }
    let from = |fields: &Fields| {
        fields
            .get_known_text(Known::GrpcStatus)
            .and_then(|s| s.parse::<u16>().ok())
    };
    let grpc = exchange
        .trailers
        .as_ref()
        .and_then(from)
        .or_else(|| from(&exchange.response.fields));
    match grpc {
        Some(4) => 504,
        Some(8) => 429,
        Some(2 | 13 | 15) => 500,
        Some(12) => 501,
        Some(14) => 503,
        _ => 200,
    }
}

/// Waits for something, unless the request ends first.
fn until_ready<T, B: RequestBody, R: Reply>(
    mut wanted: Pin<&mut impl Future<Output = Result<T, Failure>>>,
    parts: &mut Parts<'_, '_, '_, B, R>,
) -> impl Future<Output = Result<T, Failure>> {
    poll_fn(move |cx| match wanted.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready(result),
        Poll::Pending => drive::poll_ends(cx, parts, false).map(Err),
    })
}

/// What the router and the route change of the answer's head on its way to a client.
fn change_answer(env: Environment<'_>, exchange: &mut Exchange, upgrade: bool, now: Instant) {
    // What filters waited is not the upstream's time.
    let sent = exchange.passed.max(exchange.request_done.unwrap_or(exchange.begun));
    let took = now.duration_since(sent).as_millis();
    exchange.response.fields.remove_known(Known::UpstreamServiceTime);
    // As in Envoy: a request that becomes a tunnel is not over yet.
    if !upgrade {
        let took = u64::try_from(took).unwrap_or(u64::MAX);
        exchange.response.fields.push_number(Known::UpstreamServiceTime, took);
    }
    if !matches!(exchange.response.status, 101 | 426) {
        exchange.response.fields.remove_known(Known::Upgrade);
    }
    response_ops(exchange, env.connection);
    exchange.details = "via_upstream".into();
}
