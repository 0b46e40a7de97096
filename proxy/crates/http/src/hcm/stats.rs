//! Counters of one connection manager.

use heddle_telemetry::{Counter, Gauge, Histogram, Stats};

use crate::h1::H1Error;
use crate::h2::CodecStats;

/// Statistics under Envoy's names, label `http_conn_manager_prefix`.
#[derive(Debug)]
pub(crate) struct HcmStats {
    registry: Stats,
    prefix: String,
    pub(crate) rq_total: Counter,
    pub(crate) rq_http1: Counter,
    pub(crate) rq_http2: Counter,
    pub(crate) rq_active: Gauge,
    pub(crate) rq_class: [Counter; 5],
    pub(crate) rq_time: Histogram,
    pub(crate) rq_timeout: Counter,
    pub(crate) rq_header_timeout: Counter,
    pub(crate) rq_idle_timeout: Counter,
    /// Requests whose body is longer than a filter keeps.
    pub(crate) rq_too_large: Counter,
    pub(crate) rq_rx_reset: Counter,
    pub(crate) rq_tx_reset: Counter,
    /// Connections that take no more streams because clients reset too many early.
    pub(crate) rq_too_many_premature_resets: Counter,
    pub(crate) rq_completed: Counter,
    /// Requests refused by the overload action `stop_accepting_requests`.
    pub(crate) rq_overload_close: Counter,
    /// Requests refused because a filter waits for their body, of which the worker keeps too much.
    pub(crate) rq_no_room: Counter,
    pub(crate) no_route: Counter,
    pub(crate) no_cluster: Counter,
    pub(crate) cx_total: Counter,
    pub(crate) cx_active: Gauge,
    pub(crate) cx_http1_total: Counter,
    pub(crate) cx_http1_active: Gauge,
    pub(crate) cx_http2_total: Counter,
    pub(crate) cx_http2_active: Gauge,
    pub(crate) http2: CodecStats,
    /// Connections closed after an answer by the overload action `disable_http_keepalive`.
    pub(crate) cx_overload_disable_keepalive: Counter,
    pub(crate) cx_drain_close: Counter,
    pub(crate) cx_idle_timeout: Counter,
    pub(crate) cx_max_duration: Counter,
    pub(crate) cx_protocol_error: Counter,
    pub(crate) cx_destroy_local: Counter,
    pub(crate) cx_destroy_remote: Counter,
    pub(crate) log_dropped: Counter,
    /// Times that a filter's metadata did not fit.
    pub(crate) metadata_overflow: Counter,
}

const PREFIX: &str = "http_conn_manager_prefix";

impl HcmStats {
    pub(crate) fn new(registry: &Stats, prefix: &str) -> Self {
        let labels = [(PREFIX, prefix)];
        let c = |name| registry.counter(name, &labels);
        let g = |name| registry.gauge(name, &labels);
        Self {
            rq_total: c("envoy_http_downstream_rq_total"),
            rq_http1: c("envoy_http_downstream_rq_http1_total"),
            rq_http2: c("envoy_http_downstream_rq_http2_total"),
            rq_active: g("envoy_http_downstream_rq_active"),
            rq_class: ["1", "2", "3", "4", "5"].map(|class| {
                registry.counter(
                    "envoy_http_downstream_rq_xx",
                    &[("response_code_class", class), (PREFIX, prefix)],
                )
            }),
            rq_time: registry.histogram("envoy_http_downstream_rq_time", &labels),
            rq_timeout: c("envoy_http_downstream_rq_timeout"),
            rq_header_timeout: c("envoy_http_downstream_rq_header_timeout"),
            rq_idle_timeout: c("envoy_http_downstream_rq_idle_timeout"),
            rq_too_large: c("envoy_http_downstream_rq_too_large"),
            rq_rx_reset: c("envoy_http_downstream_rq_rx_reset"),
            rq_tx_reset: c("envoy_http_downstream_rq_tx_reset"),
            rq_too_many_premature_resets: c("envoy_http_downstream_rq_too_many_premature_resets"),
            rq_completed: c("envoy_http_downstream_rq_completed"),
            rq_overload_close: c("envoy_http_downstream_rq_overload_close"),
            rq_no_room: c("heddle_http_downstream_rq_no_room"),
            no_route: c("envoy_http_no_route"),
            no_cluster: c("envoy_http_no_cluster"),
            cx_total: c("envoy_http_downstream_cx_total"),
            cx_active: g("envoy_http_downstream_cx_active"),
            cx_http1_total: c("envoy_http_downstream_cx_http1_total"),
            cx_http1_active: g("envoy_http_downstream_cx_http1_active"),
            cx_http2_total: c("envoy_http_downstream_cx_http2_total"),
            cx_http2_active: g("envoy_http_downstream_cx_http2_active"),
            http2: CodecStats::downstream(registry, &labels),
            cx_overload_disable_keepalive: c("envoy_http_downstream_cx_overload_disable_keepalive"),
            cx_drain_close: c("envoy_http_downstream_cx_drain_close"),
            cx_idle_timeout: c("envoy_http_downstream_cx_idle_timeout"),
            cx_max_duration: c("envoy_http_downstream_cx_max_duration_reached"),
            cx_protocol_error: c("envoy_http_downstream_cx_protocol_error"),
            cx_destroy_local: c("envoy_http_downstream_cx_destroy_local"),
            cx_destroy_remote: c("envoy_http_downstream_cx_destroy_remote"),
            log_dropped: c("heddle_access_log_dropped_total"),
            metadata_overflow: c("heddle_http_dynamic_metadata_overflow_total"),
            registry: registry.clone(),
            prefix: prefix.to_owned(),
        }
    }

    /// Counts an answer by class.
    #[inline]
    pub(crate) fn answered(&self, status: u16) {
        if let Some(counter) = self.rq_class.get(usize::from(status / 100).wrapping_sub(1)) {
            counter.inc();
        }
    }

    /// Counts a violation of HTTP/1.1 by cause. Rare by nature: the connection ends with it.
    pub(crate) fn http1_error(&self, error: H1Error) {
        self.cx_protocol_error.inc();
        self.registry
            .counter(
                "heddle_http1_protocol_error_total",
                &[("cause", error.label()), (PREFIX, self.prefix.as_str())],
            )
            .inc();
    }

    /// Counts a stream of HTTP/2 that panicked and was reset. A connection of HTTP/1 that does is its listener's to count.
    pub(crate) fn stream_panicked(&self) {
        let labels = [(PREFIX, self.prefix.as_str())];
        self.registry.counter("heddle_http2_stream_panic_total", &labels).inc();
    }

    /// Counts a violation of HTTP/2 by cause, a fixed set of words.
    pub(crate) fn http2_error(&self, cause: &'static str) {
        self.cx_protocol_error.inc();
        self.registry
            .counter(
                "heddle_http2_protocol_error_total",
                &[("cause", cause), (PREFIX, self.prefix.as_str())],
            )
            .inc();
    }
}

/// Lowers a gauge when a connection or request ends, however it ends.
#[derive(Debug)]
pub(crate) struct Active(Gauge);

impl Active {
    pub(crate) fn enter(gauge: &Gauge) -> Self {
        gauge.add(1);
        Self(gauge.clone())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}
