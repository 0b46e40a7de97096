//! `envoy.filters.http.rbac`: who may call what.

use std::sync::Arc;

use heddle_config::filters::RouteFilterConfig;
use heddle_config::filters::rbac::{Rbac as Config, RbacPerRoute};
use heddle_matching::rbac::{Action, Policies};
use heddle_telemetry::Counter;
use serde_json::Map;

use super::{Call, HttpFilter, Setup, Verdict};
use crate::local_reply::LocalReply;

/// Where the shadow rules' outcome is for the filters behind.
const NAMESPACE: &str = "envoy.filters.http.rbac";

/// One RBAC filter.
pub(crate) struct Rbac {
    policies: Arc<Policies>,
    allowed: Counter,
    denied: Counter,
    shadow_allowed: Counter,
    shadow_denied: Counter,
}

impl HttpFilter for Rbac {
    type Config = Config;
    type Route = RbacPerRoute;
    type State = ();

    fn new(config: &Arc<Config>, setup: &Setup<'_>) -> Self {
        let stats = &setup.worker.stats;
        let policies = &config.policies;
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

    fn route_config(config: &RouteFilterConfig) -> Option<&RbacPerRoute> {
        match config {
            RouteFilterConfig::Rbac(config) => Some(config),
            _ => None,
        }
    }

    fn on_request(&self, call: &mut Call<'_>, (): &mut ()) -> Verdict {
        let route = call.route_configs::<Self>();
        let policies = match route.first() {
            Some(RbacPerRoute { policies: None }) => return Verdict::Continue,
            Some(RbacPerRoute {
                policies: Some(policies),
            }) => policies,
            None => &self.policies,
        };
        let decision = policies.check(call.connection(), Some(&call.exchange.request));
        if let Some(shadow) = decision.shadow {
            match shadow.allowed {
                true => self.shadow_allowed.inc(),
                false => self.shadow_denied.inc(),
            }
            if !call.merge_metadata(NAMESPACE, policies.shadow_metadata(shadow)) {
                // Whoever reads it would take the request for one that no policy concerns.
                return Verdict::from(LocalReply {
                    status: 500,
                    details: "rbac_metadata_overflow".into(),
                    ..LocalReply::default()
                });
            }
        }
        let Some(rules) = &policies.rules else {
            return Verdict::Continue;
        };
        if decision.allowed {
            self.allowed.inc();
            if rules.action() == Action::Log {
                let marked = decision.policy.is_some().into();
                let hint = Map::from_iter([("access_log_hint".to_owned(), marked)]);
                call.merge_metadata("envoy.common", hint);
            }
            return Verdict::Continue;
        }
        self.denied.inc();
        Verdict::from(LocalReply {
            status: 403,
            body: "RBAC: access denied".into(),
            details: decision.details().replace(' ', "_").into(),
            ..LocalReply::default()
        })
    }
}
