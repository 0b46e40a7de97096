//! TCP's keep-alive probes. HTTP/2's pings are in `super::http2`.

use std::time::Duration;

use heddle_net::Keepalive;

use super::{Result, pb};
use crate::path::Path;

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
