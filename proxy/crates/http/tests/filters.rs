//! What filters may do: wait, answer, be told other things by routes.

mod harness;

use std::sync::Arc;
use std::time::Duration;

use harness::*;
use heddle_config::filters::cors::CorsPolicy;
use heddle_config::filters::fault::{Abort, AbortWith, Delay, Fault};
use heddle_config::filters::header_mutation::{HeaderMutation, Mutation, Mutations};
use heddle_config::filters::local_ratelimit::{Descriptor, Limiter, LocalRateLimit, TokenBucket, VirtualHostLimits};
use heddle_config::filters::rbac::RbacPerRoute;
use heddle_config::snapshot::*;
use heddle_matching::rbac::{self, Action as Rule, Permission, Principal};
use tokio::net::TcpStream;

fn h1(name: &str) -> Cluster {
    cluster(name, UpstreamHttp::Http1)
}

fn hour() -> Fault {
    Fault {
        delay: Some(Delay {
            fixed: Some(Duration::from_secs(3600)),
            percentage: Fraction::ALL,
        }),
        ..Fault::default()
    }
}

fn fault(settings: Fault) -> HttpFilter {
    filter("fault", FilterConfig::Fault(Arc::new(settings)))
}

/// What one level says to the only filter that the table speaks of.
fn said(config: Option<RouteFilterConfig>, disabled: bool) -> Arc<RouteFilters> {
    let mut filters = RouteFilters::default();
    filters.say(0, config, disabled);
    Arc::new(filters)
}

/// A table whose routes speak to the filter of this name.
fn speaking(name: &str, routes: Vec<(&str, Option<RouteFilterConfig>, bool)>) -> RouteTable {
    let example = routes.iter().find_map(|(_, said, _)| said.clone());
    let disables = routes.iter().any(|(.., disabled)| *disabled);
    let made = routes.into_iter().map(|(prefix, config, disabled)| {
        let mut route = route(prefix, Action::Route(Box::new(route_action("c"))));
        if config.is_some() || disabled {
            route.filters = said(config, disabled);
        }
        route
    });
    let mut table = table(made.collect());
    table.filters = vec![(name.into(), example)];
    table.disables_filters = disables;
    table
}

/// A table of one route that says something of a filter, with what is said around it.
fn overriding(name: &str, around: RouteFilterConfig, own: RouteFilterConfig) -> RouteTable {
    let mut route = route("/", Action::Route(Box::new(route_action("c"))));
    route.filters = said(Some(around.clone()), false);
    Arc::make_mut(&mut route.filters).say(0, Some(own), false);
    let mut table = table(vec![route]);
    table.filters = vec![(name.into(), Some(around))];
    table
}

const WAITING: &str = "envoy_http_fault_active_faults";

/// Whatever it has sent of its request, a client that goes away ends the wait.
#[test]
fn a_filter_does_not_wait_for_a_client_that_has_gone() {
    run(async {
        let (up, log) = echo().await;
        let mut manager = manager(to("c"));
        manager.filters = vec![fault(hour())];
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        for request in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            let mut client = proxy.connect().await;
            client.send(request).await;
            proxy.until(WAITING, "", 1).await;
            drop(client);
            proxy.until(WAITING, "", 0).await;
        }
        assert_eq!(proxy.metric("envoy_http_downstream_rq_rx_reset", ""), 6);
        assert!(log.borrow().is_empty());
    });
}

#[test]
fn a_stream_that_is_reset_ends_the_wait_and_others_go_on() {
    run(async {
        let (up, log) = echo().await;
        let mut manager = manager(speaking(
            "fault",
            vec![
                ("/slow", Some(RouteFilterConfig::Fault(Arc::new(hour()))), false),
                ("/", None, false),
            ],
        ));
        manager.filters = vec![fault(Fault::default())];
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        let tcp = TcpStream::connect(proxy.address).await.expect("connect");
        let (client, driver) = h2::client::handshake(tcp).await.expect("handshake");
        tokio::task::spawn_local(async move {
            let _ = driver.await;
        });
        let mut client = client.ready().await.expect("ready");
        let request = |path: &str| {
            let request = http::Request::builder()
                .method("POST")
                .uri(format!("http://shop{path}"));
            request.body(()).expect("request")
        };
        let (_, mut slow) = client.send_request(request("/slow"), false).expect("send");
        slow.send_data("hel".into(), false).expect("data");
        proxy.until(WAITING, "", 1).await;
        let (answer, _) = client.send_request(request("/fast"), true).expect("send");
        assert_eq!(answer.await.expect("an answer").status(), 200);
        slow.send_reset(h2::Reason::CANCEL);
        proxy.until(WAITING, "", 0).await;
        assert_eq!(log.borrow().len(), 1);
        drop(client);
    });
}

#[test]
fn what_breaks_the_protocol_behind_a_head_ends_the_wait() {
    run(async {
        let (up, _) = echo().await;
        let mut manager = manager(to("c"));
        manager.filters = vec![fault(hour())];
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        let answer = proxy
            .ask("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n")
            .await;
        assert_eq!(answer.status, 400);
    });
}

#[test]
fn deadlines_hold_while_a_filter_waits() {
    run(async {
        let (up, _) = echo().await;
        for (idle, request, body, status, text) in [
            (100, 0, "", 504, "stream timeout"),
            (0, 100, "Content-Length: 5\r\n", 408, "request timeout"),
            (100, 0, "Content-Length: 5\r\n", 408, "stream timeout"),
        ] {
            let mut manager = manager(to("c"));
            manager.stream_idle_timeout = Duration::from_millis(idle);
            manager.request_timeout = Duration::from_millis(request);
            manager.filters = vec![fault(hour())];
            let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
            let answer = proxy.ask(&format!("GET / HTTP/1.1\r\nHost: a\r\n{body}\r\n")).await;
            assert_eq!((answer.status, answer.text().as_str()), (status, text));
        }
    });
}

#[test]
fn the_end_of_a_drain_ends_the_wait() {
    run(async {
        let (up, _) = echo().await;
        let mut manager = manager(to("c"));
        manager.filters = vec![fault(hour())];
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        proxy.until(WAITING, "", 1).await;
        proxy.drain.start();
        proxy.drain.close_now();
        let answer = client.answer().await.expect("an answer");
        assert_eq!((answer.status, answer.header("connection")), (503, Some("close")));
        assert!(client.rest().await.is_empty());
    });
}

/// A request that waits holds up nobody else, and its timeout begins when it is forwarded.
#[test]
fn what_waits_does_not_block() {
    run(async {
        let (up, log) = echo().await;
        let mut manager = manager(to("c"));
        manager.filters = vec![fault(Fault {
            delay: Some(Delay {
                fixed: Some(Duration::from_millis(300)),
                percentage: Fraction::ALL,
            }),
            headers: vec![heddle_matching::HeaderMatcher::new(
                "x-slow",
                heddle_matching::HeaderTest::Present(true),
                false,
                false,
            )],
            ..Fault::default()
        })];
        let mut action = route_action("c");
        action.timeout = Duration::from_millis(200);
        let routes = vec![route("/", Action::Route(Box::new(action)))];
        manager.routes = RouteSource::Inline(Arc::new(table(routes)));
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        let mut slow = proxy.connect().await;
        slow.send("POST /slow HTTP/1.1\r\nHost: a\r\nX-Slow: 1\r\nContent-Length: 5\r\n\r\nhello")
            .await;
        proxy.until(WAITING, "", 1).await;
        assert_eq!(proxy.ask("GET /fast HTTP/1.1\r\nHost: a\r\n\r\n").await.status, 200);
        assert_eq!(log.borrow().len(), 1, "the slow one is still waiting");
        let answer = slow.answer().await.expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    });
}

fn nobody() -> RbacPerRoute {
    let policy = rbac::Policy {
        name: "all".into(),
        permissions: vec![Permission::Any].into(),
        principals: vec![Principal::Any].into(),
    };
    RbacPerRoute {
        policies: Some(Arc::new(rbac::Policies {
            rules: Some(rbac::Rules::new(Rule::Deny, vec![policy])),
            ..rbac::Policies::default()
        })),
    }
}

#[test]
fn routes_speak_to_filters() {
    run(async {
        let (up, _) = echo().await;
        let rule = |config: RbacPerRoute| Some(RouteFilterConfig::Rbac(Arc::new(config)));
        let table = || {
            speaking(
                "rbac",
                vec![
                    ("/deny", rule(nobody()), false),
                    ("/none", rule(RbacPerRoute::default()), false),
                    ("/off", None, true),
                    ("/", None, false),
                ],
            )
        };
        let own = rbac::Policies {
            rules: Some(rbac::Rules::new(Rule::Allow, vec![])),
            ..rbac::Policies::default()
        };
        let statuses = async |manager: HttpConnectionManager| {
            let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
            let mut out = vec![];
            for path in ["/deny", "/none", "/off", "/"] {
                out.push(
                    proxy
                        .ask(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
                        .await
                        .status,
                );
            }
            out
        };
        let mut manager1 = manager(table());
        manager1.filters = vec![harness::rbac(own)];
        assert_eq!(statuses(manager1).await, [403, 200, 200, 403]);
        // Switched off where nothing is said to it.
        let mut manager2 = manager(table());
        manager2.filters = vec![harness::rbac(rbac::Policies {
            rules: Some(rbac::Rules::new(Rule::Allow, vec![])),
            ..rbac::Policies::default()
        })];
        manager2.filters[0].disabled = true;
        assert_eq!(statuses(manager2).await, [403, 200, 200, 200]);
        // Another filter of another name does not hear it, nor does another kind of that name.
        let mut manager3 = manager(table());
        manager3.filters = vec![filter(
            "rbac",
            FilterConfig::Fault(Arc::new(Fault {
                abort: Some(Abort {
                    with: AbortWith::Http(418),
                    percentage: Fraction::ALL,
                    body: "".into(),
                }),
                ..Fault::default()
            })),
        )];
        assert_eq!(statuses(manager3).await, [418, 418, 418, 418]);
    });
}

/// So many tokens, and no more for as long as a test runs.
fn bucket(tokens: u32) -> TokenBucket {
    TokenBucket::new(tokens, 1e-6)
}

fn limit(tokens: u32) -> LocalRateLimit {
    LocalRateLimit {
        stat_prefix: "p".into(),
        status: 429,
        limiter: Limiter {
            default: Some(bucket(tokens)),
            descriptors: vec![],
            always_default: true,
        },
        enabled: Fraction::ALL,
        enforced: Fraction::ALL,
        request_headers: HeaderOps::default(),
        response_headers: HeaderOps::default(),
        rate_limits: vec![],
        stage: 0,
        virtual_host: VirtualHostLimits::Override,
        per_connection: false,
        x_ratelimit_headers: false,
        resource_exhausted: false,
    }
}

async fn limited(config: &Arc<LocalRateLimit>) -> Proxy {
    let (up, _) = echo().await;
    let mut manager = manager(to("c"));
    manager.filters = vec![filter("limit", FilterConfig::LocalRateLimit(Arc::clone(config)))];
    Proxy::start(manager, vec![(h1("c"), vec![up])]).await
}

const PLAIN: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn workers_share_a_rate_limit() {
    run(async {
        let config = Arc::new(limit(3));
        let (one, other) = (limited(&config).await, limited(&config).await);
        assert_eq!(one.ask(PLAIN).await.status, 200);
        assert_eq!(other.ask(PLAIN).await.status, 200);
        assert_eq!(one.ask(PLAIN).await.status, 200);
        let answer = other.ask(PLAIN).await;
        assert_eq!((answer.status, answer.text().as_str()), (429, "local_rate_limited"));
        assert_eq!(one.ask(PLAIN).await.status, 429);
        assert_eq!(one.metric("envoy_http_local_rate_limit_ok", "p"), 2);
        assert_eq!(other.metric("envoy_http_local_rate_limit_enforced", "p"), 1);
    });
}

#[test]
fn connections_have_rate_limits_of_their_own() {
    run(async {
        let config = Arc::new(LocalRateLimit {
            per_connection: true,
            ..limit(1)
        });
        let proxy = limited(&config).await;
        // More than are kept before those that are gone are looked for.
        for _ in 0..70 {
            let mut client = proxy.connect().await;
            for status in [200, 429] {
                client.send(PLAIN).await;
                assert_eq!(client.answer().await.expect("an answer").status, status);
            }
        }
    });
}

#[test]
fn a_descriptor_has_a_bucket_of_its_own() {
    run(async {
        let mut config = limit(100);
        config.limiter.descriptors = vec![Descriptor {
            entries: vec![("tenant".into(), "small".into())],
            bucket: bucket(1),
        }];
        config.rate_limits = vec![RateLimit {
            stage: 0,
            actions: vec![RateLimitAction::Header {
                name: "x-tenant".into(),
                key: "tenant".into(),
                skip_if_absent: false,
            }],
        }];
        let proxy = limited(&Arc::new(config)).await;
        let ask = async |tenant| {
            let request = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Tenant: {tenant}\r\n\r\n");
            proxy.ask(&request).await.status
        };
        let got = [
            ask("small").await,
            ask("small").await,
            ask("large").await,
            ask("large").await,
        ];
        assert_eq!(got, [200, 429, 200, 200]);
    });
}

#[test]
fn the_most_specific_cors_policy_that_says_something_counts() {
    run(async {
        let (up, log) = echo().await;
        let policy = |origin: &str, methods: &str| CorsPolicy {
            origins: match origin {
                "" => vec![],
                origin => vec![heddle_matching::StringMatcher::exact(origin)],
            },
            methods: methods.into(),
            headers: "".into(),
            expose: "".into(),
            max_age: "".into(),
            credentials: None,
            private_network: None,
            forward_preflights: None,
            enabled: Fraction::ALL,
            shadow: Fraction::default(),
        };
        let said = |policy: CorsPolicy| RouteFilterConfig::Cors(Arc::new(policy));
        let table = overriding("cors", said(policy("https://a", "GET")), said(policy("", "PUT")));
        let mut manager = manager(table);
        manager.filters = vec![filter("cors", FilterConfig::Cors(Arc::default()))];
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        let answer = proxy
            .ask("OPTIONS / HTTP/1.1\r\nHost: a\r\nOrigin: https://a\r\nAccess-Control-Request-Method: PUT\r\n\r\n")
            .await;
        assert_eq!(answer.header("access-control-allow-origin"), Some("https://a"));
        assert_eq!(answer.header("access-control-allow-methods"), Some("PUT"));
        assert!(log.borrow().is_empty());
        let answer = proxy
            .ask("GET / HTTP/1.1\r\nHost: a\r\nOrigin: https://b\r\n\r\n")
            .await;
        assert_eq!(
            (answer.status, answer.header("access-control-allow-origin")),
            (200, None)
        );
        assert_eq!(proxy.metric("envoy_http_cors_origin_invalid", ""), 1);
    });
}

/// `most_specific_header_mutations_wins` turns the order of levels round.
#[test]
fn mutations_come_in_the_order_of_levels() {
    run(async {
        let (up, log) = echo().await;
        let mutations = |value: &str| Mutations {
            request: vec![Mutation::Change(HeaderOps {
                remove: vec![],
                add: vec![("x-order".into(), HeaderValue::Literal(value.into()), HeaderOp::Append)],
            })],
            response: vec![],
        };
        let said = |value: &str| RouteFilterConfig::HeaderMutation(Arc::new(mutations(value)));
        for (most_specific_last, order) in [
            (false, ["filter", "route", "host"]),
            (true, ["filter", "host", "route"]),
        ] {
            let mut manager = manager(overriding("m", said("host"), said("route")));
            let config = HeaderMutation {
                mutations: mutations("filter"),
                most_specific_last,
            };
            manager.filters = vec![filter("m", FilterConfig::HeaderMutation(Arc::new(config)))];
            let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
            assert_eq!(proxy.ask(PLAIN).await.status, 200);
            let seen = log.borrow_mut().pop().expect("a request");
            let values: Vec<_> = seen
                .headers
                .iter()
                .filter(|(n, _)| n == "x-order")
                .map(|(_, v)| v.as_str())
                .collect();
            assert_eq!(values, order);
        }
    });
}
