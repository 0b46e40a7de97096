//! `envoy.filters.http.fault`: delays and aborts, to see what others make of them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use heddle_config::filters::RouteFilterConfig;
use heddle_config::filters::fault::{Abort, AbortWith, Delay, Fault as Config};
use heddle_config::snapshot::Fraction;
use heddle_matching::{HeaderReadings, Scans};
use heddle_telemetry::{Counter, Gauge, ResponseFlag, Stats};

use super::{Call, HttpFilter, Setup, Verdict};
use crate::hcm::Exchange;
use crate::head::{Fields, Known};
use crate::local_reply::LocalReply;

/// Most downstream clusters that are counted each by itself; clients name them.
const MAX_CLUSTERS: usize = 256;

/// One fault filter.
pub(crate) struct Fault {
    config: Arc<Config>,
    stats: Stats,
    prefix: Box<str>,
    injected: Injected,
    overflow: Counter,
    active: Gauge,
    /// By `x-envoy-downstream-service-cluster`.
    clusters: RefCell<HashMap<Box<str>, Injected, ahash::RandomState>>,
}

#[derive(Clone)]
struct Injected {
    aborts: Counter,
    delays: Counter,
}

impl Injected {
    fn new(stats: &Stats, prefix: &str, cluster: Option<&str>) -> Self {
        let manager = ("http_conn_manager_prefix", prefix);
        let labels = [manager, ("fault_downstream_cluster", cluster.unwrap_or_default())];
        let labels = if cluster.is_some() { &labels[..] } else { &labels[..1] };
        Self {
            aborts: stats.counter("envoy_http_fault_aborts_injected", labels),
            delays: stats.counter("envoy_http_fault_delays_injected", labels),
        }
    }
}

/// A fault in progress, until its request is over.
#[derive(Debug)]
pub(crate) struct Active {
    config: Arc<Config>,
    gauge: Gauge,
    /// How long the request waits.
    delay: Duration,
}

impl Drop for Active {
    fn drop(&mut self) {
        self.config.active.fetch_sub(1, Ordering::Relaxed);
        self.gauge.add(-1);
    }
}

impl HttpFilter for Fault {
    type Config = Config;
    type Route = Config;
    type State = Option<Box<Active>>;

    fn new(config: &Arc<Config>, setup: &Setup<'_>) -> Self {
        let stats = &setup.worker.stats;
        let labels = [("http_conn_manager_prefix", setup.stat_prefix)];
        Self {
            config: Arc::clone(config),
            stats: stats.clone(),
            prefix: setup.stat_prefix.into(),
            injected: Injected::new(stats, setup.stat_prefix, None),
            overflow: stats.counter("envoy_http_fault_faults_overflow", &labels),
            active: stats.gauge("envoy_http_fault_active_faults", &labels),
            clusters: RefCell::default(),
        }
    }

    fn route_config(config: &RouteFilterConfig) -> Option<&Config> {
        match config {
            RouteFilterConfig::Fault(config) => Some(config),
            _ => None,
        }
    }

    fn on_request(&self, call: &mut Call<'_>, active: &mut Self::State) -> Verdict {
        let route = call.route_configs::<Self>();
        let settings = route.first().unwrap_or(&self.config);
        if !concerns(settings, call.exchange) {
            return Verdict::Continue;
        }
        let dice = || call.env.worker.dice();
        if let Some(delay) = &settings.delay
            && let Some(time) = delay_of(delay, &call.exchange.request.fields, dice)
            && let Some(active) = self.activate(settings, active)
        {
            active.delay = time;
            call.exchange.flag(ResponseFlag::DelayInjected);
            self.count(settings, call.exchange, |injected| &injected.delays);
            call.wait();
            return Verdict::Continue;
        }
        self.abort(settings, call, active)
    }

    async fn on_request_waiting(&self, call: &mut Call<'_>, active: &mut Self::State) -> Verdict {
        let delay = active.as_ref().map_or(Duration::ZERO, |active| active.delay);
        tokio::time::sleep(delay).await;
        let route = call.route_configs::<Self>();
        self.abort(route.first().unwrap_or(&self.config), call, active)
    }
}

impl Fault {
    fn abort(&self, settings: &Config, call: &Call<'_>, active: &mut Option<Box<Active>>) -> Verdict {
        let dice = || call.env.worker.dice();
        if let Some(abort) = &settings.abort
            && let Some((status, grpc_status)) = abort_of(abort, &call.exchange.request.fields, dice)
            && self.activate(settings, active).is_some()
        {
            self.count(settings, call.exchange, |injected| &injected.aborts);
            return Verdict::from(LocalReply {
                status,
                body: abort.body.clone(),
                grpc_status,
                details: "fault_filter_abort".into(),
                flag: Some(ResponseFlag::FaultInjected),
                ..LocalReply::default()
            });
        }
        Verdict::Continue
    }

    /// Counts a request that gets its first fault; none when there are too many already. As in Envoy the bound is not
    /// exact when several workers reach it at once.
    fn activate<'a>(&self, settings: &Config, active: &'a mut Option<Box<Active>>) -> Option<&'a mut Active> {
        if active.is_some() {
            return active.as_deref_mut();
        }
        let now = self.config.active.load(Ordering::Relaxed);
        if settings.max_active.is_some_and(|max| now >= u64::from(max)) {
            self.overflow.inc();
            return None;
        }
        self.config.active.fetch_add(1, Ordering::Relaxed);
        self.active.add(1);
        Some(active.insert(Box::new(Active {
            config: Arc::clone(&self.config),
            gauge: self.active.clone(),
            delay: Duration::ZERO,
        })))
    }

    fn count(&self, settings: &Config, exchange: &Exchange, which: impl Fn(&Injected) -> &Counter) {
        which(&self.injected).inc();
        let cluster = exchange.request.fields.get_known_text(Known::DownstreamServiceCluster);
        let Some(cluster) = cluster.filter(|c| settings.cluster_stats && !c.is_empty()) else {
            return;
        };
        let mut clusters = self.clusters.borrow_mut();
        let cluster = if clusters.len() < MAX_CLUSTERS || clusters.contains_key(cluster) {
            cluster
        } else {
            "overflow"
        };
        let injected = clusters
            .entry(cluster.into())
            .or_insert_with(|| Injected::new(&self.stats, &self.prefix, Some(cluster)));
        which(injected).inc();
    }
}

/// Whether the settings speak of such requests.
fn concerns(settings: &Config, exchange: &Exchange) -> bool {
    let request = &exchange.request;
    let cluster = || exchange.selected.as_ref().and_then(|s| s.cluster()).map(|c| &**c);
    let node = || request.fields.get_known_text(Known::DownstreamServiceNode);
    settings
        .upstream_cluster
        .as_ref()
        .is_none_or(|c| cluster() == Some(&**c))
        && (settings.downstream_nodes.is_empty()
            || node().is_some_and(|node| settings.downstream_nodes.iter().any(|n| **n == *node)))
        && {
            let headers = HeaderReadings::of(request);
            settings.headers.iter().all(|m| m.matches(&headers, &Scans::none()))
        }
}

fn number<N: std::str::FromStr>(fields: &Fields, name: &str) -> Option<N> {
    std::str::from_utf8(fields.get(name.as_bytes())?).ok()?.parse().ok()
}

/// The configured share, or the smaller one that the request asks for where the request decides.
fn share(configured: Fraction, by_request: bool, fields: &Fields, name: &str) -> Fraction {
    match by_request.then(|| number(fields, name)).flatten() {
        Some(asked) => configured.at_most(asked),
        None => configured,
    }
}

/// How long to hold a request up; none when not at all.
fn delay_of(delay: &Delay, fields: &Fields, dice: impl FnOnce() -> u32) -> Option<Duration> {
    let by_request = delay.fixed.is_none();
    let share = share(
        delay.percentage,
        by_request,
        fields,
        "x-envoy-fault-delay-request-percentage",
    );
    if !share.holds(dice) {
        return None;
    }
    let time = match delay.fixed {
        Some(time) => time,
        None => Duration::from_millis(number(fields, "x-envoy-fault-delay-request")?),
    };
    (!time.is_zero()).then_some(time.min(MAX_DELAY))
}

/// Longer than any stream may be idle; the clock cannot count for ever.
const MAX_DELAY: Duration = Duration::from_secs(86_400 * 365);

/// What to answer: HTTP status and gRPC status.
fn abort_of(abort: &Abort, fields: &Fields, dice: impl FnOnce() -> u32) -> Option<(u16, Option<u32>)> {
    let by_request = abort.with == AbortWith::Header;
    let share = share(
        abort.percentage,
        by_request,
        fields,
        "x-envoy-fault-abort-request-percentage",
    );
    if !share.holds(dice) {
        return None;
    }
    match abort.with {
        AbortWith::Http(status) => Some((status, None)),
        AbortWith::Grpc(status) => Some((200, Some(status))),
        AbortWith::Header => {
            let http = number(fields, "x-envoy-fault-abort-request").filter(|s| (200..600).contains(s));
            match http {
                Some(status) => Some((status, None)),
                None => number(fields, "x-envoy-fault-abort-grpc-request").map(|status| (200, Some(status))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(list: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in list {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        fields
    }

    #[test]
    fn delays_by_header() {
        let delay = Delay {
            fixed: None,
            percentage: Fraction::new(50, 10_000),
        };
        let of = |list: &[(&str, &str)], dice: u32| delay_of(&delay, &fields(list), || dice);
        const TIME: &str = "x-envoy-fault-delay-request";
        const SHARE: &str = "x-envoy-fault-delay-request-percentage";
        assert_eq!(of(&[(TIME, "20")], 0), Some(Duration::from_millis(20)));
        assert_eq!(of(&[(TIME, "20")], 500_000), None);
        assert_eq!(of(&[(TIME, "20"), (SHARE, "10")], 100_000), None);
        assert_eq!(
            of(&[(TIME, "20"), (SHARE, "99")], 499_999),
            Some(Duration::from_millis(20))
        );
        assert_eq!(of(&[(TIME, "20"), (SHARE, "no")], 0), Some(Duration::from_millis(20)));
        assert_eq!(of(&[], 0), None);
        assert_eq!(of(&[(TIME, "-1")], 0), None);
        assert_eq!(of(&[(TIME, "0")], 0), None);
        assert_eq!(of(&[(TIME, "18446744073709551615")], 0), Some(MAX_DELAY));
    }

    #[test]
    fn aborts_by_header() {
        let abort = Abort {
            with: AbortWith::Header,
            percentage: Fraction::ALL,
            body: "".into(),
        };
        let of = |list: &[(&str, &str)]| abort_of(&abort, &fields(list), || 0);
        const HTTP: &str = "x-envoy-fault-abort-request";
        const GRPC: &str = "x-envoy-fault-abort-grpc-request";
        assert_eq!(of(&[(HTTP, "429"), (GRPC, "8")]), Some((429, None)));
        assert_eq!(of(&[(HTTP, "199"), (GRPC, "8")]), Some((200, Some(8))));
        assert_eq!(of(&[(HTTP, "600")]), None);
        assert_eq!(of(&[(GRPC, "many")]), None);
        assert_eq!(of(&[]), None);
    }
}
