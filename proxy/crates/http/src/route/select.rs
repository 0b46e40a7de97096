//! Which virtual host and route a request belongs to (Envoy's order: exact domain, longest suffix, longest prefix, `*`).

use heddle_config::snapshot::{Action, ClusterChoice, PathMatch, Route, RouteMatch, RouteTable, Routes};
use heddle_matching::{HeaderReadings, RequestView, Scans};

use crate::head::RequestHead;

/// The virtual host for a request, by its authority.
pub(crate) fn virtual_host(table: &RouteTable, request: &RequestHead) -> Option<usize> {
    if table.exact.is_empty() && table.suffix.is_empty() && table.prefix.is_empty() {
        return table.any;
    }
    let mut host = request.host();
    if table.ignore_port {
        host = without_port(host);
    }
    let mut lower = smallvec::SmallVec::<[u8; 128]>::new();
    if host.bytes().any(|b| b.is_ascii_uppercase()) {
        lower.extend(host.bytes().map(|b| b.to_ascii_lowercase()));
        host = std::str::from_utf8(&lower).unwrap_or(host);
    }
    if let Some(index) = table.exact.get(host) {
        return Some(*index);
    }
    let by_suffix = table.suffix.by_suffix(host);
    by_suffix.or_else(|| table.prefix.by_prefix(host)).or(table.any)
}

/// A host without its port; the colons of an IPv6 literal are not a port's.
pub(crate) fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        Some(at) if !host.get(at..).is_some_and(|rest| rest.contains(']')) => host.get(..at).unwrap_or(host),
        _ => host,
    }
}

/// The first route that matches. `dice` gives a number below one million for fractional routes.
pub(crate) fn route(routes: &Routes, request: &RequestHead, dice: impl FnOnce() -> u32) -> Option<usize> {
    let path = request.path();
    let headers = HeaderReadings::of(request);
    let scans = routes.scans();
    let mut dice = Some(dice);
    let mut rolled = None;
    routes.first(path, |route| {
        matches(&route.matches, request, path, &headers, &scans)
            && (route.matches.fraction >= 1_000_000
                || *rolled.get_or_insert_with(|| dice.take().map_or(0, |d| d())) < route.matches.fraction)
    })
}

/// Which of the route's weighted clusters, by a random number; zero where there is no choice.
pub(crate) fn cluster(route: &Route, dice: impl FnOnce() -> u64) -> usize {
    let Action::Route(action) = &route.action else {
        return 0;
    };
    let ClusterChoice::Weighted { clusters, total } = &action.cluster else {
        return 0;
    };
    let mut left = dice() % u64::from((*total).max(1));
    let hit = clusters.iter().position(|(_, weight)| {
        let weight = u64::from(*weight);
        let hit = left < weight;
        left = left.saturating_sub(weight);
        hit
    });
    hit.unwrap_or_default()
}

/// Whether a request is one of those that a route, or a rule of the JWT filter, is for. `path` and `headers` are the
/// request's, `scans` those of all routes or rules that are asked about it.
pub(crate) fn matches(
    when: &RouteMatch,
    request: &RequestHead,
    path: &str,
    headers: &HeaderReadings<'_>,
    scans: &Scans<'_>,
) -> bool {
    path_matches(&when.path, path, when.case_sensitive, scans)
        && (!when.grpc || request.grpc)
        && when.headers.iter().all(|m| m.matches(headers, scans))
        && when.query.iter().all(|m| m.matches(request.target(), scans))
        && when.metadata.iter().all(|m| m.matches(request.metadata.as_deref()))
}

fn path_matches(wanted: &PathMatch, path: &str, case_sensitive: bool, scans: &Scans<'_>) -> bool {
    let same = |a: &[u8], b: &[u8]| {
        if case_sensitive {
            a == b
        } else {
            a.eq_ignore_ascii_case(b)
        }
    };
    let starts = |prefix: &str| {
        path.as_bytes()
            .get(..prefix.len())
            .is_some_and(|h| same(h, prefix.as_bytes()))
    };
    match wanted {
        PathMatch::Prefix(prefix) => starts(prefix),
        PathMatch::Exact(exact) => same(path.as_bytes(), exact.as_bytes()),
        PathMatch::Segments(prefix) => starts(prefix) && matches!(path.as_bytes().get(prefix.len()), None | Some(b'/')),
        PathMatch::Regex(regex) => scans.matches(regex, path),
    }
}

#[cfg(test)]
mod tests;
