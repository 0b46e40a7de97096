//! Rules whose expressions share sets decide as rules that have one expression each.

use std::cell::Cell;

use super::*;
use crate::Regex;
use crate::set::tests::Dice;

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
        P::And(vec![header("x-role", false, false), not(P::UrlPath(regex(pattern).into()))].into()),
        P::Or(vec![header("cookie", true, false), P::UrlPath(regex(pattern).into())].into()),
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

/// Conditions of any kind, joined as the dice fall.
fn joined(dice: &mut Dice, of: &[Vec<Permission>], depth: usize) -> Permission {
    let several = |dice: &mut Dice| {
        // Few kinds of conditions with many expressions each, so that words are shared.
        let kinds = [dice.below(14), dice.below(14)];
        let one = |dice: &mut Dice| {
            let kind = kinds[dice.below(2)];
            match depth {
                1.. if dice.below(3) == 0 => joined(dice, of, depth - 1),
                _ => of[dice.below(of.len())][kind].clone(),
            }
        };
        (0..1 + dice.below(20)).map(|_| one(dice)).collect::<Vec<_>>()
    };
    match dice.below(5) {
        0 | 1 => Permission::Or(several(dice).into()),
        2 | 3 => {
            // Few conditions hold together.
            let mut several = several(dice);
            several.truncate(1 + dice.below(3));
            Permission::And(several.into())
        }
        _ => Permission::Not(Box::new(Permission::Or(several(dice).into()))),
    }
}

fn decided_with_another(permission: &Permission) -> usize {
    match permission {
        Permission::And(several) | Permission::Or(several) => {
            let inner: usize = several.all.iter().map(decided_with_another).sum();
            several.all.len() - several.questions.len() + inner
        }
        Permission::Not(inner) => decided_with_another(inner),
        _ => 0,
    }
}

/// Conditions that are decided together, a word of answers at once, decide as each does alone with its own expression.
#[test]
fn joined_conditions_decide_as_each_alone() {
    let of: Vec<_> = PATTERNS.iter().map(|pattern| permissions(pattern)).collect();
    let mut dice = Dice(11);
    let requests = requests();
    let (mut matched, mut asked, mut shared) = (0, 0, 0);
    for _ in 0..20 {
        let several: Vec<_> = (0..6).map(|_| joined(&mut dice, &of, 1)).collect();
        let name = |i: usize| format!("{i:05}");
        let policies = several.into_iter().enumerate();
        let policies = policies.map(|(i, permission)| policy(&name(i), permission, Principal::Any));
        let policies: Vec<_> = policies.collect();
        for action in [Action::Allow, Action::Deny] {
            for policy in &policies {
                let together = Rules::new(action, vec![policy.clone()]);
                shared += together.policies[0]
                    .permissions
                    .all
                    .iter()
                    .map(decided_with_another)
                    .sum::<usize>();
                let alone = Rules {
                    action,
                    policies: vec![policy.clone()],
                    sets: Arc::default(),
                };
                for request in requests.iter().skip(dice.below(11)).step_by(11) {
                    let expected = alone.check(&connection(), Some(request));
                    let found = together.check(&connection(), Some(request));
                    assert_eq!(
                        found, expected,
                        "{action:?} {policy:?} on {} {:?}",
                        request.path, request.headers
                    );
                    matched += usize::from(found.policy.is_some());
                    asked += 1;
                }
            }
        }
    }
    assert!(matched * 10 > asked && matched * 10 < asked * 9, "{matched} of {asked}");
    assert!(shared > 1_000, "{shared} conditions were decided with another");
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
    let unasked = Permission::And(vec![Permission::DestinationPort(1), Permission::Or(conditions(10).into())].into());
    for (permission, reads) in [(Permission::Or(conditions(100).into()), 1), (unasked, 0)] {
        let rules = Rules::new(Action::Deny, vec![policy("p", permission, Principal::Any)]);
        for _ in 0..2 {
            request.reads.set(0);
            assert!(rules.check(&connection(), Some(&request)).allowed);
            assert_eq!(request.reads.get(), reads);
        }
    }
}
