//! Counters of the codec, with Envoy's names under `http2.` of a listener and of a cluster.

use heddle_telemetry::{Counter, Stats};

use super::limits::Flood;

macro_rules! codec_stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Handles to the counters of a connection manager or of a cluster.
        #[derive(Clone, Debug)]
        pub(crate) struct CodecStats {
            $($(#[$doc])* pub(crate) $name: Counter,)*
        }

        impl CodecStats {
            /// Those of a connection manager: `envoy_http2_*`.
            pub(crate) fn downstream(stats: &Stats, labels: &[(&'static str, &str)]) -> Self {
                Self {
                    $($name: stats.counter(concat!("envoy_http2_", stringify!($name)), labels),)*
                }
            }

            /// Those of a cluster: `envoy_cluster_http2_*`.
            pub(crate) fn upstream(stats: &Stats, cluster: &str) -> Self {
                let labels = [("cluster_name", cluster)];
                Self {
                    $($name: stats.counter(concat!("envoy_cluster_http2_", stringify!($name)), &labels),)*
                }
            }
        }
    };
}

codec_stats! {
    /// RST_STREAM received.
    rx_reset,
    /// RST_STREAM sent.
    tx_reset,
    /// Messages that break the protocol.
    rx_messaging_error,
    /// Heads and trailers above the limits.
    header_overflow,
    /// Trailers received.
    trailers,
    /// GOAWAY sent.
    goaway_sent,
    /// Streams refused because too many were open.
    stream_refused_errors,
    /// Connections closed because PING was not answered.
    keepalive_timeout,
    /// Connections closed for frames without payload.
    inbound_empty_frames_flood,
    /// Connections closed for PRIORITY.
    inbound_priority_frames_flood,
    /// Connections closed for WINDOW_UPDATE.
    inbound_window_update_frames_flood,
    /// Connections closed for PING, SETTINGS, or frames on closed streams.
    inbound_control_frames_flood,
    /// Connections closed because too many frames waited to be sent.
    outbound_flood,
    /// The same of PING, SETTINGS, RST_STREAM and WINDOW_UPDATE.
    outbound_control_flood,
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
