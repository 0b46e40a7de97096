//! `envoy.filters.http.local_ratelimit`: token buckets that the workers of this proxy share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::{Arc, OnceLock};

use heddle_config::filters::RouteFilterConfig;
use heddle_config::filters::local_ratelimit::{Limiter, LocalRateLimit as Config, TokenBucket, VirtualHostLimits};
use heddle_config::snapshot::{RateLimit, RateLimitAction};
use heddle_matching::{HeaderReadings, RequestView, Scans};
use heddle_net::ConnectionInfo;
use heddle_telemetry::{Counter, ResponseFlag, Stats};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{Call, HttpFilter, Setup, Verdict};
use crate::local_reply::LocalReply;
use crate::route::ops;

/// gRPC's `RESOURCE_EXHAUSTED`.
const RESOURCE_EXHAUSTED: u32 = 8;

/// Connections with buckets of their own before those that are gone are looked for.
const FIRST_SWEEP: usize = 64;

/// Keys and values that a request has for one rate limit.
type Entries<'e> = SmallVec<[(&'e str, std::borrow::Cow<'e, str>); 4]>;

/// One local rate limit filter.
pub(crate) struct LocalRateLimit {
    config: Arc<Config>,
    stats: Stats,
    /// By `stat_prefix`: routes have their own.
    counters: RefCell<HashMap<Arc<str>, Rc<Counters>, ahash::RandomState>>,
    connections: RefCell<Connections>,
}

struct Counters {
    enabled: Counter,
    enforced: Counter,
    limited: Counter,
    ok: Counter,
}

/// Buckets of single connections, by the connection's number.
struct Connections {
    limiters: HashMap<u64, (Weak<ConnectionInfo>, Rc<Limiter>), ahash::RandomState>,
    sweep_at: usize,
}

impl Connections {
    /// The connection's buckets, made by its first request. Those of connections that are gone are dropped when their
    /// number has doubled, so there are never many more than connections.
    fn limiter(&mut self, id: u64, connection: &Rc<ConnectionInfo>, config: &Config) -> Rc<Limiter> {
        if let Some((_, limiter)) = self.limiters.get(&id) {
            return Rc::clone(limiter);
        }
        if self.limiters.len() >= self.sweep_at {
            self.limiters.retain(|_, (connection, _)| connection.strong_count() > 0);
            self.sweep_at = FIRST_SWEEP.max(self.limiters.len() * 2);
        }
        let limiter = Rc::new(config.limiter.fresh());
        self.limiters
            .insert(id, (Rc::downgrade(connection), Rc::clone(&limiter)));
        limiter
    }
}

/// What a bucket held when the request was decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    max: u64,
    remaining: u64,
    reset: u64,
}

impl Level {
    fn of(bucket: &TokenBucket, now: f64) -> Self {
        Self {
            max: bucket.max(),
            remaining: bucket.remaining(now),
            reset: bucket.reset_seconds(now),
        }
    }
}

/// Seconds since some moment, the same for all workers.
fn seconds(now: Instant) -> f64 {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let now = now.into_std();
    now.saturating_duration_since(*START.get_or_init(|| now)).as_secs_f64()
}

impl HttpFilter for LocalRateLimit {
    type Config = Config;
    type Route = Config;
    /// For the `x-ratelimit-*` fields, where they are wanted.
    type State = Option<Box<Level>>;

    fn new(config: &Arc<Config>, setup: &Setup<'_>) -> Self {
        Self {
            config: Arc::clone(config),
            stats: setup.worker.stats.clone(),
            counters: RefCell::default(),
            connections: RefCell::new(Connections {
                limiters: HashMap::default(),
                sweep_at: FIRST_SWEEP,
            }),
        }
    }

    fn route_config(config: &RouteFilterConfig) -> Option<&Config> {
        match config {
            RouteFilterConfig::LocalRateLimit(config) => Some(config),
            _ => None,
        }
    }

    fn on_request(&self, call: &mut Call<'_>, level: &mut Self::State) -> Verdict {
        let route = call.route_configs::<Self>();
        let config = route.first().unwrap_or(&self.config);
        let dice = || call.env.worker.dice();
        if !config.enabled.holds(dice) {
            return Verdict::Continue;
        }
        let counters = self.counters(&config.stat_prefix);
        counters.enabled.inc();
        let own;
        let limiter = if config.per_connection {
            // Elsewhere its bucket would be full again.
            call.exchange.settles = true;
            let mut connections = self.connections.borrow_mut();
            own = connections.limiter(call.exchange.connection_id, call.env.connection, config);
            &*own
        } else {
            &config.limiter
        };
        let (allowed, bucket) = decide(config, limiter, call);
        if config.x_ratelimit_headers {
            *level = bucket.map(|bucket| Box::new(Level::of(bucket, seconds(call.exchange.passed))));
        }
        if allowed {
            counters.ok.inc();
            return Verdict::Continue;
        }
        counters.limited.inc();
        let exchange = &mut *call.exchange;
        if !config.enforced.holds(dice) {
            ops::on_request(&config.request_headers, exchange, call.env.connection);
            return Verdict::Continue;
        }
        counters.enforced.inc();
        exchange.response.clear();
        ops::on_response(&config.response_headers, exchange, call.env.connection);
        Verdict::from(LocalReply {
            status: config.status,
            headers: std::mem::take(&mut exchange.response.fields),
            body: "local_rate_limited".into(),
            grpc_status: config.resource_exhausted.then_some(RESOURCE_EXHAUSTED),
            details: "local_rate_limited".into(),
            flag: Some(ResponseFlag::RateLimited),
        })
    }

    fn on_response(&self, call: &mut Call<'_>, level: &mut Self::State) {
        let Some(level) = level else { return };
        let fields = &mut call.exchange.response.fields;
        let mut number = itoa::Buffer::new();
        fields.push(b"x-ratelimit-limit", number.format(level.max).as_bytes());
        fields.push(b"x-ratelimit-remaining", number.format(level.remaining).as_bytes());
        fields.push(b"x-ratelimit-reset", number.format(level.reset).as_bytes());
    }
}

impl LocalRateLimit {
    fn counters(&self, prefix: &Arc<str>) -> Rc<Counters> {
        if let Some(counters) = self.counters.borrow().get(prefix) {
            return Rc::clone(counters);
        }
        let labels = [("local_http_ratelimit_prefix", &**prefix)];
        let counter = |name| self.stats.counter(name, &labels);
        let counters = Rc::new(Counters {
            enabled: counter("envoy_http_local_rate_limit_enabled"),
            enforced: counter("envoy_http_local_rate_limit_enforced"),
            limited: counter("envoy_http_local_rate_limit_rate_limited"),
            ok: counter("envoy_http_local_rate_limit_ok"),
        });
        self.counters
            .borrow_mut()
            .insert(Arc::clone(prefix), Rc::clone(&counters));
        counters
    }
}

/// Whether the request may pass, and the bucket that its `x-ratelimit-*` fields speak of.
fn decide<'l>(config: &Config, limiter: &'l Limiter, call: &Call<'_>) -> (bool, Option<&'l TokenBucket>) {
    // The request's own clock reading is good enough, unless a filter before this one has waited.
    let now = seconds(call.exchange.passed);
    let mut matched = None;
    if !limiter.descriptors.is_empty() {
        let wanted = descriptors(config, call);
        for descriptor in &limiter.descriptors {
            if !wanted.iter().any(|entries| is_same(&descriptor.entries, entries)) {
                continue;
            }
            if !descriptor.bucket.take(now) {
                return (false, Some(&descriptor.bucket));
            }
            matched.get_or_insert(&descriptor.bucket);
        }
    }
    match &limiter.default {
        Some(default) if matched.is_none() || limiter.always_default => match default.take(now) {
            true => (true, matched.or(Some(default))),
            false => (false, Some(default)),
        },
        _ => (true, matched),
    }
}

fn is_same(wanted: &[(Box<str>, Box<str>)], entries: &Entries<'_>) -> bool {
    wanted.len() == entries.len() && wanted.iter().zip(entries).all(|(w, e)| *w.0 == *e.0 && *w.1 == *e.1)
}

/// The request's descriptors: by the filter's own rate limits, or by those of route and virtual host.
fn descriptors<'c>(config: &'c Config, call: &'c Call<'_>) -> SmallVec<[Entries<'c>; 4]> {
    let mut out = SmallVec::new();
    if !config.rate_limits.is_empty() {
        out.extend(config.rate_limits.iter().filter_map(|limit| entries(limit, call)));
        return out;
    }
    let selected = call.exchange.selected.as_ref();
    let Some(action) = selected.and_then(|s| s.action()) else {
        return out;
    };
    let staged = |limit: &&RateLimit| limit.stage == config.stage;
    out.extend(
        action
            .rate_limits
            .iter()
            .filter(staged)
            .filter_map(|l| entries(l, call)),
    );
    let host = match config.virtual_host {
        VirtualHostLimits::Include => true,
        VirtualHostLimits::Override => action.include_host_rate_limits || action.rate_limits.is_empty(),
        VirtualHostLimits::Ignore => action.include_host_rate_limits,
    };
    if let Some(host) = selected.and_then(|s| s.virtual_host()).filter(|_| host) {
        out.extend(host.rate_limits.iter().filter(staged).filter_map(|l| entries(l, call)));
    }
    out
}

/// One descriptor; none when an action has nothing to say.
fn entries<'c>(limit: &'c RateLimit, call: &'c Call<'_>) -> Option<Entries<'c>> {
    let exchange = &*call.exchange;
    let request = HeaderReadings::of(&exchange.request);
    let mut out = Entries::new();
    for action in &limit.actions {
        match action {
            RateLimitAction::SourceCluster => {
                out.push(("source_cluster", call.env.worker.node().cluster.as_str().into()));
            }
            RateLimitAction::DestinationCluster => {
                let cluster = exchange.selected.as_ref().and_then(|s| s.cluster())?;
                out.push(("destination_cluster", (&**cluster).into()));
            }
            RateLimitAction::RemoteAddress => {
                let ip = exchange.request.remote_ip.unwrap_or(call.env.connection.remote.ip());
                out.push(("remote_address", ip.to_string().into()));
            }
            RateLimitAction::Header {
                name,
                key,
                skip_if_absent,
            } => {
                let mut first = None;
                exchange.request.visit_header(name, &mut |value| {
                    first.get_or_insert(value);
                });
                match first {
                    Some(value) => out.push((key, String::from_utf8_lossy(value))),
                    None if *skip_if_absent => {}
                    None => return None,
                }
            }
            RateLimitAction::Generic { key, value } => out.push((key, (&**value).into())),
            RateLimitAction::HeaderMatch {
                key,
                value,
                expect,
                headers,
            } => {
                if headers.iter().all(|m| m.matches(&request, &Scans::none())) != *expect {
                    return None;
                }
                out.push((key, (&**value).into()));
            }
        }
    }
    Some(out)
}
