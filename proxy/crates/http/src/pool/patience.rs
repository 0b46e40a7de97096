//! Giving up connections whose peer has vanished while it owes an acknowledgement.

use std::task::{Context, Poll, ready};

use heddle_config::snapshot::Cluster;
use heddle_net::Liveness;
use heddle_telemetry::Counter;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::timer::Timer;

/// A look at an HTTP/2 connection every now and then; see [`Liveness`].
pub(super) struct Patience {
    liveness: Liveness,
    timer: Timer,
    next: Instant,
    given_up: Counter,
}

impl Patience {
    /// None when the cluster has no `tcp_keepalive`: then it waits as long as the kernel does.
    pub(super) fn new(cluster: &Cluster, given_up: &Counter) -> Option<Self> {
        let liveness = Liveness::new(cluster.keepalive?.patience());
        Some(Self {
            next: Instant::now() + liveness.period(),
            liveness,
            timer: Timer::default(),
            given_up: given_up.clone(),
        })
    }

    /// Ready when the peer is to be taken for dead.
    pub(super) fn poll_dead(&mut self, cx: &mut Context<'_>, tcp: &TcpStream) -> Poll<()> {
        loop {
            ready!(self.timer.poll_until(cx, self.next));
            let now = Instant::now();
            if self.liveness.is_dead(tcp, now.into_std()) {
                self.given_up.inc();
                return Poll::Ready(());
            }
            self.next = now + self.liveness.period();
        }
    }
}
