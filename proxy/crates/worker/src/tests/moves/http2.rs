//! Connections of HTTP/2 that go to another worker between their streams, with another project's client.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use h2::client::SendRequest;
use heddle_config::snapshot::{HttpCodec, HttpConnectionManager};
use heddle_tls::Stream;
use tokio::io::DuplexStream;

use super::*;

const HTTP2_TOTAL: &str = "envoy_http_downstream_cx_http2_total";
const HTTP2_ACTIVE: &str = "envoy_http_downstream_cx_http2_active";

async fn site(transport: Transport, filters: Vec<HttpFilter>) -> Site {
    let adapt = |manager: &mut HttpConnectionManager| {
        manager.codec = HttpCodec::Http2;
        manager.filters = filters;
    };
    Site::start_with(2, transport, adapt, |_| {}).await
}

/// The bytes of a stream for who wants to have a socket.
fn socket(stream: Stream) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (mut from, mut to) = tokio::io::split(theirs);
    let writing = Rc::new(stream);
    let reading = Rc::clone(&writing);
    spawn_local(async move {
        let mut read = BytesMut::new();
        while let Ok(1..) = reading.read(&mut read).await {
            if to.write_all(&read.split()).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    });
    spawn_local(async move {
        let mut read = BytesMut::new();
        while let Ok(1..) = from.read_buf(&mut read).await {
            if writing.write_all(&read.split()).await.is_err() {
                return;
            }
        }
        let _ = writing.shutdown().await;
    });
    ours
}

async fn connect(site: &Site) -> SendRequest<Bytes> {
    let stream = site.connect().await.stream;
    let (requests, connection) = h2::client::handshake(socket(stream)).await.expect("HTTP/2");
    spawn_local(async move {
        let _ = connection.await;
    });
    requests
}

/// Sends a body, with a field that the client's table of fields is to remember, and checks the answer.
async fn ask(client: &SendRequest<Bytes>, path: &str, body: usize) {
    let request = request(path, body);
    let mut client = client.clone().ready().await.expect("the connection is open");
    let (answer, mut sending) = client.send_request(request, body == 0).expect("sends");
    if body > 0 {
        sending.send_data(Bytes::from(vec![b'x'; body]), true).expect("sends");
    }
    let answer = answer.await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let mut got = answer.into_body();
    let mut text = BytesMut::new();
    while let Some(data) = got.data().await {
        let data = data.expect("data");
        let _ = got.flow_control().release_capacity(data.len());
        text.extend_from_slice(&data);
    }
    assert_eq!(text, path);
}

fn request(path: &str, body: usize) -> ::http::Request<()> {
    ::http::Request::builder()
        .method(if body > 0 { "POST" } else { "GET" })
        .uri(format!("http://test{path}"))
        .header("x-remembered", "a value of some length, which the next head refers to")
        .header("content-length", body)
        .body(())
        .expect("a request")
}

/// Windows, tables of fields and numbers of streams go on where they were: 600 kB go each way, ten times what the windows of a
/// connection have to begin with.
#[test]
fn connections_go_to_and_fro_with_their_tables_and_windows() {
    with_each(|transport| async move {
        let site = site(transport, Vec::new()).await;
        site.force(2);
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(connect(&site).await);
        }
        for round in 0..100 {
            let path = format!("/{round}/{}", "long".repeat(1500));
            for client in &clients {
                ask(client, &path, 6000).await;
            }
        }
        assert!(site.sum(MOVED) >= 150.0, "{transport:?}: {} moves", site.sum(MOVED));
        site.until(ACTIVE, 3.0).await;
        site.until(HTTP2_ACTIVE, 3.0).await;
        assert_eq!((site.sum(TOTAL), site.sum(HTTP2_TOTAL)), (3.0, 3.0));
        assert_eq!((site.sum(DESTROYED), open(&site)), (0.0, 3));
        drop(clients);
        site.until(DESTROYED, 3.0).await;
        assert_eq!((site.sum(ACTIVE), site.sum(HTTP2_ACTIVE), open(&site)), (0.0, 0.0, 0));
        assert_eq!(site.sum("heddle_listener_hand_over_failure"), 0.0);
    });
}

/// Who has streams open stays, and streams that come while a connection is on its way are served where it arrives.
#[test]
fn streams_beside_each_other_are_all_answered() {
    with_each(|transport| async move {
        let site = site(transport, Vec::new()).await;
        site.force(2);
        let client = connect(&site).await;
        let mut sizes = fastrand::Rng::with_seed(8);
        for round in 0..60 {
            let asked: Vec<_> = (0..sizes.usize(1..=12))
                .map(|at| (format!("/{round}/{at}"), sizes.usize(..3) * 5000))
                .collect();
            join_all(asked.iter().map(|(path, body)| ask(&client, path, *body))).await;
        }
        assert!(site.sum(MOVED) >= 20.0, "{transport:?}: {} moves", site.sum(MOVED));
        assert_eq!(site.sum(HTTP2_TOTAL), 1.0);
    });
}

/// On another worker its bucket would be full again.
#[test]
fn a_connection_with_a_token_bucket_of_its_own_stays() {
    local(async {
        const TOKENS: u32 = 5;
        let site = site(Transport::Plain, vec![bucket_of_its_own(TOKENS)]).await;
        site.force(2);
        let client = connect(&site).await;
        for at in 0..TOKENS {
            ask(&client, &format!("/{at}"), 0).await;
        }
        let mut client = client.ready().await.expect("the connection is open");
        let (answer, _) = client.send_request(request("/more", 0), true).expect("sends");
        assert_eq!(answer.await.expect("an answer").status(), 429);
        assert_eq!(site.sum(MOVED), 0.0);
    });
}
