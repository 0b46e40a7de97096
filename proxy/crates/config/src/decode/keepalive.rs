//! Keep-alive of connections: TCP's probes and HTTP/2's pings.

use std::time::Duration;

use heddle_net::Keepalive;

use super::{Result, duration, pb, positive, required};
use crate::path::Path;
use crate::snapshot::H2Keepalive;

/// Longest time and interval that Linux accepts (`MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL`), and most probes.
const MAX_SECONDS: u32 = 32_767;
const MAX_PROBES: u32 = 127;

/// `TcpKeepalive`. None when one of its values is zero, which turns it off.
pub(super) fn tcp(config: &pb::core::TcpKeepalive, path: &Path<'_>) -> Result<Option<Keepalive>> {
    let all = [
        ("keepalive_time", config.keepalive_time, MAX_SECONDS),
        ("keepalive_interval", config.keepalive_interval, MAX_SECONDS),
        ("keepalive_probes", config.keepalive_probes, MAX_PROBES),
    ];
    for (name, value, most) in all {
        if let Some(value) = value.filter(|v| *v > most) {
            return Err(path
                .field(name)
                .error(format!("{value} is above {most}, the kernel's bound")));
        }
    }
    if all.iter().any(|(_, value, _)| *value == Some(0)) {
        return Ok(None);
    }
    let seconds = |value: Option<u32>| value.map(|s| Duration::from_secs(u64::from(s)));
    Ok(Some(Keepalive {
        time: seconds(config.keepalive_time),
        interval: seconds(config.keepalive_interval),
        probes: config.keepalive_probes,
    }))
}

/// `connection_keepalive` of `Http2ProtocolOptions`. None without an interval: then there is nothing to send.
pub(super) fn http2(options: &pb::core::Http2ProtocolOptions, path: &Path<'_>) -> Result<Option<H2Keepalive>> {
    let Some(config) = &options.connection_keepalive else {
        return Ok(None);
    };
    let here = path.field("connection_keepalive");
    let timeout = here.field("timeout");
    let timeout = positive(
        Some(required(config.timeout.as_ref(), &timeout)?),
        Duration::ZERO,
        &timeout,
    )?;
    let Some(interval) = duration(config.interval.as_ref(), &here.field("interval"))?.filter(|i| !i.is_zero()) else {
        return Ok(None);
    };
    let here = here.field("interval_jitter");
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
