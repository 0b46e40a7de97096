//! The life of one request: prepare, choose a route, filters, then the route's action. The same for both codecs.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use heddle_config::snapshot::{Action, LoadShedPoint, OverloadActionKind, ScaledTimer};
use heddle_net::ConnectionInfo;
use heddle_telemetry::ResponseFlag;
use tokio::time::Instant;

use super::{Active, ClientElement, Exchange, HcmRuntime, finish_head, local_head, request};
use crate::body::{BodyLength, Fill, Pump, Sink, Source, Static, StreamError};
use crate::drain::Drain;
use crate::failure::Failure;
use crate::filters::{self, Client, Filtered, Shown};
use crate::head::{Known, Method, ResponseHead, Trailers};
use crate::kept::Keeper;
use crate::local_reply::LocalReply;
use crate::overload::Overload;
use crate::route::{Selected, ops, rewrite, select};
use crate::router;
use crate::timer::{Timer, far_future};
use crate::worker::HttpWorker;

/// What a request runs in.
#[derive(Clone, Copy)]
pub(crate) struct Environment<'c> {
    pub(crate) worker: &'c Rc<HttpWorker>,
    pub(crate) hcm: &'c Rc<HcmRuntime>,
    pub(crate) connection: &'c Rc<ConnectionInfo>,
    pub(crate) drain: &'c Drain,
    /// The connection's.
    pub(crate) client_element: &'c ClientElement,
    /// The connection, as one that bodies are kept for.
    pub(crate) keeper: &'c Rc<Keeper>,
}

/// What the codec found out about a request besides its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) length: BodyLength,
    pub(crate) upgrade: bool,
    pub(crate) expect_continue: bool,
}

/// The request's body, and whether its sender is still there.
pub(crate) trait RequestBody: Source {
    /// Ready when the client has gone, as far as the reading side can tell. Only asked after the body's end.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<StreamError>;
    /// While nobody takes the body: whether it is here whole. Looks a little ahead, so that the client's departure is
    /// noticed behind bytes that wait.
    ///
    /// # Errors
    /// The client has gone, or breaks the protocol.
    fn watch(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamError> {
        Ok(match self.poll_fill(cx, 0)? {
            Poll::Ready(Fill::End) => true,
            Poll::Ready(Fill::Data) => self.ends_after(self.chunk().len()),
            Poll::Pending => false,
        })
    }
    /// The upgrade was accepted: raw bytes follow.
    fn tunnel(&mut self);
}

/// The answer's way to the client.
pub(crate) trait Reply: Sink {
    /// Ready when a head may be sent: what waits before it is within its bound. `holding` so many bytes is a head that waits
    /// already.
    fn poll_head_ready(&mut self, _: &mut Context<'_>, _holding: usize) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Ok(()))
    }
    /// Sends the head. The body follows through [`Sink`], whose `finish` is always called unless the stream fails.
    fn send_head(&mut self, head: &ResponseHead, length: BodyLength) -> Result<(), StreamError>;
    /// Sends an interim (1xx) head.
    fn send_interim(&mut self, head: &ResponseHead) -> Result<(), StreamError>;
    /// Ready when the client has reset the stream.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<StreamError>;
}

/// How a request ended for the codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The answer was sent whole.
    Complete,
    /// The stream must be reset, or the connection closed.
    Aborted,
    /// An upgraded connection has ended.
    Tunnelled,
}

/// Runs one request. `exchange.request` holds its head.
pub(crate) fn handle<B: RequestBody, R: Reply>(
    env: Environment<'_>,
    exchange: &mut Exchange,
    body: &mut B,
    reply: &mut R,
    timer: &mut Timer,
    facts: Facts,
) -> impl Future<Output = Outcome> {
    async move {
        let stats = &env.hcm.stats;
        stats.rq_total.inc();
        let _active = Active::enter(&stats.rq_active);
        exchange.head_bytes = exchange.request.fields.byte_size() as u64;
        let mut body = Filtered::request(body, env.keeper, &env.hcm.trailers_dropped, facts.length);
        let result = decide(env, exchange, &mut body, reply, timer, facts).await;
        exchange.request_bytes = body.bytes();
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(Failure::ClientGone) => {
                exchange.flag(ResponseFlag::DownstreamConnectionTermination);
                exchange.details = Failure::ClientGone.details();
                Outcome::Aborted
            }
            Err(Failure::Overload) => {
                // There is nobody to answer: the client's stream was reset, or it does not read.
                exchange.flag(ResponseFlag::OverloadManager);
                exchange.details = Failure::Overload.details();
                Outcome::Aborted
            }
            Err(failure) => answer(env, exchange, reply, timer, &failure).await,
        };
        if outcome == Outcome::Aborted {
            if exchange.flags.has(ResponseFlag::DownstreamConnectionTermination) {
                stats.rq_rx_reset.inc();
            } else {
                stats.rq_tx_reset.inc();
            }
        }
        let ended = *exchange.ended.get_or_insert_with(Instant::now);
        env.hcm.finish(exchange, env.connection, ended);
        outcome
    }
}

fn decide<B: RequestBody, R: Reply>(
    env: Environment<'_>,
    exchange: &mut Exchange,
    body: &mut Filtered<'_, B>,
    reply: &mut R,
    timer: &mut Timer,
    mut facts: Facts,
) -> impl Future<Output = Result<Outcome, Failure>> {
    async move {
        let hcm = env.hcm;
        // As in Envoy, before anything is done for the request.
        if hcm.overload.is_refusing() {
            let dice = || env.worker.random().f64();
            if hcm.overload.hits(OverloadActionKind::StopAcceptingRequests, dice)
                || hcm.overload.sheds(LoadShedPoint::DecodeHeaders, dice)
            {
                hcm.stats.rq_overload_close.inc();
                return Err(Failure::NotAccepting);
            }
        }
        let moved = request::prepare(env, &mut exchange.request, facts.upgrade)?;
        if let Some(location) = moved {
            let outcome = direct(env, exchange, reply, timer, 307, Some(&location), Bytes::new()).await;
            exchange.details = Failure::BadPath.details();
            return Ok(outcome);
        }
        exchange.selected = choose(env, exchange);
        if !hcm.filters.is_empty() {
            let mut client = Client {
                body: RefCell::new(&mut *body),
                reply: &mut *reply,
                timer: &mut *timer,
                facts: &mut facts,
            };
            let answered = match filters::on_request(env, exchange, &client.body) {
                Shown::All(answered) => answered,
                // Boxed: few filters wait, and a request's future should not be larger for it.
                Shown::Waits(first) => Box::pin(filters::on_request_waiting(env, exchange, &mut client, first)).await?,
            };
            facts.length = body.length();
            if let Some(local) = answered {
                let content = local.put(exchange);
                return Ok(send(env, exchange, reply, timer, content).await);
            }
        }
        if !request::upgrade_allowed(hcm, &exchange.request, facts.upgrade) {
            return Err(Failure::UpgradeRefused);
        }
        let Some(selected) = exchange.selected.clone() else {
            hcm.stats.no_route.inc();
            return Err(Failure::NoRoute);
        };
        let (Some(host), Some(route)) = (selected.virtual_host(), selected.route()) else {
            return Err(Failure::NoRoute);
        };
        if host.require_tls && exchange.request.fields.get_known(Known::ForwardedProto) != Some(b"https") {
            let to = heddle_config::snapshot::Redirect {
                scheme: Some("https".into()),
                status: 301,
                ..Default::default()
            };
            let location = rewrite::location(&to, &route.matches, &exchange.request, true);
            return Ok(direct(env, exchange, reply, timer, 301, Some(&location), Bytes::new()).await);
        }
        match &route.action {
            Action::Redirect(to) => {
                let tls = env.connection.tls_version.is_some();
                let location = rewrite::location(to, &route.matches, &exchange.request, tls);
                Ok(direct(env, exchange, reply, timer, to.status, Some(&location), Bytes::new()).await)
            }
            Action::Direct(to) => Ok(direct(env, exchange, reply, timer, to.status, None, to.body.clone()).await),
            Action::Route(action) => {
                if facts.expect_continue {
                    ask_for_body(reply).map_err(|_| Failure::ClientGone)?;
                    let deadline = idle_deadline(env);
                    poll_fn(|cx| match reply.poll_flush(cx) {
                        Poll::Ready(flushed) => Poll::Ready(flushed.map_err(|_| Failure::ClientGone)),
                        Poll::Pending => timer.poll_until(cx, deadline).map(|()| {
                            Err(Failure::StreamIdle {
                                request_complete: false,
                            })
                        }),
                    })
                    .await?;
                }
                let routed = router::Routed {
                    env,
                    selected: &selected,
                    route,
                    action,
                    facts,
                };
                router::run(routed, exchange, body, reply, timer).await
            }
        }
    }
}

/// When a stream on which nothing moves from now on is given up.
fn idle_deadline(env: Environment<'_>) -> Instant {
    let now = Instant::now();
    match env.hcm.config.stream_idle_timeout {
        Duration::ZERO => far_future(now),
        idle => now + idle,
    }
}

/// Tells a client that waits for it that its request's body is wanted (RFC 9110 section 10.1.1).
pub(crate) fn ask_for_body<R: Reply>(reply: &mut R) -> Result<(), StreamError> {
    reply.send_interim(&ResponseHead {
        status: 100,
        ..ResponseHead::default()
    })
}

/// The route of a request, by the table in force.
pub(crate) fn choose(env: Environment<'_>, exchange: &mut Exchange) -> Option<Selected> {
    let table = env.hcm.routes(env.worker)?;
    let host = select::virtual_host(&table, &exchange.request)?;
    let routes = &table.virtual_hosts.get(host)?.routes;
    let dice = &mut exchange.dice;
    let mut dice = || *dice.get_or_insert_with(|| env.worker.random().u64(..));
    let route = select::route(routes, &exchange.request, || (dice() % 1_000_000) as u32)?;
    let cluster = select::cluster(routes.get(route)?, dice);
    Some(Selected {
        table,
        host,
        route,
        cluster,
    })
}

/// A response of the route itself.
async fn direct<R: Reply>(
    env: Environment<'_>,
    exchange: &mut Exchange,
    reply: &mut R,
    timer: &mut Timer,
    status: u16,
    location: Option<&str>,
    body: Bytes,
) -> Outcome {
    exchange.response.clear();
    exchange.response.status = status;
    if let Some(location) = location {
        // What the client sent is in there; it is graphic ASCII by the parser, but configuration is not.
        let clean: Vec<u8> = location.bytes().filter(u8::is_ascii_graphic).collect();
        exchange.response.fields.push_known(Known::Location, &clean);
    }
    response_ops(exchange, env.connection);
    let local = LocalReply {
        status,
        headers: std::mem::take(&mut exchange.response.fields),
        body,
        details: "direct_response".into(),
        ..LocalReply::default()
    };
    let body = local.put(exchange);
    send(env, exchange, reply, timer, body).await
}

/// The answer to a failure.
async fn answer<R: Reply>(
    env: Environment<'_>,
    exchange: &mut Exchange,
    reply: &mut R,
    timer: &mut Timer,
    failure: &Failure,
) -> Outcome {
    match failure {
        Failure::StreamIdle { .. } => env.hcm.stats.rq_idle_timeout.inc(),
        Failure::RequestTimeout => env.hcm.stats.rq_timeout.inc(),
        Failure::NoCluster(_) => env.hcm.stats.no_cluster.inc(),
        Failure::Protocol(error) => env.hcm.stats.http1_error(*error),
        _ => {}
    }
    let body = local_head(exchange, failure);
    send(env, exchange, reply, timer, body).await
}

/// Response header changes of route, virtual host and table, the most specific first as in Envoy.
pub(crate) fn response_ops(exchange: &mut Exchange, connection: &ConnectionInfo) {
    let Some(selected) = exchange.selected.clone() else {
        return;
    };
    if let Some(route) = selected.route() {
        ops::on_response(&route.response_headers, exchange, connection);
    }
    if let Some(host) = selected.virtual_host() {
        ops::on_response(&host.response_headers, exchange, connection);
    }
    ops::on_response(&selected.table.response_headers, exchange, connection);
}

/// Shows the response head to the filters. Returns the number of one that waits: then
/// [`filters::on_response_waiting`] comes before [`send_head`].
pub(crate) fn filter_head(env: Environment<'_>, exchange: &mut Exchange, length: BodyLength) -> Option<usize> {
    // For what filters write of it; they may change it.
    exchange.status = exchange.response.status;
    exchange.response_content.length = length;
    filters::on_response(env, exchange, usize::MAX)
}

/// The connection manager's last changes; then the head goes out, as the filters left it.
pub(crate) fn send_head<R: Reply>(
    env: Environment<'_>,
    exchange: &mut Exchange,
    reply: &mut R,
) -> Result<(), StreamError> {
    finish_head(env.hcm, env.worker, exchange);
    exchange.status = exchange.response.status;
    reply.send_head(&exchange.response, exchange.response_content.length)
}

fn send<R: Reply>(
    env: Environment<'_>,
    exchange: &mut Exchange,
    reply: &mut R,
    timer: &mut Timer,
    body: Bytes,
) -> impl Future<Output = Outcome> {
    async move {
        let sent = exchange.request.method != Method::Head;
        let mut source = Static(if sent { body } else { Bytes::new() });
        let length = match source.0.len() {
            0 => BodyLength::Empty,
            n => BodyLength::Known(n as u64),
        };
        let deadline = idle_deadline(env);
        let holding = exchange.response.fields.held();
        let ready = poll_fn(|cx| match reply.poll_head_ready(cx, holding) {
            Poll::Ready(ready) => Poll::Ready(ready.is_ok()),
            Poll::Pending => timer.poll_until(cx, deadline).map(|()| false),
        })
        .await;
        if !ready {
            exchange.flag(ResponseFlag::DownstreamConnectionTermination);
            return Outcome::Aborted;
        }
        let mut source = Filtered::response(
            &mut source,
            env.keeper,
            Trailers::Listed,
            Some(&env.hcm.trailers_dropped),
        );
        if let Some(waiting) = filter_head(env, exchange, length) {
            let answer = RefCell::new(&mut source);
            let look = |cx: &mut Context<'_>| match reply.poll_gone(cx) {
                Poll::Ready(error) => Poll::Ready(Failure::of_client(error)),
                Poll::Pending => timer
                    .poll_until(cx, deadline)
                    .map(|()| Failure::StreamIdle { request_complete: true }),
            };
            // Boxed: rare, and a request's future should not be larger for it.
            let waited = Box::pin(filters::on_response_waiting(env, exchange, waiting, &answer, look)).await;
            if let Err(failure) = waited {
                return unsent(exchange, &failure);
            }
        }
        if send_head(env, exchange, reply).is_err() {
            exchange.flag(ResponseFlag::DownstreamConnectionTermination);
            return Outcome::Aborted;
        }
        source.set_stages(std::mem::take(&mut exchange.response_content.stages));
        let mut pump = Pump::default();
        let result = poll_fn(|cx| {
            if let Poll::Ready(done) = pump.poll(cx, &mut source, reply) {
                return Poll::Ready(Some(done));
            }
            if timer.poll_until(cx, deadline).is_ready() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await;
        exchange.response_bytes = pump.bytes;
        match result {
            Some(Ok(())) => Outcome::Complete,
            Some(Err(_)) => {
                exchange.flag(ResponseFlag::DownstreamConnectionTermination);
                Outcome::Aborted
            }
            None => {
                exchange.flag(ResponseFlag::StreamIdleTimeout);
                Outcome::Aborted
            }
        }
    }
}

/// The request ended while a filter waited before its answer.
fn unsent(exchange: &mut Exchange, failure: &Failure) -> Outcome {
    exchange.status = 0;
    exchange.details = failure.details();
    if let Some(flag) = failure.flag() {
        exchange.flag(flag);
    }
    Outcome::Aborted
}

/// Counts quiet periods of a stream without reading the clock at every byte: four quarters of the timeout without a
/// sign of life are an idle timeout (which is thus up to a quarter late, never early).
#[derive(Debug)]
pub(crate) struct IdleWatch {
    timeout: Duration,
    quarter: Option<Duration>,
    next: Instant,
    quiet: u8,
    /// Of a timeout that may come nearer, with how near it was.
    scale: Option<(Rc<Overload>, f64)>,
}

impl IdleWatch {
    /// Under overload the timeout of a client's request may come nearer.
    pub(crate) fn new(timeout: Duration, now: Instant, overload: Option<&Rc<Overload>>) -> Self {
        let quarter = (!timeout.is_zero()).then_some(timeout / 4);
        let scaled =
            overload.filter(|overload| quarter.is_some() && overload.scales(ScaledTimer::HttpDownstreamStreamIdle));
        Self {
            timeout,
            quarter,
            next: quarter.map_or_else(|| far_future(now), |q| now + q),
            quiet: 0,
            scale: scaled.map(|overload| (Rc::clone(overload), 0.0)),
        }
    }

    /// When to look again.
    pub(crate) fn deadline(&mut self) -> Instant {
        if let (Some((overload, before)), Some(quarter)) = (&mut self.scale, &mut self.quarter) {
            let state = overload.state(OverloadActionKind::ReduceTimeouts);
            if *before != state {
                *before = state;
                let begun = self.next - *quarter;
                *quarter = overload.timeout(ScaledTimer::HttpDownstreamStreamIdle, self.timeout) / 4;
                self.next = begun + *quarter;
            }
        }
        self.next
    }

    /// Something moved.
    pub(crate) fn touch(&mut self) {
        self.quiet = 0;
    }

    /// The deadline has passed; true when the stream was idle for the whole timeout.
    pub(crate) fn expired(&mut self, now: Instant) -> bool {
        let Some(quarter) = self.quarter else {
            return false;
        };
        if now < self.next {
            return false;
        }
        self.quiet += 1;
        self.next = now + quarter;
        // The first quarter may have begun just before the last sign of life.
        self.quiet > 4
    }
}

#[cfg(test)]
mod tests {
    use heddle_config::snapshot::{OverloadLimits, TimerMinimum};

    use super::*;
    use crate::overload::{OverloadCounters, OverloadStates};

    #[tokio::test(start_paused = true)]
    async fn idle_is_never_early_and_at_most_a_quarter_late() {
        let start = Instant::now();
        let overload = Rc::default();
        let mut watch = IdleWatch::new(Duration::from_secs(8), start, Some(&overload));
        let mut now = start;
        loop {
            now = watch.deadline().max(now);
            if watch.expired(now) {
                break;
            }
        }
        let waited = now.duration_since(start);
        assert!(
            waited >= Duration::from_secs(8) && waited <= Duration::from_secs(10),
            "{waited:?}"
        );
        let mut none = IdleWatch::new(Duration::ZERO, start, Some(&overload));
        assert!(none.deadline() > start + Duration::from_secs(3600));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_timeout_under_way_is_reduced() {
        let mut limits = OverloadLimits::default();
        let minimum = TimerMinimum::Timeout(Duration::from_secs(2));
        limits.timers[ScaledTimer::HttpDownstreamStreamIdle as usize] = Some(minimum);
        let overload = Overload::new(limits, OverloadCounters::default());
        let start = Instant::now();
        let mut watch = IdleWatch::new(Duration::from_secs(400), start, Some(&overload));
        assert_eq!(watch.deadline(), start + Duration::from_secs(100));
        let mut states = OverloadStates::default();
        states.set(OverloadActionKind::ReduceTimeouts, 1.0);
        overload.set(states);
        let mut now = start;
        while !watch.expired(now) {
            now = watch.deadline().max(now);
        }
        assert_eq!(now, start + Duration::from_millis(2500));
    }
}
