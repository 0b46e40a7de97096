//! STRICT_DNS: names resolved again and again; when that fails, the last good answer is kept.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_config::snapshot::{Dns, DnsFamily};
use heddle_telemetry::{Counter, Stats};
use hickory_resolver::config::LookupIpStrategy;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::{ResolverBuilder, TokioResolver};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::shared::SharedCluster;

/// Longest wait for one answer, all servers and repetitions together.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time that an answer is used without asking again, whatever its time to live says.
const MAX_TTL: Duration = Duration::from_secs(300);

/// Most addresses used of one name.
const MAX_ADDRESSES: usize = 256;

/// Most questions under way at once in the process.
pub(crate) const MAX_AT_ONCE: usize = 64;

/// What a name stands for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// Empty when the servers say that there is no such name, or that it has no such addresses.
    pub(crate) addresses: Vec<IpAddr>,
    /// How long it may be used; zero when nobody says.
    pub(crate) ttl: Duration,
}

type Answering = Pin<Box<dyn Future<Output = io::Result<Answer>>>>;

/// How names are resolved; tests bring their own.
pub(crate) type Resolve = Rc<dyn Fn(Arc<str>, DnsFamily) -> Answering>;

/// The servers in `/etc/resolv.conf`, after the names in `/etc/hosts`. Both are read at the first question, and again
/// after a failure, since they may have been changed because of it.
pub(crate) fn system() -> Resolve {
    let resolvers: Rc<RefCell<HashMap<DnsFamily, TokioResolver>>> = Rc::default();
    Rc::new(move |name, family| {
        let resolvers = Rc::clone(&resolvers);
        Box::pin(async move {
            let known = resolvers.borrow().get(&family).cloned();
            let resolver = match known {
                Some(resolver) => resolver,
                None => {
                    let made = TokioResolver::builder_tokio().and_then(|builder| make(builder, family));
                    let made = made.map_err(io::Error::other)?;
                    resolvers.borrow_mut().insert(family, made.clone());
                    made
                }
            };
            let answer = ask(&resolver, &name).await;
            if answer.is_err() {
                resolvers.borrow_mut().remove(&family);
            }
            answer
        })
    })
}

fn make(mut builder: ResolverBuilder<TokioRuntimeProvider>, family: DnsFamily) -> Result<TokioResolver, NetError> {
    let options = builder.options_mut();
    options.ip_strategy = match family {
        DnsFamily::V6Preferred => LookupIpStrategy::Ipv6thenIpv4,
        DnsFamily::V4Preferred => LookupIpStrategy::Ipv4thenIpv6,
        DnsFamily::V4Only => LookupIpStrategy::Ipv4Only,
        DnsFamily::V6Only => LookupIpStrategy::Ipv6Only,
        DnsFamily::All => LookupIpStrategy::Ipv4AndIpv6,
    };
    // When to ask again is the cluster's business.
    options.cache_size = 0;
    builder.build()
}

async fn ask(resolver: &TokioResolver, name: &str) -> io::Result<Answer> {
    match resolver.lookup_ip(name).await {
        Ok(found) => Ok(Answer {
            addresses: found.iter().collect(),
            ttl: found.valid_until().saturating_duration_since(std::time::Instant::now()),
        }),
        // As Envoy: a name that does not exist is an answer too, and so is one without addresses of the family.
        Err(NetError::Dns(DnsError::NoRecordsFound(_))) => Ok(Answer::default()),
        Err(e) => Err(io::Error::other(e)),
    }
}

/// Outcome counters of one cluster's resolution.
#[derive(Clone)]
pub(crate) struct DnsStats {
    attempt: Counter,
    success: Counter,
    failure: Counter,
    empty: Counter,
}

impl DnsStats {
    fn new(stats: &Stats, name: &str) -> Self {
        let labels = [("cluster_name", name)];
        Self {
            attempt: stats.counter("envoy_cluster_update_attempt", &labels),
            success: stats.counter("envoy_cluster_update_success", &labels),
            failure: stats.counter("envoy_cluster_update_failure", &labels),
            empty: stats.counter("envoy_cluster_update_empty", &labels),
        }
    }
}

/// The names of one cluster being followed, each by a task of its own: a name that is slow to resolve holds up no other.
/// Tasks end with this.
#[derive(Default)]
pub(crate) struct Names {
    settings: Option<Dns>,
    tasks: HashMap<Arc<str>, JoinHandle<()>>,
}

/// What the tasks of all clusters share.
#[derive(Clone)]
pub(crate) struct Resolver {
    pub(crate) resolve: Resolve,
    pub(crate) permits: Rc<Semaphore>,
}

impl Names {
    /// Follows these names and no others. Names that stay are not asked for anew unless the settings changed.
    pub(crate) fn follow(
        &mut self,
        cluster: &Arc<SharedCluster>,
        settings: Dns,
        names: HashSet<Arc<str>>,
        resolver: &Resolver,
        stats: (&Stats, &str),
    ) {
        if self.settings.replace(settings) != Some(settings) {
            self.stop(|_| false);
        }
        self.stop(|name| names.contains(name));
        cluster.retain_names(|name| names.contains(name));
        for name in names {
            self.tasks.entry(name).or_insert_with_key(|name| {
                let followed = Name {
                    name: Arc::clone(name),
                    cluster: Arc::clone(cluster),
                    settings,
                    resolver: resolver.clone(),
                    stats: DnsStats::new(stats.0, stats.1),
                };
                tokio::task::spawn_local(followed.run())
            });
        }
    }

    fn stop(&mut self, keep: impl Fn(&str) -> bool) {
        self.tasks.retain(|name, task| {
            let stays = keep(name);
            if !stays {
                task.abort();
            }
            stays
        });
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.stop(|_| false);
    }
}

struct Name {
    name: Arc<str>,
    cluster: Arc<SharedCluster>,
    settings: Dns,
    resolver: Resolver,
    stats: DnsStats,
}

impl Name {
    /// Resolves for ever.
    async fn run(self) {
        let mut failures = 0;
        loop {
            self.stats.attempt.inc();
            let answer = {
                // Closed never: the semaphore lives as long as the supervisor.
                let _permit = self.resolver.permits.acquire().await;
                let asked = (self.resolver.resolve)(Arc::clone(&self.name), self.settings.family);
                timeout(TIMEOUT, asked).await
            };
            let pause = match answer {
                Ok(Ok(answer)) => {
                    self.stats.success.inc();
                    failures = 0;
                    self.take(answer)
                }
                Ok(Err(_)) | Err(_) => {
                    self.stats.failure.inc();
                    self.cluster.set_unresolved(&self.name);
                    failures += 1;
                    back_off(self.settings.failure, failures)
                }
            };
            sleep(pause + jitter(self.settings.jitter)).await;
        }
    }

    /// Puts an answer into force and says when to ask again.
    fn take(&self, answer: Answer) -> Duration {
        let Answer { mut addresses, ttl } = answer;
        if addresses.is_empty() {
            self.stats.empty.inc();
        }
        let pause = if self.settings.respect_ttl && !ttl.is_zero() && !addresses.is_empty() {
            ttl.min(MAX_TTL)
        } else {
            self.settings.refresh
        };
        // Sorted: an answer in another order is not a change.
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(MAX_ADDRESSES);
        self.cluster.set_resolved(&self.name, addresses);
        // A server that says "one nanosecond" must not make this spin.
        pause.max(Duration::from_millis(1))
    }
}

/// The pause after the n-th failure in a row.
fn back_off((base, most): (Duration, Duration), failures: u32) -> Duration {
    base.saturating_mul(1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX))
        .min(most)
        .max(Duration::from_millis(1))
}

fn jitter(bound: Duration) -> Duration {
    match u64::try_from(bound.as_micros()).unwrap_or(u64::MAX) {
        0 => Duration::ZERO,
        micros => Duration::from_micros(fastrand::u64(..micros)),
    }
}

#[cfg(test)]
mod tests;
