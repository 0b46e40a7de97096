//! HTTP/1.1 connections to a host: a stack of idle ones, the last used first, so that the surplus falls idle and is
//! swept.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use heddle_net::PeerIdentity;
use heddle_telemetry::Counter;
use heddle_upstream::{ConnectError, ConnectErrorKind, ConnectOptions, ConnectionGuard};
use tokio::time::Instant;

use super::{Cluster, UpstreamHost, register};
use crate::failure::Failure;
use crate::h1::{H1Conn, Limits, MAX_FIELDS};

/// Bounds of a response head; Envoy's default for `max_response_headers_kb`.
pub(super) const LIMITS: Limits = Limits {
    max_bytes: 60 * 1024,
    max_count: if MAX_FIELDS < 100 { MAX_FIELDS } else { 100 },
};

/// Most idle connections kept per host and worker.
const MAX_IDLE: usize = 1024;

/// An open connection and what is known of it.
pub(crate) struct Conn {
    pub(crate) conn: H1Conn,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<Arc<PeerIdentity>>,
    pub(crate) local_identity: Option<Arc<str>>,
    requests: u32,
    expires: Instant,
    idle_timeouts: Counter,
    _guard: ConnectionGuard,
}

impl Conn {
    /// Whether it has carried a request before the present one.
    pub(crate) fn is_kept(&self) -> bool {
        self.requests > 1
    }
}

/// The idle connections of a host.
#[derive(Default)]
pub(super) struct Idle {
    idle: RefCell<Vec<Box<Conn>>>,
    /// Connections open or being opened, idle ones included.
    open: Cell<usize>,
}

impl Idle {
    pub(super) fn is_empty(&self) -> bool {
        self.idle.borrow().is_empty()
    }

    fn closed(&self, n: usize) {
        self.open.set(self.open.get().saturating_sub(n));
    }

    pub(super) fn close_idle(&self) {
        let idle = std::mem::take(&mut *self.idle.borrow_mut());
        self.closed(idle.len());
    }

    /// Drops connections that are past their time or dead.
    pub(super) fn sweep(&self, now: Instant) {
        let mut idle = self.idle.borrow_mut();
        let before = idle.len();
        idle.retain_mut(|conn| {
            if conn.expires <= now {
                conn.idle_timeouts.inc();
                return false;
            }
            alive(conn)
        });
        let gone = before - idle.len();
        drop(idle);
        self.closed(gone);
    }

    /// An idle connection that its host has not closed, as far as the kernel has told us.
    fn pop(&self, now: Instant) -> Option<Box<Conn>> {
        loop {
            let mut conn = self.idle.borrow_mut().pop()?;
            if conn.expires > now && alive(&mut conn) {
                return Some(conn);
            }
            self.closed(1);
        }
    }
}

/// Whether an idle connection may carry another request: nothing was closed, and nothing was sent unasked (which would
/// be taken for the next response).
fn alive(conn: &mut Conn) -> bool {
    conn.conn.read.is_quiet(&conn.conn.stream)
}

/// A connection in use by one request. Dropping it closes the connection; [`H1Lease::release`] keeps it.
pub(crate) struct H1Lease {
    conn: Option<Box<Conn>>,
    host: Rc<UpstreamHost>,
}

impl H1Lease {
    /// A connection that is kept, if there is one.
    pub(crate) fn kept(host: &Rc<UpstreamHost>, now: Instant) -> Option<Self> {
        let mut conn = host.pool.h1.pop(now)?;
        conn.requests = conn.requests.saturating_add(1);
        Some(Self {
            conn: Some(conn),
            host: Rc::clone(host),
        })
    }

    pub(crate) fn parts(&mut self) -> Option<&mut Conn> {
        self.conn.as_deref_mut()
    }

    /// Gives the connection back after a complete exchange.
    pub(crate) fn release(mut self, cluster: &Cluster, now: Instant) {
        let Some(mut conn) = self.conn.take() else {
            return;
        };
        let config = cluster.config();
        let exhausted = config
            .max_requests_per_connection
            .is_some_and(|max| conn.requests >= max);
        if exhausted {
            cluster.stats().upstream_cx_max_requests.inc();
        }
        let pool = &self.host.pool;
        let clean = conn.conn.read.body_done()
            && conn.conn.write.idle()
            && conn.conn.read.unread().is_empty()
            && !conn.conn.read.eof;
        if exhausted || !clean || self.host.is_draining() || pool.h1.idle.borrow().len() >= MAX_IDLE {
            pool.h1.closed(1);
        } else {
            conn.conn.write.relax();
            conn.expires = if config.idle_timeout.is_zero() {
                crate::timer::far_future(now)
            } else {
                now + config.idle_timeout
            };
            pool.h1.idle.borrow_mut().push(conn);
            register(&self.host);
        }
        pool.changed.notify_one();
    }
}

impl Drop for H1Lease {
    fn drop(&mut self) {
        if self.conn.take().is_some() {
            self.host.pool.h1.closed(1);
            self.host.pool.changed.notify_one();
        }
    }
}

/// Counts a connection that is being opened, until it is a lease.
struct Opening<'h>(Option<&'h UpstreamHost>);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if let Some(host) = self.0 {
            host.pool.h1.closed(1);
            host.pool.changed.notify_one();
        }
    }
}

/// What a failed attempt to connect means for a request.
pub(super) fn connect_failure(error: ConnectError) -> Failure {
    match error.kind {
        ConnectErrorKind::Overflow => Failure::Overflow,
        ConnectErrorKind::Timeout => Failure::Connect {
            timeout: true,
            reason: String::new(),
        },
        ConnectErrorKind::Tcp => Failure::Connect {
            timeout: false,
            reason: format!("delayed connect error: {}", error.reason),
        },
        _ => Failure::Connect {
            timeout: false,
            reason: error.reason,
        },
    }
}

/// Opens a connection for a request, or waits for one that comes back where no more may be opened.
///
/// # Errors
/// The host cannot be reached, or a circuit breaker is open.
pub(crate) async fn open_h1(cluster: &Rc<Cluster>, host: &Rc<UpstreamHost>) -> Result<H1Lease, Failure> {
    let _pending = cluster.begin_pending().map_err(|_| Failure::Overflow)?;
    loop {
        let pool = &host.pool;
        pool.h1.open.set(pool.h1.open.get() + 1);
        let mut opening = Opening(Some(host));
        match host.connect(ConnectOptions::default()).await {
            Ok(opened) => {
                let stats = cluster.stats();
                stats.upstream_cx_http1_total.inc();
                opening.0 = None;
                let conn = Conn {
                    conn: H1Conn::to_server(opened.stream, LIMITS),
                    local: opened.local,
                    peer: opened.peer,
                    local_identity: opened.local_identity,
                    requests: 1,
                    // Written when it comes back.
                    expires: Instant::now(),
                    idle_timeouts: stats.upstream_cx_idle_timeout.clone(),
                    _guard: opened.guard,
                };
                return Ok(H1Lease {
                    conn: Some(Box::new(conn)),
                    host: Rc::clone(host),
                });
            }
            // The limit is for all hosts and workers; wait only where a connection of ours can come back.
            Err(error) if error.kind == ConnectErrorKind::Overflow => {
                opening.0 = None;
                pool.h1.closed(1);
                if pool.h1.open.get() == 0 {
                    return Err(Failure::Overflow);
                }
                pool.changed.notified().await;
                if let Some(lease) = H1Lease::kept(host, Instant::now()) {
                    return Ok(lease);
                }
            }
            Err(error) => {
                cluster.stats().upstream_rq_pending_failure_eject.inc();
                return Err(connect_failure(error));
            }
        }
    }
}
