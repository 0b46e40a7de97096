//! Domains and paths, and that the route which is chosen with regular expressions in sets is the one that is found by asking
//! matcher after matcher.

use fastrand::Rng;
use heddle_config::snapshot::{DirectResponse, HeaderOps};
use heddle_matching::{HeaderMatcher, HeaderTest, QueryMatcher, QueryTest, Regex, StringMatcher};

use super::*;

/// On paths, headers and parameters alike: for each engine, for none, and some that are beyond an engine's budget.
const PATTERNS: &[&str] = &[
    "/shop/[^/]+",
    "/shop/.*/items",
    "/shop/[0-9]+(/.*)?",
    "/s.*",
    "/api/v[12]/.*",
    r"/api/v\d+/users/\w+",
    "(?i)/API/.*",
    "/",
    "/.*",
    ".*items.*",
    ".*shop.+items.*",
    ".*a.*b.*",
    ".*é.*",
    "",
    ".*",
    ".+",
    "[^/]*",
    "a|b|ab",
    "(a|b)+",
    "a",
    ".*[ab].{12}[ab]",
    ".*a.{9}b.*",
    r".*\bitems\b.*",
    r"\d{2,}",
];

const PIECES: &[&str] = &[
    "a", "b", "ab", "items", "shop", "/shop/", "/api/v1/", "/users/", "é", "7", "42", "-", ",",
];

const HEADERS: &[&str] = &["x-a", "cookie", ":authority", "x_b"];

const PARAMETERS: &[&str] = &["q", "Q"];

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.usize(..all.len())]
}

fn text(rng: &mut Rng) -> String {
    (0..rng.usize(..6)).map(|_| one_of(rng, PIECES)).collect()
}

fn string(rng: &mut Rng, regexes: &[Regex]) -> StringMatcher {
    match rng.u8(..8) {
        0 => StringMatcher::exact(one_of(rng, PIECES)),
        1 => StringMatcher::contains(one_of(rng, PIECES)),
        _ => StringMatcher::regex(regexes[rng.usize(..regexes.len())].clone()),
    }
}

fn some_route(rng: &mut Rng, regexes: &[Regex]) -> Route {
    let path = match rng.u8(..8) {
        0 => PathMatch::Prefix(one_of(rng, &["/", "/a", "/sh", "/SHOP", ""]).into()),
        1 => PathMatch::Segments(one_of(rng, &["/shop", "/a", "/Shop/7"]).into()),
        2 => PathMatch::Exact(one_of(rng, &["/shop/7", "/", "/a"]).into()),
        _ => PathMatch::Regex(StringMatcher::regex(regexes[rng.usize(..regexes.len())].clone())),
    };
    let header = |rng: &mut Rng| {
        let test = match rng.u8(..8) {
            0 => HeaderTest::Present(rng.bool()),
            _ => HeaderTest::String(string(rng, regexes)),
        };
        HeaderMatcher::new(one_of(rng, HEADERS), test, rng.u8(..3) == 0, rng.u8(..3) == 0)
    };
    let parameter = |rng: &mut Rng| {
        let test = match rng.u8(..8) {
            0 => QueryTest::Present(rng.bool()),
            _ => QueryTest::String(string(rng, regexes)),
        };
        QueryMatcher::new(one_of(rng, PARAMETERS), test)
    };
    let (headers, query) = (rng.usize(..3), rng.usize(..2));
    Route {
        name: "r".into(),
        matches: RouteMatch {
            path,
            case_sensitive: rng.u8(..4) > 0,
            headers: (0..headers).map(|_| header(rng)).collect(),
            query: (0..query).map(|_| parameter(rng)).collect(),
            metadata: Vec::new(),
            grpc: false,
            fraction: if rng.u8(..8) == 0 { 500_000 } else { 1_000_000 },
        },
        action: Action::Direct(DirectResponse {
            status: 200,
            body: bytes::Bytes::new(),
        }),
        request_headers: HeaderOps::default(),
        response_headers: HeaderOps::default(),
        filters: std::sync::Arc::default(),
    }
}

fn some_request(rng: &mut Rng) -> RequestHead {
    let mut request = RequestHead::default();
    request.set_host(one_of(rng, &["shop.example", "a", "ab:80"]));
    let mut target = format!("/{}", text(rng));
    if rng.bool() {
        target = target.replacen("//", "/", 1);
    }
    for i in 0..rng.usize(..3) {
        target += if i == 0 { "?" } else { "&" };
        target += &format!("{}={}", one_of(rng, PARAMETERS), text(rng));
    }
    request.set_target(&target);
    for _ in 0..rng.usize(..4) {
        let value = text(rng);
        let value = if rng.u8(..8) == 0 { b"a\xe9b" } else { value.as_bytes() };
        request
            .fields
            .push(one_of(rng, &["x-a", "cookie", "x_b"]).as_bytes(), value);
    }
    request
}

/// What [`route`] does, with every matcher asked alone.
fn one_by_one(routes: &[Route], request: &RequestHead, dice: u32) -> Option<usize> {
    let headers = HeaderReadings::of(request);
    let chosen = |route: &Route| {
        let alone = Scans::none();
        matches(&route.matches, request, request.path(), &headers, &alone) && dice < route.matches.fraction
    };
    routes.iter().position(chosen)
}

#[test]
fn sets_choose_the_route_that_is_found_one_by_one() {
    let regexes: Vec<_> = PATTERNS.iter().map(|p| Regex::new(p).expect(p)).collect();
    let mut rng = Rng::with_seed(26);
    let (mut asked, mut found, mut later) = (0, 0, 0);
    for _ in 0..2_000 {
        let some = 1 + rng.usize(..24);
        let routes = Routes::from((0..some).map(|_| some_route(&mut rng, &regexes)).collect::<Vec<_>>());
        for _ in 0..10 {
            let request = some_request(&mut rng);
            let dice = rng.u32(..1_000_000);
            let expected = one_by_one(&routes, &request, dice);
            let chosen = route(&routes, &request, || dice);
            assert_eq!(chosen, expected, "{request:?} with dice {dice} by {routes:#?}");
            asked += 1;
            found += usize::from(chosen.is_some());
            later += usize::from(chosen.is_some_and(|at| at > 3));
        }
    }
    assert!(
        found * 10 > asked && found * 10 < asked * 9 && later * 20 > asked,
        "{asked} asked, {found} found, {later} of them behind the fourth"
    );
}

/// All routes' expressions are answered by the scan that the first of them began: what another text says is not looked at.
#[test]
fn regex_routes_are_one_scan() {
    let by_regex = |i| {
        let regex = Regex::new(&format!("/shop/v{i}/[^/]+")).expect("pattern");
        let mut route = some_route(&mut Rng::with_seed(1), std::slice::from_ref(&regex));
        route.matches.path = PathMatch::Regex(StringMatcher::regex(regex));
        route
    };
    let routes = Routes::from((0..100).map(by_regex).collect::<Vec<_>>());
    let of_path = |scans: &Scans<'_>, at: usize, path| path_matches(&routes[at].matches.path, path, true, scans);
    // The first four are tried alone, the fifth has all scanned; the first scans work out some states each, and give up.
    let scanned = || {
        let scans = routes.scans();
        assert!((0..5).all(|at| !of_path(&scans, at, "/shop/v42/x")));
        scans
    };
    drop((scanned(), scanned()));
    let scans = scanned();
    assert!(of_path(&scans, 42, "/never/looked/at"));
    assert!(!of_path(&scans, 7, "/shop/v7/x"));
    assert!(path_matches(
        &routes[7].matches.path,
        "/shop/v7/x",
        true,
        &Scans::none()
    ));
}

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
    let matches = |wanted: PathMatch, path, case| path_matches(&wanted, path, case, &Scans::none());
    assert!(matches(PathMatch::Prefix("/a".into()), "/ab", true));
    assert!(matches(PathMatch::Prefix("".into()), "*", true));
    assert!(matches(PathMatch::Segments("/a".into()), "/a", true));
    assert!(matches(PathMatch::Segments("/a".into()), "/a/b", true));
    assert!(!matches(PathMatch::Segments("/a".into()), "/ab", true));
    assert!(matches(PathMatch::Exact("/A".into()), "/a", false));
    assert!(!matches(PathMatch::Exact("/A".into()), "/a", true));
    assert!(!matches(PathMatch::Prefix("/abc".into()), "/a", true));
}
