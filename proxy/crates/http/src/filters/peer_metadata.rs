//! `istio.metadata_exchange`: sidecars tell each other which workload they serve, in the headers
//! `x-envoy-peer-metadata` and `x-envoy-peer-metadata-id`. The application never sees them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use heddle_config::filters::peer_metadata::PeerMetadata as Config;
use heddle_config::snapshot::{Node, TrafficDirection};
use heddle_telemetry::istio::{MAX_HEADER, PeerMetadata as Peer};
use heddle_telemetry::{Counter, Stats};

use super::{Call, HttpFilter, Setup, Verdict};
use crate::hcm::Exchange;
use crate::head::{Fields, Known, KnownSet};

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
        fields.remove_set(KnownSet::of(&[Known::PeerMetadata, Known::PeerMetadataId]));
        peer
    }
}

/// The filter.
pub(crate) struct PeerMetadata {
    cache: Rc<PeerCache>,
    inbound: bool,
}

impl HttpFilter for PeerMetadata {
    type Config = Config;
    type Route = Infallible;
    /// Whether the client takes part in the exchange.
    type State = bool;

    fn new(_: &Arc<Config>, setup: &Setup<'_>) -> Self {
        Self {
            cache: Rc::clone(&setup.worker.peers),
            inbound: setup.direction == TrafficDirection::Inbound,
        }
    }

    fn on_request(&self, call: &mut Call<'_>, asked: &mut bool) -> Verdict {
        *asked = self.introduce(call.exchange);
        Verdict::Continue
    }

    fn on_response(&self, call: &mut Call<'_>, asked: &mut bool) {
        self.answer(call.exchange, *asked);
    }
}

impl PeerMetadata {
    /// Inbound: learns who calls. Outbound: says who calls, in place of whatever the application wrote. Returns whether
    /// the client takes part in the exchange.
    fn introduce(&self, exchange: &mut Exchange) -> bool {
        let fields = &mut exchange.request.fields;
        let asked = fields.has_known(Known::PeerMetadataId) || fields.has_known(Known::PeerMetadata);
        let peer = self.cache.take(fields);
        if self.inbound {
            exchange.source = peer;
        } else {
            fields.push_known(Known::PeerMetadata, self.cache.own.metadata.as_bytes());
            fields.push_known(Known::PeerMetadataId, self.cache.own.id.as_bytes());
        }
        asked
    }

    /// Inbound: answers a caller that said who it is. Outbound: learns who answered.
    fn answer(&self, exchange: &mut Exchange, asked: bool) {
        let fields = &mut exchange.response.fields;
        let peer = self.cache.take(fields);
        if !self.inbound {
            exchange.destination = peer;
        } else if asked {
            fields.push_known(Known::PeerMetadata, self.cache.own.metadata.as_bytes());
            fields.push_known(Known::PeerMetadataId, self.cache.own.id.as_bytes());
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
        let mut exchange = Exchange::take(1, None, tokio::time::Instant::now());
        exchange
            .request
            .fields
            .push_known(Known::PeerMetadata, b"forged by the application");
        outbound.introduce(&mut exchange);
        assert!(exchange.request.fields.has_known(Known::PeerMetadataId));
        let asked = inbound.introduce(&mut exchange);
        assert!(
            !exchange.request.fields.has_known(Known::PeerMetadata),
            "the application does not see it"
        );
        assert_eq!(exchange.source.as_ref().map(|p| p.workload.as_str()), Some("cart"));
        inbound.answer(&mut exchange, asked);
        assert!(exchange.response.fields.has_known(Known::PeerMetadata));
        outbound.answer(&mut exchange, false);
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
