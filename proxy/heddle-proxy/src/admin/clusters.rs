//! `/clusters`: limits, endpoints, their health and counters.

use std::fmt::Write as _;

use heddle_config::snapshot::EndpointHealth;
use heddle_upstream::{ClusterStatus, HostStatus};
use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::reply::Reply;
use super::route::Query;
use super::state::AdminState;

pub(super) fn clusters(state: &AdminState, query: &Query<'_>) -> Reply {
    let all = state.upstreams.status();
    match query.get("format").as_deref() {
        None | Some("text") => Reply::text(all.iter().map(text).collect::<String>()),
        Some("json") => Reply::json(&json!({"cluster_statuses": all.iter().map(as_json).collect::<Vec<_>>()})),
        Some(other) => Reply::error(
            StatusCode::BAD_REQUEST,
            format!("format `{other}` is not known; use text or json\n"),
        ),
    }
}

fn counters(host: &HostStatus) -> [(&'static str, &'static str, u64); 8] {
    [
        ("COUNTER", "cx_connect_fail", host.cx_connect_fail),
        ("COUNTER", "cx_total", host.cx_total),
        ("COUNTER", "rq_error", host.rq_error),
        ("COUNTER", "rq_success", host.rq_success),
        ("COUNTER", "rq_timeout", host.rq_timeout),
        ("COUNTER", "rq_total", host.rq_total),
        ("GAUGE", "cx_active", host.cx_active),
        ("GAUGE", "rq_active", host.rq_active),
    ]
}

fn text(cluster: &ClusterStatus) -> String {
    let name = &cluster.name;
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{name}::observability_name::{}", cluster.stat_name);
    if let Some(outlier) = &cluster.outlier_detection {
        let _ = writeln!(out, "{name}::outlier::consecutive_5xx::{}", outlier.consecutive_5xx);
        let _ = writeln!(
            out,
            "{name}::outlier::base_ejection_ms::{}",
            outlier.base_ejection_time.as_millis()
        );
        let _ = writeln!(
            out,
            "{name}::outlier::max_ejection_percent::{}",
            outlier.max_ejection_percent
        );
    }
    let limits = &cluster.circuit_breakers;
    for (limit, value) in [
        ("max_connections", limits.max_connections),
        ("max_pending_requests", limits.max_pending_requests),
        ("max_requests", limits.max_requests),
        ("max_retries", limits.max_retries),
    ] {
        let _ = writeln!(out, "{name}::default_priority::{limit}::{value}");
    }
    for host in &cluster.hosts {
        let address = host.address;
        for (_, counter, value) in counters(host) {
            let _ = writeln!(out, "{name}::{address}::{counter}::{value}");
        }
        let _ = writeln!(
            out,
            "{name}::{address}::hostname::{}",
            host.hostname.as_deref().unwrap_or("")
        );
        let _ = writeln!(out, "{name}::{address}::health_flags::{}", host.health_flags());
        let _ = writeln!(out, "{name}::{address}::weight::{}", host.weight);
        let _ = writeln!(out, "{name}::{address}::region::{}", host.locality.region);
        let _ = writeln!(out, "{name}::{address}::zone::{}", host.locality.zone);
        let _ = writeln!(out, "{name}::{address}::sub_zone::{}", host.locality.sub_zone);
        let _ = writeln!(out, "{name}::{address}::priority::{}", host.priority);
    }
    out
}

fn as_json(cluster: &ClusterStatus) -> Value {
    let limits = &cluster.circuit_breakers;
    json!({
        "name": &*cluster.name,
        "observability_name": &*cluster.stat_name,
        "circuit_breakers": {"thresholds": [{
            "max_connections": limits.max_connections,
            "max_pending_requests": limits.max_pending_requests,
            "max_requests": limits.max_requests,
            "max_retries": limits.max_retries,
        }]},
        "host_statuses": cluster.hosts.iter().map(host_json).collect::<Vec<_>>(),
    })
}

fn host_json(host: &HostStatus) -> Value {
    let stats: Vec<_> = counters(host)
        .iter()
        // Sixty-four bit numbers are strings in the JSON form of protobuf.
        .map(|(kind, name, value)| json!({"type": kind, "name": name, "value": value.to_string()}))
        .collect();
    let mut health = Map::new();
    if host.failed_active_check {
        health.insert("failed_active_health_check".into(), true.into());
    }
    if host.ejected {
        health.insert("failed_outlier_check".into(), true.into());
    }
    let eds = match host.config_health {
        EndpointHealth::Healthy => "HEALTHY",
        EndpointHealth::Degraded => "DEGRADED",
        EndpointHealth::Unhealthy => "UNHEALTHY",
        EndpointHealth::Draining => "DRAINING",
    };
    health.insert("eds_health_status".into(), eds.into());
    json!({
        "address": {"socket_address": {
            "address": host.address.ip().to_string(),
            "port_value": host.address.port(),
        }},
        "stats": stats,
        "health_status": health,
        "weight": host.weight,
        "hostname": host.hostname.as_deref().unwrap_or(""),
        "priority": host.priority,
        "locality": {
            "region": host.locality.region,
            "zone": host.locality.zone,
            "sub_zone": host.locality.sub_zone,
        },
    })
}
