//! What filters may do to bodies and trailers: wait for them, change them.

mod harness;

use std::sync::Arc;
use std::time::Duration;

use harness::*;
use heddle_config::filters::buffer::Buffer;
use heddle_config::filters::{compressor, decompressor};
use heddle_config::snapshot::*;
use tokio::net::TcpStream;

fn h1(name: &str) -> Cluster {
    cluster(name, UpstreamHttp::Http1)
}

fn h2c(name: &str) -> Cluster {
    cluster(name, UpstreamHttp::Http2)
}

fn buffering(max_request_bytes: usize) -> HttpConnectionManager {
    let mut manager = manager(to("c"));
    let config = Arc::new(Buffer { max_request_bytes });
    manager.filters = vec![filter("buffer", FilterConfig::Buffer(config))];
    manager
}

const TOO_LARGE: &str = "envoy_http_downstream_rq_too_large";
const ACTIVE: &str = "envoy_http_downstream_rq_active";

/// The upstream gets a request when it is there whole, with its length.
#[test]
fn a_request_waits_until_it_is_whole() {
    run(async {
        let (up, log) = echo().await;
        let proxy = Proxy::start(buffering(100_000), vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        client
            .send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            .await;
        proxy.until(ACTIVE, "", 1).await;
        assert_eq!(proxy.metric("envoy_cluster_upstream_cx_total", ""), 0);
        let long = "x".repeat(70_000);
        client
            .send(&format!("{:x}\r\n{long}\r\n0\r\nx-end: yes\r\n\r\n", long.len()))
            .await;
        let answer = client.answer().await.expect("an answer");
        assert_eq!((answer.status, answer.body.len()), (200, 70_005));
        assert!(answer.text().starts_with("helloxxx"));
        assert_eq!(log.borrow()[0].header("content-length"), Some("70005"));
        assert_eq!(log.borrow()[0].header("transfer-encoding"), None);
        client
            .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nend")
            .await;
        assert_eq!(client.answer().await.expect("an answer").text(), "end");
    });
}

#[test]
fn what_is_longer_is_refused() {
    run(async {
        let (up, log) = echo().await;
        let proxy = Proxy::start(buffering(10), vec![(h1("c"), vec![up])]).await;
        for body in [
            "Content-Length: 11\r\n\r\nhello world",
            "Content-Length: 1000000\r\n\r\nhello world",
            "Transfer-Encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n",
        ] {
            let answer = proxy.ask(&format!("POST / HTTP/1.1\r\nHost: a\r\n{body}")).await;
            assert_eq!((answer.status, answer.text().as_str()), (413, "Payload Too Large"));
        }
        assert_eq!(proxy.metric(TOO_LARGE, ""), 3);
        assert!(log.borrow().is_empty());
        let answer = proxy
            .ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhelloworld")
            .await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "helloworld"));
    });
}

#[test]
fn a_client_that_leaves_or_breaks_the_protocol_ends_the_wait() {
    run(async {
        let (up, log) = echo().await;
        let proxy = Proxy::start(buffering(100), vec![(h1("c"), vec![up])]).await;
        for body in [
            "Content-Length: 5\r\n\r\n",
            "Content-Length: 5\r\n\r\nhel",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        ] {
            let mut client = proxy.connect().await;
            client.send(&format!("POST / HTTP/1.1\r\nHost: a\r\n{body}")).await;
            proxy.until(ACTIVE, "", 1).await;
            drop(client);
            proxy.until(ACTIVE, "", 0).await;
        }
        assert_eq!(proxy.metric("envoy_http_downstream_rq_rx_reset", ""), 3);
        let answer = proxy
            .ask("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nnot a size\r\n")
            .await;
        assert_eq!(answer.status, 400);
        assert!(log.borrow().is_empty());
    });
}

#[test]
fn a_request_must_arrive_in_time() {
    run(async {
        let (up, _) = echo().await;
        let mut slow = buffering(100);
        slow.request_timeout = Duration::from_millis(50);
        let proxy = Proxy::start(slow, vec![(h1("c"), vec![up])]).await;
        let answer = proxy
            .ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel")
            .await;
        assert_eq!(answer.status, 408);
        let mut quiet = buffering(100);
        quiet.stream_idle_timeout = Duration::from_millis(50);
        let proxy = Proxy::start(quiet, vec![(h1("c"), vec![up])]).await;
        let answer = proxy
            .ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhel")
            .await;
        assert_eq!((answer.status, answer.text().as_str()), (408, "stream timeout"));
    });
}

/// A client that waits to be asked for the body is asked as soon as a filter waits.
#[test]
fn the_body_is_asked_for() {
    run(async {
        let (up, log) = echo().await;
        let proxy = Proxy::start(buffering(100), vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        client
            .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
            .await;
        assert_eq!(client.answer().await.expect("an interim answer").status, 100);
        client.send("hello").await;
        let answer = client.answer().await.expect("an answer");
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
        assert_eq!(log.borrow().len(), 1);
    });
}

/// An HTTP/2 server that answers with the request's body and trailers, its content type, and fields of what it saw.
async fn echo_h2() -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let up = listener.local_addr().expect("address");
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let mut connection = h2::server::handshake(tcp).await.expect("handshake");
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::task::spawn_local(answer_h2(request, respond));
            }
        }
    });
    up
}

async fn answer_h2(request: http::Request<h2::RecvStream>, mut respond: h2::server::SendResponse<bytes::Bytes>) {
    let seen = |name: &str| request.headers().get(name).cloned();
    let mut answer = http::Response::builder();
    for (name, value) in [
        ("content-type", seen("content-type")),
        ("x-length", seen("content-length")),
        ("x-coding", seen("content-encoding")),
        ("x-te", seen("te")),
    ] {
        if let Some(value) = value {
            answer = answer.header(name, value);
        }
    }
    let mut body = request.into_body();
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.expect("data");
        body.flow_control().release_capacity(piece.len()).expect("capacity");
        all.extend_from_slice(&piece);
    }
    let trailers = body.trailers().await.expect("trailers");
    let answer = answer.header("x-received", all.len()).body(()).expect("a response");
    let mut stream = respond.send_response(answer, false).expect("send");
    stream.send_data(all.into(), false).expect("data");
    let trailers = trailers.unwrap_or_default();
    stream.send_trailers(trailers).expect("trailers");
}

async fn client_h2(proxy: &Proxy) -> h2::client::SendRequest<bytes::Bytes> {
    let tcp = TcpStream::connect(proxy.address).await.expect("connect");
    let (client, driver) = h2::client::handshake(tcp).await.expect("handshake");
    tokio::task::spawn_local(async move {
        let _ = driver.await;
    });
    client.ready().await.expect("ready")
}

/// Sends a request with a trailer, and returns the answer's head, body and trailers.
async fn call_h2(
    client: &mut h2::client::SendRequest<bytes::Bytes>,
    request: http::request::Builder,
    body: Vec<u8>,
) -> (http::Response<()>, Vec<u8>, http::HeaderMap) {
    let request = request
        .method("POST")
        .uri("http://shop/svc/method")
        .body(())
        .expect("request");
    let (answer, mut stream) = client.send_request(request, false).expect("send");
    stream.send_data(body.into(), false).expect("data");
    let mut trailers = http::HeaderMap::new();
    trailers.insert("x-checksum", "yes".parse().expect("a value"));
    stream.send_trailers(trailers).expect("trailers");
    let (head, mut body) = answer.await.expect("an answer").into_parts();
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.expect("data");
        body.flow_control().release_capacity(piece.len()).expect("capacity");
        all.extend_from_slice(&piece);
    }
    let trailers = body.trailers().await.expect("trailers").unwrap_or_default();
    (http::Response::from_parts(head, ()), all, trailers)
}

/// Over HTTP/2 on both sides, beyond the first window, with trailers.
#[test]
fn streams_wait_too() {
    run(async {
        let proxy = Proxy::start(buffering(1 << 20), vec![(h2c("c"), vec![echo_h2().await])]).await;
        let mut client = client_h2(&proxy).await;
        let (answer, body, trailers) = call_h2(&mut client, http::Request::builder(), vec![b'x'; 600_000]).await;
        assert_eq!(answer.headers()["x-length"], "600000");
        assert_eq!(answer.headers()["x-received"], "600000");
        assert_eq!(
            (body.len(), &trailers["x-checksum"]),
            (600_000, &"yes".parse().expect("a value"))
        );
    });
}

const GZIP: compressor::Library = compressor::Library::Gzip {
    level: 1,
    strategy: compressor::GzipStrategy::Default,
    memory_level: 5,
    window_bits: 12,
};

/// Compresses both directions, all types.
fn compressing(library: compressor::Library, request: bool) -> HttpFilter {
    let direction = || compressor::Direction {
        enabled: true,
        min_content_length: 1,
        content_types: vec![heddle_matching::StringMatcher::prefix("")],
    };
    let config = compressor::Compressor {
        library_name: "c".into(),
        library,
        request: request.then(direction),
        response: direction(),
        response_stats_apart: false,
        disable_on_etag: false,
        weaken_etag: false,
        remove_accept_encoding: false,
        uncompressible: vec![],
        choose_first: false,
    };
    filter("compressor", FilterConfig::Compressor(Arc::new(config)))
}

fn decompressing(library: decompressor::Library) -> HttpFilter {
    let direction = decompressor::Direction {
        enabled: true,
        ignore_no_transform: false,
    };
    let config = decompressor::Decompressor {
        library_name: "d".into(),
        library,
        request: direction,
        advertise: true,
        response: direction,
    };
    filter("decompressor", FilterConfig::Decompressor(Arc::new(config)))
}

/// What one filter compresses the next one decompresses, in both directions, beyond every window, while the bodies' trailers
/// travel on; a filter that waits between them sees the body as the first leaves it.
#[test]
fn transforms_stand_in_a_row() {
    run(async {
        let body: Vec<u8> = (0..3_000_000_u32)
            .map(|i| (i.wrapping_mul(i) >> 7) as u8 & 15)
            .collect();
        let buffer = filter(
            "buffer",
            FilterConfig::Buffer(Arc::new(Buffer {
                max_request_bytes: body.len() * 3 / 4,
            })),
        );
        let gunzip = decompressor::Library::Gzip {
            window_bits: 15,
            max_ratio: 1000,
        };
        for http in [UpstreamHttp::Http1, UpstreamHttp::Http2] {
            let mut manager = manager(to("c"));
            // Of the response, the last filter is the first: it compresses, and the one before decompresses.
            manager.filters = vec![
                compressing(GZIP, true),
                buffer.clone(),
                decompressing(gunzip),
                compressing(GZIP, false),
            ];
            let up = match http {
                UpstreamHttp::Http2 => echo_h2().await,
                _ => echo().await.0,
            };
            let proxy = Proxy::start(manager, vec![(cluster("c", http), vec![up])]).await;
            let mut client = client_h2(&proxy).await;
            let request = http::Request::builder().header("accept-encoding", "gzip");
            let (answer, received, trailers) = call_h2(&mut client, request, body.clone()).await;
            assert_eq!(answer.headers().get("x-coding"), None);
            assert_eq!(answer.headers()["vary"], "Accept-Encoding");
            // The first filter compresses what the third has decompressed, as the client accepts it.
            assert_eq!(answer.headers()["content-encoding"], "gzip");
            assert!(received.len() < body.len() * 3 / 4, "{} bytes", received.len());
            let length = &trailers["x-envoy-decompressor-d-uncompressed-bytes"];
            assert_eq!(length, &body.len().to_string());
            let metric = |name: &str| proxy.metric(name, "");
            let decompressed = "envoy_http_decompressor_d_gzip";
            for direction in ["request", "response"] {
                let name = format!("{decompressed}_{direction}_total_uncompressed_bytes");
                assert_eq!(metric(&name), body.len() as i64, "{name}");
            }
            assert_eq!(metric("envoy_http_compressor_c_gzip_request_compressed"), 1);
            // Filters of the same name share their counters.
            assert_eq!(metric("envoy_http_compressor_c_gzip_compressed"), 2);
        }
    });
}

/// A client that reads slowly gets a body that grows as it reads; nothing is lost.
#[test]
fn what_cannot_be_passed_on_waits() {
    run(async {
        let mut manager = manager(to("c"));
        let gunzip = decompressor::Library::Gzip {
            window_bits: 15,
            max_ratio: 10_000,
        };
        manager.filters = vec![decompressing(gunzip), compressing(GZIP, false)];
        let up = server(|mut client, _| async move {
            client.request().await.expect("a request");
            let body = vec![b'x'; 8 << 20];
            client
                .send(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()))
                .await;
            use tokio::io::AsyncWriteExt;
            client.tcp.write_all(&body).await.expect("send");
        })
        .await;
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        client
            .send("GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
            .await;
        let answer = client.answer().await.expect("an answer");
        assert_eq!(answer.body.len(), 8 << 20);
        assert!(answer.body.iter().all(|b| *b == b'x'));
        assert_eq!(answer.header("content-length"), None);
    });
}
