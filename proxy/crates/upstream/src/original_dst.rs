//! Hosts of ORIGINAL_DST clusters: made when a connection asks for their address, forgotten when nobody does any more.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use crate::host::Host;

/// Most hosts that one worker keeps for one cluster.
pub(crate) const MAX_HOSTS: usize = 4096;

/// How long a host without connections is kept (`cleanup_interval`'s default).
pub(crate) const IDLE: Duration = Duration::from_secs(5);

pub(crate) struct OriginalDst<P> {
    hosts: HashMap<SocketAddr, Rc<Host<P>>>,
    swept: Instant,
    max: usize,
}

impl<P> OriginalDst<P> {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            hosts: HashMap::new(),
            swept: Instant::now(),
            max,
        }
    }

    /// The host of that address; `make` makes it, `drop_host` is called with every host that leaves. None when the
    /// table is full of hosts in use.
    pub(crate) fn get(
        &mut self,
        address: SocketAddr,
        make: impl FnOnce() -> Host<P>,
        mut drop_host: impl FnMut(&Rc<Host<P>>),
    ) -> Option<Rc<Host<P>>> {
        let now = Instant::now();
        if now.saturating_duration_since(self.swept) >= IDLE {
            self.sweep(now, &mut drop_host);
        }
        if let Some(host) = self.hosts.get(&address) {
            host.touch();
            return Some(Rc::clone(host));
        }
        if self.hosts.len() >= self.max {
            let oldest = self
                .hosts
                .values()
                .filter(|h| h.is_idle(now, Duration::ZERO))
                .min_by_key(|h| h.last_used())
                .map(|h| h.address())?;
            if let Some(host) = self.hosts.remove(&oldest) {
                drop_host(&host);
            }
        }
        let host = Rc::new(make());
        self.hosts.insert(address, Rc::clone(&host));
        Some(host)
    }

    pub(crate) fn sweep(&mut self, now: Instant, drop_host: &mut impl FnMut(&Rc<Host<P>>)) {
        self.swept = now;
        self.hosts.retain(|_, host| {
            let idle = host.is_idle(now, IDLE);
            if idle {
                drop_host(host);
            }
            !idle
        });
    }

    pub(crate) fn clear(&mut self, drop_host: &mut impl FnMut(&Rc<Host<P>>)) {
        for (_, host) in self.hosts.drain() {
            drop_host(&host);
        }
    }
}
