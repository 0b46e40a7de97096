//! Serving HTTP/1.1 to a client.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use heddle_balance::Guest;
use heddle_config::snapshot::{LoadShedPoint, OverloadActionKind, ScaledTimer};
use heddle_memory::placed;
use heddle_net::ConnectionInfo;
use heddle_tls::Stream;
use tokio::time::Instant;

use super::H1Error;
use super::io::{H1Conn, H1Reader, H1Writer};
use super::parse::{RequestFacts, parse_request};
use crate::body::{BodyLength, Fill, Sink, Source, StreamError};
use crate::drain::{Drain, DrainStage};
use crate::failure::Failure;
use crate::hcm::{
    Active, ClientElement, Environment, Exchange, Facts, HcmRuntime, Outcome, Reply, RequestBody, decline_h2c,
    finish_head, handle, local_head,
};
use crate::head::{Fields, Framing, Known, Method, Protocol, ResponseHead};
use crate::moving::{Luggage, Moves, Resting};
use crate::timer::{Timer, far_future};
use crate::worker::HttpWorker;

/// How long, and for how many bytes, a connection is read after its last answer, so that the client gets the answer
/// and not a reset (RFC 9112 section 9.6). Envoy's `delayed_close_timeout`.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 256 * 1024;

/// What ended the wait for a request.
enum Next {
    Head(usize),
    Bad(H1Error),
    /// The client closed.
    Closed,
    /// Nothing came in time.
    Idle,
    /// A head began and did not end in time.
    Slow,
    /// The drain is over.
    Drained,
    /// The connection goes to this worker.
    Leaves(usize),
}

/// Serves one connection until it ends, or is to go to another worker.
pub(crate) fn serve(
    worker: &Rc<HttpWorker>,
    hcm: &Rc<HcmRuntime>,
    stream: Stream,
    connection: &Rc<ConnectionInfo>,
    first: BytesMut,
    drain: &Drain,
) -> impl Future<Output = Option<Box<Resting>>> {
    hcm.stats.cx_http1_total.inc();
    let luggage = Luggage::new(worker, hcm);
    go_on(worker, hcm, stream, connection, first, drain, luggage)
}

/// Goes on with a connection that was at rest, on this worker or another.
pub(crate) async fn resume(
    worker: &Rc<HttpWorker>,
    hcm: &Rc<HcmRuntime>,
    resting: Box<Resting>,
    drain: &Drain,
) -> Option<Box<Resting>> {
    let Resting {
        stream, info, luggage, ..
    } = *resting;
    go_on(worker, hcm, stream, &info, BytesMut::new(), drain, luggage).await
}

fn go_on(
    worker: &Rc<HttpWorker>,
    hcm: &Rc<HcmRuntime>,
    stream: Stream,
    connection: &Rc<ConnectionInfo>,
    first: BytesMut,
    drain: &Drain,
    luggage: Luggage,
) -> impl Future<Output = Option<Box<Resting>>> {
    async move {
        let _active = Active::enter(&hcm.stats.cx_http1_active);
        let client_element = ClientElement::default();
        let env = Environment {
            worker,
            hcm,
            connection,
            drain,
            client_element: &client_element,
            keeper: &Rc::default(),
        };
        let mut conn = H1Conn::new(stream, first, hcm.limits);
        let mut timer = Timer::default();
        let Luggage {
            id,
            last,
            mut idle_since,
            mut guest,
            ..
        } = luggage;
        let exchange = |now| Exchange::take(id, hcm.filter_chain.as_ref(), now);
        let mut rested = false;
        loop {
            let asks = match (&hcm.moves, &guest) {
                (Some(moves), Some(guest)) if rested => Some((&**moves, &**guest)),
                _ => None,
            };
            let next = next_head(env, &mut conn, &mut timer, idle_since, last, asks).await;
            let head = match next {
                Next::Head(head) => head,
                Next::Bad(error) => {
                    let mut exchange = exchange(Instant::now());
                    refuse(env, &mut exchange, &mut conn, &mut timer, Failure::Protocol(error)).await;
                    return None;
                }
                Next::Slow => {
                    hcm.stats.rq_header_timeout.inc();
                    let mut exchange = exchange(Instant::now());
                    refuse(env, &mut exchange, &mut conn, &mut timer, Failure::HeaderTimeout).await;
                    return None;
                }
                Next::Closed => {
                    hcm.stats.cx_destroy_remote.inc();
                    return None;
                }
                Next::Idle => {
                    hcm.stats.cx_idle_timeout.inc();
                    close(&mut conn, &mut timer).await;
                    return None;
                }
                Next::Drained => {
                    hcm.stats.cx_drain_close.inc();
                    close(&mut conn, &mut timer).await;
                    return None;
                }
                Next::Leaves(to) => {
                    return Some(Box::new(Resting {
                        stream: conn.stream,
                        info: Rc::clone(connection),
                        luggage: Luggage {
                            id,
                            last,
                            idle_since,
                            guest,
                            http2: None,
                        },
                        to,
                    }));
                }
            };
            let now = Instant::now();
            let mut exchange = exchange(now);
            hcm.stats.rq_http1.inc();
            let dice = || worker.random().f64();
            if hcm.overload.is_refusing() && hcm.overload.sheds(LoadShedPoint::Http1AbortDispatch, dice) {
                hcm.stats.rq_overload_close.inc();
                refuse(env, &mut exchange, &mut conn, &mut timer, Failure::Shed).await;
                return None;
            }
            let raw = conn.read.unread().get(..head).unwrap_or_default();
            let parsed = parse_request(raw, hcm.config.accept_http_10, &mut exchange.request);
            let parsed = parsed.and_then(|facts| {
                if exchange.request.fields.len() > hcm.limits.max_count {
                    Err(H1Error::TooMany)
                } else {
                    Ok(facts)
                }
            });
            let parsed = match parsed {
                Ok(parsed) => parsed,
                Err(error) => {
                    refuse(env, &mut exchange, &mut conn, &mut timer, Failure::Protocol(error)).await;
                    return None;
                }
            };
            if !hcm.admits_names(&mut exchange.request) {
                let failure = Failure::BadRequest("http1.unexpected_underscore");
                refuse(env, &mut exchange, &mut conn, &mut timer, failure).await;
                return None;
            }
            conn.read.begin_body(head, parsed.framing);
            // Placed: a connection at rest should not be as large as one with a request, and most are at rest.
            let outcome = placed(|| one(env, &mut exchange, &mut conn, &mut timer, parsed, now >= last)).await;
            match outcome {
                After::Open => {}
                After::Close => {
                    if drain.is_draining() {
                        hcm.stats.cx_drain_close.inc();
                    }
                    hcm.stats.cx_destroy_local.inc();
                    close(&mut conn, &mut timer).await;
                    return None;
                }
                After::Abort => {
                    hcm.stats.cx_destroy_local.inc();
                    return None;
                }
            }
            idle_since = exchange.ended.unwrap_or_else(Instant::now);
            if let (Some(moves), Some(guest)) = (&hcm.moves, &mut guest) {
                moves.ended(guest, exchange.request_bytes + exchange.response_bytes, idle_since);
                if exchange.settles {
                    guest.settle();
                }
                rested = true;
            }
            exchange.give_back();
        }
    }
}

/// What becomes of the connection after a request.
enum After {
    Open,
    Close,
    Abort,
}

/// One request and its answer.
fn one(
    env: Environment<'_>,
    exchange: &mut Exchange,
    conn: &mut H1Conn,
    timer: &mut Timer,
    parsed: RequestFacts,
    last: bool,
) -> impl Future<Output = After> {
    async move {
        let connect = exchange.request.method == Method::Connect;
        let facts = Facts {
            length: match parsed.framing {
                Framing::None | Framing::UntilClose => BodyLength::Empty,
                Framing::Length(n) => BodyLength::Known(n),
                Framing::Chunked => BodyLength::Unknown,
            },
            upgrade: parsed.upgrade && !connect && decline_h2c(env.hcm, &mut exchange.request),
            expect_continue: parsed.expect_continue,
        };
        if (facts.upgrade || connect) && facts.length != BodyLength::Empty {
            // What would follow the upgrade or the tunnel's beginning, the body or the new protocol, could be read in two ways.
            refuse(env, exchange, conn, timer, Failure::Protocol(H1Error::StartLine)).await;
            return After::Abort;
        }
        let method = exchange.request.method;
        let protocol = exchange.request.protocol;
        let (reader, writer) = conn.halves();
        let mut body = H1Request { reader };
        let mut reply = H1Reply {
            writer,
            method,
            protocol,
            keep_alive: parsed.keep_alive && !last,
            env,
            started: false,
        };
        let outcome = handle(env, exchange, &mut body, &mut reply, timer, facts).await;
        let (keep_alive, started) = (reply.keep_alive, reply.started);
        match outcome {
            Outcome::Complete => {
                if !conn.write.idle() {
                    return After::Abort;
                }
                if keep_alive && (conn.read.body_done() || discard(conn).await) {
                    After::Open
                } else {
                    After::Close
                }
            }
            Outcome::Tunnelled => After::Close,
            // What was received of the answer is the client's: without it, the request would look unanswered, and clients
            // repeat those. The end of the connection tells that the rest is missing.
            Outcome::Aborted if started && conn.write.tells_length() => After::Close,
            Outcome::Aborted => {
                if started {
                    flush(conn, timer).await;
                }
                After::Abort
            }
        }
    }
}

/// Sends what waits, within a bound.
async fn flush(conn: &mut H1Conn, timer: &mut Timer) {
    let deadline = Instant::now() + LINGER;
    poll_fn(|cx| match conn.write.poll_flush(cx, &conn.stream) {
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => timer.poll_until(cx, deadline),
    })
    .await;
}

/// Takes the rest of a request's body that is here already, when it is short.
async fn discard(conn: &mut H1Conn) -> bool {
    poll_fn(|cx| {
        let (mut reader, _) = conn.halves();
        let mut left = LINGER_BYTES;
        while left > 0 {
            match reader.poll_fill(cx, usize::MAX) {
                Poll::Ready(Ok(Fill::Data)) => {
                    let n = reader.chunk().len();
                    reader.consume(n);
                    left = left.saturating_sub(n);
                }
                Poll::Ready(Ok(Fill::End)) => return Poll::Ready(true),
                _ => return Poll::Ready(false),
            }
        }
        Poll::Ready(false)
    })
    .await
}

/// Waits for the next complete head. A connection that has ended an exchange asks `asks` whether it is to go.
fn next_head(
    env: Environment<'_>,
    conn: &mut H1Conn,
    timer: &mut Timer,
    idle_since: Instant,
    last: Instant,
    mut asks: Option<(&Moves, &Guest)>,
) -> impl Future<Output = Next> {
    async move {
        let config = &env.hcm.config;
        let never = far_future(idle_since);
        let mut begun = None;
        let mut draining = None;
        let mut empty_lines = 0;
        poll_fn(|cx| {
            loop {
                match conn.read.poll_head(cx, &conn.stream) {
                    // An empty line before the start line (RFC 9112 section 2.2).
                    Poll::Ready(Ok(2)) if empty_lines < 2 => {
                        empty_lines += 1;
                        conn.read.begin_body(2, Framing::None);
                    }
                    Poll::Ready(Ok(2)) => return Poll::Ready(Next::Bad(H1Error::StartLine)),
                    Poll::Ready(Ok(head)) => return Poll::Ready(Next::Head(head)),
                    Poll::Ready(Err(StreamError::H1(H1Error::Incomplete))) => {
                        return Poll::Ready(Next::Closed);
                    }
                    Poll::Ready(Err(StreamError::H1(error))) => return Poll::Ready(Next::Bad(error)),
                    Poll::Ready(Err(_)) => return Poll::Ready(Next::Closed),
                    Poll::Pending => break,
                }
            }
            conn.write.relax();
            let partial = !conn.read.unread().is_empty();
            let deadline = if partial {
                *begun.get_or_insert_with(|| Instant::now() + env.hcm.headers_timeout())
            } else {
                let timer = ScaledTimer::HttpDownstreamConnectionIdle;
                let idle = match env.hcm.overload.timeout(timer, config.idle_timeout) {
                    Duration::ZERO => never,
                    idle => idle_since + idle,
                };
                match env.drain.stage() {
                    DrainStage::Closing => return Poll::Ready(Next::Drained),
                    DrainStage::Draining => {
                        // One last request may be on its way; its answer says `connection: close`.
                        let end = *draining.get_or_insert_with(|| Instant::now() + config.drain_timeout);
                        idle.min(end).min(last)
                    }
                    DrainStage::Serving => idle.min(last),
                }
            };
            env.drain.register(cx);
            if timer.poll_until(cx, deadline).is_ready() {
                return Poll::Ready(match (partial, env.drain.is_draining()) {
                    (true, _) => Next::Slow,
                    (false, true) => Next::Drained,
                    (false, false) => Next::Idle,
                });
            }
            // Once, right after an exchange: who waits for long is no load.
            if let Some((moves, guest)) = asks.take()
                && !partial
                && empty_lines == 0
                && !env.drain.is_draining()
                && conn.write.idle()
                && conn.stream.is_at_rest()
                && let Some(to) = moves.destination(guest, idle_since)
            {
                return Poll::Ready(Next::Leaves(to));
            }
            Poll::Pending
        })
        .await
    }
}

/// Answers a request that is not one, then closes.
async fn refuse(env: Environment<'_>, exchange: &mut Exchange, conn: &mut H1Conn, timer: &mut Timer, failure: Failure) {
    exchange.request.grpc = false;
    env.hcm.stats.rq_total.inc();
    if let Failure::Protocol(error) = &failure {
        env.hcm.stats.http1_error(*error);
    }
    let body = local_head(exchange, &failure);
    finish_head(env.hcm, env.worker, exchange);
    exchange.status = exchange.response.status;
    let out = conn.write.out();
    write_status(out, exchange.status);
    exchange.response.fields.write(out);
    out.extend_from_slice(b"connection: close\r\n\r\n");
    if exchange.request.method != Method::Head {
        out.extend_from_slice(&body);
        exchange.response_bytes = body.len() as u64;
    }
    env.hcm.finish(exchange, env.connection, Instant::now());
    env.hcm.stats.cx_destroy_local.inc();
    close(conn, timer).await;
}

/// Sends what waits, ends the sending side, and reads on for a moment.
async fn close(conn: &mut H1Conn, timer: &mut Timer) {
    let deadline = Instant::now() + LINGER;
    let mut shut = false;
    let mut left = LINGER_BYTES;
    poll_fn(|cx| {
        if timer.poll_until(cx, deadline).is_ready() {
            return Poll::Ready(());
        }
        if !shut {
            match conn.write.poll_flush(cx, &conn.stream) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
            match conn.stream.poll_shutdown(cx) {
                Poll::Ready(Ok(())) => shut = true,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
        loop {
            match conn.read.poll_discard(cx, &conn.stream) {
                Poll::Ready(Ok(n)) if n > 0 && n < left => left -= n,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

/// The request's body.
struct H1Request<'c> {
    reader: H1Reader<'c>,
}

impl Source for H1Request<'_> {
    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<Fill, StreamError>> {
        self.reader.poll_fill(cx, room)
    }

    fn chunk(&self) -> &[u8] {
        self.reader.chunk()
    }

    fn consume(&mut self, n: usize) {
        self.reader.consume(n);
    }

    fn ends_after(&self, n: usize) -> bool {
        self.reader.ends_after(n)
    }

    fn take_trailers(&mut self) -> Option<Fields> {
        self.reader.take_trailers()
    }
}

impl RequestBody for H1Request<'_> {
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        match self.reader.half.poll_watch(cx, self.reader.stream) {
            Poll::Ready(Err(error)) => Poll::Ready(error),
            // The next request is here already; it waits its turn.
            Poll::Ready(Ok(_)) | Poll::Pending => Poll::Pending,
        }
    }

    fn watch(&mut self, cx: &mut Context<'_>) -> Result<bool, StreamError> {
        let whole = match self.reader.poll_fill(cx, 0)? {
            Poll::Ready(Fill::End) => true,
            Poll::Ready(Fill::Data) => self.reader.half.holds_rest(),
            Poll::Pending => return Ok(false),
        };
        self.reader.half.look_ahead(cx, self.reader.stream)?;
        Ok(whole)
    }

    fn tunnel(&mut self) {
        self.reader.half.begin_body(0, Framing::UntilClose);
    }
}

/// The answer's way out.
struct H1Reply<'c> {
    writer: H1Writer<'c>,
    method: Method,
    protocol: Protocol,
    keep_alive: bool,
    env: Environment<'c>,
    started: bool,
}

impl H1Reply<'_> {
    /// Whether the connection goes on after this answer.
    fn stays_open(&self) -> bool {
        if !self.keep_alive || self.env.drain.is_draining() {
            return false;
        }
        let dice = || self.env.worker.random().f64();
        let hit = self
            .env
            .hcm
            .overload
            .hits(OverloadActionKind::DisableHttpKeepalive, dice);
        if hit {
            self.env.hcm.stats.cx_overload_disable_keepalive.inc();
        }
        !hit
    }
}

fn write_status(out: &mut Vec<u8>, status: u16) {
    if status == 200 {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(crate::head::reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

impl Reply for H1Reply<'_> {
    fn send_head(&mut self, head: &ResponseHead, length: BodyLength) -> Result<(), StreamError> {
        self.started = true;
        self.keep_alive = self.stays_open();
        let out = self.writer.half.out();
        write_status(out, head.status);
        head.fields.write(out);
        let bodyless = self.method == Method::Head || matches!(head.status, 204 | 304);
        let framing = match length {
            BodyLength::Tunnel => {
                if head.status == 101 {
                    out.extend_from_slice(b"connection: upgrade\r\n");
                }
                self.keep_alive = false;
                Framing::UntilClose
            }
            _ if bodyless => {
                if length == BodyLength::Unknown && self.method == Method::Head && self.protocol == Protocol::Http11 {
                    out.extend_from_slice(b"transfer-encoding: chunked\r\n");
                }
                Framing::None
            }
            BodyLength::Empty => {
                if !head.fields.has_known(Known::ContentLength) {
                    out.extend_from_slice(b"content-length: 0\r\n");
                }
                Framing::None
            }
            BodyLength::Known(n) => {
                if !head.fields.has_known(Known::ContentLength) {
                    out.extend_from_slice(b"content-length: ");
                    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
                    out.extend_from_slice(b"\r\n");
                }
                Framing::Length(n)
            }
            BodyLength::Unknown if self.protocol == Protocol::Http11 => {
                out.extend_from_slice(b"transfer-encoding: chunked\r\n");
                Framing::Chunked
            }
            BodyLength::Unknown => {
                self.keep_alive = false;
                Framing::UntilClose
            }
        };
        if length != BodyLength::Tunnel {
            if !self.keep_alive {
                out.extend_from_slice(b"connection: close\r\n");
            } else if self.protocol == Protocol::Http10 {
                out.extend_from_slice(b"connection: keep-alive\r\n");
            }
        }
        out.extend_from_slice(b"\r\n");
        self.writer.half.begin_body(framing);
        Ok(())
    }

    fn send_interim(&mut self, head: &ResponseHead) -> Result<(), StreamError> {
        if self.started || self.protocol == Protocol::Http10 {
            return Ok(());
        }
        let out = self.writer.half.out();
        write_status(out, head.status);
        head.fields.write(out);
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<StreamError> {
        Poll::Pending
    }
}

impl Sink for H1Reply<'_> {
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
