//! A cluster's metrics in one worker, with Envoy's names.

use heddle_telemetry::{Counter, Gauge, Histogram, Owner, Stats};

macro_rules! cluster_stats {
    (
        counters { $($(#[$cdoc:meta])* $counter:ident = $cname:literal;)* }
        gauges { $($(#[$gdoc:meta])* $gauge:ident = $gname:literal;)* }
    ) => {
        /// Handles to a cluster's metrics (`envoy_cluster_*{cluster_name="…"}`).
        #[derive(Debug)]
        pub struct ClusterStats {
            $($(#[$cdoc])* pub $counter: Counter,)*
            $($(#[$gdoc])* pub $gauge: Gauge,)*
            /// Milliseconds from the request to the end of the upstream's answer.
            pub upstream_rq_time: Histogram,
            /// Milliseconds to connect, TLS included.
            pub upstream_cx_connect_ms: Histogram,
            classes: [Counter; 5],
            stats: Stats,
            name: String,
        }

        impl ClusterStats {
            /// Looks up all metrics of the cluster; `name` is its `stat_name`.
            pub fn new(stats: &Stats, name: &str) -> Self {
                let labels = [("cluster_name", name)];
                Self {
                    $($counter: stats.counter($cname, &labels),)*
                    $($gauge: stats.gauge($gname, &labels),)*
                    upstream_rq_time: stats.histogram("envoy_cluster_upstream_rq_time", &labels),
                    upstream_cx_connect_ms: stats.histogram("envoy_cluster_upstream_cx_connect_ms", &labels),
                    classes: ["1", "2", "3", "4", "5"].map(|class| {
                        let labels = [("response_code_class", class), ("cluster_name", name)];
                        stats.counter("envoy_cluster_upstream_rq_xx", &labels)
                    }),
                    stats: stats.clone(),
                    name: name.to_owned(),
                }
            }
        }
    };
}

cluster_stats! {
    counters {
        /// Connections opened.
        upstream_cx_total = "envoy_cluster_upstream_cx_total";
        /// Connections that could not be opened.
        upstream_cx_connect_fail = "envoy_cluster_upstream_cx_connect_fail";
        /// Connections that took longer than `connect_timeout`.
        upstream_cx_connect_timeout = "envoy_cluster_upstream_cx_connect_timeout";
        /// Connections refused by the circuit breaker.
        upstream_cx_overflow = "envoy_cluster_upstream_cx_overflow";
        /// Connections closed.
        upstream_cx_destroy = "envoy_cluster_upstream_cx_destroy";
        /// HTTP/1 connections.
        upstream_cx_http1_total = "envoy_cluster_upstream_cx_http1_total";
        /// HTTP/2 connections.
        upstream_cx_http2_total = "envoy_cluster_upstream_cx_http2_total";
        /// Connections closed by `idle_timeout`.
        upstream_cx_idle_timeout = "envoy_cluster_upstream_cx_idle_timeout";
        /// Connections closed by `max_requests_per_connection`.
        upstream_cx_max_requests = "envoy_cluster_upstream_cx_max_requests";
        /// Connections on which the upstream broke the protocol.
        upstream_cx_protocol_error = "envoy_cluster_upstream_cx_protocol_error";
        /// Connections given up because their peer acknowledged nothing for the patience of `tcp_keepalive`.
        upstream_cx_unresponsive = "heddle_cluster_upstream_cx_unresponsive";
        /// Bytes received.
        upstream_cx_rx_bytes_total = "envoy_cluster_upstream_cx_rx_bytes_total";
        /// Bytes sent.
        upstream_cx_tx_bytes_total = "envoy_cluster_upstream_cx_tx_bytes_total";
        /// TLS handshakes that failed because the peer's certificate was not accepted.
        ssl_fail_verify = "envoy_cluster_ssl_fail_verify";
        /// TLS handshakes that failed otherwise.
        ssl_connection_error = "envoy_cluster_ssl_connection_error";
        /// TLS handshakes that succeeded.
        ssl_handshake = "envoy_cluster_ssl_handshake";
        /// Requests.
        upstream_rq_total = "envoy_cluster_upstream_rq_total";
        /// Answers received.
        upstream_rq_completed = "envoy_cluster_upstream_rq_completed";
        /// Requests that waited for a connection.
        upstream_rq_pending_total = "envoy_cluster_upstream_rq_pending_total";
        /// Requests refused by a circuit breaker.
        upstream_rq_pending_overflow = "envoy_cluster_upstream_rq_pending_overflow";
        /// Requests that failed because their connection could not be opened.
        upstream_rq_pending_failure_eject = "envoy_cluster_upstream_rq_pending_failure_eject";
        /// Requests whose timeout passed.
        upstream_rq_timeout = "envoy_cluster_upstream_rq_timeout";
        /// Tries whose per-try timeout passed.
        upstream_rq_per_try_timeout = "envoy_cluster_upstream_rq_per_try_timeout";
        /// Requests sent on another connection without a retry policy: not touched by the upstream, or safe ones on
        /// a kept connection that it had closed.
        upstream_rq_moved = "heddle_cluster_upstream_rq_moved";
        /// Streams reset by the upstream.
        upstream_rq_rx_reset = "envoy_cluster_upstream_rq_rx_reset";
        /// Streams reset by this proxy.
        upstream_rq_tx_reset = "envoy_cluster_upstream_rq_tx_reset";
        /// Retries.
        upstream_rq_retry = "envoy_cluster_upstream_rq_retry";
        /// Retries that succeeded.
        upstream_rq_retry_success = "envoy_cluster_upstream_rq_retry_success";
        /// Retries refused by the circuit breaker.
        upstream_rq_retry_overflow = "envoy_cluster_upstream_rq_retry_overflow";
        /// Retries not made because their number was used up.
        upstream_rq_retry_limit_exceeded = "envoy_cluster_upstream_rq_retry_limit_exceeded";
        /// Requests with a retry policy whose bodies were larger than what is kept for another try.
        retry_or_shadow_abandoned = "envoy_cluster_retry_or_shadow_abandoned";
        /// Picks that found no host.
        upstream_cx_none_healthy = "envoy_cluster_upstream_cx_none_healthy";
        /// Picks made in panic.
        lb_healthy_panic = "envoy_cluster_lb_healthy_panic";
        /// Hosts refused or evicted because an ORIGINAL_DST cluster held too many.
        original_dst_host_overflow = "envoy_cluster_original_dst_host_overflow";
    }
    gauges {
        /// Open connections.
        upstream_cx_active = "envoy_cluster_upstream_cx_active";
        /// Requests under way.
        upstream_rq_active = "envoy_cluster_upstream_rq_active";
        /// Requests that wait for a connection.
        upstream_rq_pending_active = "envoy_cluster_upstream_rq_pending_active";
    }
}

impl ClusterStats {
    /// Counts an answer of this status in `upstream_rq_xx` and `upstream_rq_completed`.
    pub fn answered(&self, status: u16) {
        self.upstream_rq_completed.inc();
        if let Some(class) = (status / 100)
            .checked_sub(1)
            .and_then(|i| self.classes.get(usize::from(i)))
        {
            class.inc();
        }
    }

    /// Where the metrics are registered, and the value of their label `cluster_name`, which others of the cluster's
    /// metrics must have too to go with it.
    pub fn registry(&self) -> (&Stats, &str) {
        (&self.stats, &self.name)
    }

    /// Takes the metrics out of the registry, when the cluster is gone.
    pub(crate) fn remove(&self) {
        self.stats.remove(Owner::Cluster, &self.name);
    }
}
