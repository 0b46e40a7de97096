use heddle_net::PeerIdentity;

mod sets;

use super::*;
use crate::HeaderTest;

struct Request {
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    remote: Option<IpAddr>,
}

impl RequestView for Request {
    fn method(&self) -> &str {
        "GET"
    }
    fn path_and_query(&self) -> &str {
        self.path
    }
    fn authority(&self) -> &str {
        "shop"
    }
    fn scheme(&self) -> &str {
        "http"
    }
    fn visit_header<'s>(&'s self, name: &str, see: &mut dyn FnMut(&'s [u8])) {
        if name == ":method" {
            see(self.method().as_bytes());
        }
        for (_, value) in self.headers.iter().filter(|(n, _)| *n == name) {
            see(value.as_bytes());
        }
    }
    fn visit_fields<'s>(&'s self, see: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        self.headers
            .iter()
            .for_each(|(name, value)| see(name.as_bytes(), value.as_bytes()));
    }
    fn remote_ip(&self) -> Option<IpAddr> {
        self.remote
    }
}

const REQUEST: Request = Request {
    path: "/admin/x?y#z",
    headers: &[("x-user", "eve")],
    remote: None,
};

fn connection() -> ConnectionInfo {
    let mut info = ConnectionInfo::plain(
        "10.1.1.1:15006".parse().expect("address"),
        "10.2.2.2:999".parse().expect("address"),
    );
    info.destination = "10.1.1.1:8080".parse().expect("address");
    info.sni = Some("cart.shop".into());
    info.tls_version = Some("TLSv1.3");
    info.peer = Some(Arc::new(PeerIdentity {
        uri_sans: vec!["spiffe://td/ns/shop/sa/front".into()],
        dns_sans: vec!["front.shop".into()],
        subject: "CN=front".into(),
        ..PeerIdentity::default()
    }));
    info
}

fn range(network: &str, prefix: u32) -> Cidr {
    Cidr::new(network.parse().expect("address"), prefix).expect("range")
}

fn header(name: &str, value: &str) -> HeaderMatcher {
    HeaderMatcher::new(name, HeaderTest::String(StringMatcher::exact(value)), false, false)
}

fn policy(name: &str, permission: Permission, principal: Principal) -> Policy {
    Policy {
        name: name.into(),
        permissions: vec![permission].into(),
        principals: vec![principal].into(),
    }
}

fn allows(permission: Permission, principal: Principal, request: Option<&dyn RequestView>) -> bool {
    Rules::new(Action::Allow, vec![policy("p", permission, principal)])
        .check(&connection(), request)
        .allowed
}

#[test]
fn permissions() {
    use Permission as P;
    for (permission, on_request, on_connection) in [
        (P::Any, true, true),
        (P::Header(header("x-user", "eve")), true, false),
        (P::Header(header("X-User", "bob")), false, false),
        (P::Header(header(":method", "GET")), true, false),
        (P::UrlPath(StringMatcher::exact("/admin/x").into()), true, false),
        (P::UrlPath(StringMatcher::prefix("/shop").into()), false, false),
        (P::DestinationIp(range("10.1.0.0", 16)), true, true),
        (P::DestinationIp(range("10.2.0.0", 16)), false, false),
        (P::DestinationPort(8080), true, true),
        (P::DestinationPort(15006), false, false),
        (P::DestinationPortRange(8080..8081), true, true),
        (P::DestinationPortRange(8000..8080), false, false),
        (P::RequestedServerName(StringMatcher::suffix(".shop")), true, true),
        (
            P::Not(Box::new(P::UrlPath(StringMatcher::prefix("/admin").into()))),
            false,
            true,
        ),
        (P::And(vec![P::Any, P::DestinationPort(1)].into()), false, false),
        (P::And(vec![P::Any, P::DestinationPort(8080)].into()), true, true),
        (P::Or(vec![P::DestinationPort(1), P::Any].into()), true, true),
        (P::Or(vec![P::DestinationPort(1)].into()), false, false),
    ] {
        let said = format!("{permission:?}");
        assert_eq!(
            allows(permission.clone(), Principal::Any, Some(&REQUEST)),
            on_request,
            "{said}"
        );
        assert_eq!(
            allows(permission, Principal::Any, None),
            on_connection,
            "{said} on a connection"
        );
    }
}

#[test]
fn principals() {
    use Principal as P;
    let named = |name: &str| P::Authenticated(Some(StringMatcher::exact(name)));
    for (principal, expected) in [
        (P::Any, true),
        (named("spiffe://td/ns/shop/sa/front"), true),
        (named("front.shop"), true),
        (named("CN=front"), true),
        (named("spiffe://td/ns/shop/sa/cart"), false),
        (P::Authenticated(None), true),
        (P::DirectRemoteIp(range("10.2.2.2", 32)), true),
        (P::DirectRemoteIp(range("10.2.2.3", 32)), false),
        (P::RemoteIp(range("10.2.0.0", 16)), true),
        (P::Header(header("x-user", "eve")), true),
        (P::UrlPath(StringMatcher::prefix("/admin").into()), true),
        (P::Not(Box::new(P::Any)), false),
        (P::And(vec![P::Any, named("front.shop")].into()), true),
        (P::Or(vec![P::Not(Box::new(P::Any)), P::Any].into()), true),
    ] {
        let said = format!("{principal:?}");
        assert_eq!(allows(Permission::Any, principal, Some(&REQUEST)), expected, "{said}");
    }
}

#[test]
fn forwarded_clients() {
    let forwarded = Request {
        remote: Some([203, 0, 113, 1].into()),
        ..REQUEST
    };
    let from = |principal| allows(Permission::Any, principal, Some(&forwarded));
    assert!(from(Principal::RemoteIp(range("203.0.113.0", 24))));
    assert!(!from(Principal::RemoteIp(range("10.2.0.0", 16))));
    assert!(from(Principal::DirectRemoteIp(range("10.2.0.0", 16))));
}

#[test]
fn without_tls_nobody_is_authenticated() {
    let mut plain = connection();
    plain.peer = None;
    plain.tls_version = None;
    for matcher in [None, Some(StringMatcher::prefix(""))] {
        let rules = Rules::new(
            Action::Allow,
            vec![policy("p", Permission::Any, Principal::Authenticated(matcher))],
        );
        assert!(!rules.check(&plain, None).allowed);
    }
    // TLS without a client certificate: anyone, but no name.
    plain.tls_version = Some("TLSv1.3");
    let named = Principal::Authenticated(Some(StringMatcher::prefix("spiffe://")));
    assert!(
        !Rules::new(Action::Allow, vec![policy("p", Permission::Any, named)])
            .check(&plain, None)
            .allowed
    );
    let anyone = Principal::Authenticated(None);
    assert!(
        Rules::new(Action::Allow, vec![policy("p", Permission::Any, anyone)])
            .check(&plain, None)
            .allowed
    );
}

#[test]
fn actions() {
    let hit = |name: &str| policy(name, Permission::Any, Principal::Any);
    let miss = |name: &str| policy(name, Permission::DestinationPort(1), Principal::Any);
    for (action, policies, allowed, name) in [
        (Action::Allow, vec![], false, None),
        (Action::Allow, vec![miss("a"), hit("b")], true, Some("b")),
        (Action::Allow, vec![miss("a")], false, None),
        (Action::Deny, vec![], true, None),
        (Action::Deny, vec![hit("z"), hit("a")], false, Some("a")),
        (Action::Deny, vec![miss("a")], true, None),
        (Action::Log, vec![hit("a")], true, Some("a")),
        (Action::Log, vec![miss("a")], true, None),
    ] {
        let rules = Rules::new(action, policies);
        assert_eq!(
            rules.check(&connection(), None),
            Verdict { allowed, policy: name },
            "{rules:?}"
        );
    }
    let none = Policy {
        name: "none".into(),
        permissions: vec![Permission::Any].into(),
        principals: vec![].into(),
    };
    assert!(!Rules::new(Action::Allow, vec![none]).check(&connection(), None).allowed);
}

#[test]
fn shadow_rules_do_not_decide() {
    let policies = Policies {
        rules: None,
        shadow_rules: Some(Rules::new(
            Action::Deny,
            vec![policy("watch", Permission::Any, Principal::Any)],
        )),
        ..Policies::default()
    };
    let connection = connection();
    let decision = policies.check(&connection, Some(&REQUEST));
    assert!(decision.allowed);
    assert_eq!(
        decision.shadow,
        Some(Verdict {
            allowed: false,
            policy: Some("watch")
        })
    );
    let denied = Policies {
        rules: policies.shadow_rules.clone(),
        ..Policies::default()
    };
    let decision = denied.check(&connection, None);
    assert!(!decision.allowed);
    assert_eq!(decision.details(), "rbac_access_denied_matched_policy[watch]");
}

/// Neither a repeated field nor another reading of the path gets past a DENY, an ALLOW, or their negations.
#[test]
fn readings_turn_with_negations() {
    let role = || Permission::Header(header("x-role", "admin"));
    let admin = || Permission::UrlPath(StringMatcher::prefix("/admin").into());
    let shop = || Permission::UrlPath(StringMatcher::prefix("/shop").into());
    let not = |inner| Permission::Not(Box::new(inner));
    let request = |path, headers| Request {
        path,
        headers,
        remote: None,
    };
    let two = request("/shop", &[("x-role", "user"), ("x-role", "admin")]);
    let one = request("/shop", &[("x-role", "admin")]);
    let none = request("/shop", &[]);
    let slashes = request("//admin", &[]);
    for (permission, request, deny, allow) in [
        (role(), &two, true, false),
        (role(), &one, true, true),
        (role(), &none, false, false),
        // notValues: who is refused unless the role is admin must be admin in every reading.
        (not(role()), &two, true, false),
        (not(role()), &one, false, false),
        (not(role()), &none, true, true),
        (not(not(role())), &two, true, false),
        (admin(), &slashes, true, false),
        (not(admin()), &slashes, true, false),
        (not(shop()), &slashes, true, true),
        (Permission::And(vec![role(), not(admin())].into()), &two, true, false),
        (Permission::Or(vec![role(), shop()].into()), &two, true, true),
    ] {
        let said = format!("{permission:?} on {:?} {:?}", request.path, request.headers);
        let refused = |action| {
            let rules = Rules::new(action, vec![policy("p", permission.clone(), Principal::Any)]);
            !rules.check(&connection(), Some(request)).allowed
        };
        assert_eq!(refused(Action::Deny), deny, "deny: {said}");
        assert_eq!(!refused(Action::Allow), allow, "allow: {said}");
        let id = |p: &Permission| match p {
            Permission::Header(h) => Principal::Header(h.clone()),
            _ => Principal::Any,
        };
        if let Permission::Not(inner) = &permission
            && matches!(**inner, Permission::Header(_))
        {
            let principal = Principal::Not(Box::new(id(inner)));
            let rules = Rules::new(Action::Deny, vec![policy("p", Permission::Any, principal)]);
            assert_eq!(
                !rules.check(&connection(), Some(request)).allowed,
                deny,
                "not_id: {said}"
            );
        }
    }
}
