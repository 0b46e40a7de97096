//! Which virtual host and route a request belongs to (Envoy's order: exact domain, longest suffix, longest prefix, `*`).

use heddle_config::snapshot::{Action, ClusterChoice, PathMatch, Route, RouteMatch, RouteTable};
use heddle_matching::{HeaderReadings, RequestView};

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
pub(crate) fn route(routes: &[Route], request: &RequestHead, dice: impl FnOnce() -> u32) -> Option<usize> {
    let path = request.path();
    let headers = HeaderReadings::of(request);
    let mut dice = Some(dice);
    let mut rolled = None;
    routes.iter().position(|route| {
        matches(&route.matches, request, path, &headers)
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
/// request's.
pub(crate) fn matches(when: &RouteMatch, request: &RequestHead, path: &str, headers: &HeaderReadings<'_>) -> bool {
    path_matches(&when.path, path, when.case_sensitive)
        && (!when.grpc || request.grpc)
        && when.headers.iter().all(|m| m.matches(headers))
        && when.query.iter().all(|m| m.matches(request.target()))
        && when.metadata.iter().all(|m| m.matches(request.metadata.as_deref()))
}

fn path_matches(wanted: &PathMatch, path: &str, case_sensitive: bool) -> bool {
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
        PathMatch::Regex(regex) => regex.is_full_match(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> RouteTable {
        let mut table = RouteTable {
            any: Some(9),
            ..RouteTable::default()
        };
        table.exact.insert("shop.example".into(), 0);
        table.exact.insert("shop.example:8080".into(), 1);
        table.suffix = [(".api.example", 2), (".example", 3)].into_iter().collect();
        table.prefix = [("shop.", 4)].into_iter().collect();
        table
    }

    fn asking(host: &str) -> RequestHead {
        let mut request = RequestHead::default();
        request.set_host(host);
        request
    }

    #[test]
    fn domains() {
        let mut table = table();
        for (host, index) in [
            ("shop.example", 0),
            ("SHOP.example", 0),
            ("shop.example:8080", 1),
            ("a.api.example", 2),
            ("b.example", 3),
            ("shop.other", 4),
            ("shop.example:9", 4),
            (".example", 9),
            ("nothing", 9),
        ] {
            assert_eq!(virtual_host(&table, &asking(host)), Some(index), "{host}");
        }
        table.any = None;
        assert_eq!(virtual_host(&table, &asking("nothing")), None);
        table.ignore_port = true;
        assert_eq!(virtual_host(&table, &asking("shop.example:9")), Some(0));
        assert_eq!(without_port("[::1]"), "[::1]");
        assert_eq!(without_port("[::1]:80"), "[::1]");
    }

    #[test]
    fn paths() {
        assert!(path_matches(&PathMatch::Prefix("/a".into()), "/ab", true));
        assert!(path_matches(&PathMatch::Prefix("".into()), "*", true));
        assert!(path_matches(&PathMatch::Segments("/a".into()), "/a", true));
        assert!(path_matches(&PathMatch::Segments("/a".into()), "/a/b", true));
        assert!(!path_matches(&PathMatch::Segments("/a".into()), "/ab", true));
        assert!(path_matches(&PathMatch::Exact("/A".into()), "/a", false));
        assert!(!path_matches(&PathMatch::Exact("/A".into()), "/a", true));
        assert!(!path_matches(&PathMatch::Prefix("/abc".into()), "/a", true));
    }
}
