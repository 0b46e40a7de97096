//! `istio.stats`: Istio's standard metrics for requests.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use heddle_config::filters::istio_stats::IstioStats as Config;
use heddle_config::snapshot::{Cluster, TrafficDirection};
use heddle_net::{ConnectionInfo, PeerIdentity};
use heddle_telemetry::ResponseFlags;
use heddle_telemetry::istio::{CallParties, PeerMetadata, Reporter, RequestMetrics, RequestReport, RequestSeries};
use smallvec::SmallVec;

use super::{End, HttpFilter, Setup};
use crate::hcm::Exchange;
use crate::head::{Fields, Known};

/// Most peers kept that were worked out of endpoint metadata or identities.
const MAX_DERIVED: usize = 1024;

fn principal(identity: &PeerIdentity) -> Option<&str> {
    identity.uri_sans.first().map(String::as_str)
}

/// Series kept at hand, a power of two. Each keeps a peer's identity and a cluster's configuration in memory.
const AT_HAND: usize = 64;

/// Who takes part in a request, by what is already made of each.
#[derive(Clone, Debug)]
struct Sides {
    /// The peer as it has introduced itself.
    said: Option<Rc<PeerMetadata>>,
    /// The endpoint's metadata.
    endpoint: Option<Arc<str>>,
    /// The peer as its certificate proves it.
    proven: Option<Arc<PeerIdentity>>,
    /// This side, by its own certificate.
    local: Option<Arc<str>>,
    cluster: Option<Rc<Arc<Cluster>>>,
}

/// How a request ended, as far as labels say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ending {
    grpc: bool,
    grpc_status: Option<u16>,
    status: u16,
    flags: ResponseFlags,
}

/// A series, and the requests that count in it.
struct AtHand {
    addresses: [usize; 5],
    ending: Ending,
    series: Rc<RequestSeries>,
    /// While they are held here, their addresses are nobody else's.
    _sides: Sides,
}

/// The filter.
pub(crate) struct IstioStats {
    metrics: RequestMetrics,
    inbound: bool,
    /// The series used last, each in the place that the addresses of its sides say: finding it by its labels costs ten
    /// times as much, and most requests are of the same few sides.
    at_hand: RefCell<Box<[Option<Box<AtHand>>; AT_HAND]>>,
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
    fn peer(&self, sides: &Sides) -> Rc<PeerMetadata> {
        let proven = sides.proven.as_deref();
        match (&sides.said, proven.and_then(PeerIdentity::cluster)) {
            (Some(peer), Some(cluster)) if peer.cluster != cluster => Rc::new(PeerMetadata {
                cluster: cluster.to_owned(),
                ..PeerMetadata::clone(peer)
            }),
            (Some(peer), _) => Rc::clone(peer),
            (None, cluster) => self.derive(sides.endpoint.as_deref(), proven.and_then(principal), cluster),
        }
    }

    /// The series of a request, by its labels.
    fn find(&self, sides: &Sides, ending: Ending) -> Rc<RequestSeries> {
        // Each side knows its own principal by its own certificate, and the other's by the handshake.
        let proven = sides.proven.as_deref().and_then(principal);
        let local = sides.local.as_deref();
        let (source, destination) = if self.inbound { (proven, local) } else { (local, proven) };
        let (service, service_name, service_namespace) = match &sides.cluster {
            None => ("", "", ""),
            Some(config) => match &config.service {
                Some((host, name, namespace)) => (&**host, &**name, &**namespace),
                // As Istio names PassthroughCluster and the like; the host that a client wrote is no label.
                None => ("", &*config.name, ""),
            },
        };
        self.metrics.series(&RequestReport {
            parties: CallParties {
                peer: &self.peer(sides),
                source_principal: source,
                destination_principal: destination,
                service,
                service_name,
                service_namespace,
                mutual_tls: sides.proven.is_some(),
            },
            grpc: ending.grpc,
            response_code: ending.status,
            grpc_status: ending.grpc_status,
            flags: ending.flags,
        })
    }

    /// Calls `with` with the series of a request.
    fn with_series(&self, exchange: &Exchange, connection: &ConnectionInfo, with: impl FnOnce(&RequestSeries)) {
        let nothing = None;
        let (said, endpoint, proven, local) = if self.inbound {
            (&exchange.source, &nothing, &connection.peer, &connection.local_identity)
        } else {
            (
                &exchange.destination,
                &exchange.upstream_workload,
                &exchange.upstream_peer,
                &exchange.upstream_local_identity,
            )
        };
        let addresses = [
            said.as_ref().map_or(0, |it| Rc::as_ptr(it).addr()),
            endpoint.as_ref().map_or(0, |it| Arc::as_ptr(it).addr()),
            proven.as_ref().map_or(0, |it| Arc::as_ptr(it).addr()),
            local.as_ref().map_or(0, |it| Arc::as_ptr(it).addr()),
            exchange.cluster_config.as_ref().map_or(0, |it| Rc::as_ptr(it).addr()),
        ];
        let ending = Ending {
            grpc: exchange.request.grpc,
            grpc_status: grpc_status(exchange),
            status: exchange.status,
            flags: exchange.flags,
        };
        let mut at_hand = self.at_hand.borrow_mut();
        let place = &mut at_hand[place(&addresses, exchange.status)];
        if let Some(found) = place
            && found.addresses == addresses
            && found.ending == ending
        {
            with(&found.series);
            return;
        }
        let sides = Sides {
            said: said.clone(),
            endpoint: endpoint.clone(),
            proven: proven.clone(),
            local: local.clone(),
            cluster: exchange.cluster_config.clone(),
        };
        let found = place.insert(Box::new(AtHand {
            addresses,
            ending,
            series: self.find(&sides, ending),
            _sides: sides,
        }));
        with(&found.series);
    }
}

/// Where the series of such requests is, if it is at hand.
fn place(addresses: &[usize; 5], status: u16) -> usize {
    let mixed = addresses.iter().fold(u64::from(status), |mixed, address| {
        (mixed.rotate_left(5) ^ *address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (mixed >> (u64::BITS - AT_HAND.trailing_zeros())) as usize
}

fn grpc_status(exchange: &Exchange) -> Option<u16> {
    if !exchange.request.grpc {
        return None;
    }
    let from = |fields: &Fields| {
        fields
            .get_known_text(Known::GrpcStatus)
            .and_then(|s| s.parse::<u16>().ok())
    };
    let trailers = exchange.trailers.as_ref().and_then(from);
    trailers.or_else(|| from(&exchange.response.fields))
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
            at_hand: RefCell::new(Box::new([const { None }; AT_HAND])),
            unknown: Rc::default(),
            derived: RefCell::default(),
        }
    }

    fn on_end(&self, end: End<'_>, (): &mut ()) {
        let End {
            exchange,
            connection,
            took,
        } = end;
        self.with_series(exchange, connection, |series| {
            series.record(took, exchange.request_bytes, exchange.response_bytes);
        });
    }
}

#[cfg(test)]
mod tests {
    use heddle_telemetry::Stats;
    use heddle_telemetry::prometheus::Gathered;
    use tokio::time::Instant;

    use super::*;

    /// However many sides there are, and wherever in memory what is known of them lies, each request counts in its own
    /// series.
    #[test]
    fn requests_count_by_their_labels() {
        let stats = Stats::new();
        let filter = IstioStats {
            metrics: RequestMetrics::new(stats.clone(), Reporter::Destination, Arc::default()),
            inbound: true,
            at_hand: RefCell::new(Box::new([const { None }; AT_HAND])),
            unknown: Rc::default(),
            derived: RefCell::default(),
        };
        let connection = ConnectionInfo::plain(([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into());
        let mut exchange = Exchange::take(1, None, Instant::now());
        let peers = 3 * AT_HAND;
        for round in 0..3 {
            for number in 0..peers {
                let peer = PeerMetadata {
                    workload: format!("w{number}"),
                    ..PeerMetadata::default()
                };
                // In the second round each has moved.
                exchange.source = Some(Rc::new(peer));
                for status in [200, 200, 503] {
                    exchange.status = status;
                    filter.with_series(&exchange, &connection, |series| {
                        series.record(std::time::Duration::ZERO, 0, round);
                    });
                }
            }
        }
        let text = Gathered::read(&[stats.reader()], |name| name == "istio_requests_total").prometheus(true);
        for number in 0..peers {
            for (code, count) in [(200, 6), (503, 3)] {
                let series = |line: &&str| {
                    line.contains(&format!("source_workload=\"w{number}\""))
                        && line.contains(&format!("response_code=\"{code}\""))
                };
                let line = text.lines().find(series).expect("a series");
                assert!(line.ends_with(&format!("}} {count}")), "{line}");
            }
        }
    }
}
