//! Serving HTTP/2 to a client: one task drives the connection and runs its streams.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use futures_util::FutureExt;
use heddle_balance::Guest;
use heddle_config::snapshot::{LoadShedPoint, OverloadActionKind, ScaledTimer};
use heddle_memory::placed;
use heddle_net::ConnectionInfo;
use heddle_telemetry::ResponseFlag;
use heddle_tls::Stream as Transport;
use tokio::time::Instant;

use super::blocks::Accepted;
use super::body::{H2Reader, H2Writer};
use super::close::close;
use super::connection::Connection;
use super::core::{End, Role};
use super::frame::Reason;
use super::head::{Asked, content_length};
use super::keepalive::KeepAlive;
use super::premature::PrematureResets;
use super::rest::Driven;
use super::stream::Stream;
use super::streams::{Streams, guarded};
use crate::body::{BodyLength, Pump, Sink, Source, Static, StreamError};
use crate::drain::{Drain, DrainStage};
use crate::failure::Failure;
use crate::hcm::{
    Active, ClientElement, Environment, Exchange, Facts, HcmRuntime, Outcome, Reply, RequestBody, finish_head, handle,
    local_head,
};
use crate::head::{Fields, Method, ResponseHead};
use crate::kept::Keeper;
use crate::moving::{Luggage, Resting};
use crate::timer::{Timer, far_future};
use crate::worker::HttpWorker;

/// What the streams of a connection share with its driver.
struct Shared {
    worker: Rc<HttpWorker>,
    hcm: Rc<HcmRuntime>,
    info: Rc<ConnectionInfo>,
    drain: Drain,
    client_element: ClientElement,
    keeper: Rc<Keeper>,
    id: u64,
    idle_since: Cell<Instant>,
    resets: RefCell<PrematureResets>,
    /// Only of those that may move.
    guest: RefCell<Option<Box<Guest>>>,
    /// The last stream has just ended: once, the connection asks whether it is to go to another worker. Who waits for long is no load.
    asks: Cell<bool>,
}

impl Shared {
    /// A stream has ended. A client that resets most of what it asks for before it can be answered gets no more from this
    /// connection. What runs on it finishes: behind a proxy, it may be somebody else's.
    fn ended(&self, connection: &Connection, lifetime: Duration, premature: bool) {
        let too_many = self.resets.borrow_mut().stream_ended(lifetime, premature);
        if too_many && connection.take_no_more(Reason::ENHANCE_YOUR_CALM) {
            self.hcm.stats.rq_too_many_premature_resets.inc();
            self.hcm.stats.http2_error("flood");
        }
    }

    /// A stream has ended, and may have been the last.
    fn rests(&self, connection: &Connection) {
        if connection.active() == 0 {
            self.idle_since.set(Instant::now());
            self.asks.set(self.hcm.moves.is_some());
        }
    }

    /// An exchange has ended, as load.
    fn worked(&self, exchange: &Exchange, now: Instant) {
        if let (Some(moves), Some(guest)) = (&self.hcm.moves, &mut *self.guest.borrow_mut()) {
            moves.ended(guest, exchange.request_bytes + exchange.response_bytes, now);
            if exchange.settles {
                guest.settle();
            }
        }
    }

    /// Where the connection is to go, if anywhere.
    fn destination(&self) -> Option<usize> {
        let guest = self.guest.borrow();
        self.hcm
            .moves
            .as_ref()?
            .destination(guest.as_ref()?, self.idle_since.get())
    }
}

/// Why the driver stopped.
enum Stopped {
    Ended(End),
    HeaderTimeout,
    Unresponsive,
    Idle,
    Drained,
    /// The connection goes to this worker.
    Leaves(usize),
}

/// Serves one connection until it ends, or is to go to another worker.
pub(crate) async fn serve(
    worker: &Rc<HttpWorker>,
    hcm: &Rc<HcmRuntime>,
    transport: Transport,
    info: &Rc<ConnectionInfo>,
    first: BytesMut,
    buffer_limit: usize,
    drain: &Drain,
) -> Option<Box<Resting>> {
    hcm.stats.cx_http2_total.inc();
    let options = hcm.config.http2;
    let connection = Connection::new(
        Role::Server,
        transport,
        first,
        options,
        hcm.limits,
        buffer_limit,
        hcm.stats.http2.clone(),
    );
    let luggage = Luggage::new(worker, hcm);
    let driven = Driven {
        resets: PrematureResets::new(hcm.premature_resets),
        ping_due: None,
    };
    go_on(worker, hcm, connection, info, drain, luggage, driven).await
}

/// Goes on with a connection that was at rest, on this worker or another.
pub(crate) async fn resume(
    worker: &Rc<HttpWorker>,
    hcm: &Rc<HcmRuntime>,
    resting: Box<Resting>,
    drain: &Drain,
) -> Option<Box<Resting>> {
    let Resting {
        stream,
        info,
        mut luggage,
        ..
    } = *resting;
    let at_rest = *luggage.http2.take()?;
    let driven = at_rest.driven;
    let connection = Connection::resume(stream, at_rest, hcm.stats.http2.clone());
    go_on(worker, hcm, connection, &info, drain, luggage, driven).await
}

fn go_on(
    worker: &Rc<HttpWorker>,
    hcm: &Rc<HcmRuntime>,
    connection: Rc<Connection>,
    info: &Rc<ConnectionInfo>,
    drain: &Drain,
    luggage: Luggage,
    driven: Driven,
) -> impl Future<Output = Option<Box<Resting>>> {
    async move {
        let stats = &hcm.stats;
        let _active = Active::enter(&stats.cx_http2_active);
        let Luggage {
            id,
            last,
            idle_since,
            guest,
            ..
        } = luggage;
        let shared = Rc::new(Shared {
            worker: Rc::clone(worker),
            hcm: Rc::clone(hcm),
            info: Rc::clone(info),
            drain: drain.clone(),
            client_element: ClientElement::default(),
            keeper: Rc::default(),
            id,
            idle_since: Cell::new(idle_since),
            resets: RefCell::new(driven.resets),
            guest: RefCell::new(guest),
            asks: Cell::new(false),
        });
        let driver = connection.driver();
        let mut ping_due = driven.ping_due;
        let mut streams = Streams::new();
        let begin = |accepted| begin(&shared, &connection, accepted);
        let driven = drive(&shared, &connection, &mut streams, begin, last, &mut ping_due);
        let stopped = match AssertUnwindSafe(driven).catch_unwind().await {
            Ok(stopped) => stopped,
            Err(panic) => {
                connection.abort();
                streams.finish().await;
                std::panic::resume_unwind(panic);
            }
        };
        match &stopped {
            Stopped::Ended(End::Finished | End::Transport) => stats.cx_destroy_remote.inc(),
            Stopped::Ended(End::Failed(error)) => {
                stats.cx_destroy_local.inc();
                stats.http2_error(error.reason.label());
            }
            Stopped::HeaderTimeout => stats.rq_header_timeout.inc(),
            Stopped::Unresponsive => stats.http2.keepalive_timeout.inc(),
            Stopped::Idle => stats.cx_idle_timeout.inc(),
            Stopped::Drained => stats.cx_drain_close.inc(),
            Stopped::Leaves(to) => {
                driver.release();
                let driven = Driven {
                    resets: *shared.resets.borrow(),
                    ping_due,
                };
                let (stream, at_rest) = connection.into_rest(driven)?;
                return Some(Box::new(Resting {
                    stream,
                    info: Rc::clone(info),
                    luggage: Luggage {
                        id,
                        last,
                        idle_since: shared.idle_since.get(),
                        guest: shared.guest.take(),
                        http2: Some(Box::new(at_rest)),
                    },
                    to: *to,
                }));
            }
        }
        if !matches!(stopped, Stopped::Ended(_)) {
            stats.cx_destroy_local.inc();
            connection.abort();
        }
        // Each of them learns how it has ended, and is counted and logged.
        tokio::join!(close(&connection), streams.finish());
        drop(driver);
        None
    }
}

/// Runs the connection and its streams, which `begin` makes, until there is a reason to stop. `last` is when `max_connection_duration` ends, `ping_due` when the next PING
/// goes out, as far as that is known before and when the connection leaves.
fn drive<S: Future<Output = ()> + Unpin>(
    shared: &Shared,
    connection: &Rc<Connection>,
    streams: &mut Streams<S>,
    begin: impl Fn(Accepted) -> Option<S>,
    last: Instant,
    ping_due: &mut Option<Instant>,
) -> impl Future<Output = Stopped> {
    async move {
        let mut timer = Timer::default();
        let hcm = &shared.hcm;
        let config = &hcm.config;
        let drain = &shared.drain;
        let begun = Instant::now();
        let never = far_future(begun);
        let mut keepalive = config.http2.keepalive.map(|settings| match *ping_due {
            Some(due) => KeepAlive::due(settings, due),
            None => KeepAlive::new(settings),
        });
        let mut goaway_sent = false;
        let mut draining = None;
        let mut reduced = 0.0;
        poll_fn(|cx| {
            streams.begin_turn(cx);
            let received = connection.poll_receive(cx);
            while let Some(accepted) = connection.next_accepted() {
                if let Some(stream) = begin(accepted) {
                    streams.push(stream);
                }
                let dice = || shared.worker.random().f64();
                if hcm.overload.is_refusing() && hcm.overload.sheds(LoadShedPoint::Http2GoAway, dice) && !goaway_sent {
                    goaway_sent = true;
                    connection.graceful_shutdown();
                }
            }
            if received.is_pending() {
                streams.run(cx);
            }
            if let Poll::Ready(end) = connection.poll_send_out(cx, received) {
                return Poll::Ready(Stopped::Ended(end));
            }
            let over = Instant::now() >= last;
            if (drain.is_draining() || over) && !goaway_sent {
                goaway_sent = true;
                if over {
                    hcm.stats.cx_max_duration.inc();
                }
                connection.graceful_shutdown();
            }
            if let Some(keepalive) = &mut keepalive
                && keepalive.poll_dead(cx, connection).is_ready()
            {
                return Poll::Ready(Stopped::Unresponsive);
            }
            if drain.stage() == DrainStage::Closing {
                return Poll::Ready(Stopped::Drained);
            }
            drain.register(cx);
            let reduce = hcm.overload.state(OverloadActionKind::ReduceTimeouts);
            if std::mem::replace(&mut reduced, reduce) != reduce {
                connection.wake_streams();
            }
            let quiet = connection.active() == 0;
            // A head that has begun must end in time, and so must the client's preface.
            let head = if connection.is_greeted() {
                connection.partial_since()
            } else {
                Some(begun)
            }
            .map_or(never, |since| since + hcm.headers_timeout());
            let idle = if quiet && !config.idle_timeout.is_zero() {
                let timer = ScaledTimer::HttpDownstreamConnectionIdle;
                shared.idle_since.get() + hcm.overload.timeout(timer, config.idle_timeout)
            } else {
                never
            };
            let drained = if drain.is_draining() && quiet {
                *draining.get_or_insert_with(|| Instant::now() + config.drain_timeout)
            } else {
                never
            };
            let deadline = head.min(idle).min(drained).min(if goaway_sent { never } else { last });
            if timer.poll_until(cx, deadline).is_pending() {
                *ping_due = keepalive.as_ref().and_then(KeepAlive::next);
                let may_leave = shared.asks.take()
                    && !goaway_sent
                    && !drain.is_draining()
                    && ping_due.is_some() == keepalive.is_some()
                    && connection.is_at_rest();
                return match may_leave.then(|| shared.destination()).flatten() {
                    Some(to) => Poll::Ready(Stopped::Leaves(to)),
                    None => Poll::Pending,
                };
            }
            if deadline == last && !goaway_sent {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(if deadline == head {
                Stopped::HeaderTimeout
            } else if deadline == idle {
                Stopped::Idle
            } else {
                Stopped::Drained
            })
        })
        .await
    }
}

/// A stream, to be run to its end. None for one that is over.
fn begin(
    shared: &Rc<Shared>,
    connection: &Rc<Connection>,
    accepted: Accepted,
) -> Option<impl Future<Output = ()> + Unpin + use<>> {
    let stream = Rc::new(connection.stream(&accepted));
    if stream.was_given_up() {
        // Its client has lost interest before anything was done.
        accepted.head.give_back();
        shared.ended(connection, Duration::ZERO, true);
        return None;
    }
    // Placed: it is large, and would be moved.
    let run = placed(|| run_stream(Rc::clone(shared), Rc::clone(connection), stream, accepted));
    let (shared, connection) = (Rc::clone(shared), Rc::clone(connection));
    Some(guarded(run, move || {
        shared.hcm.stats.stream_panicked();
        shared.rests(&connection);
    }))
}

/// Serves a stream to its end.
fn run_stream(
    shared: Rc<Shared>,
    connection: Rc<Connection>,
    stream: Rc<Stream>,
    accepted: Accepted,
) -> impl Future<Output = ()> {
    let mut exchange = Exchange::take(shared.id, shared.hcm.filter_chain.as_ref(), Instant::now());
    let Accepted {
        mut head, result, end, ..
    } = accepted;
    std::mem::swap(&mut exchange.request, &mut head);
    head.give_back();
    async move {
        serve_stream(&shared, &mut exchange, &stream, result, end).await;
        let ended = exchange.ended.unwrap_or_else(Instant::now);
        let premature = exchange.status == 0 && stream.was_given_up();
        shared.ended(&connection, ended.duration_since(exchange.begun), premature);
        shared.worked(&exchange, ended);
        drop(stream);
        exchange.give_back();
        shared.rests(&connection);
    }
}

fn serve_stream(
    shared: &Shared,
    exchange: &mut Exchange,
    stream: &Rc<Stream>,
    result: Result<Asked, Failure>,
    end: bool,
) -> impl Future<Output = ()> {
    async move {
        let hcm = &shared.hcm;
        let env = Environment {
            worker: &shared.worker,
            hcm,
            connection: &shared.info,
            drain: &shared.drain,
            client_element: &shared.client_element,
            keeper: &shared.keeper,
        };
        hcm.stats.rq_http2.inc();
        let mut timer = Timer::default();
        let mut reply = H2Reply {
            stream: Rc::clone(stream),
            writer: H2Writer::new(Rc::clone(stream), false),
            head_only: exchange.request.method == Method::Head,
            started: false,
            tunnel: false,
        };
        let asked = match result {
            Ok(asked) => asked,
            Err(failure) => {
                refuse(shared, exchange, &mut reply, &mut timer, &failure).await;
                return;
            }
        };
        if !hcm.admits_names(&mut exchange.request) {
            hcm.stats.rq_total.inc();
            exchange.flag(ResponseFlag::DownstreamProtocolError);
            exchange.details = "http2.unexpected_underscore".into();
            hcm.stats.rq_tx_reset.inc();
            hcm.finish(exchange, &shared.info, Instant::now());
            stream.reset(Reason::PROTOCOL_ERROR);
            return;
        }
        let length = if end || asked.upgrade {
            BodyLength::Empty
        } else if exchange.request.method == Method::Connect {
            BodyLength::Tunnel
        } else {
            content_length(&exchange.request.fields).map_or(BodyLength::Unknown, BodyLength::Known)
        };
        let mut body = match asked.upgrade {
            true => H2Reader::waiting(Rc::clone(stream)),
            false => H2Reader::new(Rc::clone(stream)),
        };
        let facts = Facts {
            length,
            upgrade: asked.upgrade,
            expect_continue: asked.expect_continue,
        };
        let outcome = handle(env, exchange, &mut body, &mut reply, &mut timer, facts).await;
        if outcome == Outcome::Aborted {
            stream.reset(match reply.tunnel {
                // RFC 8441 section 5: what a reset is to TCP.
                true => Reason::CANCEL,
                false => Reason::INTERNAL_ERROR,
            });
        }
    }
}

/// Answers a request whose head is refused.
async fn refuse(shared: &Shared, exchange: &mut Exchange, reply: &mut H2Reply, timer: &mut Timer, failure: &Failure) {
    let hcm = &shared.hcm;
    hcm.stats.rq_total.inc();
    hcm.stats.http2_error("request_head");
    let body = local_head(exchange, failure);
    finish_head(hcm, &shared.worker, exchange);
    exchange.status = exchange.response.status;
    let length = if body.is_empty() {
        BodyLength::Empty
    } else {
        BodyLength::Known(body.len() as u64)
    };
    let mut body = Static(body);
    let mut pump = Pump::default();
    let mut sent = false;
    let deadline = Instant::now() + hcm.headers_timeout();
    poll_fn(|cx| {
        if !sent {
            match reply.poll_head_ready(cx, exchange.response.fields.held()) {
                Poll::Ready(Ok(())) if reply.send_head(&exchange.response, length).is_ok() => sent = true,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return timer.poll_until(cx, deadline),
            }
        }
        match pump.poll(cx, &mut body, reply) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => timer.poll_until(cx, deadline),
        }
    })
    .await;
    exchange.response_bytes = pump.bytes;
    hcm.finish(exchange, &shared.info, Instant::now());
}

impl RequestBody for H2Reader {
    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<StreamError> {
        // The writing side sees resets.
        Poll::Pending
    }

    fn tunnel(&mut self) {
        self.open();
    }
}

/// The answer's way out.
struct H2Reply {
    stream: Rc<Stream>,
    writer: H2Writer,
    head_only: bool,
    started: bool,
    /// An upgrade was accepted.
    tunnel: bool,
}

impl Reply for H2Reply {
    fn poll_head_ready(&mut self, cx: &mut Context<'_>, holding: usize) -> Poll<Result<(), StreamError>> {
        self.stream.poll_head_room(cx, holding)
    }

    fn send_head(&mut self, head: &ResponseHead, length: BodyLength) -> Result<(), StreamError> {
        self.started = true;
        self.tunnel = length == BodyLength::Tunnel;
        let end = length == BodyLength::Empty || self.head_only || matches!(head.status, 204 | 304);
        self.stream.send_response(head, end)?;
        self.writer = H2Writer::new(Rc::clone(&self.stream), end);
        Ok(())
    }

    fn send_interim(&mut self, head: &ResponseHead) -> Result<(), StreamError> {
        if self.started {
            return Ok(());
        }
        self.stream.send_response(head, false)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        self.stream.poll_reset(cx)
    }
}

impl Sink for H2Reply {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        self.writer.poll_ready(cx)
    }

    fn room(&self) -> usize {
        self.writer.room()
    }

    fn poll_put<S: Source>(&mut self, cx: &mut Context<'_>, source: &mut S) -> Poll<Result<usize, StreamError>> {
        self.writer.poll_put(cx, source)
    }

    fn finish(&mut self, trailers: Option<&Fields>) -> Result<(), StreamError> {
        self.writer.finish(trailers)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        self.writer.poll_flush(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_run<A, B, C, D, T: Future>(_: impl Fn(A, B, C, D) -> T) -> usize {
        size_of::<T>()
    }

    /// A request is this in memory besides its heads and its body, and touches nearly all of it.
    #[test]
    fn a_stream_stays_small() {
        let size = size_of_run(run_stream);
        assert!(size <= 3584, "a stream takes {size} bytes");
    }
}
