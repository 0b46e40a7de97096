//! Metrics of TCP connections.

use std::cell::RefCell;
use std::hash::Hash;
use std::sync::Arc;

use super::{Cache, CallParties, OwnedParties, PeerMetadata, Reporter, base_labels};
use crate::{Counter, ResponseFlags, Stats};

/// One TCP connection.
#[derive(Clone, Copy, Debug)]
pub struct TcpReport<'a> {
    /// Both ends.
    pub parties: CallParties<'a>,
    /// Flags known so far.
    pub flags: ResponseFlags,
}

/// Counters of one label set. Add to them as bytes flow; cloning shares them.
#[derive(Clone, Debug)]
pub struct TcpConnectionMetrics {
    /// `istio_tcp_sent_bytes_total`: bytes from the destination to the source.
    pub sent_bytes: Counter,
    /// `istio_tcp_received_bytes_total`: bytes from the source to the destination.
    pub received_bytes: Counter,
    /// `istio_tcp_connections_opened_total`.
    pub opened: Counter,
    /// `istio_tcp_connections_closed_total`.
    pub closed: Counter,
}

struct Entry {
    parties: OwnedParties,
    flags: ResponseFlags,
    metrics: TcpConnectionMetrics,
}

/// Istio's TCP metrics in one worker.
pub struct TcpMetrics {
    stats: Stats,
    reporter: Reporter,
    local: Arc<PeerMetadata>,
    cache: RefCell<Cache<Entry>>,
}

impl TcpMetrics {
    /// Metrics reported by this proxy's side; `local` is its own workload.
    pub fn new(stats: Stats, reporter: Reporter, local: Arc<PeerMetadata>) -> Self {
        Self {
            stats,
            reporter,
            local,
            cache: RefCell::default(),
        }
    }

    /// The counters for a connection. Look them up when it opens (and again when it closes with a flag).
    pub fn connection(&self, report: &TcpReport<'_>) -> TcpConnectionMetrics {
        let mut cache = self.cache.borrow_mut();
        let hash = cache.hash(|hasher| {
            report.parties.hash_into(hasher);
            report.flags.hash(hasher);
        });
        let is = |entry: &Entry| entry.flags == report.flags && entry.parties.is(&report.parties);
        match cache.get_or_insert(hash, is, || self.entry(report)) {
            Some(entry) => entry.metrics.clone(),
            None => self.entry(report).metrics,
        }
    }

    fn entry(&self, report: &TcpReport<'_>) -> Entry {
        let flags = report.flags.to_string();
        let mut labels = base_labels(self.reporter, &self.local, &report.parties, "tcp");
        let security = labels.pop();
        labels.push(("response_flags", &flags));
        labels.extend(security);
        let counter = |name| self.stats.counter(name, &labels);
        Entry {
            parties: OwnedParties::of(&report.parties),
            flags: report.flags,
            metrics: TcpConnectionMetrics {
                sent_bytes: counter("istio_tcp_sent_bytes_total"),
                received_bytes: counter("istio_tcp_received_bytes_total"),
                opened: counter("istio_tcp_connections_opened_total"),
                closed: counter("istio_tcp_connections_closed_total"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prometheus::Gathered;

    #[test]
    fn a_connection_is_counted() {
        let stats = Stats::new();
        let metrics = TcpMetrics::new(stats.clone(), Reporter::Source, Arc::default());
        let peer = PeerMetadata::from_endpoint("redis;shop;redis;v1;c1");
        let report = TcpReport {
            parties: CallParties {
                peer: &peer,
                source_principal: None,
                destination_principal: None,
                service: "redis.shop.svc.cluster.local",
                service_name: "redis",
                service_namespace: "shop",
                mutual_tls: true,
            },
            flags: ResponseFlags::NONE,
        };
        let connection = metrics.connection(&report);
        connection.opened.inc();
        connection.sent_bytes.add(10);
        metrics.connection(&report).closed.inc();
        let text = Gathered::read(&[stats.reader()], |_| true).prometheus(true);
        for (name, value) in [("connections_opened", 1), ("connections_closed", 1), ("sent_bytes", 10)] {
            let line = text
                .lines()
                .find(|l| l.starts_with(&format!("istio_tcp_{name}_total{{")))
                .expect(name);
            assert!(line.ends_with(&format!("}} {value}")), "{line}");
            assert!(
                line.contains("request_protocol=\"tcp\",response_flags=\"-\",connection_security_policy=\"unknown\"")
            );
        }
    }
}
