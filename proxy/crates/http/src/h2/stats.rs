//! Counters of the codec, with Envoy's names under `http2.` of a listener and of a cluster;
//! `inbound_control_frames_flood` and
//! `held_bytes_overflow` are ours in the same form.

use heddle_telemetry::{Counter, Stats};

use super::limits::Flood;

macro_rules! codec_stats {
    ($($(#[$doc:meta])* $name:ident = $downstream:literal, $upstream:literal;)*) => {
        /// Handles to the counters of a connection manager or of a cluster.
        #[derive(Clone, Debug)]
        pub(crate) struct CodecStats {
            $($(#[$doc])* pub(crate) $name: Counter,)*
        }

        impl CodecStats {
            /// Those of a connection manager.
            pub(crate) fn downstream(stats: &Stats, labels: &[(&'static str, &str)]) -> Self {
                Self {
                    $($name: stats.counter($downstream, labels),)*
                }
            }

            /// Those of a cluster.
            pub(crate) fn upstream(stats: &Stats, cluster: &str) -> Self {
                let labels = [("cluster_name", cluster)];
                Self {
                    $($name: stats.counter($upstream, &labels),)*
                }
            }
        }
    };
}

codec_stats! {
    /// RST_STREAM received.
    rx_reset = "envoy_http2_rx_reset", "envoy_cluster_http2_rx_reset";
    /// RST_STREAM sent.
    tx_reset = "envoy_http2_tx_reset", "envoy_cluster_http2_tx_reset";
    /// Messages that break the protocol.
    rx_messaging_error = "envoy_http2_rx_messaging_error", "envoy_cluster_http2_rx_messaging_error";
    /// Heads and trailers above the limits.
    header_overflow = "envoy_http2_header_overflow", "envoy_cluster_http2_header_overflow";
    /// Trailers received.
    trailers = "envoy_http2_trailers", "envoy_cluster_http2_trailers";
    /// GOAWAY sent.
    goaway_sent = "envoy_http2_goaway_sent", "envoy_cluster_http2_goaway_sent";
    /// Streams refused because too many were open.
    stream_refused_errors = "envoy_http2_stream_refused_errors", "envoy_cluster_http2_stream_refused_errors";
    /// Connections closed because PING was not answered.
    keepalive_timeout = "envoy_http2_keepalive_timeout", "envoy_cluster_http2_keepalive_timeout";
    /// Connections closed for frames without payload.
    inbound_empty_frames_flood = "envoy_http2_inbound_empty_frames_flood", "envoy_cluster_http2_inbound_empty_frames_flood";
    /// Connections closed for PRIORITY.
    inbound_priority_frames_flood = "envoy_http2_inbound_priority_frames_flood", "envoy_cluster_http2_inbound_priority_frames_flood";
    /// Connections closed for WINDOW_UPDATE.
    inbound_window_update_frames_flood = "envoy_http2_inbound_window_update_frames_flood", "envoy_cluster_http2_inbound_window_update_frames_flood";
    /// Connections closed for PING, SETTINGS, or frames on closed streams.
    inbound_control_frames_flood = "envoy_http2_inbound_control_frames_flood", "envoy_cluster_http2_inbound_control_frames_flood";
    /// Streams reset because all connections of the worker held too much that nobody took, and this one most of its own.
    held_bytes_overflow = "envoy_http2_held_bytes_overflow", "envoy_cluster_http2_held_bytes_overflow";
    /// Connections closed because too many frames waited to be sent.
    outbound_flood = "envoy_http2_outbound_flood", "envoy_cluster_http2_outbound_flood";
    /// The same of PING, SETTINGS, RST_STREAM and WINDOW_UPDATE.
    outbound_control_flood = "envoy_http2_outbound_control_flood", "envoy_cluster_http2_outbound_control_flood";
}

impl CodecStats {
    /// Counts a bound that was crossed.
    pub(crate) fn flood(&self, flood: Flood) {
        match flood {
            Flood::EmptyFrames => &self.inbound_empty_frames_flood,
            Flood::Priority => &self.inbound_priority_frames_flood,
            Flood::WindowUpdate => &self.inbound_window_update_frames_flood,
            Flood::Control => &self.inbound_control_frames_flood,
            Flood::Outbound => &self.outbound_flood,
            Flood::OutboundControl => &self.outbound_control_flood,
        }
        .inc();
    }
}
