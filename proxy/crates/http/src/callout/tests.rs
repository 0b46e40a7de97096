use super::*;
use crate::h1::H1Error;
use crate::harness::{self, Proxy, cluster, manager, retry_policy, server, to};
use crate::head::Known;
use heddle_config::snapshot::{Cluster, RetryOn, UpstreamHttp};
use std::net::SocketAddr;

fn get(target: &str) -> RequestHead {
    let mut head = RequestHead::default();
    head.set_method("GET");
    head.set_target(target);
    head.set_host("authz.example");
    head
}

fn callout(target: &str) -> Callout {
    Callout {
        cluster: "c".into(),
        request: get(target),
        body: Bytes::new(),
        timeout: Duration::from_secs(10),
        limit: 1024,
        retry: None,
    }
}

async fn proxy(address: SocketAddr, change: impl FnOnce(&mut Cluster)) -> Proxy {
    let mut cluster = cluster("c", UpstreamHttp::Http1);
    change(&mut cluster);
    Proxy::start(manager(to("c")), vec![(cluster, vec![address])]).await
}

/// A server that answers each request with these bytes, and then waits.
async fn answering(bytes: &'static str) -> SocketAddr {
    server(move |mut client, _| async move {
        while client.request().await.is_some() {
            client.send(bytes).await;
        }
    })
    .await
}

#[test]
fn a_request_and_its_answer() {
    harness::run(async {
        let (up, log) = harness::echo().await;
        let proxy = proxy(up, |_| {}).await;
        let mut with_body = callout("/check");
        with_body.request.set_method("POST");
        with_body.request.fields.push_known(Known::ContentLength, b"5");
        with_body.body = "hello".into();
        let answer = send(&proxy.worker, with_body).await.expect("an answer");
        assert_eq!((answer.head.status, &answer.body[..]), (200, &b"hello"[..]));
        assert_eq!(answer.head.fields.get(b"x-app"), Some(&b"yes"[..]));
        let answer = send(&proxy.worker, callout("/again")).await.expect("an answer");
        assert_eq!(&answer.body[..], b"ok");
        let log = log.borrow();
        assert_eq!(log[0].line, "POST /check HTTP/1.1");
        assert_eq!(log[0].header("host"), Some("authz.example"));
        assert_eq!(log[1].connection, log[0].connection, "the connection is kept");
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_total", "c"), 2);
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_active", "c"), 0);
    });
}

#[test]
fn an_answer_is_bounded() {
    harness::run(async {
        let long = "HTTP/1.1 200 OK\r\ncontent-length: 1025\r\n\r\n";
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n300\r\n";
        let chunk: &str = Box::leak(format!("{chunked}{0}\r\n300\r\n{0}\r\n", "x".repeat(0x300)).into_boxed_str());
        for (answers, n) in [long, chunk].into_iter().zip(1..) {
            let proxy = proxy(answering(answers).await, |_| {}).await;
            for round in 1..3 {
                let error = send(&proxy.worker, callout("/")).await.expect_err("too large");
                assert_eq!(error, CalloutError::TooLarge(1024), "{n}");
                assert_eq!(proxy.metric("heddle_cluster_callout_too_large", "c"), round);
            }
            assert_eq!(proxy.metric("envoy_cluster_upstream_cx_active", "c"), 0);
        }
    });
}

#[test]
fn what_may_go_wrong() {
    harness::run(async {
        let none = Callout {
            cluster: "other".into(),
            ..callout("/")
        };
        let (up, _) = harness::echo().await;
        let proxy_to_echo = proxy(up, |_| {}).await;
        let error = send(&proxy_to_echo.worker, none).await.expect_err("no such cluster");
        assert_eq!(error, CalloutError::NoCluster("other".into()));

        let silent = server(|mut client, _| async move {
            client.rest().await;
        });
        let to_silent = proxy(silent.await, |c| c.circuit_breakers.max_requests = 1).await;
        let mut hasty = callout("/");
        hasty.timeout = Duration::from_millis(30);
        let (slow, refused) = tokio::join!(send(&to_silent.worker, hasty), async {
            to_silent.until("envoy_cluster_upstream_rq_active", "c", 1).await;
            send(&to_silent.worker, callout("/")).await
        });
        assert_eq!(slow.expect_err("late"), CalloutError::Failed(Failure::Timeout));
        assert_eq!(
            refused.expect_err("one too many"),
            CalloutError::Failed(Failure::Overflow)
        );
        assert_eq!(to_silent.metric("envoy_cluster_upstream_rq_timeout", "c"), 1);

        let begun = answering("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe").await;
        let to_begun = proxy(begun, |_| {}).await;
        let mut hasty = callout("/");
        hasty.timeout = Duration::from_millis(30);
        let error = send(&to_begun.worker, hasty).await.expect_err("late");
        assert_eq!(error, CalloutError::Failed(Failure::Timeout));

        let cut = server(|mut client, _| async move {
            client.request().await;
            client.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe").await;
        });
        let to_cut = proxy(cut.await, |_| {}).await;
        let error = send(&to_cut.worker, callout("/")).await.expect_err("cut short");
        let details = "upstream_reset_after_response_started{connection_termination}";
        assert_eq!(error, CalloutError::Broken(details.into()));

        let nonsense = proxy(answering("HTTP/1.1 200 OK\r\nx: a\0b\r\n\r\n").await, |_| {}).await;
        let error = send(&nonsense.worker, callout("/")).await.expect_err("nonsense");
        assert_eq!(
            error,
            CalloutError::Failed(Failure::Upstream(StreamError::H1(H1Error::HeaderLine)))
        );
    });
}

#[test]
fn who_is_no_longer_interested_leaves_nothing_behind() {
    harness::run(async {
        let silent = server(|mut client, _| async move {
            client.rest().await;
        });
        let proxy = proxy(silent.await, |_| {}).await;
        tokio::select! {
            _ = send(&proxy.worker, callout("/")) => panic!("nobody answers"),
            () = proxy.until("envoy_cluster_upstream_rq_active", "c", 1) => {}
        }
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_active", "c"), 0);
        assert_eq!(proxy.metric("envoy_cluster_upstream_cx_active", "c"), 0);
    });
}

#[test]
fn retries_are_the_routers() {
    harness::run(async {
        let up = server(|mut client, connection| async move {
            while client.request().await.is_some() {
                let status = if connection == 1 { "503 No" } else { "200 OK" };
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                client.send(&head).await;
                if connection == 1 {
                    return;
                }
            }
        });
        let proxy = proxy(up.await, |_| {}).await;
        let on = RetryOn {
            server_error: true,
            ..RetryOn::default()
        };
        let again = Callout {
            retry: Some(Arc::new(retry_policy(on, 2))),
            ..callout("/")
        };
        assert_eq!(send(&proxy.worker, again).await.expect("an answer").head.status, 200);
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_retry", "c"), 1);
        let once = send(&proxy.worker, callout("/")).await.expect("an answer");
        assert_eq!(once.head.status, 200);
    });
}
