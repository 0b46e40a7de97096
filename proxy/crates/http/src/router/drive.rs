//! One try on an open stream: the request goes out while the answer comes in, both under the request's deadlines.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use heddle_telemetry::ResponseFlag;
use tokio::time::Instant;

use super::deadlines::Deadlines;
use super::replay::ReplayBody;
use super::retry::RetryState;
use super::upstream::{Upstream, UpstreamSink};
use super::{Job, change_answer};
use crate::body::{BodyLength, Pump, PumpError, StreamError};
use crate::failure::Failure;
use crate::filters::{Filtered, on_response_waiting};
use crate::h1::H1Error;
use crate::hcm::{Environment, Exchange, Outcome, Reply, RequestBody, filter_head, send_head};
use crate::head::{Method, Trailers};
use crate::pool::Cluster;
use crate::timer::{Timer, far_future};

/// Most interim (1xx) heads before an answer; more is a peer that never answers.
const MAX_INTERIM: u32 = 32;

/// How a try ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driven {
    /// The answer went to the client, or the client went away.
    Finished(Outcome),
    /// The upstream failed after its answer had begun.
    Broken,
    /// The answer is to be thrown away and the request tried again.
    RetryStatus,
}

/// What a try works with.
pub(super) struct Parts<'a, 'b, 'p, B, R> {
    pub(super) exchange: &'a mut Exchange,
    pub(super) body: &'a mut ReplayBody<'b, B>,
    pub(super) reply: &'a mut R,
    pub(super) timer: &'a mut Timer,
    pub(super) deadlines: &'a mut Deadlines,
    pub(super) retry: &'a mut RetryState<'p>,
}

/// The request's way to the upstream.
#[derive(Default)]
struct Upload {
    pump: Pump,
    /// The upstream takes no more; its answer may still come.
    refused: bool,
}

impl Upload {
    /// Moves the request on. Ready with an error when the client is to blame.
    fn poll<B: RequestBody, K: UpstreamSink>(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut ReplayBody<'_, B>,
        sink: &mut K,
        deadlines: &mut Deadlines,
    ) -> Option<Failure> {
        if self.pump.flushed || self.refused {
            return None;
        }
        let before = self.pump.bytes;
        match self.pump.poll(cx, body, sink) {
            Poll::Ready(Err(PumpError::Source(error))) => return Some(Failure::of_client(error)),
            Poll::Ready(Err(PumpError::Sink(StreamError::Length))) => {
                return Some(Failure::BadRequest("http.body_length"));
            }
            Poll::Ready(Err(PumpError::Sink(_))) => self.refused = true,
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        if self.pump.bytes != before {
            deadlines.idle.touch();
        }
        None
    }
}

/// What ends a request from outside.
struct Ends<'a, 'b, B, R> {
    body: &'a mut ReplayBody<'b, B>,
    reply: &'a mut R,
    timer: &'a mut Timer,
    deadlines: &'a mut Deadlines,
    request_done: &'a mut Option<Instant>,
}

impl<B: RequestBody, R: Reply> Ends<'_, '_, B, R> {
    fn poll(&mut self, cx: &mut Context<'_>, tunnel: bool) -> Poll<Failure> {
        if self.body.arrived() {
            if self.request_done.is_none() {
                let now = Instant::now();
                *self.request_done = Some(now);
                self.deadlines.request_done(now);
            }
            if !tunnel && self.body.poll_gone(cx).is_ready() {
                return Poll::Ready(Failure::ClientGone);
            }
        }
        if let Poll::Ready(error) = self.reply.poll_gone(cx) {
            return Poll::Ready(match error {
                StreamError::Overload => Failure::Overload,
                _ => Failure::ClientGone,
            });
        }
        while self.timer.poll_until(cx, self.deadlines.next()).is_ready() {
            if let Some(failure) = self.deadlines.expired(Instant::now(), self.body.arrived()) {
                return Poll::Ready(failure);
            }
        }
        Poll::Pending
    }
}

/// Deadlines and the client's departure; the last thing a turn looks at.
pub(super) fn poll_ends<B: RequestBody, R: Reply>(
    cx: &mut Context<'_>,
    parts: &mut Parts<'_, '_, '_, B, R>,
    tunnel: bool,
) -> Poll<Failure> {
    let mut ends = Ends {
        body: parts.body,
        reply: parts.reply,
        timer: parts.timer,
        deadlines: parts.deadlines,
        request_done: &mut parts.exchange.request_done,
    };
    ends.poll(cx, tunnel)
}

/// Whether it was time to look after the upstream, and nobody is there any more.
fn gave_up(deadlines: &mut Deadlines, cluster: Option<&Rc<Cluster>>, upstream: &mut impl Upstream) -> bool {
    if !deadlines.take_look() || !upstream.is_dead(Instant::now()) {
        return false;
    }
    if let Some(cluster) = cluster {
        cluster.stats().upstream_cx_unresponsive.inc();
    }
    true
}

/// How the way of an answer to its client ended.
enum End {
    Whole,
    Upstream(StreamError),
    Failure(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Runs a try. The request's head is with `sink` already, unsent.
///
/// # Errors
/// What went wrong before an answer was begun.
pub(super) fn drive<B: RequestBody, R: Reply, U: Upstream, K: UpstreamSink>(
    job: &Job<'_>,
    parts: &mut Parts<'_, '_, '_, B, R>,
    upstream: &mut U,
    sink: &mut K,
) -> impl Future<Output = Result<Driven, Failure>> {
    async move {
        let wants_tunnel = job.facts.upgrade || parts.exchange.request.method == Method::Connect;
        let mut upload = Upload::default();
        if wants_tunnel {
            // Only the head goes out until the upstream has agreed.
            upload.pump.finished = true;
        }
        if job.facts.length == BodyLength::Empty && parts.exchange.request_done.is_none() {
            parts.exchange.request_done = Some(parts.exchange.begun);
            parts.deadlines.request_done(parts.exchange.passed);
        }
        answer_head(parts, upstream, sink, &mut upload, wants_tunnel).await?;

        let now = Instant::now();
        parts.exchange.first_byte = Some(now);
        if let Some(cluster) = &parts.exchange.cluster {
            cluster.stats().answered(parts.exchange.response.status);
        }
        if parts.body.rewindable() {
            let (again, covered) = parts
                .retry
                .may_retry_response(&parts.exchange.response, parts.exchange.request.grpc);
            if again {
                return Ok(Driven::RetryStatus);
            }
            if covered && parts.retry.made() > 0 {
                parts.exchange.flag(ResponseFlag::UpstreamRetryLimitExceeded);
                if let Some(cluster) = &parts.exchange.cluster {
                    cluster.stats().upstream_rq_retry_limit_exceeded.inc();
                }
            }
        }
        parts.body.commit();
        parts.deadlines.per_try = far_future(now);
        let status = parts.exchange.response.status;
        let tunnel = wants_tunnel
            && (status == 101 || (parts.exchange.request.method == Method::Connect && (200..300).contains(&status)));
        let length = if tunnel {
            BodyLength::Tunnel
        } else {
            upstream.length(&parts.exchange.response)
        };
        let dropped = job.hcm().map(|hcm| &hcm.trailers_dropped);
        let trailers = Trailers::of_response(&parts.exchange.request, &parts.exchange.response);
        let mut source = Filtered::response(upstream, job.keeper(), trailers, dropped);
        let mut filters_waited = false;
        let sent = match job.client {
            None => parts.reply.send_head(&parts.exchange.response, length),
            Some(env) => {
                change_answer(env, parts.exchange, job.facts.upgrade, now);
                if let Some(waiting) = filter_head(env, parts.exchange, length) {
                    filters_waited = true;
                    // Boxed: rare, and a request's future should not be larger for it.
                    let waited = Box::pin(wait_for_filters(env, waiting, parts, &mut source, sink, &mut upload));
                    if let Err(end) = waited.await {
                        let driven = ended(job, parts.exchange, end, tunnel);
                        parts.exchange.status = 0;
                        return Ok(driven);
                    }
                }
                send_head(env, parts.exchange, parts.reply)
            }
        };
        if sent.is_err() {
            parts.exchange.flag(ResponseFlag::DownstreamConnectionTermination);
            return Ok(Driven::Finished(Outcome::Aborted));
        }
        source.set_stages(std::mem::take(&mut parts.exchange.response_content.stages));
        if tunnel {
            parts.body.tunnel();
            sink.tunnel();
            upload = Upload::default();
            parts.deadlines.route = far_future(now);
        }
        let (driven, waited) = answer_body(job, parts, &mut source, sink, &mut upload, tunnel).await;
        // An answer that was here whole has taken no time.
        let ended = if waited || filters_waited { Instant::now() } else { now };
        parts.exchange.ended = Some(ended);
        if let Some(cluster) = &parts.exchange.cluster {
            let took = ended.duration_since(parts.exchange.passed);
            cluster.stats().upstream_rq_time.record(took.as_secs_f64() * 1000.0);
        }
        Ok(driven)
    }
}

/// Sends the request until the final head of the answer is there, in `exchange.response`, and the reply can take it.
fn answer_head<B: RequestBody, R: Reply, U: Upstream, K: UpstreamSink>(
    parts: &mut Parts<'_, '_, '_, B, R>,
    upstream: &mut U,
    sink: &mut K,
    upload: &mut Upload,
    wants_tunnel: bool,
) -> impl Future<Output = Result<(), Failure>> {
    async move {
        let mut interim = 0;
        loop {
            poll_fn(|cx| {
                if let Some(failure) = upload.poll(cx, parts.body, sink, parts.deadlines) {
                    return Poll::Ready(Err(failure));
                }
                // An answer that has no way to the client yet stays where it is.
                match parts.reply.poll_head_ready(cx, 0) {
                    Poll::Ready(Ok(())) => match upstream.poll_response(cx, &mut parts.exchange.response) {
                        Poll::Ready(Ok(())) => return Poll::Ready(Ok(())),
                        Poll::Ready(Err(StreamError::Overload)) => return Poll::Ready(Err(Failure::Overload)),
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(Failure::Upstream(error))),
                        Poll::Pending => {}
                    },
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(Failure::ClientGone)),
                    Poll::Pending => {}
                }
                if let Poll::Ready(failure) = poll_ends(cx, parts, wants_tunnel) {
                    return Poll::Ready(Err(failure));
                }
                match gave_up(parts.deadlines, parts.exchange.cluster.as_ref(), upstream) {
                    true => Poll::Ready(Err(Failure::Upstream(StreamError::Closed))),
                    false => Poll::Pending,
                }
            })
            .await?;
            let status = parts.exchange.response.status;
            if status >= 200 || (status == 101 && wants_tunnel) {
                return Ok(());
            }
            interim += 1;
            if status == 101 || interim > MAX_INTERIM {
                return Err(Failure::Upstream(StreamError::H1(H1Error::StartLine)));
            }
            // 100 was answered here, before the body was asked for.
            if status != 100 {
                parts
                    .reply
                    .send_interim(&parts.exchange.response)
                    .map_err(|_| Failure::ClientGone)?;
                // A client that does not read has no longer than for the answer itself.
                poll_fn(|cx| match parts.reply.poll_flush(cx) {
                    Poll::Ready(flushed) => Poll::Ready(flushed.map_err(|_| Failure::ClientGone)),
                    Poll::Pending => poll_ends(cx, parts, wants_tunnel).map(Err),
                })
                .await?;
            }
        }
    }
}

/// Runs filters that wait before the answer, while the rest of the request goes out.
///
/// # Errors
/// The request ended meanwhile.
async fn wait_for_filters<B: RequestBody, R: Reply, U: Upstream, K: UpstreamSink>(
    env: Environment<'_>,
    waiting: usize,
    parts: &mut Parts<'_, '_, '_, B, R>,
    source: &mut Filtered<'_, U>,
    sink: &mut K,
    upload: &mut Upload,
) -> Result<(), End> {
    // The filters have the exchange meanwhile.
    let mut request_done = parts.exchange.request_done;
    let cluster = parts.exchange.cluster.clone();
    let answer = RefCell::new(source);
    let mut ends = Ends {
        body: &mut *parts.body,
        reply: &mut *parts.reply,
        timer: &mut *parts.timer,
        deadlines: &mut *parts.deadlines,
        request_done: &mut request_done,
    };
    let mut bytes = 0;
    let look = |cx: &mut Context<'_>| {
        let mut source = answer.borrow_mut();
        if source.bytes() != bytes {
            bytes = source.bytes();
            ends.deadlines.idle.touch();
        }
        match source.failed() {
            Some(StreamError::Overload) => return Poll::Ready(End::Failure(Failure::Overload)),
            Some(error) => return Poll::Ready(End::Upstream(error)),
            None => {}
        }
        if let Some(failure) = upload.poll(cx, ends.body, sink, ends.deadlines) {
            return Poll::Ready(End::Failure(failure));
        }
        if let Poll::Ready(failure) = ends.poll(cx, false) {
            return Poll::Ready(End::Failure(failure));
        }
        match gave_up(ends.deadlines, cluster.as_ref(), source.source()) {
            true => Poll::Ready(End::Upstream(StreamError::Closed)),
            false => Poll::Pending,
        }
    };
    let waited = on_response_waiting(env, parts.exchange, waiting, &answer, look).await;
    parts.exchange.request_done = request_done;
    waited
}

/// Passes the answer's body on, while the rest of the request goes out. Says as well whether it had to wait.
fn answer_body<B: RequestBody, R: Reply, U: Upstream, K: UpstreamSink>(
    job: &Job<'_>,
    parts: &mut Parts<'_, '_, '_, B, R>,
    source: &mut Filtered<'_, U>,
    sink: &mut K,
    upload: &mut Upload,
    tunnel: bool,
) -> impl Future<Output = (Driven, bool)> {
    async move {
        let mut waited = false;
        let mut pump = Pump::default();
        let mut half_closed = false;
        let end = poll_fn(|cx| {
            let before = pump.bytes;
            let download = pump.poll(cx, source, parts.reply);
            if pump.bytes != before {
                parts.deadlines.idle.touch();
            }
            match download {
                Poll::Ready(Ok(())) => return Poll::Ready(End::Whole),
                Poll::Ready(Err(PumpError::Source(StreamError::Overload))) => {
                    return Poll::Ready(End::Failure(Failure::Overload));
                }
                Poll::Ready(Err(PumpError::Source(error))) => return Poll::Ready(End::Upstream(error)),
                Poll::Ready(Err(PumpError::Sink(StreamError::Length))) => {
                    return Poll::Ready(End::Upstream(StreamError::Length));
                }
                Poll::Ready(Err(PumpError::Sink(_))) => {
                    return Poll::Ready(End::Failure(Failure::ClientGone));
                }
                Poll::Pending => {}
            }
            if let Some(failure) = upload.poll(cx, parts.body, sink, parts.deadlines) {
                return Poll::Ready(End::Failure(failure));
            }
            if tunnel {
                if upload.refused {
                    return Poll::Ready(End::Whole);
                }
                if upload.pump.flushed && !half_closed {
                    // The client has said its last word; the upstream may still have some.
                    half_closed = sink.poll_half_close(cx).is_ready();
                }
            }
            if let Poll::Ready(failure) = poll_ends(cx, parts, tunnel) {
                return Poll::Ready(End::Failure(failure));
            }
            if gave_up(parts.deadlines, parts.exchange.cluster.as_ref(), source.source()) {
                return Poll::Ready(End::Upstream(StreamError::Closed));
            }
            waited = true;
            Poll::Pending
        })
        .await;
        parts.exchange.response_bytes = pump.bytes;
        parts.exchange.trailers = source.take_seen();
        (ended(job, parts.exchange, end, tunnel), waited)
    }
}

/// Notes how an answer ended.
fn ended(job: &Job<'_>, exchange: &mut Exchange, end: End, tunnel: bool) -> Driven {
    match end {
        End::Whole if tunnel => Driven::Finished(Outcome::Tunnelled),
        End::Whole => Driven::Finished(Outcome::Complete),
        End::Upstream(error) => {
            let failure = Failure::Upstream(error);
            if let Some(cluster) = &exchange.cluster {
                super::count(cluster, &failure);
            }
            if let Some(flag) = failure.flag() {
                exchange.flag(flag);
            }
            exchange.details = failure.details().replace("before_response", "after_response").into();
            Driven::Broken
        }
        End::Failure(failure) => {
            if let Some(flag) = failure.flag() {
                exchange.flag(flag);
            }
            exchange.details = failure.details();
            if let (Failure::Protocol(error), Some(hcm)) = (&failure, job.hcm()) {
                hcm.stats.http1_error(*error);
            }
            if failure == Failure::Timeout
                && let Some(cluster) = &exchange.cluster
            {
                cluster.stats().upstream_rq_timeout.inc();
            }
            Driven::Finished(Outcome::Aborted)
        }
    }
}
