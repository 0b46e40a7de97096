//! `istio.stats`: Istio's standard metrics for requests.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use heddle_config::filters::istio_stats::IstioStats as Config;
use heddle_config::snapshot::TrafficDirection;
use heddle_net::PeerIdentity;
use heddle_telemetry::istio::{CallParties, PeerMetadata, Reporter, RequestMetrics, RequestReport};
use smallvec::SmallVec;

use super::{End, HttpFilter, Setup};
use crate::hcm::Exchange;
use crate::head::Known;

/// Most peers kept that were worked out of endpoint metadata or identities.
const MAX_DERIVED: usize = 1024;

fn principal(identity: &PeerIdentity) -> Option<&str> {
    identity.uri_sans.first().map(String::as_str)
}

/// The filter.
pub(crate) struct IstioStats {
    metrics: RequestMetrics,
    inbound: bool,
    unknown: Rc<PeerMetadata>,
    /// By endpoint metadata, SPIFFE identity and cluster, a line each.
    derived: RefCell<HashMap<Box<[u8]>, Rc<PeerMetadata>, ahash::RandomState>>,
}

impl IstioStats {
    /// What is known of a peer that has not introduced itself.
    fn derive(&self, endpoint: Option<&str>, identity: Option<&str>, cluster: Option<&str>) -> Rc<PeerMetadata> {
        let parts = [endpoint, identity, cluster];
        if parts.iter().all(Option::is_none) {
            return Rc::clone(&self.unknown);
        }
        let mut key = SmallVec::<[u8; 256]>::new();
        for part in parts {
            key.extend_from_slice(part.unwrap_or_default().as_bytes());
            key.push(b'\n');
        }
        if let Some(peer) = self.derived.borrow().get(&key[..]) {
            return Rc::clone(peer);
        }
        let peer = Rc::new(PeerMetadata::derived(endpoint, identity, cluster));
        let mut derived = self.derived.borrow_mut();
        if derived.len() >= MAX_DERIVED {
            derived.clear();
        }
        derived.insert(key[..].into(), Rc::clone(&peer));
        peer
    }

    /// The workload at the other end: what it said of itself, else what the endpoint or its identity tells. The cluster
    /// is the one that its certificate proves, whatever else it says.
    fn peer(&self, exchange: &Exchange, proven: Option<&PeerIdentity>) -> Rc<PeerMetadata> {
        let (said, endpoint) = if self.inbound {
            (&exchange.source, None)
        } else {
            (&exchange.destination, exchange.upstream_workload.as_deref())
        };
        let cluster = proven.and_then(PeerIdentity::cluster);
        match (said, cluster) {
            (Some(peer), Some(cluster)) if peer.cluster != cluster => Rc::new(PeerMetadata {
                cluster: cluster.to_owned(),
                ..PeerMetadata::clone(peer)
            }),
            (Some(peer), _) => Rc::clone(peer),
            (None, cluster) => self.derive(endpoint, proven.and_then(principal), cluster),
        }
    }
}

impl HttpFilter for IstioStats {
    type Config = Config;
    type Route = Infallible;
    type State = ();

    fn new(_: &Arc<Config>, setup: &Setup<'_>) -> Self {
        let inbound = setup.direction == TrafficDirection::Inbound;
        let reporter = if inbound {
            Reporter::Destination
        } else {
            Reporter::Source
        };
        let local = Arc::new(PeerMetadata::from_node(&setup.worker.node().metadata));
        Self {
            metrics: RequestMetrics::new(setup.worker.stats.clone(), reporter, local),
            inbound,
            unknown: Rc::default(),
            derived: RefCell::default(),
        }
    }

    fn on_end(&self, end: End<'_>, (): &mut ()) {
        let End {
            exchange,
            connection,
            now,
        } = end;
        // Each side knows its own principal by its own certificate, and the other's by the handshake.
        let (proven, local) = if self.inbound {
            (connection.peer.as_deref(), connection.local_identity.as_deref())
        } else {
            (
                exchange.upstream_peer.as_deref(),
                exchange.upstream_local_identity.as_deref(),
            )
        };
        let (source, destination) = if self.inbound {
            (proven.and_then(principal), local)
        } else {
            (local, proven.and_then(principal))
        };
        let peer = self.peer(exchange, proven);
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
                mutual_tls: proven.is_some(),
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
