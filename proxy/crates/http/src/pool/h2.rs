//! HTTP/2 connections to a host, shared by many requests. A connection that announced its end (GOAWAY) carries what it
//! has and gets nothing new.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{Builder, SendRequest};
use heddle_net::PeerIdentity;
use heddle_telemetry::Counter;
use heddle_upstream::{ConnectErrorKind, ConnectOptions, Connection};
use tokio::time::Instant;

use super::h1::connect_failure;
use super::patience::Patience;
use super::{Cluster, UpstreamHost, register};
use crate::body::StreamError;
use crate::failure::Failure;
use crate::h2::{Io, KeepAlive, Transport};

/// Most bytes that `h2` holds for one stream before the sender has to wait.
const SEND_BUFFER: usize = 256 * 1024;

/// Largest response head.
const MAX_HEADER_LIST: u32 = 60 * 1024;

/// Streams opened before the peer's SETTINGS tell its limit: what RFC 9113 section 6.5.2 says no peer should go below.
const UNANNOUNCED_STREAMS: usize = 100;

/// How long the last frames of a closing connection may take.
const FAREWELL: Duration = Duration::from_secs(1);

/// One connection.
pub(crate) struct H2Conn {
    send: RefCell<SendRequest<Bytes>>,
    pub(crate) io: Rc<Io>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<Arc<PeerIdentity>>,
    pub(crate) local_identity: Option<Arc<str>>,
    active: Cell<u32>,
    requests: Cell<u32>,
    max_streams: u32,
    closed: Cell<bool>,
    expires: Cell<Instant>,
    idle_timeouts: Counter,
}

impl H2Conn {
    fn usable(&self) -> bool {
        !self.closed.get() && self.io.goaway().is_none()
    }

    fn has_room(&self) -> bool {
        let peer = self.send.borrow().current_max_send_streams();
        self.active.get() < self.max_streams.min(u32::try_from(peer).unwrap_or(u32::MAX)).max(1)
    }
}

/// The connections of a host.
#[derive(Default)]
pub(super) struct Shared {
    conns: RefCell<Vec<Rc<H2Conn>>>,
    connecting: Cell<bool>,
}

impl Shared {
    pub(super) fn is_empty(&self) -> bool {
        self.conns.borrow().is_empty()
    }

    /// Takes no new request on any connection. A connection ends when its last request does.
    pub(super) fn retire_all(&self) {
        self.conns.borrow_mut().clear();
    }

    /// Lets go of connections that are past their time.
    pub(super) fn sweep(&self, now: Instant) {
        self.conns.borrow_mut().retain(|conn| {
            if conn.active.get() == 0 && conn.expires.get() <= now {
                conn.idle_timeouts.inc();
                return false;
            }
            conn.usable()
        });
    }

    fn find(&self) -> Option<Rc<H2Conn>> {
        let mut conns = self.conns.borrow_mut();
        conns.retain(|c| c.usable());
        conns.iter().find(|c| c.has_room()).map(Rc::clone)
    }

    fn remove(&self, conn: &Rc<H2Conn>) {
        self.conns.borrow_mut().retain(|c| !Rc::ptr_eq(c, conn));
    }
}

/// A place for one request on a connection.
pub(crate) struct H2Lease {
    pub(crate) conn: Rc<H2Conn>,
    host: Rc<UpstreamHost>,
    idle_timeout: Duration,
}

impl H2Lease {
    fn take(conn: Rc<H2Conn>, cluster: &Cluster, host: &Rc<UpstreamHost>) -> Self {
        let config = cluster.config();
        conn.active.set(conn.active.get() + 1);
        conn.requests.set(conn.requests.get().saturating_add(1));
        if config
            .max_requests_per_connection
            .is_some_and(|max| conn.requests.get() >= max)
        {
            cluster.stats().upstream_cx_max_requests.inc();
            host.pool.h2.remove(&conn);
        }
        Self {
            conn,
            host: Rc::clone(host),
            idle_timeout: config.idle_timeout,
        }
    }

    /// Opens the stream once the connection allows it.
    ///
    /// # Errors
    /// [`StreamError::GoneAway`] when the connection takes no more streams: nothing was sent.
    pub(crate) async fn open(
        &self,
        request: http::Request<()>,
        end: bool,
    ) -> Result<(h2::client::ResponseFuture, h2::SendStream<Bytes>), StreamError> {
        // A clone has its own place in the queue for streams.
        let mut send = self.conn.send.borrow().clone();
        poll_fn(|cx| send.poll_ready(cx))
            .await
            .map_err(|_| StreamError::GoneAway)?;
        send.send_request(request, end).map_err(|error| {
            // A head that `h2` itself refuses is no reason to try another connection.
            if error.is_go_away() || error.is_io() {
                StreamError::GoneAway
            } else {
                StreamError::H2
            }
        })
    }
}

impl Drop for H2Lease {
    fn drop(&mut self) {
        let conn = &self.conn;
        conn.active.set(conn.active.get().saturating_sub(1));
        if conn.active.get() == 0 {
            let now = Instant::now();
            conn.expires.set(if self.idle_timeout.is_zero() {
                crate::timer::far_future(now)
            } else {
                now + self.idle_timeout
            });
        }
        self.host.pool.changed.notify_one();
    }
}

/// Ends the wait of others when the one who connects gives up.
struct Connecting<'h>(&'h UpstreamHost);

impl Drop for Connecting<'_> {
    fn drop(&mut self) {
        self.0.pool.h2.connecting.set(false);
        self.0.pool.changed.notify_waiters();
    }
}

/// Finds or opens a connection with room for a request.
///
/// # Errors
/// The host cannot be reached, or a circuit breaker is open.
pub(crate) async fn acquire_h2(cluster: &Rc<Cluster>, host: &Rc<UpstreamHost>) -> Result<H2Lease, Failure> {
    if let Some(conn) = host.pool.h2.find() {
        return Ok(H2Lease::take(conn, cluster, host));
    }
    let _pending = cluster.begin_pending().map_err(|_| Failure::Overflow)?;
    loop {
        if let Some(conn) = host.pool.h2.find() {
            return Ok(H2Lease::take(conn, cluster, host));
        }
        if host.pool.h2.connecting.get() {
            host.pool.changed.notified().await;
            continue;
        }
        host.pool.h2.connecting.set(true);
        let connecting = Connecting(host);
        match host.connect(ConnectOptions::default()).await {
            Ok(opened) => {
                let conn = start(cluster, host, opened).await?;
                drop(connecting);
                if !host.is_draining() {
                    host.pool.h2.conns.borrow_mut().push(Rc::clone(&conn));
                    register(host);
                }
                return Ok(H2Lease::take(conn, cluster, host));
            }
            Err(error) if error.kind == ConnectErrorKind::Overflow && !host.pool.h2.is_empty() => {
                drop(connecting);
                host.pool.changed.notified().await;
            }
            Err(error) => {
                cluster.stats().upstream_rq_pending_failure_eject.inc();
                return Err(connect_failure(error));
            }
        }
    }
}

/// Begins HTTP/2 on a new connection and leaves a task behind that drives it.
async fn start(cluster: &Rc<Cluster>, host: &Rc<UpstreamHost>, opened: Connection) -> Result<Rc<H2Conn>, Failure> {
    let config = cluster.config();
    let stats = cluster.stats();
    stats.upstream_cx_http2_total.inc();
    let io = Io::new(opened.stream, BytesMut::new(), true);
    let handshake = Builder::new()
        .initial_window_size(config.http2.stream_window)
        .initial_connection_window_size(config.http2.connection_window)
        .max_header_list_size(MAX_HEADER_LIST)
        .max_send_buffer_size(SEND_BUFFER)
        .initial_max_send_streams((config.http2.max_concurrent_streams as usize).min(UNANNOUNCED_STREAMS))
        .enable_push(false)
        .handshake::<_, Bytes>(Transport(Rc::clone(&io)));
    // Only writes the preface; the peer's settings are not waited for.
    let (send, mut driver) = handshake.await.map_err(|e| Failure::Connect {
        timeout: false,
        reason: format!("HTTP/2 handshake: {e}"),
    })?;
    let conn = Rc::new(H2Conn {
        send: RefCell::new(send),
        io: Rc::clone(&io),
        local: opened.local,
        peer: opened.peer,
        local_identity: opened.local_identity,
        active: Cell::new(0),
        requests: Cell::new(0),
        max_streams: config.http2.max_concurrent_streams,
        closed: Cell::new(false),
        expires: Cell::new(crate::timer::far_future(Instant::now())),
        idle_timeouts: stats.upstream_cx_idle_timeout.clone(),
    });
    let watched = Rc::downgrade(&conn);
    let owner = Rc::downgrade(host);
    let guard = opened.guard;
    let protocol_errors = stats.upstream_cx_protocol_error.clone();
    let silent = stats.http2_keepalive_timeout.clone();
    let mut keepalive = config
        .http2
        .keepalive
        .and_then(|settings| Some(KeepAlive::new(settings, driver.ping_pong()?)));
    let mut patience = Patience::new(&config, &stats.upstream_cx_unresponsive);
    tokio::task::spawn_local(async move {
        let _guard = guard;
        let result = poll_fn(|cx| {
            let done = Pin::new(&mut driver).poll(cx);
            // A write error ends the reading side too, and with it the driver.
            let sent = io.poll_send(cx);
            match (done, sent) {
                (Poll::Ready(result), _) => return Poll::Ready(result.err()),
                (Poll::Pending, Poll::Ready(Err(_))) => return Poll::Ready(None),
                (Poll::Pending, _) => {}
            }
            if let Some(keepalive) = &mut keepalive
                && keepalive.poll_dead(cx, io.received()).is_ready()
            {
                silent.inc();
                return Poll::Ready(None);
            }
            match &mut patience {
                Some(patience) => patience.poll_dead(cx, io.stream().tcp()).map(|()| None),
                None => Poll::Pending,
            }
        })
        .await;
        if let Some(error) = result
            && !error.is_io()
            && !(error.is_go_away() && error.is_remote())
        {
            protocol_errors.inc();
        }
        if let Some(conn) = watched.upgrade() {
            conn.closed.set(true);
        }
        if let Some(host) = owner.upgrade() {
            host.pool.h2.conns.borrow_mut().retain(|c| !c.closed.get());
            host.pool.changed.notify_waiters();
        }
        drop(driver);
        let _ = tokio::time::timeout(FAREWELL, poll_fn(|cx| io.poll_finish(cx))).await;
    });
    Ok(conn)
}
