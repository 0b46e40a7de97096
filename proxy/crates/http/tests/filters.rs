//! What filters may do: wait, answer, be told other things by routes.

mod harness;

use std::sync::Arc;
use std::time::Duration;

use harness::*;
use heddle_config::filters::fault::{Abort, AbortWith, Delay, Fault};
use heddle_config::filters::rbac::RbacPerRoute;
use heddle_config::snapshot::*;
use heddle_matching::rbac::{self, Action as Rule, Permission, Principal};

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
        let mut table = to("c");
        if let Action::Route(action) = &mut table.virtual_hosts[0].routes[0].action {
            action.timeout = Duration::from_millis(200);
        }
        manager.routes = RouteSource::Inline(Arc::new(table));
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
        permissions: vec![Permission::Any],
        principals: vec![Principal::Any],
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
            speaking("rbac", vec![
                ("/deny", rule(nobody()), false),
                ("/none", rule(RbacPerRoute::default()), false),
                ("/off", None, true),
                ("/", None, false),
            ])
        };
        let own = rbac::Policies {
            rules: Some(rbac::Rules::new(Rule::Allow, vec![])),
            ..rbac::Policies::default()
        };
        let statuses = async |manager: HttpConnectionManager| {
            let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
            let mut out = vec![];
            for path in ["/deny", "/none", "/off", "/"] {
                out.push(proxy.ask(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await.status);
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
