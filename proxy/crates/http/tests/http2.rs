//! HTTP/2 and conversions between the versions, over real sockets.

mod harness;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Reason, RecvStream};
use harness::*;
use heddle_config::snapshot::*;
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

fn h2c(name: &str) -> Cluster {
    cluster(name, UpstreamHttp::Http2)
}

async fn client(proxy: &Proxy) -> SendRequest<Bytes> {
    let tcp = TcpStream::connect(proxy.address).await.expect("connect");
    tcp.set_nodelay(true).expect("nodelay");
    let (send, driver) = h2::client::Builder::new()
        .initial_max_send_streams(100)
        .handshake(tcp)
        .await
        .expect("handshake");
    tokio::task::spawn_local(async move {
        let _ = driver.await;
    });
    send
}

async fn collect(mut body: RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        let _ = body.flow_control().release_capacity(piece.len());
        all.extend_from_slice(&piece);
    }
    Ok((all, body.trailers().await?))
}

fn get(path: &str) -> Request<()> {
    Request::builder()
        .uri(format!("http://shop{path}"))
        .body(())
        .expect("request")
}

fn grpc() -> Request<()> {
    Request::builder()
        .method("POST")
        .uri("http://shop/svc/Method")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .expect("request")
}

type Handler =
    Rc<dyn Fn(Request<RecvStream>, h2::server::SendResponse<Bytes>) -> std::pin::Pin<Box<dyn Future<Output = ()>>>>;

/// An HTTP/2 server; the second value counts its connections.
async fn serve_h2(handler: Handler) -> (SocketAddr, Rc<Cell<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let connections = Rc::new(Cell::new(0));
    let counter = Rc::clone(&connections);
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            counter.set(counter.get() + 1);
            tcp.set_nodelay(true).expect("nodelay");
            let handler = Rc::clone(&handler);
            tokio::task::spawn_local(async move {
                let Ok(mut connection) = h2::server::handshake(tcp).await else {
                    return;
                };
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::task::spawn_local(handler(request, respond));
                }
            });
        }
    });
    (address, connections)
}

/// Answers with the request's body and trailers, piece by piece as they come.
fn mirror() -> Handler {
    Rc::new(|request, mut respond| {
        Box::pin(async move {
            let (parts, mut body) = request.into_parts();
            let mut response = Response::new(());
            if let Some(kind) = parts.headers.get("content-type") {
                response.headers_mut().insert("content-type", kind.clone());
            }
            response
                .headers_mut()
                .insert("x-path", parts.uri.path().parse().expect("value"));
            let Ok(mut send) = respond.send_response(response, false) else {
                return;
            };
            while let Some(Ok(piece)) = body.data().await {
                let mut left = piece;
                while !left.is_empty() {
                    send.reserve_capacity(left.len());
                    let Some(Ok(room)) = std::future::poll_fn(|cx| send.poll_capacity(cx)).await else {
                        return;
                    };
                    let n = room.min(left.len());
                    let _ = body.flow_control().release_capacity(n);
                    if send.send_data(left.split_to(n), false).is_err() {
                        return;
                    }
                }
            }
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().expect("value"));
            trailers.insert("x-detail", "metadata".parse().expect("value"));
            trailers.insert("set-cookie", "a=b".parse().expect("value"));
            let _ = send.send_trailers(trailers);
        })
    })
}

#[test]
fn grpc_streams_both_ways_with_trailers() {
    run(async {
        let (up, connections) = serve_h2(mirror()).await;
        let proxy = Proxy::start(manager(to("c")), vec![(h2c("c"), vec![up])]).await;
        let client = client(&proxy).await;
        for _ in 0..3 {
            let mut ready = client.clone().ready().await.expect("ready");
            let (response, mut send) = ready.send_request(grpc(), false).expect("send");
            let response = response.await.expect("response");
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["server"], "heddle");
            let mut body = response.into_body();
            // Full duplex: each message is answered before the next is sent.
            for i in 0..5 {
                send.send_data(Bytes::from(format!("message {i}")), false)
                    .expect("send");
                let piece = body.data().await.expect("data").expect("data");
                assert_eq!(piece, format!("message {i}"));
                let _ = body.flow_control().release_capacity(piece.len());
            }
            send.send_data(Bytes::new(), true).expect("end");
            let (rest, trailers) = collect(body).await.expect("end");
            assert!(rest.is_empty());
            let trailers = trailers.expect("trailers");
            assert_eq!(
                (&trailers["grpc-status"], &trailers["x-detail"]),
                (&HeaderValue::from_static("0"), &HeaderValue::from_static("metadata"))
            );
            assert!(!trailers.contains_key("set-cookie"), "{trailers:?}");
        }
        assert_eq!(proxy.metric("heddle_http_trailers_dropped_total", "test"), 3);
        // What is no gRPC on either side is no metadata.
        let mut plain = grpc();
        plain.headers_mut().remove("content-type");
        let mut ready = client.clone().ready().await.expect("ready");
        let (response, _) = ready.send_request(plain, true).expect("send");
        let (_, trailers) = collect(response.await.expect("response").into_body())
            .await
            .expect("end");
        let trailers = trailers.expect("trailers");
        assert_eq!(
            (trailers.len(), &trailers["grpc-status"]),
            (1, &HeaderValue::from_static("0"))
        );
        assert_eq!(connections.get(), 1, "one upstream connection");
        assert_eq!(proxy.metric("envoy_http_downstream_rq_http2_total", ""), 4);
        assert_eq!(proxy.metric("envoy_cluster_upstream_cx_http2_total", "c"), 1);
    });
}

#[test]
fn many_streams_share_a_connection() {
    run(async {
        let (up, connections) = serve_h2(mirror()).await;
        let proxy = Proxy::start(manager(to("c")), vec![(h2c("c"), vec![up])]).await;
        let client = client(&proxy).await;
        let mut answers = Vec::new();
        for i in 0..200 {
            let mut ready = client.clone().ready().await.expect("ready");
            let (response, mut send) = ready.send_request(get(&format!("/{i}")), false).expect("send");
            send.send_data(Bytes::from(vec![b'x'; i * 100]), true).expect("send");
            answers.push(tokio::task::spawn_local(async move {
                let response = response.await.expect("response");
                assert_eq!(response.headers()["x-path"], format!("/{i}"));
                assert_eq!(collect(response.into_body()).await.expect("body").0.len(), i * 100);
            }));
        }
        for answer in answers {
            answer.await.expect("answer");
        }
        assert!(connections.get() <= 4, "{} connections", connections.get());
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_active", "c"), 0);
    });
}

#[test]
fn http2_to_http1_and_back() {
    run(async {
        let (plain, log) = echo().await;
        let (up2, _) = serve_h2(mirror()).await;
        let routes = table(vec![
            route("/one", Action::Route(Box::new(route_action("one")))),
            route("/", Action::Route(Box::new(route_action("two")))),
        ]);
        let proxy = Proxy::start(
            manager(routes),
            vec![
                (cluster("one", UpstreamHttp::Http1), vec![plain]),
                (h2c("two"), vec![up2]),
            ],
        )
        .await;
        // h2 → h1, without and with a body of unknown length, with cookie crumbs.
        let client = client(&proxy).await;
        let mut ready = client.clone().ready().await.expect("ready");
        let request = Request::builder()
            .uri("http://shop/one?x")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(())
            .expect("request");
        let (response, _) = ready.send_request(request, true).expect("send");
        let response = response.await.expect("response");
        assert_eq!(response.headers()["x-app"], "yes");
        assert_eq!(collect(response.into_body()).await.expect("body").0, b"ok");
        let mut ready = client.clone().ready().await.expect("ready");
        let request = Request::builder()
            .method("POST")
            .uri("http://shop/one")
            .body(())
            .expect("request");
        let (response, mut send) = ready.send_request(request, false).expect("send");
        send.send_data(Bytes::from_static(b"hello "), false).expect("send");
        tokio::task::yield_now().await;
        send.send_data(Bytes::from_static(b"world"), true).expect("send");
        let response = response.await.expect("response");
        assert_eq!(collect(response.into_body()).await.expect("body").0, b"hello world");
        {
            let log = log.borrow();
            assert_eq!(log[0].line, "GET /one?x HTTP/1.1");
            assert_eq!(log[0].header("host"), Some("shop"));
            assert_eq!(log[0].header("cookie"), Some("a=1; b=2"));
            assert_eq!(log[0].header("content-length"), None);
            assert_eq!(log[1].header("transfer-encoding"), Some("chunked"));
        }
        // h1 → h2, both framings; trailers become chunked trailers.
        for raw in [
            "POST /two HTTP/1.1\r\nHost: shop\r\nContent-Length: 5\r\n\r\nhello",
            "POST /two HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        ] {
            let answer = proxy.ask(raw).await;
            assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
            assert_eq!(answer.trailers, vec![("grpc-status".to_owned(), "0".to_owned())]);
        }
        let answer = proxy.ask("GET /two HTTP/1.1\r\nHost: shop\r\n\r\n").await;
        assert_eq!((answer.status, answer.header("x-path")), (200, Some("/two")));
    });
}

#[test]
fn large_bodies_respect_flow_control() {
    run(async {
        let (up, _) = serve_h2(mirror()).await;
        let proxy = Proxy::start(manager(to("c")), vec![(h2c("c"), vec![up])]).await;
        let client = client(&proxy).await;
        let mut ready = client.clone().ready().await.expect("ready");
        let (response, mut send) = ready.send_request(grpc(), false).expect("send");
        const SIZE: usize = 20 * 1024 * 1024;
        let writer = tokio::task::spawn_local(async move {
            let mut left = SIZE;
            while left > 0 {
                send.reserve_capacity(left.min(100_000));
                let room = std::future::poll_fn(|cx| send.poll_capacity(cx))
                    .await
                    .expect("open")
                    .expect("room");
                let n = room.min(left);
                left -= n;
                send.send_data(Bytes::from(vec![b'z'; n]), left == 0).expect("send");
            }
        });
        let response = response.await.expect("response");
        let (body, trailers) = collect(response.into_body()).await.expect("body");
        writer.await.expect("writer");
        assert_eq!(body.len(), SIZE);
        assert!(trailers.is_some());
    });
}

#[test]
fn failures_of_grpc_calls_are_grpc_answers() {
    run(async {
        let resets: Handler =
            Rc::new(|_, mut respond| Box::pin(async move { respond.send_reset(Reason::INTERNAL_ERROR) }));
        let (up, _) = serve_h2(resets).await;
        let routes = table(vec![
            route("/svc", Action::Route(Box::new(route_action("c")))),
            route("/empty", Action::Route(Box::new(route_action("empty")))),
        ]);
        let proxy = Proxy::start(manager(routes), vec![(h2c("c"), vec![up]), (h2c("empty"), vec![])]).await;
        let client = client(&proxy).await;
        let ask = async |request: Request<()>| {
            let mut ready = client.clone().ready().await.expect("ready");
            let (response, _) = ready.send_request(request, true).expect("send");
            response.await.expect("response")
        };
        let response = ask(grpc()).await;
        assert_eq!(
            (response.status().as_u16(), &response.headers()["grpc-status"]),
            (200, &"14".parse().expect("value"))
        );
        assert_eq!(
            response.headers()["grpc-message"],
            "upstream connect error or disconnect/reset before headers. reset reason: remote reset"
        );
        assert!(response.body().is_end_stream());
        let response = ask(get("/empty")).await;
        assert_eq!(response.status(), 503);
        assert_eq!(
            collect(response.into_body()).await.expect("body").0,
            b"no healthy upstream"
        );
        let response = ask(get("/nowhere")).await;
        assert_eq!(response.status(), 404);
    });
}

#[test]
fn a_reset_travels_to_the_other_side() {
    run(async {
        let seen = Rc::new(RefCell::new(None));
        let note = Rc::clone(&seen);
        let handler: Handler = Rc::new(move |request, mut respond| {
            let note = Rc::clone(&note);
            Box::pin(async move {
                let _body = request.into_body();
                let mut send = respond.send_response(Response::new(()), false).expect("send");
                send.send_data(Bytes::from_static(b"begun"), false).expect("send");
                let reason = std::future::poll_fn(|cx| send.poll_reset(cx)).await;
                *note.borrow_mut() = Some(reason);
            })
        });
        let (up, _) = serve_h2(handler).await;
        let proxy = Proxy::start(manager(to("c")), vec![(h2c("c"), vec![up])]).await;
        let client = client(&proxy).await;
        let mut ready = client.clone().ready().await.expect("ready");
        let (response, mut send) = ready.send_request(grpc(), false).expect("send");
        let mut body = response.await.expect("response").into_body();
        assert_eq!(body.data().await.expect("data").expect("data"), "begun");
        send.send_reset(Reason::CANCEL);
        while seen.borrow().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        while proxy.metric("envoy_cluster_upstream_rq_active", "c") > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(proxy.metric("envoy_http_downstream_rq_rx_reset", ""), 1);
    });
}

#[test]
fn a_connection_lost_in_the_middle_resets_the_stream() {
    run(async {
        let up = server(|mut client, _| async move {
            client.request().await;
            client
                .tcp
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
                .await
                .expect("send");
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
        let client = client(&proxy).await;
        let mut ready = client.clone().ready().await.expect("ready");
        let (response, _) = ready.send_request(get("/"), true).expect("send");
        // The head may have been on its way, or not: the end is a reset, never a short body that looks whole.
        let error = match response.await {
            Ok(response) => collect(response.into_body()).await.expect_err("a reset"),
            Err(error) => error,
        };
        assert!(error.is_reset());
    });
}

#[test]
fn a_length_without_a_body_is_refused_on_both_sides() {
    run(async {
        let (plain, log) = echo().await;
        let lies: Handler = Rc::new(|_, mut respond| {
            Box::pin(async move {
                let response = Response::builder()
                    .header("content-length", "5")
                    .body(())
                    .expect("response");
                let _ = respond.send_response(response, true);
            })
        });
        let (up2, _) = serve_h2(lies).await;
        let routes = table(vec![
            route("/one", Action::Route(Box::new(route_action("one")))),
            route("/", Action::Route(Box::new(route_action("two")))),
        ]);
        let proxy = Proxy::start(
            manager(routes),
            vec![
                (cluster("one", UpstreamHttp::Http1), vec![plain]),
                (h2c("two"), vec![up2]),
            ],
        )
        .await;
        let client = client(&proxy).await;
        let mut ready = client.clone().ready().await.expect("ready");
        let request = Request::builder()
            .method("POST")
            .uri("http://shop/one")
            .header("content-length", "5")
            .body(())
            .expect("request");
        let (response, _) = ready.send_request(request, true).expect("send");
        // Refused by `h2` itself or by us; it never reaches the application.
        assert!(response.await.is_ok_and(|r| r.status() == 400) || log.borrow().is_empty());
        assert!(log.borrow().is_empty());
        let answer = proxy.ask("GET /two HTTP/1.1\r\nHost: shop\r\n\r\n").await;
        assert_eq!(answer.status, 502);
    });
}

/// Every connection serves two requests and what else it was sent, and says GOAWAY meanwhile.
#[test]
fn no_request_fails_when_upstreams_drain() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let up = listener.local_addr().expect("address");
        tokio::task::spawn_local(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::task::spawn_local(async move {
                    let Ok(mut connection) = h2::server::handshake(tcp).await else {
                        return;
                    };
                    let mut served = 0;
                    while let Some(Ok((_, mut respond))) = connection.accept().await {
                        served += 1;
                        if let Ok(mut send) = respond.send_response(Response::new(()), false) {
                            let _ = send.send_data(Bytes::from_static(b"ok"), true);
                        }
                        if served == 2 {
                            connection.graceful_shutdown();
                        }
                    }
                });
            }
        });
        let proxy = Proxy::start(manager(to("c")), vec![(h2c("c"), vec![up])]).await;
        let client = client(&proxy).await;
        for round in 0..20 {
            let mut answers = Vec::new();
            for _ in 0..4 {
                let mut ready = client.clone().ready().await.expect("ready");
                let (response, _) = ready.send_request(get("/"), true).expect("send");
                answers.push(response);
            }
            for answer in answers {
                assert_eq!(answer.await.expect("answer").status(), 200, "round {round}");
            }
        }
        assert!(proxy.metric("envoy_cluster_upstream_cx_http2_total", "c") > 5);
    });
}

/// Whether a client's bytes, preface first, hold a HEADERS frame.
fn has_headers(bytes: &[u8]) -> bool {
    let mut rest = bytes.get(24..).unwrap_or_default();
    while let [a, b, c, kind, ..] = rest {
        if *kind == 1 {
            return true;
        }
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        rest = rest.get(9 + length..).unwrap_or_default();
    }
    false
}

/// The first connections answer a request with a GOAWAY that excludes it, and close.
#[test]
fn streams_that_a_goaway_excludes_move_on() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let up = listener.local_addr().expect("address");
        tokio::task::spawn_local(async move {
            for _ in 0..2 {
                let (mut tcp, _) = listener.accept().await.expect("accept");
                let mut seen = [0; 65536];
                let mut got = 0;
                while !has_headers(&seen[..got]) {
                    match tokio::io::AsyncReadExt::read(&mut tcp, &mut seen[got..]).await {
                        Ok(n @ 1..) => got += n,
                        _ => break,
                    }
                }
                let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
                let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                let _ = tcp.write_all(&[&settings[..], &goaway[..]].concat()).await;
                let _ = tcp.shutdown().await;
                while let Ok(1..) = tokio::io::AsyncReadExt::read(&mut tcp, &mut seen).await {}
            }
            let (tcp, _) = listener.accept().await.expect("accept");
            let mut connection = h2::server::handshake(tcp).await.expect("handshake");
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                tokio::task::spawn_local(async move {
                    let (body, _) = collect(request.into_body()).await.expect("body");
                    let mut send = respond.send_response(Response::new(()), false).expect("send");
                    send.send_data(body.into(), true).expect("send");
                });
            }
        });
        let proxy = Proxy::start(manager(to("c")), vec![(h2c("c"), vec![up])]).await;
        let answer = proxy
            .ask("POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 5\r\n\r\nhello")
            .await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_retry", "c"), 0);
    });
}

#[test]
fn refused_streams_move_on() {
    run(async {
        let count = Rc::new(Cell::new(0));
        let counter = Rc::clone(&count);
        let handler: Handler = Rc::new(move |_, mut respond| {
            let n = counter.get();
            counter.set(n + 1);
            Box::pin(async move {
                if n % 2 == 0 {
                    respond.send_reset(Reason::REFUSED_STREAM);
                } else {
                    let _ = respond.send_response(Response::new(()), true);
                }
            })
        });
        let (up, _) = serve_h2(handler).await;
        let proxy = Proxy::start(manager(to("c")), vec![(h2c("c"), vec![up])]).await;
        let client = client(&proxy).await;
        let mut ready = client.clone().ready().await.expect("ready");
        let (response, _) = ready.send_request(get("/"), true).expect("send");
        assert_eq!(response.await.expect("answer").status(), 200);
    });
}

#[test]
fn a_drain_sends_goaway_and_finishes_streams() {
    run(async {
        let (up, _) = serve_h2(mirror()).await;
        let proxy = Proxy::start(manager(to("c")), vec![(h2c("c"), vec![up])]).await;
        let tcp = TcpStream::connect(proxy.address).await.expect("connect");
        let (client, driver) = h2::client::handshake(tcp).await.expect("handshake");
        let driver = tokio::task::spawn_local(driver);
        let mut ready = client.ready().await.expect("ready");
        let (response, mut send) = ready.send_request(grpc(), false).expect("send");
        let response = response.await.expect("response");
        proxy.drain.start();
        tokio::time::sleep(Duration::from_millis(50)).await;
        send.send_data(Bytes::from_static(b"still here"), true).expect("send");
        let (body, trailers) = collect(response.into_body()).await.expect("body");
        assert_eq!(body, b"still here");
        assert!(trailers.is_some());
        driver.await.expect("task").expect("closed in order");
    });
}

#[test]
fn reset_floods_end_the_connection() {
    run(async {
        let (up, _) = serve_h2(mirror()).await;
        let proxy = Proxy::start(manager(to("c")), vec![(h2c("c"), vec![up])]).await;
        // Frames by hand: HEADERS and RST_STREAM in pairs, many in one write (CVE-2023-44487).
        let mut tcp = TcpStream::connect(proxy.address).await.expect("connect");
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec();
        // :method GET, :scheme http, :path /, :authority "a"
        let block = [0x82, 0x86, 0x84, 0x41, 0x01, b'a'];
        for i in 0..2000_u32 {
            let id = (2 * i + 1).to_be_bytes();
            bytes.extend_from_slice(&[0, 0, block.len() as u8, 1, 5]);
            bytes.extend_from_slice(&id);
            bytes.extend_from_slice(&block);
            bytes.extend_from_slice(&[0, 0, 4, 3, 0]);
            bytes.extend_from_slice(&id);
            bytes.extend_from_slice(&8_u32.to_be_bytes());
        }
        let _ = tcp.write_all(&bytes).await;
        let mut rest = Client { tcp, buffer: vec![] };
        rest.rest().await;
        while proxy.metric("envoy_http_downstream_cx_http2_active", "") > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(proxy.metric("heddle_http2_protocol_error_total", "flood"), 1);
        assert_eq!(proxy.metric("envoy_http_downstream_rq_active", ""), 0);
    });
}

#[test]
fn garbage_after_the_preface_is_an_error() {
    run(async {
        let (up, _) = serve_h2(mirror()).await;
        let proxy = Proxy::start(manager(to("c")), vec![(h2c("c"), vec![up])]).await;
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..50 {
            let mut client = proxy.connect().await;
            let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
            bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(200));
            let _ = client.tcp.write_all(&bytes).await;
            let _ = client.tcp.shutdown().await;
            client.rest().await;
        }
        let answer = proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(answer.status, 200);
    });
}
