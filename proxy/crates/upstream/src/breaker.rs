//! Circuit breakers: bounds over all workers, held by guards that give back what they took.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use heddle_config::snapshot::CircuitBreakers;

use crate::cluster::ClusterContext;
use crate::shared::{HostCounters, SharedCluster, Usage};

/// Which limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `max_connections`.
    Connections,
    /// `max_pending_requests`.
    Pending,
    /// `max_requests`.
    Requests,
    /// `max_retries`.
    Retries,
}

impl Limit {
    fn usage(self, usage: &Usage) -> &AtomicU32 {
        match self {
            Self::Connections => &usage.connections,
            Self::Pending => &usage.pending,
            Self::Requests => &usage.requests,
            Self::Retries => &usage.retries,
        }
    }

    fn bound(self, bounds: &CircuitBreakers) -> u32 {
        match self {
            Self::Connections => bounds.max_connections,
            Self::Pending => bounds.max_pending_requests,
            Self::Requests => bounds.max_requests,
            Self::Retries => bounds.max_retries,
        }
    }
}

/// A circuit breaker is open: response flag `UO`, status 503.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow(
    /// The limit reached.
    pub Limit,
);

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Limit::Connections => "circuit breaker open: max_connections",
            Limit::Pending => "circuit breaker open: max_pending_requests",
            Limit::Requests => "circuit breaker open: max_requests",
            Limit::Retries => "circuit breaker open: max_retries",
        })
    }
}

impl std::error::Error for Overflow {}

/// One unit of a limit.
struct Permit {
    /// None when the limit is `u32::MAX` (Istio's default): then workers need not meet at an atomic at all.
    shared: Option<Arc<SharedCluster>>,
    limit: Limit,
}

impl Permit {
    fn take(context: &ClusterContext, limit: Limit) -> Result<Self, Overflow> {
        let bound = limit.bound(&context.config().circuit_breakers);
        if bound == u32::MAX {
            return Ok(Self { shared: None, limit });
        }
        let usage = limit.usage(&context.shared.usage);
        let taken = usage.fetch_add(1, Ordering::Relaxed);
        if taken >= bound {
            usage.fetch_sub(1, Ordering::Relaxed);
            return Err(Overflow(limit));
        }
        Ok(Self {
            shared: Some(Arc::clone(&context.shared)),
            limit,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            self.limit.usage(&shared.usage).fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// An open connection. Keep it as long as the connection.
pub struct ConnectionGuard {
    context: Rc<ClusterContext>,
    counters: Arc<HostCounters>,
    _permit: Permit,
}

impl ConnectionGuard {
    pub(crate) fn take(context: &Rc<ClusterContext>, counters: &Arc<HostCounters>) -> Result<Self, Overflow> {
        let permit = Permit::take(context, Limit::Connections).inspect_err(|_| {
            context.stats.upstream_cx_overflow.inc();
        })?;
        context.stats.upstream_cx_total.inc();
        context.stats.upstream_cx_active.add(1);
        counters.cx_total.inc();
        counters.cx_active.add(1);
        Ok(Self {
            context: Rc::clone(context),
            counters: Arc::clone(counters),
            _permit: permit,
        })
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.context.stats.upstream_cx_active.add(-1);
        self.context.stats.upstream_cx_destroy.inc();
        self.counters.cx_active.add(-1);
    }
}

impl fmt::Debug for ConnectionGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionGuard({})", self.context.shared.name)
    }
}

/// A request that waits for a connection.
pub struct PendingGuard {
    context: Rc<ClusterContext>,
    _permit: Permit,
}

impl PendingGuard {
    pub(crate) fn take(context: &Rc<ClusterContext>) -> Result<Self, Overflow> {
        let permit = Permit::take(context, Limit::Pending).inspect_err(|_| {
            context.stats.upstream_rq_pending_overflow.inc();
        })?;
        context.stats.upstream_rq_pending_total.inc();
        context.stats.upstream_rq_pending_active.add(1);
        Ok(Self {
            context: Rc::clone(context),
            _permit: permit,
        })
    }
}

impl Drop for PendingGuard {
    fn drop(&mut self) {
        self.context.stats.upstream_rq_pending_active.add(-1);
    }
}

/// A request (TCP: a connection) that a host works on.
pub struct RequestGuard {
    context: Rc<ClusterContext>,
    counters: Arc<HostCounters>,
    active: Rc<Cell<u32>>,
    _permit: Permit,
}

impl RequestGuard {
    pub(crate) fn take(
        context: &Rc<ClusterContext>,
        counters: &Arc<HostCounters>,
        active: &Rc<Cell<u32>>,
    ) -> Result<Self, Overflow> {
        // Envoy counts requests over `max_requests` as pending overflow too.
        let permit = Permit::take(context, Limit::Requests).inspect_err(|_| {
            context.stats.upstream_rq_pending_overflow.inc();
        })?;
        context.stats.upstream_rq_total.inc();
        context.stats.upstream_rq_active.add(1);
        counters.rq_total.inc();
        counters.rq_active.add(1);
        active.set(active.get() + 1);
        Ok(Self {
            context: Rc::clone(context),
            counters: Arc::clone(counters),
            active: Rc::clone(active),
            _permit: permit,
        })
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.context.stats.upstream_rq_active.add(-1);
        self.counters.rq_active.add(-1);
        self.active.set(self.active.get().saturating_sub(1));
    }
}

/// A retry under way.
pub struct RetryGuard {
    _permit: Permit,
}

impl RetryGuard {
    pub(crate) fn take(context: &Rc<ClusterContext>) -> Result<Self, Overflow> {
        let permit = Permit::take(context, Limit::Retries).inspect_err(|_| {
            context.stats.upstream_rq_retry_overflow.inc();
        })?;
        context.stats.upstream_rq_retry.inc();
        Ok(Self { _permit: permit })
    }
}
