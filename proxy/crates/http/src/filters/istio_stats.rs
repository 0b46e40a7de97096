//! `istio.stats`: Istio's standard metrics for requests.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use heddle_config::snapshot::TrafficDirection;
use heddle_net::ConnectionInfo;
use heddle_telemetry::istio::{CallParties, PeerMetadata, Reporter, RequestMetrics, RequestReport};
use tokio::time::Instant;

use crate::hcm::Exchange;
use crate::head::Known;
use crate::worker::HttpWorker;

/// Most peers kept that were worked out of endpoint metadata or identities.
const MAX_DERIVED: usize = 1024;

/// The filter.
pub(crate) struct IstioStats {
    metrics: RequestMetrics,
    inbound: bool,
    unknown: Rc<PeerMetadata>,
    /// By endpoint metadata or SPIFFE identity; the two never look alike.
    derived: RefCell<HashMap<Box<str>, Rc<PeerMetadata>, ahash::RandomState>>,
}

impl IstioStats {
    pub(crate) fn new(worker: &HttpWorker, direction: TrafficDirection) -> Self {
        let inbound = direction == TrafficDirection::Inbound;
        let reporter = if inbound {
            Reporter::Destination
        } else {
            Reporter::Source
        };
        let local = Arc::new(PeerMetadata::from_node(&worker.node().metadata));
        Self {
            metrics: RequestMetrics::new(worker.stats.clone(), reporter, local),
            inbound,
            unknown: Rc::default(),
            derived: RefCell::default(),
        }
    }

    fn derive(&self, key: &str, make: fn(&str) -> PeerMetadata) -> Rc<PeerMetadata> {
        if let Some(peer) = self.derived.borrow().get(key) {
            return Rc::clone(peer);
        }
        let peer = Rc::new(make(key));
        let mut derived = self.derived.borrow_mut();
        if derived.len() >= MAX_DERIVED {
            derived.clear();
        }
        derived.insert(key.into(), Rc::clone(&peer));
        peer
    }

    /// The workload at the other end: what it said of itself, else what the endpoint or its identity tells.
    fn peer(&self, exchange: &Exchange, identity: Option<&str>) -> Rc<PeerMetadata> {
        let said = if self.inbound {
            &exchange.source
        } else {
            &exchange.destination
        };
        if let Some(peer) = said {
            return Rc::clone(peer);
        }
        if !self.inbound
            && let Some(workload) = &exchange.upstream_workload
        {
            return self.derive(workload, PeerMetadata::from_endpoint);
        }
        match identity {
            Some(identity) => self.derive(identity, PeerMetadata::from_spiffe),
            None => Rc::clone(&self.unknown),
        }
    }

    pub(crate) fn on_end(&self, exchange: &Exchange, connection: &ConnectionInfo, now: Instant) {
        let upstream_identity = exchange
            .upstream_peer
            .as_ref()
            .and_then(|p| p.uri_sans.first())
            .map(String::as_str);
        let (identity, source, destination, mutual_tls) = if self.inbound {
            let source = connection.principal();
            (
                source,
                source,
                connection.local_identity.as_deref(),
                connection.peer.is_some(),
            )
        } else {
            (
                upstream_identity,
                None,
                upstream_identity,
                exchange.upstream_peer.is_some(),
            )
        };
        let peer = self.peer(exchange, identity);
        let (service, service_name, service_namespace) = match &exchange.cluster_config {
            None => ("", "", ""),
            Some(config) => match &config.service {
                Some((host, name, namespace)) => (&**host, &**name, &**namespace),
                // As Istio names PassthroughCluster and the like; the host that a client wrote is no label.
                None => ("", &*config.name, ""),
            },
        };
        let grpc_status = exchange.request.grpc.then(|| {
            let from = |fields: &crate::head::Fields| {
                fields
                    .get_known_text(Known::GrpcStatus)
                    .and_then(|s| s.parse::<u16>().ok())
            };
            exchange
                .trailers
                .as_ref()
                .and_then(from)
                .or_else(|| from(&exchange.response.fields))
        });
        self.metrics.record(&RequestReport {
            parties: CallParties {
                peer: &peer,
                source_principal: source,
                destination_principal: destination,
                service,
                service_name,
                service_namespace,
                mutual_tls,
            },
            grpc: exchange.request.grpc,
            response_code: exchange.status,
            grpc_status: grpc_status.flatten(),
            flags: exchange.flags,
            duration: now.duration_since(exchange.begun),
            request_bytes: exchange.request_bytes,
            response_bytes: exchange.response_bytes,
        });
    }
}
