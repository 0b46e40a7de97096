//! Upgrades through the proxy, WebSocket's above all: over HTTP/1.1 and as extended CONNECT over HTTP/2 (RFC 8441), in
//! every combination of the two sides.

mod harness;

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{Reason, RecvStream};
use harness::*;
use heddle_config::snapshot::*;
use http::{Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Key and answer of RFC 6455 section 1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

fn allowing(routes: RouteTable) -> HttpConnectionManager {
    let mut manager = manager(routes);
    manager.http2.allow_connect = true;
    manager
}

fn h1(name: &str) -> Cluster {
    cluster(name, UpstreamHttp::Http1)
}

fn up2(allow_connect: bool) -> Cluster {
    let mut cluster = cluster("c", UpstreamHttp::Http2);
    cluster.http2.allow_connect = allow_connect;
    cluster
}

/// A server of HTTP/1.1 that accepts, says `hello`, and then what it hears until that ends.
async fn server1() -> SocketAddr {
    server(|mut client, _| async move {
        let seen = client.request().await.expect("request");
        assert_eq!(
            (seen.header("upgrade"), seen.header("connection")),
            (Some("websocket"), Some("upgrade"))
        );
        let key = seen
            .header("sec-websocket-key")
            .expect("a server of HTTP/1.1 gets a key");
        let accept = match key {
            KEY => ACCEPT.to_owned(),
            other => {
                let mut hash = boring::sha::Sha1::new();
                hash.update(other.as_bytes());
                hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
                boring::base64::encode_block(&hash.finish())
            }
        };
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\nhello"
        );
        client.tcp.write_all(head.as_bytes()).await.expect("send");
        let mut block = [0; 4096];
        while let Ok(n @ 1..) = client.tcp.read(&mut block).await {
            client.tcp.write_all(&block[..n]).await.expect("send");
        }
    })
    .await
}

/// The same with HTTP/2. It knows neither key nor answer.
async fn server2(offers: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            tokio::task::spawn_local(async move {
                let mut builder = h2::server::Builder::new();
                if offers {
                    builder.enable_connect_protocol();
                }
                let Ok(mut connection) = builder.handshake::<_, Bytes>(tcp).await else {
                    return;
                };
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let protocol = request.extensions().get::<Protocol>().map(|p| p.as_str().to_owned());
                    assert_eq!(
                        (request.method().as_str(), protocol.as_deref(), request.uri().path()),
                        ("CONNECT", Some("websocket"), "/ws")
                    );
                    tokio::task::spawn_local(async move {
                        let mut send = respond.send_response(Response::new(()), false).expect("accept");
                        send.send_data("hello".into(), false).expect("send");
                        let mut body = request.into_body();
                        while let Some(Ok(piece)) = body.data().await {
                            let _ = body.flow_control().release_capacity(piece.len());
                            send.send_data(piece, false).expect("send");
                        }
                        send.send_data(Bytes::new(), true).expect("end");
                    });
                }
            });
        }
    });
    address
}

async fn client2(proxy: &Proxy) -> SendRequest<Bytes> {
    let tcp = TcpStream::connect(proxy.address).await.expect("connect");
    tcp.set_nodelay(true).expect("nodelay");
    let (send, driver) = h2::client::handshake(tcp).await.expect("handshake");
    tokio::task::spawn_local(async move {
        let _ = driver.await;
    });
    // The offer comes with the first SETTINGS.
    while !send.is_extended_connect_protocol_enabled() {
        tokio::task::yield_now().await;
    }
    send
}

fn connect(protocol: &'static str) -> Request<()> {
    Request::builder()
        .method("CONNECT")
        .uri("http://shop/ws")
        .extension(Protocol::from_static(protocol))
        .header("sec-websocket-version", "13")
        .body(())
        .expect("request")
}

async fn rest(body: &mut RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(Ok(piece)) = body.data().await {
        let _ = body.flow_control().release_capacity(piece.len());
        all.extend_from_slice(&piece);
    }
    all
}

const UPGRADE: &str = "GET /ws HTTP/1.1\r\nHost: shop\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

async fn by_http1(proxy: &Proxy) {
    let mut client = proxy.connect().await;
    client.send(UPGRADE).await;
    let answer = client.answer().await.expect("answer");
    assert_eq!(
        (answer.status, answer.header("connection"), answer.header("upgrade")),
        (101, Some("upgrade"), Some("websocket"))
    );
    assert_eq!(answer.header("sec-websocket-accept"), Some(ACCEPT));
    client.send("ping").await;
    client.tcp.shutdown().await.expect("shutdown");
    assert_eq!(client.rest().await, b"helloping");
}

async fn by_http2(proxy: &Proxy) {
    let mut client = client2(proxy).await.ready().await.expect("ready");
    let (answer, mut send) = client.send_request(connect("websocket"), false).expect("send");
    let answer = answer.await.expect("answer");
    assert_eq!(answer.status(), 200);
    for name in ["upgrade", "connection", "content-length", "sec-websocket-accept"] {
        assert!(!answer.headers().contains_key(name), "{name}");
    }
    let mut body = answer.into_body();
    let first = body.data().await.expect("data").expect("hello");
    assert_eq!(first, "hello");
    send.send_data("ping".into(), true).expect("send");
    assert_eq!(rest(&mut body).await, b"ping");
}

#[test]
fn websockets_from_either_version_to_either() {
    run(async {
        let first = Proxy::start(allowing(to("c")), vec![(h1("c"), vec![server1().await])]).await;
        by_http1(&first).await;
        by_http2(&first).await;
        let second = Proxy::start(allowing(to("c")), vec![(up2(true), vec![server2(true).await])]).await;
        by_http1(&second).await;
        by_http2(&second).await;
        first.until("envoy_http_downstream_rq_active", "test", 0).await;
        second.until("envoy_http_downstream_rq_active", "test", 0).await;
        // A chain of two.
        let far = Proxy::start(allowing(to("c")), vec![(h1("c"), vec![server1().await])]).await;
        let near = Proxy::start(allowing(to("c")), vec![(up2(true), vec![far.address])]).await;
        by_http1(&near).await;
        by_http2(&near).await;
    });
}

#[test]
fn bytes_that_come_with_the_request_wait_for_its_answer() {
    run(async {
        let proxy = Proxy::start(allowing(to("c")), vec![(h1("c"), vec![server1().await])]).await;
        let mut client = client2(&proxy).await.ready().await.expect("ready");
        let (answer, mut send) = client.send_request(connect("websocket"), false).expect("send");
        send.send_data("early".into(), true).expect("send");
        let answer = answer.await.expect("answer");
        assert_eq!(answer.status(), 200);
        assert_eq!(rest(&mut answer.into_body()).await, b"helloearly");
    });
}

#[test]
fn upgrades_that_are_refused() {
    run(async {
        let proxy = Proxy::start(allowing(to("c")), vec![(h1("c"), vec![server1().await])]).await;
        let mut client = client2(&proxy).await.ready().await.expect("ready");
        let (answer, _send) = client.send_request(connect("other"), false).expect("send");
        assert_eq!(answer.await.expect("answer").status(), 403, "not in upgrade_configs");
        // The cluster does not allow it, or the server does not offer it: nothing reaches it.
        for (allowed, offers) in [(false, true), (true, false)] {
            let server = server2(offers).await;
            let proxy = Proxy::start(allowing(to("c")), vec![(up2(allowed), vec![server])]).await;
            assert_eq!(
                proxy.ask(UPGRADE).await.status,
                403,
                "allowed {allowed}, offers {offers}"
            );
        }
    });
}

#[test]
fn an_answer_to_another_key_is_no_handshake() {
    run(async {
        let up = server(|mut client, _| async move {
            client.request().await.expect("request");
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
            );
            client.tcp.write_all(head.as_bytes()).await.expect("send");
            let _ = client.request().await;
        })
        .await;
        let proxy = Proxy::start(allowing(to("c")), vec![(h1("c"), vec![up])]).await;
        let mut client = client2(&proxy).await.ready().await.expect("ready");
        let (answer, _send) = client.send_request(connect("websocket"), false).expect("send");
        assert_eq!(answer.await.expect("answer").status(), 502);
    });
}

#[test]
fn a_client_that_leaves_ends_the_tunnel() {
    run(async {
        let server = server2(true).await;
        let proxy = Proxy::start(allowing(to("c")), vec![(up2(true), vec![server])]).await;
        let mut client = client2(&proxy).await.ready().await.expect("ready");
        let (answer, mut send) = client.send_request(connect("websocket"), false).expect("send");
        assert_eq!(answer.await.expect("answer").status(), 200);
        send.send_reset(Reason::CANCEL);
        proxy.until("envoy_cluster_upstream_rq_active", "c", 0).await;
        proxy.until("envoy_http_downstream_rq_rx_reset", "test", 1).await;
    });
}
