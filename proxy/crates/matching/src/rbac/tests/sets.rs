//! Rules whose expressions share sets decide as rules that have one expression each.

use std::cell::Cell;

use super::*;
use crate::Regex;

/// Counts how often a header is read.
struct Counted {
    path: String,
    headers: Vec<(&'static str, Vec<u8>)>,
    reads: Cell<usize>,
}

impl RequestView for Counted {
    fn method(&self) -> &str {
        "GET"
    }
    fn path_and_query(&self) -> &str {
        &self.path
    }
    fn authority(&self) -> &str {
        "shop.example:8080"
    }
    fn scheme(&self) -> &str {
        "http"
    }
    fn visit_header<'s>(&'s self, name: &str, see: &mut dyn FnMut(&'s [u8])) {
        self.reads.set(self.reads.get() + 1);
        if name == ":authority" {
            see(self.authority().as_bytes());
        }
        for (_, value) in self.headers.iter().filter(|(n, _)| *n == name) {
            see(value);
        }
    }
    fn visit_fields<'s>(&'s self, see: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        self.headers
            .iter()
            .for_each(|(name, value)| see(name.as_bytes(), value));
    }
}

fn regex(pattern: &str) -> StringMatcher {
    StringMatcher::regex(Regex::new(pattern).expect(pattern))
}

const PATTERNS: &[&str] = &[
    ".*admin.*",
    ".*ad.+in.*",
    "admin",
    "a.*",
    ".*n",
    "",
    ".*",
    ".+",
    "[^,]*",
    ".*,.*",
    ".*a;? ?b.*",
    ".*é.*",
    "(?s).*",
    ".*Ã.+",
    r"/adm\w+(/.*)?",
    "/caf%C3%A9/.*",
    ".*/x.*/y.*",
    ".*shop.*",
    "shop[.]example",
    "spiffe://.*/sa/.*",
    ".*front.*",
];

/// A condition on everything that has regular expressions, negated, inverted and nested.
fn permissions(pattern: &str) -> Vec<Permission> {
    use Permission as P;
    let header = |name, invert, empty| {
        P::Header(HeaderMatcher::new(
            name,
            HeaderTest::String(regex(pattern)),
            invert,
            empty,
        ))
    };
    let not = |inner| P::Not(Box::new(inner));
    vec![
        header("x-role", false, false),
        header("x-role", true, false),
        header("x-role", false, true),
        header("x-role", true, true),
        header("cookie", false, false),
        header(":authority", false, false),
        header(":authority", true, false),
        P::UrlPath(regex(pattern).into()),
        P::RequestedServerName(regex(pattern)),
        not(header("x-role", false, false)),
        not(header("x-role", true, true)),
        not(P::UrlPath(regex(pattern).into())),
        P::And(vec![
            header("x-role", false, false),
            not(P::UrlPath(regex(pattern).into())),
        ]),
        P::Or(vec![header("cookie", true, false), P::UrlPath(regex(pattern).into())]),
    ]
}

fn principals(pattern: &str) -> Vec<Principal> {
    use Principal as P;
    let header = |name| {
        P::Header(HeaderMatcher::new(
            name,
            HeaderTest::String(regex(pattern)),
            false,
            false,
        ))
    };
    let mut all = vec![
        P::Authenticated(Some(regex(pattern))),
        P::MtlsAuthenticated(Some(SanMatcher::new(SanType::Uri, regex(pattern)))),
        P::MtlsAuthenticated(Some(SanMatcher::new(SanType::Dns, regex(pattern)))),
        header("x-role"),
        P::UrlPath(regex(pattern).into()),
    ];
    all.extend(all.clone().into_iter().map(|inner| P::Not(Box::new(inner))));
    all
}

fn requests() -> Vec<Counted> {
    let values: &[&[&str]] = &[
        &[],
        &[""],
        &["admin"],
        &["user", "admin"],
        &["ad", "min"],
        &["a", "b"],
        &["café"],
        &["admin\n"],
        &["an admin, an admin"],
    ];
    let mut requests = Vec::new();
    for path in [
        "/",
        "/admin/x?y",
        "//admin;v=1",
        "/caf%c3%a9/x",
        "/%63af%C3%A9/x/y",
        "/a/x;/b/y%2Fz",
    ] {
        for name in ["x-role", "x_role", "cookie"] {
            requests.extend(values.iter().map(|values| Counted {
                path: path.to_owned(),
                headers: values.iter().map(|value| (name, value.as_bytes().to_vec())).collect(),
                reads: Cell::new(0),
            }));
        }
    }
    requests.push(Counted {
        path: "/".to_owned(),
        headers: vec![("x-role", b"caf\xe9 admin".to_vec()), ("x_role", b"admin".to_vec())],
        reads: Cell::new(0),
    });
    requests
}

/// Every condition says with the others what it says alone, and of many policies the first that matches is found.
#[test]
fn a_set_decides_as_each_expression_alone() {
    let mut policies = Vec::new();
    for pattern in PATTERNS {
        let of_permissions = permissions(pattern).into_iter().map(|p| (p, Principal::Any));
        let of_principals = principals(pattern).into_iter().map(|p| (Permission::Any, p));
        for (permission, principal) in of_permissions.chain(of_principals) {
            policies.push(policy(&format!("{:05}", policies.len()), permission, principal));
        }
    }
    let mut connections = [connection(), connection()];
    connections[1].peer = None;
    let requests = requests();
    let (mut matched, mut asked) = (0, 0);
    for action in [Action::Allow, Action::Deny] {
        let together = Rules::new(action, policies.clone());
        let of_set = |policies: &[Policy]| Rules {
            action,
            policies: policies.to_vec(),
            sets: Arc::clone(&together.sets),
        };
        let alone: Vec<_> = policies.iter().map(|p| Rules::new(action, vec![p.clone()])).collect();
        let beside: Vec<_> = together.policies.chunks(1).map(of_set).collect();
        let from: Vec<_> = (0..policies.len()).step_by(37).collect();
        let many: Vec<_> = from.iter().map(|from| of_set(&together.policies[*from..])).collect();
        for (at, request) in requests.iter().enumerate() {
            let first = |rules: &Rules| {
                let policy = rules.check(&connections[at % 2], Some(request)).policy;
                policy.map(str::to_owned)
            };
            let which: Vec<_> = alone.iter().map(first).collect();
            for ((beside, expected), policy) in beside.iter().zip(&which).zip(&policies) {
                let said = format!("{action:?} {policy:?} on {} {:?}", request.path, request.headers);
                assert_eq!(first(beside), *expected, "{said}");
            }
            for (from, many) in from.iter().zip(&many) {
                let expected = which[*from..].iter().flatten().next().cloned();
                assert_eq!(
                    first(many),
                    expected,
                    "from {from} on {} {:?}",
                    request.path,
                    request.headers
                );
            }
            matched += which.iter().flatten().count();
            asked += which.len();
        }
    }
    assert!(matched * 10 > asked && matched * 10 < asked * 9, "{matched} of {asked}");
}

/// However many conditions there are, a header is read once for each kind of reading, and not at all where nobody asks.
#[test]
fn a_header_is_read_once_for_all_expressions() {
    let conditions = |count: usize| {
        let header = |i| {
            let test = HeaderTest::String(regex(&format!(".*malform{i}.+request{i}.*")));
            Permission::Header(HeaderMatcher::new("cookie", test, false, false))
        };
        (0..count).map(header).collect::<Vec<_>>()
    };
    let request = Counted {
        path: "/".to_owned(),
        headers: vec![("cookie", b"malform7 request8".to_vec())],
        reads: Cell::new(0),
    };
    let unasked = Permission::And(vec![Permission::DestinationPort(1), Permission::Or(conditions(10))]);
    for (permission, reads) in [(Permission::Or(conditions(100)), 1), (unasked, 0)] {
        let rules = Rules::new(Action::Deny, vec![policy("p", permission, Principal::Any)]);
        for _ in 0..2 {
            request.reads.set(0);
            assert!(rules.check(&connection(), Some(&request)).allowed);
            assert_eq!(request.reads.get(), reads);
        }
    }
}
