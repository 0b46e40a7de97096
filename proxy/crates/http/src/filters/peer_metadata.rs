//! `istio.metadata_exchange`: sidecars tell each other which workload they serve, in the headers
//! `x-envoy-peer-metadata` and `x-envoy-peer-metadata-id`. The application never sees them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use heddle_config::snapshot::{Node, TrafficDirection};
use heddle_telemetry::istio::{MAX_HEADER, PeerMetadata as Peer};
use heddle_telemetry::{Counter, Stats};

use super::Verdict;
use crate::hcm::Exchange;
use crate::head::{Fields, Known};
use crate::worker::HttpWorker;

/// Most parsed headers kept; a mesh has as many as it has workloads.
const MAX_CACHED: usize = 1024;

/// By header value; none for a value that does not parse.
type Parsed = HashMap<Box<[u8]>, Option<Rc<Peer>>, ahash::RandomState>;

/// What this proxy says of itself, and headers already parsed, by their bytes.
pub(crate) struct PeerCache {
    own: Rc<Own>,
    parsed: RefCell<Parsed>,
    invalid: Counter,
}

struct Own {
    metadata: String,
    id: String,
}

impl PeerCache {
    pub(crate) fn new(node: &Node, stats: &Stats) -> Self {
        Self {
            own: Rc::new(Own {
                metadata: Peer::from_node(&node.metadata).to_header(),
                id: node.id.clone(),
            }),
            parsed: RefCell::default(),
            invalid: stats.counter("heddle_peer_metadata_invalid_total", &[]),
        }
    }

    fn parse(&self, value: &[u8]) -> Option<Rc<Peer>> {
        if let Some(peer) = self.parsed.borrow().get(value) {
            return peer.clone();
        }
        let peer = std::str::from_utf8(value)
            .ok()
            .filter(|v| v.len() <= MAX_HEADER)
            .and_then(Peer::from_header);
        if peer.is_none() {
            self.invalid.inc();
        }
        let peer = peer.map(Rc::new);
        if value.len() <= MAX_HEADER {
            let mut parsed = self.parsed.borrow_mut();
            if parsed.len() >= MAX_CACHED {
                // A peer that sends ever new values costs parsing, not memory.
                parsed.clear();
            }
            parsed.insert(value.into(), peer.clone());
        }
        peer
    }

    fn take(&self, fields: &mut Fields) -> Option<Rc<Peer>> {
        let peer = fields.get_known(Known::PeerMetadata).and_then(|v| self.parse(v));
        fields.remove_where(|k| matches!(k, Known::PeerMetadata | Known::PeerMetadataId));
        peer
    }
}

/// The filter.
pub(crate) struct PeerMetadata {
    cache: Rc<PeerCache>,
    inbound: bool,
}

impl PeerMetadata {
    pub(crate) fn new(worker: &HttpWorker, direction: TrafficDirection) -> Self {
        Self {
            cache: Rc::clone(&worker.peers),
            inbound: direction == TrafficDirection::Inbound,
        }
    }

    /// Inbound: learns who calls. Outbound: says who calls, in place of whatever the application wrote.
    pub(crate) fn on_request(&self, exchange: &mut Exchange) -> Verdict {
        let fields = &mut exchange.request.fields;
        let asked = fields.has_known(Known::PeerMetadataId) || fields.has_known(Known::PeerMetadata);
        let peer = self.cache.take(fields);
        if self.inbound {
            exchange.source = peer;
            exchange.exchange_metadata = asked;
        } else {
            fields.push_known(Known::PeerMetadata, self.cache.own.metadata.as_bytes());
            fields.push_known(Known::PeerMetadataId, self.cache.own.id.as_bytes());
        }
        Verdict::Continue
    }

    /// Inbound: answers a caller that said who it is. Outbound: learns who answered.
    pub(crate) fn on_response(&self, exchange: &mut Exchange) {
        let peer = self.cache.take(&mut exchange.response.fields);
        if self.inbound {
            if exchange.exchange_metadata {
                let fields = &mut exchange.response.fields;
                fields.push_known(Known::PeerMetadata, self.cache.own.metadata.as_bytes());
                fields.push_known(Known::PeerMetadataId, self.cache.own.id.as_bytes());
            }
        } else {
            exchange.destination = peer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> Rc<PeerCache> {
        let node = Node {
            id: "sidecar~10.0.0.1~cart.shop~shop".to_owned(),
            metadata: serde_json::json!({"WORKLOAD_NAME": "cart", "NAMESPACE": "shop", "CLUSTER_ID": "c1"}),
            ..Node::default()
        };
        Rc::new(PeerCache::new(&node, &Stats::new()))
    }

    #[test]
    fn two_sidecars_meet() {
        let outbound = PeerMetadata {
            cache: cache(),
            inbound: false,
        };
        let inbound = PeerMetadata {
            cache: cache(),
            inbound: true,
        };
        let mut exchange = Exchange::new(1, None);
        exchange
            .request
            .fields
            .push_known(Known::PeerMetadata, b"forged by the application");
        outbound.on_request(&mut exchange);
        assert!(exchange.request.fields.has_known(Known::PeerMetadataId));
        inbound.on_request(&mut exchange);
        assert!(
            !exchange.request.fields.has_known(Known::PeerMetadata),
            "the application does not see it"
        );
        assert_eq!(exchange.source.as_ref().map(|p| p.workload.as_str()), Some("cart"));
        inbound.on_response(&mut exchange);
        assert!(exchange.response.fields.has_known(Known::PeerMetadata));
        outbound.on_response(&mut exchange);
        assert!(!exchange.response.fields.has_known(Known::PeerMetadata));
        assert_eq!(
            exchange.destination.as_ref().map(|p| p.namespace.as_str()),
            Some("shop")
        );
    }

    #[test]
    fn garbage_is_counted_and_dropped() {
        let cache = cache();
        let mut fields = Fields::new();
        fields.push_known(Known::PeerMetadata, b"%%%");
        assert!(cache.take(&mut fields).is_none());
        assert!(fields.is_empty());
        assert_eq!(cache.invalid.get(), 1);
    }
}
