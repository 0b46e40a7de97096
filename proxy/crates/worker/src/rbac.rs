//! `envoy.filters.network.rbac`: who may connect.

use std::sync::Arc;

use heddle_matching::rbac::{Action, Policies};
use heddle_matching::{Metadata, MetadataOverflow};
use heddle_net::ConnectionInfo;
use heddle_telemetry::{Counter, Stats};
use serde_json::Map;

/// Where the shadow rules' outcome is for the filters behind.
const NAMESPACE: &str = "envoy.filters.network.rbac";

/// Policies with their counters.
pub(crate) struct RbacRuntime {
    policies: Arc<Policies>,
    allowed: Counter,
    denied: Counter,
    shadow_allowed: Counter,
    shadow_denied: Counter,
}

impl RbacRuntime {
    pub(crate) fn new(stats: &Stats, policies: &Arc<Policies>) -> Self {
        let labels = [("rbac_prefix", &*policies.stat_prefix)];
        let shadow = [("rbac_prefix", &*policies.shadow_stat_prefix)];
        Self {
            policies: Arc::clone(policies),
            allowed: stats.counter("envoy_rbac_allowed", &labels),
            denied: stats.counter("envoy_rbac_denied", &labels),
            shadow_allowed: stats.counter("envoy_rbac_shadow_allowed", &shadow),
            shadow_denied: stats.counter("envoy_rbac_shadow_denied", &shadow),
        }
    }

    /// Whether a connection may pass. What the shadow rules come to goes to the connection's metadata.
    pub(crate) fn allows(&self, info: &ConnectionInfo, metadata: &mut Option<Box<Metadata>>) -> bool {
        let decision = self.policies.check_connection(info, metadata.as_deref());
        let mut learned = Ok(());
        if let Some(shadow) = decision.shadow {
            match shadow.allowed {
                true => self.shadow_allowed.inc(),
                false => self.shadow_denied.inc(),
            }
            learned = learn(metadata, NAMESPACE, self.policies.shadow_metadata(shadow));
        }
        let Some(rules) = &self.policies.rules else {
            return learned.is_ok();
        };
        if rules.action() == Action::Log {
            let hint = Map::from_iter([("access_log_hint".to_owned(), decision.policy.is_some().into())]);
            learned = learned.and(learn(metadata, "envoy.common", hint));
        }
        // Without room, whoever reads it would take the connection for one that no policy concerns.
        let allowed = decision.allowed && learned.is_ok();
        match allowed {
            true => self.allowed.inc(),
            false => self.denied.inc(),
        }
        allowed
    }
}

fn learn(
    metadata: &mut Option<Box<Metadata>>,
    namespace: &str,
    said: Map<String, serde_json::Value>,
) -> Result<(), MetadataOverflow> {
    metadata.get_or_insert_default().merge(namespace, said)
}
