//! HTTP/2 connections to a host, shared by many requests. A connection that announced its end (GOAWAY) carries what it
//! has and gets nothing new.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use heddle_net::PeerIdentity;
use heddle_telemetry::Counter;
use heddle_upstream::{ConnectErrorKind, ConnectOptions, Connection as Opened};
use tokio::time::Instant;

use super::h1::{LIMITS, connect_failure};
use super::patience::Patience;
use super::{Cluster, UpstreamHost, register};
use crate::body::StreamError;
use crate::failure::Failure;
use crate::h2::{CodecStats, Connection, End, Follows, KeepAlive, Role, Stream, close};
use crate::head::RequestHead;

/// One connection.
pub(crate) struct H2Conn {
    connection: Rc<Connection>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<Arc<PeerIdentity>>,
    pub(crate) local_identity: Option<Arc<str>>,
    active: Cell<u32>,
    requests: Cell<u32>,
    expires: Cell<Instant>,
    idle_timeouts: Counter,
}

impl H2Conn {
    fn has_room(&self) -> bool {
        self.active.get() < self.connection.max_streams()
    }
}

impl Drop for H2Conn {
    fn drop(&mut self) {
        // Out of the pool and without requests.
        self.connection.retire();
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
            conn.connection.is_open()
        });
    }

    fn find(&self) -> Option<Rc<H2Conn>> {
        let mut conns = self.conns.borrow_mut();
        conns.retain(|c| c.connection.is_open());
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

    /// Opens a stream with this request's head once the connection has room for it.
    ///
    /// # Errors
    /// [`StreamError::GoneAway`] when the connection takes no more streams, [`StreamError::NoTunnel`] when it takes no
    /// upgrade: nothing was sent.
    pub(crate) async fn open(&self, head: &RequestHead, follows: Follows) -> Result<Rc<Stream>, StreamError> {
        let stream = Stream::unopened(&self.conn.connection);
        poll_fn(|cx| stream.poll_open(cx, head, follows)).await?;
        Ok(Rc::new(stream))
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
        // Boxed: rare, and a request's future should not be larger for it.
        match Box::pin(host.connect(ConnectOptions::default())).await {
            Ok(opened) => {
                let conn = start(cluster, host, opened);
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

/// Begins HTTP/2 on a new connection and leaves a task behind that drives it. The peer's SETTINGS are not waited for.
fn start(cluster: &Rc<Cluster>, host: &Rc<UpstreamHost>, opened: Opened) -> Rc<H2Conn> {
    let config = cluster.config();
    let stats = cluster.stats();
    stats.upstream_cx_http2_total.inc();
    let (registry, name) = stats.registry();
    let codec_stats = CodecStats::upstream(registry, name);
    let silent = codec_stats.keepalive_timeout.clone();
    let connection = Connection::new(
        Role::Client,
        opened.stream,
        BytesMut::new(),
        config.http2,
        LIMITS,
        config.buffer_limit,
        codec_stats,
    );
    let conn = Rc::new(H2Conn {
        connection: Rc::clone(&connection),
        local: opened.local,
        peer: opened.peer,
        local_identity: opened.local_identity,
        active: Cell::new(0),
        requests: Cell::new(0),
        expires: Cell::new(crate::timer::far_future(Instant::now())),
        idle_timeouts: stats.upstream_cx_idle_timeout.clone(),
    });
    let owner = Rc::downgrade(host);
    let guard = opened.guard;
    let protocol_errors = stats.upstream_cx_protocol_error.clone();
    let mut keepalive = config.http2.keepalive.map(KeepAlive::new);
    let mut patience = Patience::new(&config, &stats.upstream_cx_unresponsive);
    tokio::task::spawn_local(async move {
        let _guard = guard;
        let _driver = connection.driver();
        let end = poll_fn(|cx| {
            if let Poll::Ready(end) = connection.poll_turn(cx) {
                return Poll::Ready(Some(end));
            }
            if let Some(keepalive) = &mut keepalive
                && keepalive.poll_dead(cx, &connection).is_ready()
            {
                silent.inc();
                return Poll::Ready(None);
            }
            match &mut patience {
                Some(patience) => patience.poll_dead(cx, connection.transport().tcp()).map(|()| None),
                None => Poll::Pending,
            }
        })
        .await;
        match end {
            Some(End::Failed(_)) => protocol_errors.inc(),
            Some(End::Finished | End::Transport) => {}
            None => connection.abort(),
        }
        if let Some(host) = owner.upgrade() {
            host.pool.h2.conns.borrow_mut().retain(|c| c.connection.is_open());
            host.pool.changed.notify_waiters();
        }
        close(&connection).await;
    });
    conn
}
