//! HTTP/2 of listeners and clusters.

use std::time::Duration;

use super::{Result, duration, pb, positive, required};
use crate::path::Path;
use crate::snapshot::{H2Keepalive, Http2Options};

/// `Http2ProtocolOptions`; what is not set is as in [`Http2Options::default`].
///
/// # Errors
/// An `hpack_table_size` above the bound; a `connection_keepalive` without a timeout, or with a jitter that is no
/// percentage.
pub(super) fn options(config: &pb::core::Http2ProtocolOptions, path: &Path<'_>) -> Result<Http2Options> {
    let default = Http2Options::default();
    let hpack_table_size = config.hpack_table_size.unwrap_or(default.hpack_table_size);
    if hpack_table_size > Http2Options::MAX_HPACK_TABLE_SIZE {
        return Err(path.field("hpack_table_size").unsupported(
            hpack_table_size,
            &format!("set at most {}", Http2Options::MAX_HPACK_TABLE_SIZE),
        ));
    }
    Ok(Http2Options {
        max_concurrent_streams: config.max_concurrent_streams.unwrap_or(default.max_concurrent_streams),
        stream_window: config.initial_stream_window_size.unwrap_or(default.stream_window),
        connection_window: config
            .initial_connection_window_size
            .unwrap_or(default.connection_window),
        hpack_table_size,
        max_outbound_frames: config.max_outbound_frames.unwrap_or(default.max_outbound_frames),
        max_outbound_control_frames: config
            .max_outbound_control_frames
            .unwrap_or(default.max_outbound_control_frames),
        max_consecutive_inbound_frames_with_empty_payload: config
            .max_consecutive_inbound_frames_with_empty_payload
            .unwrap_or(default.max_consecutive_inbound_frames_with_empty_payload),
        max_inbound_priority_frames_per_stream: config
            .max_inbound_priority_frames_per_stream
            .unwrap_or(default.max_inbound_priority_frames_per_stream),
        max_inbound_window_update_frames_per_data_frame_sent: config
            .max_inbound_window_update_frames_per_data_frame_sent
            .unwrap_or(default.max_inbound_window_update_frames_per_data_frame_sent),
        stream_error_on_invalid_http_messaging: config
            .override_stream_error_on_invalid_http_message
            .unwrap_or(default.stream_error_on_invalid_http_messaging),
        allow_connect: config.allow_connect,
        keepalive: match &config.connection_keepalive {
            Some(keepalive) => keep_alive(keepalive, &path.field("connection_keepalive"))?,
            None => None,
        },
    })
}

/// `connection_keepalive`. None without an interval: then there is nothing to send.
fn keep_alive(config: &pb::core::KeepaliveSettings, path: &Path<'_>) -> Result<Option<H2Keepalive>> {
    let here = path.field("timeout");
    let timeout = positive(Some(required(config.timeout.as_ref(), &here)?), Duration::ZERO, &here)?;
    let Some(interval) = duration(config.interval.as_ref(), &path.field("interval"))?.filter(|i| !i.is_zero()) else {
        return Ok(None);
    };
    let here = path.field("interval_jitter");
    let jitter = config.interval_jitter.as_ref().map_or(15.0, |p| p.value);
    if !(0.0..=100.0).contains(&jitter) {
        return Err(here.error(format!("{jitter} is not a percentage")));
    }
    Ok(Some(H2Keepalive {
        interval,
        timeout,
        jitter,
    }))
}
