//! `envoy.filters.http.rbac`: who may call what.

use std::sync::Arc;

use heddle_matching::rbac::Policies;
use heddle_net::ConnectionInfo;
use heddle_telemetry::Counter;

use super::Verdict;
use crate::failure::Failure;
use crate::hcm::Exchange;
use crate::worker::HttpWorker;

/// One RBAC filter.
pub(crate) struct Rbac {
    policies: Arc<Policies>,
    allowed: Counter,
    denied: Counter,
    shadow_allowed: Counter,
    shadow_denied: Counter,
}

impl Rbac {
    pub(crate) fn new(policies: &Arc<Policies>, worker: &HttpWorker) -> Self {
        let stats = &worker.stats;
        let rules = [("prefix", &*policies.stat_prefix)];
        let shadow = [("prefix", &*policies.shadow_stat_prefix)];
        Self {
            allowed: stats.counter("envoy_http_rbac_allowed", &rules),
            denied: stats.counter("envoy_http_rbac_denied", &rules),
            shadow_allowed: stats.counter("envoy_http_rbac_shadow_allowed", &shadow),
            shadow_denied: stats.counter("envoy_http_rbac_shadow_denied", &shadow),
            policies: Arc::clone(policies),
        }
    }

    pub(crate) fn on_request(&self, exchange: &Exchange, connection: &ConnectionInfo) -> Verdict {
        let decision = self.policies.check(connection, Some(&exchange.request));
        match decision.shadow.map(|s| s.allowed) {
            Some(true) => self.shadow_allowed.inc(),
            Some(false) => self.shadow_denied.inc(),
            None => {}
        }
        if decision.allowed {
            self.allowed.inc();
            Verdict::Continue
        } else {
            self.denied.inc();
            Verdict::Refuse(Failure::Denied(decision.details()))
        }
    }
}
