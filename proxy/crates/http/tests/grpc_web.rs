//! gRPC for browsers, and filters that wait before an answer.

mod harness;

use std::sync::Arc;
use std::time::Duration;

use harness::*;
use heddle_config::filters::grpc_web::GrpcWeb;
use heddle_config::snapshot::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn browsers() -> HttpConnectionManager {
    let mut manager = manager(to("c"));
    manager.filters = vec![filter("web", FilterConfig::GrpcWeb(Arc::new(GrpcWeb)))];
    manager
}

fn asked(content_type: &str, accept: &str, body: &str) -> String {
    format!(
        "POST /shop.Cart/Get HTTP/1.1\r\nHost: a\r\nX-Grpc-Web: 1\r\nContent-Type: {content_type}\r\nAccept: {accept}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Answers each request with these pieces, one after the other as the client of this server takes them.
async fn answering(answer: &'static [u8]) -> (std::net::SocketAddr, Log) {
    let log = Log::default();
    let shared = std::rc::Rc::clone(&log);
    let address = server(move |mut client, connection| {
        let log = std::rc::Rc::clone(&shared);
        async move {
            while let Some(mut seen) = client.request().await {
                seen.connection = connection;
                log.borrow_mut().push(seen);
                if client.tcp.write_all(answer).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    (address, log)
}

const GRPC: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/grpc\r\ntransfer-encoding: chunked\r\n\r\n\
    6\r\n\0\0\0\0\x01a\r\n0\r\ngrpc-status: 0\r\ngrpc-message: fine\r\n\r\n";

const ACTIVE: &str = "envoy_http_downstream_rq_active";

#[test]
fn binary_calls() {
    run(async {
        let (up, log) = answering(GRPC).await;
        let proxy = Proxy::start(browsers(), vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
        let answer = proxy
            .ask(&asked("application/grpc-web+proto", "*/*", "\0\0\0\0\u{1}b"))
            .await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("application/grpc-web+proto"));
        assert_eq!(
            answer.body,
            b"\0\0\0\0\x01a\x80\0\0\0\x22grpc-status:0\r\ngrpc-message:fine\r\n"
        );
        assert!(answer.trailers.is_empty());
        let seen = log.borrow()[0].clone();
        assert_eq!(seen.body, b"\0\0\0\0\x01b");
        for (name, value) in [
            ("content-type", Some("application/grpc")),
            ("te", Some("trailers")),
            ("grpc-accept-encoding", Some("identity")),
            ("x-grpc-web", Some("1")),
            ("content-length", None),
            ("connection", None),
        ] {
            assert_eq!(seen.header(name), value, "{name}");
        }
        for name in ["0", "success", "total"] {
            let name = format!("envoy_cluster_grpc_web_shop_Cart_Get_{name}");
            assert_eq!(proxy.metric(&name, "c"), 1, "{name}");
        }
    });
}

#[test]
fn calls_in_base64() {
    run(async {
        let (up, log) = answering(GRPC).await;
        let proxy = Proxy::start(browsers(), vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
        let text = "application/grpc-web-text";
        // Two pieces, each with padding of its own.
        let answer = proxy.ask(&asked(text, text, "AAAAAA==AWI=")).await;
        assert_eq!(answer.header("content-type"), Some("application/grpc-web-text+proto"));
        assert_eq!(
            answer.text(),
            "AAAAAAFhgAAAACJncnBjLXN0YXR1czowDQpncnBjLW1lc3NhZ2U6ZmluZQ0K"
        );
        assert_eq!(log.borrow()[0].body, b"\0\0\0\0\x01b");
        for (bad, details) in [("AAAA!!!!", "bad"), ("AAAAA", "early")] {
            let answer = proxy.ask(&asked(text, "*/*", bad)).await;
            assert_eq!((answer.status, answer.body.len()), (400, 0), "{details}");
            assert_eq!(answer.header("grpc-status"), Some("13"));
            assert_eq!(
                answer.header("grpc-message"),
                Some("Bad gRPC-web request, invalid base64 data.")
            );
        }
    });
}

/// What is no gRPC is held until it is there; what is long is cut, and its connection used again.
#[test]
fn an_answer_that_is_no_grpc_becomes_a_status() {
    run(async {
        let (up, log) = answering(
            b"HTTP/1.1 503 No\r\ncontent-type: text/html\r\ntransfer-encoding: chunked\r\n\r\n3\r\nno \r\n5\r\n100%!\r\n0\r\n\r\n",
        )
        .await;
        let proxy = Proxy::start(browsers(), vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
        let mut client = proxy.connect().await;
        for _ in 0..2 {
            client.send(&asked("application/grpc-web", "*/*", "x")).await;
            let answer = client.answer().await.expect("an answer");
            assert_eq!((answer.status, answer.body.len()), (503, 0));
            assert_eq!(answer.header("grpc-status"), Some("14"));
            assert_eq!(answer.header("grpc-message"), Some("no 100%25!"));
            assert_eq!(answer.header("content-length"), Some("0"));
        }
        assert_eq!(log.borrow()[1].connection, 1);

        let long: &'static str =
            format!("HTTP/1.1 404 No\r\ncontent-length: 40000\r\n\r\n{}", "x".repeat(40_000)).leak();
        let (up, log) = answering(long.as_bytes()).await;
        let proxy = Proxy::start(browsers(), vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
        let mut client = proxy.connect().await;
        for _ in 0..2 {
            client.send(&asked("application/grpc-web", "*/*", "x")).await;
            let answer = client.answer().await.expect("an answer");
            assert_eq!((answer.status, answer.body.len()), (404, 0));
            assert_eq!(answer.header("grpc-message").map(str::len), Some(16 * 1024));
        }
        assert_eq!(log.borrow()[1].connection, 1);
    });
}

/// Begins an answer that is no gRPC, says so, and leaves the rest out. Its connection's end is noted.
async fn stalling() -> (std::net::SocketAddr, std::rc::Rc<std::cell::Cell<usize>>) {
    let ended = std::rc::Rc::new(std::cell::Cell::new(0));
    let shared = std::rc::Rc::clone(&ended);
    let address = server(move |mut client, _| {
        let ended = std::rc::Rc::clone(&shared);
        async move {
            client.request().await;
            let begun = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello";
            let _ = client.tcp.write_all(begun).await;
            let mut end = [0; 16];
            while client.tcp.read(&mut end).await.is_ok_and(|n| n > 0) {}
            ended.set(ended.get() + 1);
        }
    })
    .await;
    (address, ended)
}

#[test]
fn a_client_that_leaves_ends_the_wait_before_an_answer() {
    run(async {
        let (up, ended) = stalling().await;
        let proxy = Proxy::start(browsers(), vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
        let mut client = proxy.connect().await;
        client.send(&asked("application/grpc-web", "*/*", "x")).await;
        proxy.until("envoy_cluster_upstream_rq_completed", "c", 1).await;
        drop(client);
        proxy.until(ACTIVE, "", 0).await;
        proxy.until("envoy_http_downstream_rq_rx_reset", "", 1).await;
        while ended.get() == 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn deadlines_and_drains_end_the_wait_before_an_answer() {
    run(async {
        let (up, _) = stalling().await;
        let mut action = route_action("c");
        action.timeout = Duration::from_millis(50);
        let mut timely = browsers();
        timely.routes = RouteSource::Inline(Arc::new(table(vec![route("/", Action::Route(Box::new(action)))])));
        let proxy = Proxy::start(timely, vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
        let mut client = proxy.connect().await;
        client.send(&asked("application/grpc-web", "*/*", "x")).await;
        // Its head was seen by other filters already, so there is no other answer.
        assert!(client.rest().await.is_empty());
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_timeout", "c"), 1);

        let mut quiet = browsers();
        quiet.stream_idle_timeout = Duration::from_millis(50);
        let proxy = Proxy::start(quiet, vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
        let mut client = proxy.connect().await;
        client.send(&asked("application/grpc-web", "*/*", "x")).await;
        assert!(client.rest().await.is_empty());

        let proxy = Proxy::start(browsers(), vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
        let mut client = proxy.connect().await;
        client.send(&asked("application/grpc-web", "*/*", "x")).await;
        proxy.until("envoy_cluster_upstream_rq_completed", "c", 1).await;
        proxy.drain.start();
        proxy.drain.close_now();
        assert!(client.rest().await.is_empty());
        proxy.until(ACTIVE, "", 0).await;
    });
}

/// An upstream that fails while its answer is held is no answer.
#[test]
fn an_upstream_that_fails_ends_the_wait_before_an_answer() {
    run(async {
        let up = server(|mut client, _| async move {
            client.request().await;
            let begun = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello";
            let _ = client.tcp.write_all(begun).await;
        })
        .await;
        let proxy = Proxy::start(browsers(), vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
        let mut client = proxy.connect().await;
        client.send(&asked("application/grpc-web", "*/*", "x")).await;
        assert!(client.rest().await.is_empty());
        assert_eq!(proxy.metric(ACTIVE, ""), 0);
    });
}

/// Requests of others are nobody's business.
#[test]
fn what_is_not_grpc_web_passes() {
    run(async {
        let (up, log) = echo().await;
        let proxy = Proxy::start(browsers(), vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
        for content_type in ["application/grpc-web; a=b", "Application/grpc-web", "application/json"] {
            let answer = proxy.ask(&asked(content_type, "*/*", "hello")).await;
            assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
            assert_eq!(answer.header("content-type"), None);
        }
        assert_eq!(log.borrow()[0].header("content-length"), Some("5"));
    });
}
