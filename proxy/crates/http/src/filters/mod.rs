//! HTTP filters, in the order configured. Adding one: a file here, a variant and its lines in this file, a variant of
//! `heddle_config::snapshot::HttpFilter`.

mod istio_stats;
pub(crate) mod peer_metadata;
mod rbac;

use heddle_config::snapshot::{HttpFilter, TrafficDirection};
use heddle_net::ConnectionInfo;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::hcm::Exchange;
use crate::worker::HttpWorker;

/// What a filter decides about a request.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Go on.
    Continue,
    /// Answer with this.
    Refuse(Failure),
}

/// A configured filter with its per-worker state.
pub(crate) enum Filter {
    /// `envoy.filters.http.rbac`.
    Rbac(rbac::Rbac),
    /// `istio.stats`.
    IstioStats(istio_stats::IstioStats),
    /// `istio.metadata_exchange`.
    PeerMetadata(peer_metadata::PeerMetadata),
}

impl Filter {
    /// The list of filters.
    pub(crate) fn new(config: &HttpFilter, worker: &HttpWorker, direction: TrafficDirection) -> Self {
        match config {
            HttpFilter::Rbac(policies) => Self::Rbac(rbac::Rbac::new(policies, worker)),
            HttpFilter::IstioStats => Self::IstioStats(istio_stats::IstioStats::new(worker, direction)),
            HttpFilter::PeerMetadata => Self::PeerMetadata(peer_metadata::PeerMetadata::new(worker, direction)),
        }
    }

    /// Sees, and may change or refuse, the request head.
    pub(crate) fn on_request(&self, exchange: &mut Exchange, connection: &ConnectionInfo) -> Verdict {
        match self {
            Self::Rbac(filter) => filter.on_request(exchange, connection),
            Self::IstioStats(_) => Verdict::Continue,
            Self::PeerMetadata(filter) => filter.on_request(exchange),
        }
    }

    /// Sees, and may change, the response head. Called in reverse order.
    pub(crate) fn on_response(&self, exchange: &mut Exchange, _connection: &ConnectionInfo) {
        match self {
            Self::Rbac(_) | Self::IstioStats(_) => {}
            Self::PeerMetadata(filter) => filter.on_response(exchange),
        }
    }

    /// The request is over.
    pub(crate) fn on_end(&self, exchange: &Exchange, connection: &ConnectionInfo, now: Instant) {
        match self {
            Self::Rbac(_) | Self::PeerMetadata(_) => {}
            Self::IstioStats(filter) => filter.on_end(exchange, connection, now),
        }
    }
}
