//! What policies see of a request is what the upstream gets of it: repeated fields, paths, methods, targets.

mod harness;

use harness::*;
use heddle_config::snapshot::*;
use heddle_matching::rbac::{self, Action as Rule, Permission, Principal};
use heddle_matching::{HeaderMatcher, HeaderTest, StringMatcher};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

fn h1(name: &str) -> Cluster {
    cluster(name, UpstreamHttp::Http1)
}

fn is(name: &str, value: &str) -> Permission {
    let test = HeaderTest::String(StringMatcher::exact(value));
    Permission::Header(HeaderMatcher::new(name, test, false, false))
}

fn not(inner: Permission) -> Permission {
    Permission::Not(Box::new(inner))
}

/// A connection manager with one rule.
fn ruled(action: Rule, permission: Permission) -> HttpConnectionManager {
    let policy = rbac::Policy {
        name: "p".into(),
        permissions: vec![permission].into(),
        principals: vec![Principal::Any].into(),
    };
    let mut manager = manager(to("c"));
    manager.filters = vec![harness::rbac(rbac::Policies {
        rules: Some(rbac::Rules::new(action, vec![policy])),
        ..rbac::Policies::default()
    })];
    manager
}

async fn proxy(manager: HttpConnectionManager) -> (Proxy, Log) {
    let (up, log) = echo().await;
    (Proxy::start(manager, vec![(h1("c"), vec![up])]).await, log)
}

/// Sends raw bytes on a new connection; zero when there is no answer.
async fn status(proxy: &Proxy, raw: &[u8]) -> u16 {
    let mut client = proxy.connect().await;
    client.tcp.write_all(raw).await.expect("send");
    client.answer().await.map_or(0, |answer| answer.status)
}

async fn with_fields(proxy: &Proxy, fields: &[u8]) -> u16 {
    let raw = [b"GET / HTTP/1.1\r\nHost: a\r\n", fields, b"\r\n"].concat();
    status(proxy, &raw).await
}

#[test]
fn a_repeated_field_gets_past_no_policy() {
    run(async {
        const ONE: &[u8] = b"x-role: admin\r\n";
        const TWO: &[u8] = b"x-role: user\r\nX-Role: admin\r\n";
        const FIRST: &[u8] = b"X-ROLE: admin\r\nx-role: user\r\n";
        const EMPTY: &[u8] = b"x-role: admin\r\nx-role:\r\n";
        const SPACES: &[u8] = b"x-role: \t admin \t\r\n";
        const OTHER: &[u8] = b"x-role: user\r\n";
        const NONE: &[u8] = b"";
        for (action, permission, table) in [
            (
                Rule::Deny,
                is("x-role", "admin"),
                [
                    (ONE, 403),
                    (TWO, 403),
                    (FIRST, 403),
                    (EMPTY, 403),
                    (SPACES, 403),
                    (OTHER, 200),
                    (NONE, 200),
                ],
            ),
            (
                Rule::Deny,
                not(is("x-role", "admin")),
                [
                    (ONE, 200),
                    (TWO, 403),
                    (FIRST, 403),
                    (EMPTY, 403),
                    (SPACES, 200),
                    (OTHER, 403),
                    (NONE, 403),
                ],
            ),
            (
                Rule::Allow,
                is("x-role", "admin"),
                [
                    (ONE, 200),
                    (TWO, 403),
                    (FIRST, 403),
                    (EMPTY, 403),
                    (SPACES, 200),
                    (OTHER, 403),
                    (NONE, 403),
                ],
            ),
            (
                Rule::Allow,
                not(is("x-role", "admin")),
                [
                    (ONE, 403),
                    (TWO, 403),
                    (FIRST, 403),
                    (EMPTY, 403),
                    (SPACES, 403),
                    (OTHER, 200),
                    (NONE, 200),
                ],
            ),
        ] {
            let said = format!("{action:?} {permission:?}");
            let (proxy, log) = proxy(ruled(action, permission)).await;
            let mut passed = 0;
            for (fields, expected) in table {
                let got = with_fields(&proxy, fields).await;
                assert_eq!(got, expected, "{said} on {}", String::from_utf8_lossy(fields));
                passed += usize::from(expected == 200);
            }
            assert_eq!(log.borrow().len(), passed);
            for seen in log.borrow().iter() {
                assert!(
                    seen.headers.iter().all(|(_, value)| value.trim() == value),
                    "white space at the ends is not forwarded: {seen:?}"
                );
            }
        }
    });
}

#[test]
fn routes_take_a_repeated_field_by_any_of_its_values() {
    run(async {
        let test = |value: &str| HeaderTest::String(StringMatcher::exact(value));
        let mut first = route("/", Action::Route(Box::new(route_action("nowhere"))));
        first.matches.headers = vec![HeaderMatcher::new("x-a", test("1"), false, false)];
        let mut second = route("/", Action::Route(Box::new(route_action("c"))));
        second.matches.headers = vec![HeaderMatcher::new("x-a", test("2"), true, false)];
        let (proxy, _) = proxy(manager(table(vec![first, second]))).await;
        for (fields, expected) in [
            (&b"x-a: 1\r\n"[..], 503),
            (b"x-a: 0\r\nx-a: 1\r\n", 503),
            (b"x-a: 0\r\nx-a: 3\r\n", 200),
            (b"x-a: 0\r\nx-a: 2\r\n", 404),
            (b"", 404),
        ] {
            assert_eq!(with_fields(&proxy, fields).await, expected, "{fields:?}");
        }
    });
}

#[test]
fn bytes_outside_utf8_and_hosts_are_matched_as_forwarded() {
    run(async {
        let prefix = HeaderTest::String(StringMatcher::contains("admin"));
        let deny = Permission::Header(HeaderMatcher::new("x-role", prefix, false, false));
        let (strings, _) = proxy(ruled(Rule::Deny, deny)).await;
        assert_eq!(with_fields(&strings, b"x-role: \xff\xfeadmin\xc3\r\n").await, 403);
        assert_eq!(with_fields(&strings, b"x-role: \xff\xfe\r\n").await, 200);
        for name in ["host", ":authority"] {
            let (hosts, log) = proxy(ruled(Rule::Deny, is(name, "admin"))).await;
            for (raw, expected) in [
                (&b"GET / HTTP/1.1\r\nHost: admin\r\n\r\n"[..], 403),
                (b"GET / HTTP/1.1\r\nHost: \t admin \r\n\r\n", 403),
                (b"GET http://admin/ HTTP/1.1\r\nHost: shop\r\n\r\n", 403),
                (b"GET / HTTP/1.1\r\nHost: shop\r\nHost: admin\r\n\r\n", 400),
                (b"GET / HTTP/1.1\r\nHost: shop,admin\r\n\r\n", 200),
                (b"GET http://shop/ HTTP/1.1\r\nHost: admin\r\n\r\n", 200),
            ] {
                assert_eq!(status(&hosts, raw).await, expected, "{}", String::from_utf8_lossy(raw));
            }
            let seen: Vec<_> = log
                .borrow()
                .iter()
                .map(|s| s.header("host").map(str::to_owned))
                .collect();
            assert_eq!(seen, [Some("shop,admin".to_owned()), Some("shop".to_owned())]);
        }
    });
}

#[test]
fn no_path_gets_past_a_policy() {
    run(async {
        let deny = Permission::UrlPath(StringMatcher::prefix("/admin").into());
        let (proxy, log) = proxy(ruled(Rule::Deny, deny)).await;
        for (path, expected) in [
            ("/admin", 403),
            ("/x/..;/admin", 403),
            ("/..;/admin", 403),
            ("/.;/admin", 403),
            ("/x/%2e%2e;/admin", 403),
            ("/x/..;a=b/admin", 403),
            ("/x\\..\\admin", 403),
            ("//admin", 403),
            ("/%2fadmin", 403),
            ("/%5Cadmin", 403),
            ("/;/admin", 403),
            ("/;v=1/admin;w", 403),
            ("/%3bv/admin", 403),
            ("//host/admin", 403),
            ("/adm%69n", 403),
            ("http://h/x/../admin", 403),
            ("/x/..%2fadmin", 400),
            ("/x%5c..%5cadmin", 400),
            ("/x/..%3b/admin", 400),
            ("/admin%00", 400),
            ("/x#/../admin", 400),
            ("/a;v=1/b", 200),
            ("/a%2Fb//c", 200),
            ("/x/%252e%252e/admin", 200),
            ("/x/../b?/../admin", 200),
        ] {
            let raw = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(status(&proxy, raw.as_bytes()).await, expected, "{path}");
        }
        let lines: Vec<_> = log.borrow().iter().map(|seen| seen.line.clone()).collect();
        assert_eq!(
            lines,
            [
                "GET /a;v=1/b HTTP/1.1",
                "GET /a%2Fb//c HTTP/1.1",
                "GET /x/%252e%252e/admin HTTP/1.1",
                "GET /b?/../admin HTTP/1.1"
            ]
        );
        assert_eq!(proxy.metric("heddle_http_path_refused_total", "test"), 4);
    });
}

#[test]
fn escaped_slashes_are_kept_refused_redirected_or_replaced() {
    run(async {
        for (action, path, expected, location) in [
            (EscapedSlashes::Keep, "/a%2Fb?c%2Fd", 200, None),
            (EscapedSlashes::Reject, "/a%2Fb", 400, None),
            (EscapedSlashes::Reject, "/a%5cb", 400, None),
            (EscapedSlashes::Reject, "/a?b%2Fc", 200, None),
            (EscapedSlashes::Redirect, "/x%2F..%2Fb?c%2Fd", 307, Some("/b?c%2Fd")),
            (EscapedSlashes::Redirect, "/%2Fhost/x", 307, Some("http://a//host/x")),
            (EscapedSlashes::Redirect, "/a", 200, None),
            (EscapedSlashes::Forward, "/x%2F..%5cb?c%2Fd", 200, None),
        ] {
            let mut manager = manager(to("c"));
            manager.escaped_slashes = action;
            let (proxy, log) = proxy(manager).await;
            let raw = |more: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n{more}\r\n");
            let answer = proxy.ask(&raw("")).await;
            assert_eq!(answer.status, expected, "{action:?} {path}");
            assert_eq!(answer.header("location"), location, "{action:?} {path}");
            let grpc = proxy.ask(&raw("Content-Type: application/grpc\r\n")).await;
            match expected {
                200 => assert_eq!(grpc.header("grpc-status"), None),
                // A gRPC client follows no redirect.
                _ => assert_eq!((grpc.status, grpc.header("grpc-status")), (200, Some("13"))),
            }
            let redirected = proxy.metric("envoy_http_downstream_rq_redirected_with_normalized_path", "test");
            assert_eq!(redirected, i64::from(expected == 307));
            if action == EscapedSlashes::Forward {
                assert_eq!(log.borrow()[0].line, "GET /b?c%2Fd HTTP/1.1");
            }
        }
    });
}

#[test]
fn methods_and_targets() {
    run(async {
        let (proxy, log) = proxy(ruled(Rule::Deny, is(":method", "POST"))).await;
        for (line, expected) in [
            ("POST /", 403),
            ("post /", 400),
            ("Post /", 400),
            ("propfind /", 400),
            ("PRI *", 400),
            ("GET *", 400),
            ("POST *", 400),
            ("GET /a#b", 400),
            ("GET http://a/b#c", 400),
            ("GET http://a?b", 200),
            // No route of a path: Envoy says the same.
            ("OPTIONS *", 404),
            ("PURGE /", 200),
            ("refresh /", 200),
        ] {
            let raw = format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(status(&proxy, raw.as_bytes()).await, expected, "{line}");
        }
        assert_eq!(proxy.metric("heddle_http1_protocol_error_total", "invalid_method"), 4);
        assert_eq!(proxy.metric("heddle_http1_protocol_error_total", "invalid_target"), 4);
        assert_eq!(log.borrow()[0].line, "GET /?b HTTP/1.1");
    });
}

/// The same over HTTP/2: one function normalizes paths, one matcher reads fields.
#[test]
fn http2_gets_past_no_policy_either() {
    run(async {
        let role = is("x-role", "admin");
        let path = Permission::UrlPath(StringMatcher::prefix("/admin").into());
        let (proxy, log) = proxy(ruled(Rule::Deny, Permission::Or(vec![role, path].into()))).await;
        let tcp = TcpStream::connect(proxy.address).await.expect("connect");
        let (send, driver) = h2::client::handshake(tcp).await.expect("handshake");
        tokio::task::spawn_local(async move {
            let _ = driver.await;
        });
        for (path, roles, expected) in [
            ("/x/..;/admin", &[][..], 403),
            ("/x/%2e%2e;/admin", &[], 403),
            ("//admin", &[], 403),
            ("/;v/admin", &[], 403),
            ("/%2Fadmin", &[], 403),
            ("/x/..%2fadmin", &[], 400),
            ("/x/..%3b/admin", &[], 400),
            ("/a", &["user", "admin"], 403),
            ("/a", &["admin", ""], 403),
            ("/a;v=1/b", &["user", "other"], 200),
        ] {
            let mut request = http::Request::builder().uri(format!("http://shop{path}"));
            for role in roles {
                request = request.header("x-role", *role);
            }
            let mut ready = send.clone().ready().await.expect("ready");
            let request = request.body(()).expect("request");
            let (answer, _) = ready.send_request(request, true).expect("send");
            let status = answer.await.expect("answer").status().as_u16();
            assert_eq!(status, expected, "{path} {roles:?}");
        }
        let log = log.borrow();
        assert_eq!(log.len(), 1);
        assert_eq!(log[0].line, "GET /a;v=1/b HTTP/1.1");
        let roles: Vec<_> = log[0].headers.iter().filter(|(name, _)| name == "x-role").collect();
        assert_eq!(roles.len(), 2, "both go on");
    });
}
