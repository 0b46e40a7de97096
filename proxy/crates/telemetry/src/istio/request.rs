//! Metrics of HTTP and gRPC requests.

use std::cell::RefCell;
use std::hash::Hash;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::{Cache, CallParties, OwnedParties, PeerMetadata, Reporter, base_labels};
use crate::{Counter, Histogram, ResponseFlags, Stats};

/// What is told apart of requests.
#[derive(Clone, Copy, Debug)]
pub struct RequestReport<'a> {
    /// Both ends.
    pub parties: CallParties<'a>,
    /// Whether it was gRPC (by its content type).
    pub grpc: bool,
    /// Status sent to the caller; zero when none was.
    pub response_code: u16,
    /// gRPC status, for gRPC.
    pub grpc_status: Option<u16>,
    /// Flags.
    pub flags: ResponseFlags,
}

/// The metrics of one label set.
#[derive(Debug)]
pub struct RequestSeries {
    requests: Counter,
    duration: Histogram,
    request_bytes: Histogram,
    response_bytes: Histogram,
}

impl RequestSeries {
    /// Counts a finished request: how long it took from its first byte to the last of the answer, and the bytes of both
    /// bodies.
    pub fn record(&self, duration: Duration, request_bytes: u64, response_bytes: u64) {
        self.requests.inc();
        self.duration.record(duration.as_secs_f64() * 1000.0);
        self.request_bytes.record(request_bytes as f64);
        self.response_bytes.record(response_bytes as f64);
    }
}

struct Entry {
    parties: OwnedParties,
    grpc: bool,
    response_code: u16,
    grpc_status: Option<u16>,
    flags: ResponseFlags,
    series: Rc<RequestSeries>,
}

/// `istio_requests_total` and its companions, in one worker.
pub struct RequestMetrics {
    stats: Stats,
    reporter: Reporter,
    local: Arc<PeerMetadata>,
    cache: RefCell<Cache<Entry>>,
}

impl RequestMetrics {
    /// Metrics reported by this proxy's side; `local` is its own workload.
    pub fn new(stats: Stats, reporter: Reporter, local: Arc<PeerMetadata>) -> Self {
        Self {
            stats,
            reporter,
            local,
            cache: RefCell::default(),
        }
    }

    /// What such requests are counted in. Costs one hash of the labels' parts, about a thousand instructions; a label set
    /// seen before allocates nothing. It can be kept.
    pub fn series(&self, report: &RequestReport<'_>) -> Rc<RequestSeries> {
        let mut cache = self.cache.borrow_mut();
        let hash = cache.hash(|hasher| {
            report.parties.hash_into(hasher);
            (report.grpc, report.response_code, report.grpc_status, report.flags).hash(hasher);
        });
        let is = |entry: &Entry| {
            entry.response_code == report.response_code
                && entry.grpc == report.grpc
                && entry.grpc_status == report.grpc_status
                && entry.flags == report.flags
                && entry.parties.is(&report.parties)
        };
        match cache.get_or_insert(hash, is, || self.entry(report)) {
            Some(entry) => Rc::clone(&entry.series),
            None => self.entry(report).series,
        }
    }

    fn entry(&self, report: &RequestReport<'_>) -> Entry {
        let protocol = if report.grpc { "grpc" } else { "http" };
        let code = report.response_code.to_string();
        let grpc_status = report.grpc_status.map(|s| s.to_string()).unwrap_or_default();
        let flags = report.flags.to_string();
        let mut labels = base_labels(self.reporter, &self.local, &report.parties, protocol);
        let security = labels.pop();
        labels.push(("response_code", &code));
        labels.push(("grpc_response_status", &grpc_status));
        labels.push(("response_flags", &flags));
        labels.extend(security);
        Entry {
            parties: OwnedParties::of(&report.parties),
            grpc: report.grpc,
            response_code: report.response_code,
            grpc_status: report.grpc_status,
            flags: report.flags,
            series: Rc::new(RequestSeries {
                requests: self.stats.counter("istio_requests_total", &labels),
                duration: self.stats.histogram("istio_request_duration_milliseconds", &labels),
                request_bytes: self.stats.histogram("istio_request_bytes", &labels),
                response_bytes: self.stats.histogram("istio_response_bytes", &labels),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ResponseFlag;
    use crate::prometheus::Gathered;

    fn report<'a>(peer: &'a PeerMetadata, code: u16) -> RequestReport<'a> {
        RequestReport {
            parties: CallParties {
                peer,
                source_principal: Some("spiffe://td/ns/shop/sa/front"),
                destination_principal: None,
                service: "cart.shop.svc.cluster.local",
                service_name: "cart",
                service_namespace: "shop",
                mutual_tls: true,
            },
            grpc: false,
            response_code: code,
            grpc_status: None,
            flags: ResponseFlags::NONE,
        }
    }

    fn record(metrics: &RequestMetrics, report: &RequestReport<'_>) {
        metrics.series(report).record(Duration::from_millis(7), 100, 2_000);
    }

    #[test]
    fn labels_and_values() {
        let stats = Stats::new();
        let local = Arc::new(PeerMetadata::from_endpoint("cart-v1;shop;cart;v1;c1"));
        let metrics = RequestMetrics::new(stats.clone(), Reporter::Destination, local);
        let peer = PeerMetadata::from_endpoint("front;shop;front;v2;c1");
        record(&metrics, &report(&peer, 200));
        record(&metrics, &report(&peer, 200));
        let mut failed = report(&peer, 503);
        failed.flags = ResponseFlag::UpstreamConnectionFailure.into();
        record(&metrics, &failed);
        let text = Gathered::read(&[stats.reader()], |_| true).prometheus(true);
        let expected = concat!(
            "istio_requests_total{reporter=\"destination\",source_workload=\"front\",",
            "source_canonical_service=\"front\",source_canonical_revision=\"v2\",source_workload_namespace=\"shop\",",
            "source_principal=\"spiffe://td/ns/shop/sa/front\",source_app=\"front\",source_version=\"v2\",",
            "source_cluster=\"c1\",destination_workload=\"cart-v1\",destination_workload_namespace=\"shop\",",
            "destination_principal=\"unknown\",destination_app=\"cart\",destination_version=\"v1\",",
            "destination_service=\"cart.shop.svc.cluster.local\",destination_canonical_service=\"cart\",",
            "destination_canonical_revision=\"v1\",destination_service_name=\"cart\",",
            "destination_service_namespace=\"shop\",destination_cluster=\"c1\",request_protocol=\"http\",",
            "response_code=\"200\",grpc_response_status=\"\",response_flags=\"-\",",
            "connection_security_policy=\"mutual_tls\"} 2\n"
        );
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains("response_code=\"503\",grpc_response_status=\"\",response_flags=\"UF\""),
            "{text}"
        );
        assert!(text.contains("istio_request_duration_milliseconds_sum"), "{text}");
        assert!(text.contains("istio_response_bytes_count"), "{text}");
    }

    #[test]
    fn the_cache_is_bounded() {
        let metrics = RequestMetrics::new(Stats::new(), Reporter::Source, Arc::default());
        for i in 0..(super::super::MAX_CACHED + 10) {
            let peer = PeerMetadata {
                workload: format!("w{i}"),
                ..PeerMetadata::default()
            };
            record(&metrics, &report(&peer, 200));
        }
        assert!(metrics.cache.borrow().count <= super::super::MAX_CACHED);
    }
}
