//! Serving HTTP/2 to a client: one task drives the connection, one task runs each stream.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use heddle_net::ConnectionInfo;
use heddle_tls::Stream;
use tokio::time::Instant;

use super::body::{H2Reader, H2Writer};
use super::convert::{length_of, request_from, response_to};
use super::keepalive::KeepAlive;
use super::transport::{Io, Transport};
use crate::body::{BodyLength, Pump, Sink, Source, Static, StreamError};
use crate::drain::{Drain, DrainStage};
use crate::failure::Failure;
use crate::h1::H1Error;
use crate::hcm::{
    Active, Environment, Exchange, Facts, HcmRuntime, Outcome, Reply, RequestBody, finish_head, handle, local_head,
};
use crate::head::{Fields, Method, ResponseHead};
use crate::timer::{Timer, far_future};
use crate::worker::HttpWorker;

/// What an HTTP/2 client sends first (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Streams that a client may reset before they were looked at; more is a reset flood (CVE-2023-44487).
const MAX_EARLY_RESETS: usize = 20;

/// Resets that we may have to send for a client's errors before the connection is closed.
const MAX_ERROR_RESETS: usize = 1024;

/// Most bytes that `h2` holds for one stream before the sender has to wait.
const SEND_BUFFER: usize = 256 * 1024;

/// How long the last frames of a closing connection may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// Most exchanges kept for later streams.
const KEEP: usize = 256;

thread_local! {
    static EXCHANGES: RefCell<Vec<Box<Exchange>>> = const { RefCell::new(Vec::new()) };
}

/// What the streams of a connection share with its driver.
struct Shared {
    worker: Rc<HttpWorker>,
    hcm: Rc<HcmRuntime>,
    connection: Rc<ConnectionInfo>,
    drain: Drain,
    id: u64,
    active: Cell<usize>,
    quiet_since: Cell<Instant>,
}

/// Why the driver stopped.
enum End {
    Finished,
    Failed(h2::Error),
    Transport,
    Unresponsive,
    Idle,
    Drained,
}

/// Serves one connection until it ends.
pub(crate) async fn serve(
    worker: &Rc<HttpWorker>,
    hcm: &Rc<HcmRuntime>,
    stream: Stream,
    connection: &Rc<ConnectionInfo>,
    first: BytesMut,
    drain: &Drain,
) {
    let stats = &hcm.stats;
    stats.cx_http2_total.inc();
    let _active = Active::enter(&stats.cx_http2_active);
    let config = &hcm.config;
    let io = Io::new(stream, first, false);
    let opened = Instant::now();
    let mut timer = Timer::default();
    let handshake = Builder::new()
        .initial_window_size(config.http2.stream_window)
        .initial_connection_window_size(config.http2.connection_window)
        .max_concurrent_streams(config.http2.max_concurrent_streams)
        .max_header_list_size(u32::try_from(hcm.limits.max_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_EARLY_RESETS)
        .max_local_error_reset_streams(Some(MAX_ERROR_RESETS))
        .handshake::<_, Bytes>(Transport(Rc::clone(&io)));
    let mut handshake = pin!(handshake);
    let deadline = opened + hcm.headers_timeout();
    let ready = poll_fn(|cx| {
        let polled = handshake.as_mut().poll(cx);
        let _ = io.poll_send(cx);
        match polled {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => timer.poll_until(cx, deadline).map(|()| None),
        }
    })
    .await;
    let mut driver = match ready {
        Some(Ok(driver)) => driver,
        Some(Err(error)) => {
            if !error.is_io() {
                stats.http2_error("handshake");
            }
            return;
        }
        None => {
            stats.rq_header_timeout.inc();
            return;
        }
    };
    let shared = Rc::new(Shared {
        worker: Rc::clone(worker),
        hcm: Rc::clone(hcm),
        connection: Rc::clone(connection),
        drain: drain.clone(),
        id: worker.next_connection_id(),
        active: Cell::new(0),
        quiet_since: Cell::new(opened),
    });
    let never = far_future(opened);
    let last = config.max_connection_duration.map_or(never, |max| opened + max);
    let mut keepalive = config
        .http2
        .keepalive
        .and_then(|settings| Some(KeepAlive::new(settings, driver.ping_pong()?)));
    let mut farewell_sent = false;
    let mut draining = None;
    let end = poll_fn(|cx| {
        loop {
            match driver.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => {
                    start(&shared, request, respond);
                    continue;
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(End::Failed(error)),
                Poll::Ready(None) => return Poll::Ready(End::Finished),
                Poll::Pending => {}
            }
            let over = Instant::now() >= last;
            if (drain.is_draining() || over) && !farewell_sent {
                farewell_sent = true;
                if over {
                    stats.cx_max_duration.inc();
                }
                driver.graceful_shutdown();
                continue;
            }
            break;
        }
        if let Poll::Ready(Err(_)) = io.poll_send(cx) {
            return Poll::Ready(End::Transport);
        }
        if let Some(keepalive) = &mut keepalive
            && keepalive.poll_dead(cx, io.received()).is_ready()
        {
            return Poll::Ready(End::Unresponsive);
        }
        if drain.stage() == DrainStage::Closing {
            return Poll::Ready(End::Drained);
        }
        drain.register(cx);
        let idle = if shared.active.get() > 0 || config.idle_timeout.is_zero() {
            never
        } else {
            shared.quiet_since.get() + config.idle_timeout
        };
        let drained = if drain.is_draining() && shared.active.get() == 0 {
            *draining.get_or_insert_with(|| Instant::now() + config.drain_timeout)
        } else {
            never
        };
        let deadline = idle.min(drained).min(if farewell_sent { never } else { last });
        if timer.poll_until(cx, deadline).is_ready() {
            if deadline == last {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(if deadline == idle { End::Idle } else { End::Drained });
        }
        Poll::Pending
    })
    .await;
    match end {
        End::Finished => stats.cx_destroy_remote.inc(),
        End::Transport => stats.cx_destroy_remote.inc(),
        End::Failed(error) => {
            if error.is_io() {
                stats.cx_destroy_remote.inc();
            } else {
                stats.cx_destroy_local.inc();
                stats.http2_error(cause(&error));
            }
        }
        End::Unresponsive => {
            stats.http2_keepalive_timeout.inc();
            stats.cx_destroy_local.inc();
            driver.abrupt_shutdown(Reason::NO_ERROR);
        }
        End::Idle => {
            stats.cx_idle_timeout.inc();
            stats.cx_destroy_local.inc();
            driver.abrupt_shutdown(Reason::NO_ERROR);
        }
        End::Drained => {
            stats.cx_drain_close.inc();
            stats.cx_destroy_local.inc();
            driver.abrupt_shutdown(Reason::NO_ERROR);
        }
    }
    let deadline = Instant::now() + FAREWELL;
    poll_fn(|cx| {
        if timer.poll_until(cx, deadline).is_ready() {
            return Poll::Ready(());
        }
        // Lets `h2` write its GOAWAY; what it says about the connection is known.
        let closed = driver.poll_closed(cx).is_ready();
        let sent = io.poll_send(cx);
        if sent.is_pending() || (!closed && matches!(sent, Poll::Ready(Ok(())))) {
            return Poll::Pending;
        }
        io.poll_finish(cx).map(|_| ())
    })
    .await;
}

/// A word of a fixed set for the error counter.
fn cause(error: &h2::Error) -> &'static str {
    match error.reason() {
        Some(Reason::PROTOCOL_ERROR) => "protocol_error",
        Some(Reason::FLOW_CONTROL_ERROR) => "flow_control_error",
        Some(Reason::FRAME_SIZE_ERROR) => "frame_size_error",
        Some(Reason::COMPRESSION_ERROR) => "compression_error",
        Some(Reason::ENHANCE_YOUR_CALM) => "flood",
        Some(Reason::STREAM_CLOSED) => "stream_closed",
        Some(Reason::INTERNAL_ERROR) => "internal_error",
        _ => "other",
    }
}

/// Leaves a task behind for a stream.
fn start(shared: &Rc<Shared>, request: http::Request<RecvStream>, respond: SendResponse<Bytes>) {
    let shared = Rc::clone(shared);
    shared.active.set(shared.active.get() + 1);
    tokio::task::spawn_local(async move {
        let mut exchange = EXCHANGES
            .with_borrow_mut(Vec::pop)
            .unwrap_or_else(|| Exchange::new(0, None));
        exchange.connection_id = shared.id;
        exchange.filter_chain.clone_from(&shared.hcm.filter_chain);
        one(&shared, &mut exchange, request, respond).await;
        exchange.reset(exchange.begun);
        EXCHANGES.with_borrow_mut(|kept| {
            if kept.len() < KEEP {
                kept.push(exchange);
            }
        });
        shared.active.set(shared.active.get() - 1);
        if shared.active.get() == 0 {
            shared.quiet_since.set(Instant::now());
        }
    });
}

async fn one(
    shared: &Shared,
    exchange: &mut Exchange,
    request: http::Request<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    let hcm = &shared.hcm;
    let env = Environment {
        worker: &shared.worker,
        hcm,
        connection: &shared.connection,
        drain: &shared.drain,
    };
    exchange.reset(Instant::now());
    hcm.stats.rq_http2.inc();
    let (parts, recv) = request.into_parts();
    let mut timer = Timer::default();
    let read = if parts.headers.len() > hcm.limits.max_count {
        Err(Failure::Protocol(H1Error::TooMany))
    } else {
        request_from(&parts, &mut exchange.request).map_err(Failure::BadRequest)
    };
    drop(parts);
    let length = if recv.is_end_stream() {
        BodyLength::Empty
    } else if exchange.request.method == Method::Connect {
        BodyLength::Tunnel
    } else {
        length_of(&exchange.request.fields).map_or(BodyLength::Unknown, BodyLength::Known)
    };
    // Towards HTTP/1.1 the announced length would frame whatever comes next.
    let read = match (length, length_of(&exchange.request.fields)) {
        (BodyLength::Empty, Some(1..)) => read.and(Err(Failure::BadRequest("http2.content_length_without_body"))),
        _ => read,
    };
    let mut reply = H2Reply {
        respond,
        writer: H2Writer::unopened(),
        head_only: exchange.request.method == Method::Head,
        started: false,
    };
    if let Err(failure) = read {
        hcm.stats.rq_total.inc();
        hcm.stats.http2_error("request_head");
        let body = local_head(exchange, &failure);
        finish_head(hcm, &shared.worker, exchange);
        exchange.status = exchange.response.status;
        let length = if body.is_empty() {
            BodyLength::Empty
        } else {
            BodyLength::Known(body.len() as u64)
        };
        let mut body = Static(body);
        let mut pump = Pump::default();
        if reply.send_head(&exchange.response, length).is_ok() {
            let deadline = Instant::now() + hcm.headers_timeout();
            poll_fn(|cx| match pump.poll(cx, &mut body, &mut reply, |_| {}) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => timer.poll_until(cx, deadline),
            })
            .await;
        }
        exchange.response_bytes = pump.bytes;
        hcm.finish(exchange, &shared.connection, Instant::now());
        return;
    }
    let mut body = H2Reader::new(recv, None);
    let facts = Facts {
        length,
        upgrade: false,
        expect_continue: false,
    };
    let outcome = handle(env, exchange, &mut body, &mut reply, &mut timer, facts).await;
    if outcome == Outcome::Aborted {
        reply.reset(Reason::INTERNAL_ERROR);
    }
}

impl RequestBody for H2Reader {
    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<StreamError> {
        // The writing side sees resets.
        Poll::Pending
    }

    fn tunnel(&mut self) {}
}

/// The answer's way out.
struct H2Reply {
    respond: SendResponse<Bytes>,
    writer: H2Writer,
    head_only: bool,
    started: bool,
}

impl H2Reply {
    fn reset(&mut self, reason: Reason) {
        if self.writer.ended() {
            return;
        }
        match self.writer.stream() {
            Some(stream) => stream.send_reset(reason),
            None => self.respond.send_reset(reason),
        }
    }
}

impl Reply for H2Reply {
    fn send_head(&mut self, head: &ResponseHead, length: BodyLength) -> Result<(), StreamError> {
        self.started = true;
        let end = length == BodyLength::Empty || self.head_only || matches!(head.status, 204 | 304);
        let stream = self
            .respond
            .send_response(response_to(head)?, end)
            .map_err(|_| StreamError::Reset)?;
        self.writer = H2Writer::new(stream, end, None);
        Ok(())
    }

    fn send_interim(&mut self, head: &ResponseHead) -> Result<(), StreamError> {
        if self.started {
            return Ok(());
        }
        self.respond
            .send_informational(response_to(head)?)
            .map_err(|_| StreamError::Reset)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        let polled = match self.writer.stream() {
            Some(stream) => stream.poll_reset(cx),
            None => self.respond.poll_reset(cx),
        };
        polled.map(|_| StreamError::Reset)
    }
}

impl Sink for H2Reply {
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
