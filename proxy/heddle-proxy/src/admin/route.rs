//! Which path is answered by what, and by which methods.

use hyper::header::{HOST, HeaderMap, ORIGIN};
use hyper::{Method, StatusCode};

use super::reply::Reply;
use super::state::AdminState;
use super::{certs, clusters, control, info, listeners, metrics};

type Handler = fn(&AdminState, &Query<'_>) -> Reply;

struct Entry {
    path: &'static str,
    /// Needs POST.
    mutates: bool,
    help: &'static str,
    handler: Handler,
}

const fn shows(path: &'static str, help: &'static str, handler: Handler) -> Entry {
    Entry {
        path,
        mutates: false,
        help,
        handler,
    }
}

const fn changes(path: &'static str, help: &'static str, handler: Handler) -> Entry {
    Entry {
        path,
        mutates: true,
        help,
        handler,
    }
}

/// Every path, in the order of `/help`.
const PATHS: &[Entry] = &[
    shows("/certs", "print certificates in use", certs::certs),
    shows(
        "/clusters",
        "upstream cluster status (?format=json)",
        clusters::clusters,
    ),
    shows(
        "/config_dump",
        "dump current configuration (?include_eds)",
        info::config_dump,
    ),
    changes(
        "/drain_listeners",
        "drain listeners (?graceful, ?inboundonly, ?skip_exit)",
        control::drain_listeners,
    ),
    changes(
        "/healthcheck/fail",
        "cause the server to fail health checks",
        control::fail_health_check,
    ),
    changes(
        "/healthcheck/ok",
        "cause the server to pass health checks",
        control::pass_health_check,
    ),
    shows("/help", "print this list", help),
    shows(
        "/listeners",
        "print listener addresses (?format=json)",
        listeners::listeners,
    ),
    changes(
        "/logging",
        "change log levels (?level=debug, ?<module>=debug)",
        control::logging,
    ),
    changes("/quitquitquit", "exit the server", control::quit),
    shows(
        "/ready",
        "print server state, 200 when ready, otherwise 503",
        info::ready,
    ),
    changes("/reopen_logs", "reopen access logs", control::reopen_logs),
    shows("/server_info", "print server version and state", info::server_info),
    shows(
        "/stats",
        "print metrics (?format=prometheus|json, ?usedonly, ?filter=<regex>)",
        metrics::stats,
    ),
    shows(
        "/stats/prometheus",
        "print metrics in Prometheus format (?usedonly, ?filter=<regex>)",
        metrics::prometheus,
    ),
];

/// The query of a request, percent-decoded pair by pair.
#[derive(Debug)]
pub(super) struct Query<'a>(&'a str);

impl Query<'_> {
    /// The value of a parameter; empty when it came without one.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.pairs().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (String, String)> {
        self.0.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        })
    }
}

/// Percent-decoding; what is not a valid escape, or not UTF-8, stays visible.
fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        if b == b'%' {
            let mut ahead = bytes.clone();
            let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
            if let (Some(high), Some(low)) = (digit(ahead.next()), digit(ahead.next())) {
                out.push((high * 16 + low) as u8);
                bytes = ahead;
                continue;
            }
        }
        out.push(if b == b'+' { b' ' } else { b });
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Answers a request.
pub(super) fn answer(state: &AdminState, method: &Method, target: &str, headers: &HeaderMap, tcp: bool) -> Reply {
    if let Some(refusal) = refuse_browsers(headers, tcp) {
        return refusal;
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if path == "/" {
        return help(state, &Query(query));
    }
    let Some(entry) = PATHS.iter().find(|e| e.path == path) else {
        return Reply::error(StatusCode::NOT_FOUND, format!("invalid path. {}", help_text()));
    };
    let allowed = if entry.mutates {
        method == Method::POST
    } else {
        matches!(*method, Method::GET | Method::HEAD | Method::POST)
    };
    if !allowed {
        let wanted = if entry.mutates { "POST" } else { "GET" };
        return Reply::error(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("Method {method} not allowed, {wanted} required.\n"),
        );
    }
    (entry.handler)(state, &Query(query))
}

/// A web page may make a browser on this machine send requests here. It cannot do so without an `Origin` that is not
/// ours (requests across sites), or a `Host` that is a name of its own (DNS rebinding).
fn refuse_browsers(headers: &HeaderMap, tcp: bool) -> Option<Reply> {
    if headers.contains_key(ORIGIN) {
        return Some(Reply::error(
            StatusCode::FORBIDDEN,
            "requests of web pages are refused\n",
        ));
    }
    let host = headers.get(HOST).and_then(|h| h.to_str().ok()).unwrap_or("");
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let local =
        name.is_empty() || name.eq_ignore_ascii_case("localhost") || address.parse::<std::net::IpAddr>().is_ok();
    if tcp && !local {
        return Some(Reply::error(
            StatusCode::FORBIDDEN,
            "the Host header must be an IP address or localhost\n",
        ));
    }
    None
}

fn help_text() -> String {
    let mut out = String::from("admin commands are:\n");
    for entry in PATHS {
        let post = if entry.mutates { " (POST)" } else { "" };
        out.push_str(&format!("  {}{post}: {}\n", entry.path, entry.help));
    }
    out
}

fn help(_: &AdminState, _: &Query<'_>) -> Reply {
    Reply::text(help_text())
}
