//! STRICT_DNS: names resolved again and again; the last good answer is kept.

use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::shared::{Resolved, SharedCluster};

/// `dns_refresh_rate`'s default.
pub(crate) const REFRESH: Duration = Duration::from_secs(5);

/// Longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Most addresses used of one name.
const MAX_ADDRESSES: usize = 256;

/// How names are resolved; tests bring their own.
pub(crate) type Resolve = Rc<dyn Fn(Arc<str>) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>>>>>;

/// The host's resolver (`getaddrinfo` on tokio's blocking pool).
pub(crate) fn system() -> Resolve {
    Rc::new(|name| Box::pin(async move { Ok(tokio::net::lookup_host((&*name, 0)).await?.map(|a| a.ip()).collect()) }))
}

/// Outcome counters of one cluster's resolution.
pub(crate) struct DnsStats {
    pub(crate) attempt: heddle_telemetry::Counter,
    pub(crate) success: heddle_telemetry::Counter,
    pub(crate) failure: heddle_telemetry::Counter,
}

/// Resolves `names` for ever, every [`REFRESH`].
pub(crate) async fn run(cluster: Arc<SharedCluster>, names: HashSet<Arc<str>>, resolve: Resolve, stats: DnsStats) {
    loop {
        let before = cluster.resolved();
        let mut after = Resolved::new();
        for name in &names {
            stats.attempt.inc();
            match timeout(TIMEOUT, resolve(Arc::clone(name))).await {
                Ok(Ok(mut addresses)) => {
                    stats.success.inc();
                    // Sorted: an answer in another order is not a change.
                    addresses.sort_unstable();
                    addresses.dedup();
                    addresses.truncate(MAX_ADDRESSES);
                    after.insert(Arc::clone(name), addresses);
                }
                Ok(Err(_)) | Err(_) => {
                    stats.failure.inc();
                    if let Some(good) = before.get(name) {
                        after.insert(Arc::clone(name), good.clone());
                    }
                }
            }
        }
        if after != *before {
            cluster.set_resolved(after);
        }
        sleep(REFRESH).await;
    }
}
