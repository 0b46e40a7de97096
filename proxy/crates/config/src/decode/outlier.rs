//! Outlier detection and active health checks.

use std::time::Duration;

use super::{Result, duration_or, pb, positive, required};
use crate::path::Path;
use crate::snapshot::{HealthCheck, HealthChecker, OutlierDetection};

/// `OutlierDetection`. Ejection by success rate and by failure percentage is not implemented: a percentage above zero
/// that asks for it is refused. (Envoy's success rate ejection is on by default, but needs five endpoints with a hundred
/// requests in an interval; leaving the field out is accepted, and means off.)
pub(super) fn detection(config: &pb::cluster::OutlierDetection, path: &Path<'_>) -> Result<OutlierDetection> {
    for (name, value) in [
        ("enforcing_success_rate", config.enforcing_success_rate),
        (
            "enforcing_local_origin_success_rate",
            config.enforcing_local_origin_success_rate,
        ),
        ("enforcing_failure_percentage", config.enforcing_failure_percentage),
        (
            "enforcing_failure_percentage_local_origin",
            config.enforcing_failure_percentage_local_origin,
        ),
    ] {
        if value.unwrap_or(0) > 0 {
            return Err(path.field(name).unsupported("a percentage above 0", "set it to 0"));
        }
    }
    let field = |name| path.field(name);
    let consecutive_5xx = enforced(
        config.consecutive_5xx.unwrap_or(5),
        config.enforcing_consecutive_5xx.unwrap_or(100),
        &field("enforcing_consecutive_5xx"),
    )?;
    let consecutive_gateway_failure = enforced(
        config.consecutive_gateway_failure.unwrap_or(5),
        config.enforcing_consecutive_gateway_failure.unwrap_or(0),
        &field("enforcing_consecutive_gateway_failure"),
    )?;
    let local = enforced(
        config.consecutive_local_origin_failure.unwrap_or(5),
        config.enforcing_consecutive_local_origin_failure.unwrap_or(100),
        &field("enforcing_consecutive_local_origin_failure"),
    )?;
    let base = positive(
        config.base_ejection_time.as_ref(),
        Duration::from_secs(30),
        &field("base_ejection_time"),
    )?;
    let longest = duration_or(
        config.max_ejection_time.as_ref(),
        Duration::from_secs(300),
        &field("max_ejection_time"),
    )?;
    Ok(OutlierDetection {
        consecutive_5xx,
        consecutive_gateway_failure,
        consecutive_local_origin_failure: if config.split_external_local_origin_errors {
            local
        } else {
            0
        },
        interval: positive(config.interval.as_ref(), Duration::from_secs(10), &field("interval"))?,
        base_ejection_time: base,
        // Envoy: the larger of the two holds.
        max_ejection_time: longest.max(base),
        max_ejection_percent: config.max_ejection_percent.unwrap_or(10),
        always_eject_one: config.always_eject_one_host.unwrap_or(false),
    })
}

/// A threshold under its enforcing percentage: all or nothing.
fn enforced(threshold: u32, percent: u32, path: &Path<'_>) -> Result<u32> {
    match percent {
        0 => Ok(0),
        100 => Ok(threshold),
        other => Err(path.unsupported(format!("{other} per cent"), "use 0 or 100")),
    }
}

/// A `HealthCheck`.
pub(super) fn health_check(config: &pb::core::HealthCheck, path: &Path<'_>) -> Result<HealthCheck> {
    use pb::core::health_check::HealthChecker as Kind;
    let time = |value: Option<&prost_types::Duration>, name| {
        let here = path.field(name);
        positive(Some(required(value, &here)?), Duration::ZERO, &here)
    };
    let count = |value: Option<u32>, name| {
        let here = path.field(name);
        match *required(value.as_ref(), &here)? {
            0 => Err(here.error("must be at least 1")),
            n => Ok(n),
        }
    };
    let checker = match required(config.health_checker.as_ref(), path)? {
        Kind::TcpHealthCheck(tcp) => {
            let here = path.field("tcp_health_check");
            HealthChecker::Tcp {
                send: tcp
                    .send
                    .as_ref()
                    .map(|p| payload(p, &here.field("send")))
                    .transpose()?
                    .unwrap_or_default(),
                receive: tcp
                    .receive
                    .iter()
                    .enumerate()
                    .map(|(i, p)| payload(p, &here.item("receive", i)))
                    .collect::<Result<_>>()?,
            }
        }
        _ => return Err(path.error("this kind of health check is not implemented; use tcp_health_check")),
    };
    Ok(HealthCheck {
        checker,
        timeout: time(config.timeout.as_ref(), "timeout")?,
        interval: time(config.interval.as_ref(), "interval")?,
        unhealthy_threshold: count(config.unhealthy_threshold, "unhealthy_threshold")?,
        healthy_threshold: count(config.healthy_threshold, "healthy_threshold")?,
    })
}

/// A payload: hex text or bytes.
fn payload(config: &pb::core::health_check::Payload, path: &Path<'_>) -> Result<Vec<u8>> {
    use pb::core::health_check::payload::Payload;
    match required(config.payload.as_ref(), path)? {
        Payload::Binary(bytes) => Ok(bytes.clone()),
        Payload::Text(hex) => {
            let here = path.field("text");
            let wrong = || here.error(format!("{hex:?} is not an even number of hex digits"));
            let digits: Vec<u32> = hex
                .chars()
                .map(|c| c.to_digit(16))
                .collect::<Option<_>>()
                .ok_or_else(wrong)?;
            if !digits.len().is_multiple_of(2) {
                return Err(wrong());
            }
            Ok(digits
                .as_chunks::<2>()
                .0
                .iter()
                .map(|[high, low]| (high * 16 + low) as u8)
                .collect())
        }
    }
}
