//! Copies of requests for other clusters.

mod harness;

use std::sync::Arc;
use std::time::Duration;

use harness::*;
use heddle_config::snapshot::*;

fn h1(name: &str) -> Cluster {
    cluster(name, UpstreamHttp::Http1)
}

fn to_copy(to: MirrorTo) -> Mirror {
    Mirror {
        to,
        share: Fraction::ALL,
        host: MirrorHost::Suffixed,
    }
}

/// All requests to `c`, copies as told.
fn mirrored(mirrors: Vec<Mirror>) -> HttpConnectionManager {
    let mut action = route_action("c");
    action.mirrors = mirrors.into();
    manager(table(vec![route("/", Action::Route(Box::new(action)))]))
}

fn to_other() -> HttpConnectionManager {
    mirrored(vec![to_copy(MirrorTo::Cluster("copy".into()))])
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[test]
fn a_copy_has_head_and_body() {
    run(async {
        for http in [UpstreamHttp::Http1, UpstreamHttp::Downstream] {
            let ((up, log), (other, copies)) = (echo().await, echo().await);
            let clusters = vec![(h1("c"), vec![up]), (cluster("copy", http), vec![other])];
            let proxy = Proxy::start(to_other(), clusters).await;
            let plain = proxy.ask("GET /a?b HTTP/1.1\r\nHost: shop:80\r\nx-a: 1\r\n\r\n").await;
            assert_eq!((plain.status, plain.text()), (200, "ok".to_owned()));
            let long = "POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 5\r\n\r\nhello";
            assert_eq!(proxy.ask(long).await.text(), "hello");
            let chunked =
                "POST / HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n";
            assert_eq!(proxy.ask(chunked).await.text(), "hello");
            until(|| copies.borrow().len() == 3).await;
            let (log, copies) = (log.borrow(), copies.borrow());
            let of = |line: &str, host: &str| {
                copies
                    .iter()
                    .filter(|s| s.line == line && s.header("host") == Some(host))
                    .count()
            };
            assert_eq!(of("GET /a?b HTTP/1.1", "shop-shadow:80"), 1);
            assert_eq!(of("POST / HTTP/1.1", "shop-shadow"), 2);
            assert_eq!(copies.iter().filter(|s| s.body == b"hello").count(), 2);
            assert_eq!(
                log[0].header("host"),
                Some("shop:80"),
                "the request itself is as it was"
            );
            assert_eq!(log[0].header("x-request-id"), copies[0].header("x-request-id"));
            assert_eq!(copies[0].header("x-a"), Some("1"));
            assert_eq!(proxy.metric("envoy_cluster_upstream_rq_total", "copy"), 3);
        }
    });
}

/// Whatever the copy's cluster does, the client gets its answer.
#[test]
fn a_copy_holds_nobody_up() {
    run(async {
        let (up, _) = echo().await;
        let deaf = server(|client, _| async move {
            std::future::pending::<()>().await;
            drop(client);
        });
        let mut bounded = h1("copy");
        bounded.buffer_limit = 1000;
        bounded.circuit_breakers.max_requests = 2;
        let proxy = Proxy::start(to_other(), vec![(h1("c"), vec![up]), (bounded, vec![deaf.await])]).await;
        let mut client = proxy.connect().await;
        // More than what kernel and proxy hold for who does not read.
        let size = 16 << 20;
        client
            .send(&format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n"))
            .await;
        client.send(&"x".repeat(size)).await;
        assert_eq!(client.answer().await.expect("an answer").body.len(), size);
        proxy.until("heddle_cluster_mirror_overflow", "copy", 1).await;
        proxy.until("envoy_cluster_upstream_rq_active", "copy", 0).await;
        // Copies in progress are bounded by their cluster's circuit breaker.
        for _ in 0..5 {
            assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.status, 200);
        }
        proxy.until("envoy_cluster_upstream_rq_active", "copy", 2).await;
        proxy
            .until("envoy_cluster_upstream_rq_pending_overflow", "copy", 3)
            .await;
        assert_eq!(proxy.metric("envoy_http_downstream_rq_active", "test"), 0);
    });
}

#[test]
fn a_copy_goes_on_without_the_request_and_ends_in_time() {
    run(async {
        let (up, _) = echo().await;
        let silent = server(|mut client, _| async move {
            client.rest().await;
        });
        let mut action = route_action("c");
        action.timeout = Duration::from_millis(200);
        action.mirrors = vec![to_copy(MirrorTo::Cluster("copy".into()))].into();
        let manager = manager(table(vec![route("/", Action::Route(Box::new(action)))]));
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up]), (h1("copy"), vec![silent.await])]).await;
        assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.status, 200);
        proxy.until("envoy_cluster_upstream_rq_active", "copy", 1).await;
        proxy.until("envoy_cluster_upstream_rq_timeout", "copy", 1).await;
        proxy.until("envoy_cluster_upstream_cx_active", "copy", 0).await;
    });
}

/// A request that does not come to its end has no copy that does.
#[test]
fn a_copy_of_a_request_that_is_cut_is_cut() {
    run(async {
        let ((up, _), (other, copies)) = (echo().await, echo().await);
        let proxy = Proxy::start(to_other(), vec![(h1("c"), vec![up]), (h1("copy"), vec![other])]).await;
        let mut client = proxy.connect().await;
        client
            .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel")
            .await;
        proxy.until("envoy_cluster_upstream_rq_active", "copy", 1).await;
        drop(client);
        proxy.until("envoy_cluster_upstream_rq_tx_reset", "copy", 1).await;
        proxy.until("envoy_cluster_upstream_cx_active", "copy", 0).await;
        assert!(copies.borrow().is_empty(), "half a request");
    });
}

#[test]
fn which_requests_are_copied() {
    run(async {
        let ((up, _), (other, copies)) = (echo().await, echo().await);
        let none = Mirror {
            share: Fraction::default(),
            ..to_copy(MirrorTo::Cluster("copy".into()))
        };
        let by_header = to_copy(MirrorTo::Header("x-copy".into()));
        let nowhere = to_copy(MirrorTo::Cluster("nowhere".into()));
        let manager = mirrored(vec![none, by_header, nowhere]);
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up]), (h1("copy"), vec![other])]).await;
        for fields in ["", "x-copy: other\r\n", "x-copy: copy\r\n"] {
            let answer = proxy.ask(&format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).await;
            assert_eq!(answer.status, 200);
        }
        let upgrade = "GET / HTTP/1.1\r\nHost: a\r\nx-copy: copy\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
        assert_eq!(proxy.ask(upgrade).await.status, 200, "the upstream declines");
        proxy.until("envoy_cluster_upstream_rq_total", "copy", 1).await;
        until(|| copies.borrow().len() == 1).await;
        assert_eq!(copies.borrow()[0].header("x-copy"), Some("copy"));
    });
}

/// What the router tries again is copied once.
#[test]
fn retries_are_not_copied() {
    run(async {
        let up = server(|mut client, connection| async move {
            while client.request().await.is_some() {
                let status = if connection == 1 { "503 No" } else { "200 OK" };
                client
                    .send(&format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"))
                    .await;
                if connection == 1 {
                    return;
                }
            }
        });
        let (other, copies) = echo().await;
        let on = RetryOn {
            server_error: true,
            ..RetryOn::default()
        };
        let mut action = route_action("c");
        action.retry = Some(Arc::new(retry_policy(on, 2)));
        action.mirrors = vec![to_copy(MirrorTo::Cluster("copy".into()))].into();
        let manager = manager(table(vec![route("/", Action::Route(Box::new(action)))]));
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up.await]), (h1("copy"), vec![other])]).await;
        let body = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(proxy.ask(body).await.status, 200);
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_retry", "c"), 1);
        until(|| copies.borrow().len() == 1).await;
        assert_eq!(copies.borrow()[0].body, b"hello");
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_total", "copy"), 1);
    });
}
