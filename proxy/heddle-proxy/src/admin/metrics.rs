//! `/stats` and `/stats/prometheus`.

use heddle_matching::{Regex, regex_memory};
use heddle_telemetry::prometheus::{Gathered, Value, dotted};
use hyper::StatusCode;
use serde_json::json;

use super::certs;
use super::reply::Reply;
use super::route::Query;
use super::state::{AdminState, ServerState};

pub(super) fn stats(state: &AdminState, query: &Query<'_>) -> Reply {
    let used_only = query.has("usedonly");
    let gathered = match gather(state, query) {
        Ok(gathered) => gathered,
        Err(reply) => return reply,
    };
    match query.get("format").as_deref() {
        None | Some("" | "text") => Reply::text(gathered.lines(used_only)),
        Some("prometheus") => Reply::prometheus(gathered.prometheus(used_only)),
        Some("json") => {
            let stats: Vec<_> = gathered
                .iter()
                .filter_map(|(name, labels, value)| {
                    let value = match value {
                        Value::Counter(n) => json!(n),
                        Value::Gauge(n) => json!(n),
                        Value::Histogram { .. } => return None,
                    };
                    (!used_only || value != json!(0)).then(|| json!({"name": dotted(name, labels), "value": value}))
                })
                .collect();
            Reply::json(&json!({"stats": stats}))
        }
        Some(other) => Reply::error(
            StatusCode::BAD_REQUEST,
            format!("format `{other}` is not known; use text, json or prometheus\n"),
        ),
    }
}

pub(super) fn prometheus(state: &AdminState, query: &Query<'_>) -> Reply {
    match gather(state, query) {
        Ok(gathered) => Reply::prometheus(gathered.prometheus(query.has("usedonly"))),
        Err(reply) => reply,
    }
}

fn gather(state: &AdminState, query: &Query<'_>) -> Result<Gathered, Reply> {
    // Envoy searches; our expressions match whole strings, so blanks are put around.
    let filter = match query.get("filter").filter(|f| !f.is_empty()) {
        None => None,
        Some(pattern) => Some(
            // Alone first, so that the pattern cannot close the group that is put around it.
            Regex::new(&pattern)
                .and_then(|_| Regex::new(&format!("(?s:.*)(?:{pattern})(?s:.*)")))
                .map_err(|error| Reply::error(StatusCode::BAD_REQUEST, format!("filter: {error}\n")))?,
        ),
    };
    let wanted = |name: &str| filter.as_ref().is_none_or(|f| f.is_full_match(name));
    let mut all = Gathered::read(&state.stats, wanted);
    let server = state.server_state();
    let mut gauge = |name, value| {
        if wanted(name) {
            all.set_gauge(name, &[], value);
        }
    };
    gauge(
        "envoy_server_uptime",
        i64::try_from(state.started.elapsed().as_secs()).unwrap_or(i64::MAX),
    );
    gauge("envoy_server_live", i64::from(server == ServerState::Live));
    gauge("envoy_server_state", server.number());
    gauge(
        "envoy_server_concurrency",
        i64::try_from(state.concurrency).unwrap_or(i64::MAX),
    );
    if let Some(days) = certs::days_until_first_expires(&state.snapshot.borrow()) {
        gauge("envoy_server_days_until_first_cert_expiring", days.max(0));
    }
    let expressions = regex_memory();
    gauge(
        "heddle_regex_expressions",
        i64::try_from(expressions.expressions).unwrap_or(i64::MAX),
    );
    gauge(
        "heddle_regex_bytes",
        i64::try_from(expressions.bytes).unwrap_or(i64::MAX),
    );
    let (dropped, written, failed) = state.logs.counts();
    for (name, value) in [
        ("heddle_access_log_lines_dropped_total", dropped),
        ("heddle_access_log_lines_written_total", written),
        ("heddle_access_log_write_failures_total", failed),
        ("heddle_log_suppressed_total", state.suppressed_lines.total()),
        ("heddle_panics_total", state.panics.total()),
    ] {
        if wanted(name) {
            all.set_counter(name, &[], value);
        }
    }
    Ok(all)
}
