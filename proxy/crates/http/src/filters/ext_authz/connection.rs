//! `envoy.filters.network.ext_authz`: the server says which connections may pass. It is asked when a connection is ready,
//! before a byte of it goes either way; Envoy asks at the client's first byte, and lets pass what a server says before.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use heddle_api::envoy::service::auth::v3 as pb;
use heddle_config::snapshot::{NetworkExtAuthz as Config, Node};
use heddle_matching::Metadata;
use heddle_net::ConnectionInfo;
use heddle_telemetry::{Counter, Gauge, Stats};
use pb::attribute_context::Peer;
use pb::check_response::HttpResponse;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::{MAX_ANSWER, grpc};
use crate::callout::grpc::unary;
use crate::hcm::Active;
use crate::worker::HttpWorker;

/// Where what the server says is kept for those behind.
const NAMESPACE: &str = "envoy.filters.network.ext_authz";

/// One external authorization filter of a filter chain, on one worker.
#[derive(Debug)]
pub struct NetworkExtAuthz {
    config: Arc<Config>,
    /// The destination's, as the server is told them.
    labels: HashMap<String, String>,
    total: Counter,
    active: Gauge,
    ok: Counter,
    denied: Counter,
    error: Counter,
    disabled: Counter,
    failure_mode_allowed: Counter,
    cx_closed: Counter,
}

/// What the server answered.
enum Outcome {
    Allowed,
    Denied,
    Failed,
}

impl NetworkExtAuthz {
    /// Makes a filter ready.
    pub fn new(config: &Arc<Config>, node: &Node, stats: &Stats) -> Self {
        let labels = [("ext_authz_prefix", &*config.stat_prefix)];
        let counter = |name| stats.counter(name, &labels);
        let of_node = config.labels_key.as_ref().and_then(|key| node.metadata.get(&**key));
        let of_node = of_node.and_then(Value::as_object).into_iter().flatten();
        Self {
            labels: of_node
                .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
                .collect(),
            total: counter("envoy_ext_authz_total"),
            active: stats.gauge("envoy_ext_authz_active", &labels),
            ok: counter("envoy_ext_authz_ok"),
            denied: counter("envoy_ext_authz_denied"),
            error: counter("envoy_ext_authz_error"),
            disabled: counter("envoy_ext_authz_disabled"),
            failure_mode_allowed: counter("envoy_ext_authz_failure_mode_allowed"),
            cx_closed: counter("envoy_ext_authz_cx_closed"),
            config: Arc::clone(config),
        }
    }

    /// Whether a connection may pass. What the server says of it goes to `metadata`, of which filters before have their part.
    /// Who is no longer interested drops the future.
    pub async fn allows(&self, worker: &Rc<HttpWorker>, connection: &ConnectionInfo, metadata: &mut Metadata) -> bool {
        let meant = self.config.enabled_metadata.as_ref();
        if !meant.is_none_or(|m| m.matches(Some(metadata))) {
            self.disabled.inc();
            return true;
        }
        self.total.inc();
        let (mut outcome, said) = {
            let _active = Active::enter(&self.active);
            self.ask(worker, connection, metadata).await
        };
        if !said.is_empty() && metadata.merge(NAMESPACE, said).is_err() {
            // Whoever reads it would take the connection for one of which nothing was said.
            outcome = Outcome::Denied;
        }
        let passes = match outcome {
            Outcome::Allowed => {
                self.ok.inc();
                true
            }
            Outcome::Denied => {
                self.denied.inc();
                false
            }
            Outcome::Failed => {
                self.error.inc();
                if self.config.failure_mode_allow {
                    self.failure_mode_allowed.inc();
                }
                self.config.failure_mode_allow
            }
        };
        if !passes {
            self.cx_closed.inc();
        }
        passes
    }

    async fn ask(
        &self,
        worker: &Rc<HttpWorker>,
        connection: &ConnectionInfo,
        metadata: &Metadata,
    ) -> (Outcome, Map<String, Value>) {
        let begun = Instant::now();
        let request = self.question(connection, metadata);
        let asked = unary(worker, &self.config.service, grpc::METHOD, &request, MAX_ANSWER).await;
        let answer: pb::CheckResponse = match asked {
            Ok(answer) => answer,
            Err(_) => return (Outcome::Failed, Map::new()),
        };
        let mut said = grpc::said(&answer);
        let ok = answer.status.is_none_or(|status| status.code == 0);
        let outcome = match (ok, answer.http_response) {
            (true, _) => {
                grpc::add_duration(&mut said, begun);
                Outcome::Allowed
            }
            (false, Some(HttpResponse::ErrorResponse(_))) => Outcome::Failed,
            (false, _) => Outcome::Denied,
        };
        (outcome, said)
    }

    fn question(&self, connection: &ConnectionInfo, metadata: &Metadata) -> pb::CheckRequest {
        let attributes = pb::AttributeContext {
            source: Some(grpc::source(connection, self.config.peer_certificate)),
            destination: Some(Peer {
                service: connection.sni.as_deref().unwrap_or_default().to_owned(),
                labels: self.labels.clone(),
                ..grpc::destination(connection)
            }),
            tls_session: grpc::tls_session(connection, self.config.tls_session),
            metadata_context: match &self.config.metadata_namespaces[..] {
                [] => None,
                namespaces => Some(grpc::shown_metadata(namespaces, Some(metadata))),
            },
            ..pb::AttributeContext::default()
        };
        pb::CheckRequest {
            attributes: Some(attributes),
        }
    }
}
