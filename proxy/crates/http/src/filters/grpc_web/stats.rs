//! How calls ended, by cluster, service and method, as Envoy counts them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use heddle_telemetry::{Counter, Stats, stats};

use crate::hcm::Exchange;
use crate::head::{Fields, Known};

/// Most triples of cluster, service and method that a worker counts for one connection manager. Clients choose the last
/// two; Envoy counts whatever they choose.
const MAX_METHODS: usize = 256;

/// gRPC's greatest status; others are counted as failures alone.
const MAX_STATUS: usize = 16;

/// The service and the method of a call, as in its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Method {
    name: Box<str>,
}

impl Method {
    /// Of a path `/service/method`; none of any other.
    pub(super) fn of(target: &str) -> Option<Self> {
        let path = target.split('?').next().unwrap_or_default();
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        if service.is_empty() || method.is_empty() || method.contains('/') {
            return None;
        }
        Some(Self {
            name: format!("{service}_{method}").into(),
        })
    }
}

/// A cluster's name, and the method that was called there.
type Called = (Box<str>, Method);

/// The calls of a connection manager.
pub(crate) struct MethodStats {
    counters: RefCell<HashMap<Called, Rc<Counters>>>,
    not_counted: Counter,
}

impl MethodStats {
    pub(super) fn new(stats: &Stats, connection_manager: &str) -> Self {
        let labels = [("http_conn_manager_prefix", connection_manager)];
        Self {
            counters: RefCell::default(),
            not_counted: stats.counter("heddle_http_grpc_web_methods_overflow", &labels),
        }
    }

    /// The counters for an answer; none for one that no cluster gave.
    pub(super) fn of(&self, exchange: &Exchange, method: Option<&Method>) -> Option<Rc<Counters>> {
        let (cluster, method) = (exchange.cluster.as_ref()?, method?);
        let (registry, name) = cluster.stats().registry();
        let key: Called = (name.into(), method.clone());
        let mut counters = self.counters.borrow_mut();
        if let Some(found) = counters.get(&key) {
            return Some(Rc::clone(found));
        }
        if counters.len() >= MAX_METHODS {
            self.not_counted.inc();
            return None;
        }
        let made = Rc::new(Counters::new(registry, name, method));
        counters.insert(key, Rc::clone(&made));
        Some(made)
    }
}

/// The counters of one method of one cluster.
#[derive(Debug)]
pub(crate) struct Counters {
    registry: Stats,
    cluster: Box<str>,
    prefix: String,
    total: Counter,
    success: Counter,
    failure: Counter,
    by_status: RefCell<[Option<Counter>; MAX_STATUS + 1]>,
}

impl Counters {
    fn new(registry: &Stats, cluster: &str, method: &Method) -> Self {
        let prefix = format!("envoy_cluster_grpc_web_{}", method.name);
        let prefix = prefix.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "_");
        let counter = |last: &str| counter(registry, &prefix, last, cluster);
        Self {
            total: counter("total"),
            success: counter("success"),
            failure: counter("failure"),
            by_status: RefCell::default(),
            registry: registry.clone(),
            cluster: cluster.into(),
            prefix,
        }
    }

    /// Counts what a head or trailers say of a call's end, where they do.
    pub(super) fn count(&self, fields: &Fields) {
        let Some(status) = fields.get_known_text(Known::GrpcStatus) else {
            return;
        };
        self.total.inc();
        match status {
            "0" => self.success.inc(),
            _ => self.failure.inc(),
        }
        let number = status.parse::<usize>().ok();
        let mut by_status = self.by_status.borrow_mut();
        if let Some(number) = number
            && let Some(slot) = by_status.get_mut(number)
        {
            slot.get_or_insert_with(|| counter(&self.registry, &self.prefix, &number.to_string(), &self.cluster))
                .inc();
        }
    }
}

fn counter(registry: &Stats, prefix: &str, last: &str, cluster: &str) -> Counter {
    registry.counter(stats::name(format!("{prefix}_{last}")), &[("cluster_name", cluster)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_of_paths() {
        let of = |path| Method::of(path).map(|m| m.name);
        assert_eq!(of("/pkg.Service/Method"), Some("pkg.Service_Method".into()));
        assert_eq!(of("/s/m?a=b/c"), Some("s_m".into()));
        for none in ["", "/", "/s", "/s/", "//m", "/s/m/x", "s/m"] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
