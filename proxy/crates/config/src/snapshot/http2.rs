//! HTTP/2 of listeners and clusters.

use std::time::Duration;

/// `envoy.config.core.v3.Http2ProtocolOptions`, of a connection manager or of a cluster.
///
/// The bounds on frames hold for clients and for upstreams alike. The defaults are Envoy 1.40's but for one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Http2Options {
    /// `max_concurrent_streams` of one connection: those that a client may open, or that go to an upstream at once.
    /// From 1, default 1024.
    pub max_concurrent_streams: u32,
    /// `initial_stream_window_size` in bytes, from 65 535, default 16 MiB: what a window may grow to. It begins at
    /// 256 KiB (64 KiB towards an upstream) and grows as long as its reader waits for it.
    pub stream_window: u32,
    /// `initial_connection_window_size` in bytes, from 65 535, default 24 MiB: what a client's window may grow to. It
    /// begins at 1 MiB; what all windows of a worker grow by is bounded by 64 MiB. Towards an upstream it is the window
    /// from the beginning, given back as bytes come.
    pub connection_window: u32,
    /// `hpack_table_size` in bytes, at most [`Self::MAX_HPACK_TABLE_SIZE`], default 4096; zero turns the dynamic
    /// table off.
    pub hpack_table_size: u32,
    /// `max_outbound_frames`: frames of all kinds that wait to be written, from 1, default 10 000.
    pub max_outbound_frames: u32,
    /// `max_outbound_control_frames`: of these PING, SETTINGS, RST_STREAM and WINDOW_UPDATE, from 1, default 1000.
    pub max_outbound_control_frames: u32,
    /// `max_consecutive_inbound_frames_with_empty_payload`: HEADERS, CONTINUATION and DATA in a row that hold nothing
    /// and end nothing, default 1.
    pub max_consecutive_inbound_frames_with_empty_payload: u32,
    /// `max_inbound_priority_frames_per_stream`: times one more than the streams opened, default 100.
    pub max_inbound_priority_frames_per_stream: u32,
    /// `max_inbound_window_update_frames_per_data_frame_sent`: `5 + 2 * (streams + this * DATA frames sent)` are
    /// allowed, from 1, default 10.
    pub max_inbound_window_update_frames_per_data_frame_sent: u32,
    /// `override_stream_error_on_invalid_http_message`: a malformed message ends its stream only (RFC 9113 section
    /// 8.1.1), not the connection. Default true, where Envoy's is false: behind a proxy a connection carries the requests
    /// of many, and one of them must not end the others'.
    pub stream_error_on_invalid_http_messaging: bool,
    /// `allow_connect`: extended CONNECT (RFC 8441), so that upgrades such as WebSocket's pass over HTTP/2. A listener
    /// offers it to its clients; towards an upstream it is used where the upstream offers it. Default false.
    pub allow_connect: bool,
    /// `connection_keepalive`; none by default.
    pub keepalive: Option<H2Keepalive>,
}

impl Http2Options {
    /// The largest `hpack_table_size` accepted, in bytes. Envoy takes up to 4 GiB, which each peer could fill for each
    /// of its connections.
    pub const MAX_HPACK_TABLE_SIZE: u32 = 64 * 1024;
}

impl Default for Http2Options {
    fn default() -> Self {
        Self {
            max_concurrent_streams: 1024,
            stream_window: 16 << 20,
            connection_window: 24 << 20,
            hpack_table_size: 4096,
            max_outbound_frames: 10_000,
            max_outbound_control_frames: 1000,
            max_consecutive_inbound_frames_with_empty_payload: 1,
            max_inbound_priority_frames_per_stream: 100,
            max_inbound_window_update_frames_per_data_frame_sent: 10,
            stream_error_on_invalid_http_messaging: true,
            allow_connect: false,
            keepalive: None,
        }
    }
}

/// `http2_protocol_options.connection_keepalive`: PING frames that tell whether the peer is still there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct H2Keepalive {
    /// `interval` between pings.
    pub interval: Duration,
    /// `timeout`: how long the answer, or any other frame, may take.
    pub timeout: Duration,
    /// `interval_jitter`: percent of the interval added at random, default 15.
    pub jitter: f64,
}
