//! Requests between clusters: endpoints that come and go, gateways that die, who is told to whom.

mod harness;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use harness::*;
use heddle_config::snapshot::*;
use heddle_matching::{StringMatcher, StringTest, rbac};
use heddle_net::{ConnectionInfo, PeerIdentity};
use heddle_telemetry::istio::PeerMetadata;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

const GET: &str = "GET / HTTP/1.1\r\nHost: shop\r\n\r\n";

fn h1(name: &str) -> Cluster {
    cluster(name, UpstreamHttp::Http1)
}

/// A server that answers its name when `go` is told, and tells `asked` before.
async fn held(name: &'static str, asked: &Rc<Notify>, go: &Rc<Notify>) -> SocketAddr {
    let (asked, go) = (Rc::clone(asked), Rc::clone(go));
    server(move |mut client, _| {
        let (asked, go) = (Rc::clone(&asked), Rc::clone(&go));
        async move {
            while client.request().await.is_some() {
                asked.notify_one();
                go.notified().await;
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len());
                client.send(&answer).await;
            }
        }
    })
    .await
}

/// A server that answers its name at once.
async fn named(name: &'static str) -> SocketAddr {
    server(move |mut client, _| async move {
        while client.request().await.is_some() {
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len());
            client.send(&answer).await;
        }
    })
    .await
}

/// An address that nobody listens on.
async fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    listener.local_addr().expect("address")
}

#[test]
fn an_endpoint_that_leaves_finishes_what_it_has_and_gets_nothing_new() {
    run(async {
        let (asked, go) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
        let (old, new) = (held("old", &asked, &go).await, named("new").await);
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![old])]).await;
        let mut first = proxy.connect().await;
        first.send(GET).await;
        asked.notified().await;
        proxy.update(vec![(h1("c"), vec![new])]);
        // The new address is used at once, by new connections and by kept ones.
        assert_eq!(proxy.ask(GET).await.text(), "new");
        go.notify_one();
        assert_eq!(first.answer().await.expect("answer").text(), "old");
        first.send(GET).await;
        assert_eq!(first.answer().await.expect("answer").text(), "new");
        // The old connection was not kept.
        proxy.until("envoy_cluster_upstream_cx_active", "c", 1).await;
        // The cluster goes while a request is under way.
        let (asked, go) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
        let last = held("last", &asked, &go).await;
        proxy.update(vec![(h1("c"), vec![last])]);
        first.send(GET).await;
        asked.notified().await;
        proxy.update(vec![]);
        go.notify_one();
        assert_eq!(first.answer().await.expect("answer").text(), "last");
        assert_eq!(proxy.ask(GET).await.status, 503);
    });
}

#[test]
fn streams_finish_on_an_endpoint_that_leaves() {
    run(async {
        let (asked, go) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let old = listener.local_addr().expect("address");
        let (told, wait) = (Rc::clone(&asked), Rc::clone(&go));
        let served = tokio::task::spawn_local(async move {
            let (tcp, _) = listener.accept().await.expect("accept");
            let mut connection = h2::server::handshake(tcp).await.expect("handshake");
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                let (told, wait) = (Rc::clone(&told), Rc::clone(&wait));
                tokio::task::spawn_local(async move {
                    told.notify_one();
                    wait.notified().await;
                    let mut send = respond.send_response(http::Response::new(()), false).expect("send");
                    send.send_data(Bytes::from_static(b"old"), true).expect("send");
                });
            }
        });
        let new = named("new").await;
        let proxy = Proxy::start(manager(to("c")), vec![(cluster("c", UpstreamHttp::Http2), vec![old])]).await;
        let mut first = proxy.connect().await;
        first.send(GET).await;
        asked.notified().await;
        proxy.update(vec![(h1("c"), vec![new])]);
        assert_eq!(proxy.ask(GET).await.text(), "new");
        go.notify_one();
        assert_eq!(first.answer().await.expect("answer").text(), "old");
        served.await.expect("the connection ends with its last stream");
    });
}

fn with_retries(policy: Option<RetryOn>) -> HttpConnectionManager {
    let mut action = route_action("c");
    action.retry = policy.map(|on| {
        Arc::new(RetryPolicy {
            avoid_previous_hosts: true,
            host_selection_attempts: 5,
            ..retry_policy(on, 2)
        })
    });
    manager(table(vec![route("/", Action::Route(Box::new(action)))]))
}

#[test]
fn a_dead_gateway_is_retried_elsewhere_only_if_the_policy_says_so() {
    run(async {
        let (dead, alive) = (nobody().await, named("alive").await);
        let on = RetryOn {
            connect_failure: true,
            ..RetryOn::default()
        };
        let proxy = Proxy::start(with_retries(Some(on)), vec![(h1("c"), vec![dead, alive])]).await;
        for _ in 0..10 {
            // A request on a connection of its own each: the pool of the living one must not hide the dead one.
            assert_eq!(proxy.ask(GET).await.text(), "alive");
        }
        assert!(proxy.metric("envoy_cluster_upstream_rq_retry_success", "c") >= 4);
        let failed = proxy.metric("envoy_cluster_upstream_cx_connect_fail", "c");
        assert!(failed >= 4, "{failed}");
        let proxy = Proxy::start(with_retries(None), vec![(h1("c"), vec![dead, alive])]).await;
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(proxy.ask(GET).await.status);
        }
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 503, 503]);
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_retry", "c"), 0);
    });
}

#[test]
fn ejected_gateways_are_left_alone() {
    run(async {
        let (dead, alive) = (nobody().await, named("alive").await);
        let mut config = h1("c");
        config.panic_threshold = 0.0;
        config.outlier_detection = Some(OutlierDetection {
            consecutive_5xx: 0,
            consecutive_gateway_failure: 2,
            consecutive_local_origin_failure: 0,
            interval: Duration::from_secs(1),
            base_ejection_time: Duration::from_secs(30),
            max_ejection_time: Duration::from_secs(30),
            max_ejection_percent: 100,
            always_eject_one: false,
        });
        let proxy = Proxy::start(with_retries(None), vec![(config, vec![dead, alive])]).await;
        let mut failures = 0;
        for _ in 0..20 {
            failures += i32::from(proxy.ask(GET).await.status == 503);
        }
        assert_eq!(failures, 2, "as many as it takes to be sure");
    });
}

/// A relay that stops passing bytes on when it is told to: a link that is cut, as far as the two ends can see.
async fn relay(to: SocketAddr) -> (SocketAddr, Rc<Cell<bool>>) {
    let cut = Rc::new(Cell::new(false));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let shared = Rc::clone(&cut);
    tokio::task::spawn_local(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(to).await.expect("connect");
            let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
            for (mut read, mut write) in [(near_read, far_write), (far_read, near_write)] {
                let cut = Rc::clone(&shared);
                tokio::task::spawn_local(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = read.read(&mut buffer).await {
                        if !cut.get() && write.write_all(&buffer[..n]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
    (address, cut)
}

fn pings(interval_ms: u64, timeout_ms: u64) -> Option<H2Keepalive> {
    Some(H2Keepalive {
        interval: Duration::from_millis(interval_ms),
        timeout: Duration::from_millis(timeout_ms),
        jitter: 0.0,
    })
}

#[test]
fn pings_find_a_dead_upstream() {
    run(async {
        let go = Rc::new(Notify::new());
        let wait = Rc::clone(&go);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let up = listener.local_addr().expect("address");
        tokio::task::spawn_local(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let wait = Rc::clone(&wait);
                tokio::task::spawn_local(async move {
                    let mut connection = h2::server::handshake(tcp).await.expect("handshake");
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        let wait = Rc::clone(&wait);
                        tokio::task::spawn_local(async move {
                            if request.uri().path() == "/slow" {
                                wait.notified().await;
                            }
                            let _ = respond.send_response(http::Response::new(()), true);
                        });
                    }
                });
            }
        });
        let (far, cut) = relay(up).await;
        let mut config = cluster("c", UpstreamHttp::Http2);
        config.http2.keepalive = pings(50, 100);
        let proxy = Proxy::start(manager(to("c")), vec![(config, vec![far])]).await;
        // Answers that take longer than the timeout are no reason: the pings are answered.
        let mut slow = proxy.connect().await;
        slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        go.notify_one();
        assert_eq!(slow.answer().await.expect("answer").status, 200);
        assert_eq!(proxy.metric("envoy_cluster_http2_keepalive_timeout", "c"), 0);
        // The link is cut under a request.
        slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
        proxy.until("envoy_cluster_upstream_rq_active", "c", 1).await;
        cut.set(true);
        let begun = Instant::now();
        let answer = slow.answer().await.expect("answer");
        assert_eq!(answer.status, 503);
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(proxy.metric("envoy_cluster_http2_keepalive_timeout", "c"), 1);
        proxy.until("envoy_cluster_upstream_cx_active", "c", 0).await;
        cut.set(false);
        assert_eq!(proxy.ask(GET).await.status, 200);
    });
}

#[test]
fn pings_find_a_dead_client() {
    run(async {
        let up = named("up").await;
        let mut manager = manager(to("c"));
        manager.http2.keepalive = pings(50, 100);
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        // This client acknowledges pings, as any does, until its link is cut.
        let (far, cut) = relay(proxy.address).await;
        let tcp = TcpStream::connect(far).await.expect("connect");
        let (send, driver) = h2::client::handshake(tcp).await.expect("handshake");
        tokio::task::spawn_local(async move {
            let _ = driver.await;
        });
        let ask = async |send: &h2::client::SendRequest<Bytes>| {
            let request = http::Request::builder().uri("http://shop/").body(()).expect("request");
            let mut ready = send.clone().ready().await.expect("ready");
            let (response, _) = ready.send_request(request, true).expect("send");
            response.await.expect("answer").status()
        };
        assert_eq!(ask(&send).await, 200);
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(ask(&send).await, 200);
        cut.set(true);
        proxy.until("envoy_http2_keepalive_timeout", "", 1).await;
        proxy.until("envoy_http_downstream_cx_http2_active", "", 0).await;
    });
}

#[test]
fn a_name_that_nobody_resolves_is_waited_for_as_long_as_a_connection() {
    run(async {
        let mut config = h1("c");
        config.discovery = Discovery::StrictDns;
        config.connect_timeout = Duration::from_millis(50);
        let mut base = snapshot(vec![(config, vec!["0.0.0.0:80".parse().expect("address")])]);
        let endpoints = base.endpoints.get_mut("c").and_then(Arc::get_mut).expect("unshared");
        endpoints[0].endpoints[0].hostname = Some("db.example".into());
        let proxy = Proxy::start_as(TrafficDirection::Outbound, manager(to("c")), base, |_| {}).await;
        let begun = Instant::now();
        let answer = proxy.ask(GET).await;
        assert_eq!((answer.status, answer.text().as_str()), (503, "no healthy upstream"));
        assert!(begun.elapsed() >= Duration::from_millis(50));
        // Only once.
        let begun = Instant::now();
        assert_eq!(proxy.ask(GET).await.status, 503);
        assert!(begun.elapsed() < Duration::from_millis(50), "{:?}", begun.elapsed());
    });
}

/// A client of this cluster, as its certificate has it.
fn from(cluster: &'static str) -> impl Fn(&mut ConnectionInfo) {
    move |info| {
        info.tls_version = Some("TLSv1.3");
        info.local_identity = Some("spiffe://acme.demo/ns/shop/sa/cart".into());
        info.peer = Some(Arc::new(PeerIdentity {
            uri_sans: vec!["spiffe://acme.demo/ns/web/sa/front".into()],
            dns_sans: vec![format!("{cluster}.clusters.acme.demo")],
            sha256: "abc".into(),
            ..PeerIdentity::default()
        }));
    }
}

/// Lets in whoever has this DNS name in the certificate: what `source.cluster` becomes.
fn only(name: &str) -> HttpFilter {
    let matcher = StringMatcher::new(StringTest::Exact(name.into()), false);
    let allow = rbac::Policy {
        name: "from-c2".into(),
        permissions: vec![rbac::Permission::Any].into(),
        principals: vec![rbac::Principal::Authenticated(Some(matcher))].into(),
    };
    harness::rbac(rbac::Policies {
        rules: Some(rbac::Rules::new(rbac::Action::Allow, vec![allow])),
        ..rbac::Policies::default()
    })
}

#[test]
fn policies_and_the_application_know_the_clients_cluster() {
    run(async {
        let (up, log) = echo().await;
        for (cluster, status) in [("c2", 200), ("c3", 403), ("c2.clusters.acme.demo.evil", 403)] {
            let mut manager = manager(to("c"));
            manager.xfcc_mode = XfccMode::SanitizeSet;
            manager.xfcc_detail = XfccDetail {
                subject: false,
                uri: true,
                dns: true,
            };
            manager.filters = vec![only("c2.clusters.acme.demo")];
            let base = snapshot(vec![(h1("c"), vec![up])]);
            let proxy = Proxy::start_as(TrafficDirection::Inbound, manager, base, from(cluster)).await;
            assert_eq!(proxy.ask(GET).await.status, status, "{cluster}");
        }
        assert_eq!(
            log.borrow()[0].header("x-forwarded-client-cert"),
            Some(
                "By=spiffe://acme.demo/ns/shop/sa/cart;Hash=abc;\
                 URI=spiffe://acme.demo/ns/web/sa/front;DNS=c2.clusters.acme.demo"
            )
        );
    });
}

#[test]
fn the_servers_metrics_tell_the_cluster_by_the_certificate() {
    run(async {
        let introduction = PeerMetadata {
            workload: "front".into(),
            namespace: "web".into(),
            cluster: "c1".into(),
            ..PeerMetadata::default()
        };
        let says_c1 = introduction.to_header();
        for (header, workload) in [(Some(says_c1), "front"), (None, "unknown")] {
            let (up, _) = echo().await;
            let mut manager = manager(to("c"));
            manager.filters = telemetry();
            let base = snapshot(vec![(h1("c"), vec![up])]);
            let proxy = Proxy::start_as(TrafficDirection::Inbound, manager, base, from("c2")).await;
            let extra = header
                .map(|h| format!("x-envoy-peer-metadata: {h}\r\n"))
                .unwrap_or_default();
            let answer = proxy.ask(&format!("GET / HTTP/1.1\r\nHost: a\r\n{extra}\r\n")).await;
            assert_eq!(answer.status, 200);
            let label = |name| proxy.label("istio_requests_total", name).expect("label");
            assert_eq!(label("source_cluster"), "c2", "whatever the client says");
            assert_eq!(label("source_workload"), workload);
            assert_eq!(label("source_workload_namespace"), "web");
            assert_eq!(label("source_principal"), "spiffe://acme.demo/ns/web/sa/front");
            assert_eq!(label("destination_principal"), "spiffe://acme.demo/ns/shop/sa/cart");
        }
    });
}

#[test]
fn the_clients_metrics_know_the_cluster_behind_a_gateway() {
    run(async {
        let introduction = PeerMetadata {
            workload: "cart".into(),
            namespace: "shop".into(),
            cluster: "c2".into(),
            ..PeerMetadata::default()
        };
        let told = introduction.to_header();
        let introduces = server(move |mut client, _| {
            let told = told.clone();
            async move {
                while client.request().await.is_some() {
                    client
                        .send(&format!(
                            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-envoy-peer-metadata: {told}\r\n\r\n"
                        ))
                        .await;
                }
            }
        })
        .await;
        for (up, workload) in [(introduces, "cart"), (named("silent").await, "unknown")] {
            let mut manager = manager(to("c"));
            manager.filters = telemetry();
            let mut base = snapshot(vec![(h1("c"), vec![up])]);
            let endpoints = base.endpoints.get_mut("c").and_then(Arc::get_mut).expect("unshared");
            endpoints[0].endpoints[0].workload = Some(";;;;c2".into());
            base.node = Arc::new(Node {
                metadata: serde_json::json!({ "CLUSTER_ID": "c1", "WORKLOAD_NAME": "front", "NAMESPACE": "web" }),
                ..Node::default()
            });
            let proxy = Proxy::start_as(TrafficDirection::Outbound, manager, base, |_| {}).await;
            let answer = proxy.ask(GET).await;
            assert_eq!((answer.status, answer.header("x-envoy-peer-metadata")), (200, None));
            let label = |name| proxy.label("istio_requests_total", name).expect("label");
            assert_eq!(
                (label("source_cluster"), label("destination_cluster")),
                ("c1".into(), "c2".into())
            );
            assert_eq!(label("destination_workload"), workload);
        }
    });
}

#[test]
fn a_kept_connection_that_is_closed_as_it_is_used_costs_nothing() {
    run(async {
        // Answers the first request of each connection and closes when the second one comes.
        let up = server(|mut client, connection| async move {
            if client.request().await.is_some() {
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{connection}");
                client.send(&answer).await;
                client.request().await;
            }
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        for connection in 1..=4 {
            // Sent on the connection of the one before, and again on a new one.
            assert_eq!(proxy.ask(GET).await.text(), connection.to_string());
        }
        assert_eq!(proxy.metric("heddle_cluster_upstream_rq_moved", "c"), 3);
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_retry", "c"), 0);
        // What may change something is not sent twice.
        let answer = proxy
            .ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            .await;
        assert_eq!(answer.status, 503);
        assert!(answer.text().contains("connection termination"), "{}", answer.text());
        assert_eq!(proxy.metric("heddle_cluster_upstream_rq_moved", "c"), 3);
    });
}

#[test]
fn a_server_that_answers_nobody_is_asked_once() {
    run(async {
        let asked = Rc::new(Cell::new(0));
        let counter = Rc::clone(&asked);
        let up = server(move |mut client, _| {
            let counter = Rc::clone(&counter);
            async move {
                client.request().await;
                counter.set(counter.get() + 1);
            }
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        assert_eq!(proxy.ask(GET).await.status, 503);
        assert_eq!(asked.get(), 1, "the connection was new: the fault is the server's");
        assert_eq!(proxy.metric("heddle_cluster_upstream_rq_moved", "c"), 0);
    });
}
