//! HTTP/2 frame by frame, by a peer that keeps to no rule.

mod harness;

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use harness::*;
use heddle_config::snapshot::*;
use heddle_http::parse::HpackDecoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

const PROTOCOL_ERROR: u32 = 1;
const CANCEL: u32 = 8;
const ENHANCE_YOUR_CALM: u32 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A header block of literals.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(text.len() as u8);
            block.extend(text.as_bytes());
        }
    }
    block
}

fn asks(method: &str, path: &str, extra: &[(&str, &str)]) -> Vec<u8> {
    let head = [
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "shop"),
    ];
    block(&[&head, extra].concat())
}

#[derive(Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    /// The error code of RST_STREAM or GOAWAY.
    fn code(&self) -> u32 {
        let at = self.payload.len().min(8) - 4;
        u32::from_be_bytes(self.payload[at..at + 4].try_into().expect("four bytes"))
    }
}

/// The peer.
struct Peer {
    tcp: TcpStream,
    held: Vec<u8>,
    decoder: HpackDecoder,
}

impl Peer {
    async fn client(proxy: &Proxy) -> Self {
        let tcp = TcpStream::connect(proxy.address).await.expect("connect");
        let mut peer = Self::new(tcp);
        peer.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        peer.send(&frame(SETTINGS, 0, 0, &[])).await;
        peer
    }

    fn new(tcp: TcpStream) -> Self {
        tcp.set_nodelay(true).expect("nodelay");
        Self {
            tcp,
            held: Vec::new(),
            decoder: HpackDecoder::new(4096),
        }
    }

    /// Sends; a peer that has been cut off is none of the test's business.
    async fn send(&mut self, bytes: &[u8]) {
        let _ = self.tcp.write_all(bytes).await;
    }

    async fn exactly(&mut self, n: usize) -> Option<Vec<u8>> {
        while self.held.len() < n {
            let mut chunk = [0; 65536];
            match self.tcp.read(&mut chunk).await {
                Ok(n @ 1..) => self.held.extend(&chunk[..n]),
                _ => return None,
            }
        }
        Some(self.held.drain(..n).collect())
    }

    async fn frame(&mut self) -> Option<Frame> {
        let head = self.exactly(9).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload: self.exactly(length).await?,
        })
    }

    /// The next frame of these kinds.
    async fn next(&mut self, kinds: &[u8]) -> Option<Frame> {
        loop {
            let frame = self.frame().await?;
            if kinds.contains(&frame.kind) {
                return Some(frame);
            }
        }
    }

    /// The fields of the next HEADERS, or the code of the RST_STREAM or GOAWAY in their place.
    async fn head(&mut self) -> Result<Vec<(String, String)>, u32> {
        let frame = self.next(&[HEADERS, RST_STREAM, GOAWAY]).await.expect("an answer");
        if frame.kind != HEADERS {
            return Err(frame.code());
        }
        let mut fields = Vec::new();
        self.decoder.begin();
        self.decoder
            .decode(&frame.payload, |f| {
                let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
                fields.push((text(f.name), text(f.value)));
            })
            .expect("a header block");
        Ok(fields)
    }

    async fn status(&mut self) -> Result<String, u32> {
        Ok(self.head().await?.swap_remove(0).1)
    }
}

async fn echoing(manager: HttpConnectionManager) -> (Proxy, Log) {
    let (up, log) = echo().await;
    let proxy = Proxy::start(manager, vec![(cluster("c", UpstreamHttp::Http1), vec![up])]).await;
    (proxy, log)
}

#[test]
fn floods_of_legal_frames_end_the_connection() {
    run(async {
        let get = frame(HEADERS, END_HEADERS, 1, &asks("POST", "/", &[]));
        for (name, first, flood, counter) in [
            (
                "PRIORITY",
                &[][..],
                frame(PRIORITY, 0, 3, &[0; 5]),
                "envoy_http2_inbound_priority_frames_flood",
            ),
            (
                "WINDOW_UPDATE",
                &[],
                frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
                "envoy_http2_inbound_window_update_frames_flood",
            ),
            (
                "empty DATA",
                &get,
                frame(DATA, 0, 1, &[]),
                "envoy_http2_inbound_empty_frames_flood",
            ),
            (
                "empty CONTINUATION",
                &frame(HEADERS, 0, 1, &asks("GET", "/", &[])),
                frame(CONTINUATION, 0, 1, &[]),
                "envoy_http2_inbound_empty_frames_flood",
            ),
            (
                "unasked PING answers",
                &[],
                frame(PING, ACK, 0, &[7; 8]),
                "envoy_http2_inbound_control_frames_flood",
            ),
            (
                "PING",
                &[],
                frame(PING, 0, 0, &[7; 8]),
                "envoy_http2_inbound_control_frames_flood",
            ),
            (
                "SETTINGS",
                &[],
                frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 1, 0]),
                "envoy_http2_inbound_control_frames_flood",
            ),
            (
                "unknown frames",
                &[],
                frame(0xbe, 0, 0, &[]),
                "envoy_http2_inbound_control_frames_flood",
            ),
            (
                "resets of a closed stream",
                &[get.clone(), frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])].concat(),
                frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]),
                "envoy_http2_inbound_control_frames_flood",
            ),
        ] {
            let (proxy, _) = echoing(manager(to("c"))).await;
            let mut peer = Peer::client(&proxy).await;
            peer.send(first).await;
            peer.send(&flood.repeat(1200)).await;
            let end = peer.next(&[GOAWAY]).await.expect(name);
            assert_eq!(end.code(), ENHANCE_YOUR_CALM, "{name}");
            drop(peer);
            proxy.until("envoy_http_downstream_cx_http2_active", "", 0).await;
            assert_eq!(proxy.metric(counter, ""), 1, "{name}");
        }
    });
}

#[test]
fn pings_that_go_with_data_are_no_flood() {
    run(async {
        let (proxy, log) = echoing(manager(to("c"))).await;
        let mut peer = Peer::client(&proxy).await;
        peer.send(&frame(HEADERS, END_HEADERS, 1, &asks("POST", "/", &[])))
            .await;
        let both = [frame(DATA, 0, 1, b"x"), frame(PING, 0, 0, &[7; 8])].concat();
        for _ in 0..30 {
            peer.send(&both.repeat(100)).await;
            // Answers are read as they come.
            for _ in 0..100 {
                let pong = peer.next(&[PING, GOAWAY]).await.expect("an answer");
                assert_eq!((pong.kind, pong.flags), (PING, ACK));
            }
        }
        peer.send(&frame(DATA, END_STREAM, 1, b"")).await;
        assert_eq!(peer.status().await, Ok("200".to_owned()));
        assert_eq!(log.borrow()[0].body.len(), 3000);
    });
}

#[test]
fn a_head_must_end_in_time() {
    run(async {
        for unfinished in [
            frame(HEADERS, 0, 1, &asks("GET", "/", &[])),
            frame(HEADERS, END_HEADERS, 1, &asks("GET", "/", &[]))[..20].to_vec(),
        ] {
            let mut manager = manager(to("c"));
            manager.request_headers_timeout = Duration::from_millis(50);
            let (proxy, _) = echoing(manager).await;
            let mut peer = Peer::client(&proxy).await;
            peer.send(&unfinished).await;
            assert!(peer.next(&[GOAWAY]).await.is_some());
            proxy.until("envoy_http_downstream_rq_header_timeout", "", 1).await;
        }
    });
}

#[test]
fn a_malformed_message_ends_its_stream_alone() {
    run(async {
        let (proxy, log) = echoing(manager(to("c"))).await;
        let mut peer = Peer::client(&proxy).await;
        peer.send(&frame(HEADERS, END_HEADERS, 1, &asks("POST", "/first", &[])))
            .await;
        let mut id = 1;
        for (extra, code) in [
            (&[("connection", "close")][..], PROTOCOL_ERROR),
            (&[("X-Upper", "1")], PROTOCOL_ERROR),
            (&[("x-a", "line\r\nbreak: 1")], PROTOCOL_ERROR),
            (&[(":late", "1")], PROTOCOL_ERROR),
            (&[("content-length", "1"), ("content-length", "2")], PROTOCOL_ERROR),
        ] {
            id += 2;
            let head = frame(HEADERS, END_HEADERS | END_STREAM, id, &asks("GET", "/bad", extra));
            peer.send(&head).await;
            assert_eq!(peer.status().await, Err(code), "{extra:?}");
        }
        // A body that is not as long as announced, in both ways, and trailers that hold a pseudo-header field.
        let announced = asks("POST", "/bad", &[("content-length", "3")]);
        for rest in [
            frame(DATA, END_STREAM, id + 2, b"ab"),
            frame(DATA, END_STREAM, id + 4, b"abcd"),
            frame(HEADERS, END_HEADERS | END_STREAM, id + 6, &block(&[(":path", "/")])),
            frame(HEADERS, END_HEADERS, id + 8, &block(&[("x-a", "no end")])),
        ] {
            id += 2;
            peer.send(&frame(HEADERS, END_HEADERS, id, &announced)).await;
            peer.send(&rest).await;
            assert_eq!(peer.status().await, Err(PROTOCOL_ERROR));
        }
        peer.send(&frame(DATA, END_STREAM, 1, b"whole")).await;
        assert_eq!(peer.status().await, Ok("200".to_owned()));
        assert_eq!(log.borrow().len(), 1, "nothing malformed has arrived");
        assert_eq!(proxy.metric("envoy_http2_rx_messaging_error", ""), 9);
    });
}

#[test]
fn a_malformed_message_ends_the_connection_where_that_is_configured() {
    run(async {
        let mut manager = manager(to("c"));
        manager.http2.stream_error_on_invalid_http_messaging = false;
        let (proxy, _) = echoing(manager).await;
        let mut peer = Peer::client(&proxy).await;
        peer.send(&frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            1,
            &asks("GET", "/", &[("te", "gzip")]),
        ))
        .await;
        assert_eq!(peer.next(&[GOAWAY]).await.expect("GOAWAY").code(), PROTOCOL_ERROR);
    });
}

#[test]
fn what_cannot_be_forwarded_is_answered() {
    run(async {
        let (proxy, log) = echoing(manager(to("c"))).await;
        let mut peer = Peer::client(&proxy).await;
        let mut id = 1;
        let long = "v".repeat(120);
        let large: Vec<(&str, &str)> = std::iter::repeat_n(("x-a", &*long), 99).collect();
        let many: Vec<(&str, &str)> = std::iter::repeat_n(("x-a", ""), 101).collect();
        for (head, status) in [
            (asks("GET", "/a#b", &[]), "400"),
            (asks("GET", "*", &[]), "400"),
            (asks("GET", "a", &[]), "400"),
            (asks("GET", "/", &many), "431"),
            (asks("GET", "/", &[("expect", "miracles")]), "417"),
            (asks("GET", "/ok", &large), "200"),
        ] {
            peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, id, &head)).await;
            assert_eq!(peer.status().await, Ok(status.to_owned()));
            id += 2;
        }
        assert_eq!(log.borrow().len(), 1);
    });
}

/// A head too large to keep is still decoded, so that the connection goes on.
#[test]
fn a_head_that_is_too_large_costs_its_request_only() {
    run(async {
        let mut manager = manager(to("c"));
        manager.max_headers_bytes = 20_000;
        let (proxy, _) = echoing(manager).await;
        let mut peer = Peer::client(&proxy).await;
        let long = "v".repeat(120);
        let fields: Vec<(&str, &str)> = std::iter::repeat_n(("x-a", &*long), 300).collect();
        let head = asks("GET", "/", &fields);
        let mut pieces = head.chunks(16_000).enumerate().peekable();
        while let Some((at, piece)) = pieces.next() {
            let last = if pieces.peek().is_none() { END_HEADERS } else { 0 };
            let kind = if at == 0 { HEADERS } else { CONTINUATION };
            let end = if at == 0 { END_STREAM } else { 0 };
            peer.send(&frame(kind, last | end, 1, piece)).await;
        }
        assert_eq!(peer.status().await, Ok("431".to_owned()));
        peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 3, &asks("GET", "/", &[])))
            .await;
        assert_eq!(peer.status().await, Ok("200".to_owned()));
    });
}

#[test]
fn a_client_that_waits_for_100_gets_it() {
    run(async {
        let (proxy, log) = echoing(manager(to("c"))).await;
        let mut peer = Peer::client(&proxy).await;
        let head = asks("POST", "/", &[("expect", "100-continue"), ("x-a", "  spaced\t")]);
        peer.send(&frame(HEADERS, END_HEADERS, 1, &head)).await;
        assert_eq!(peer.status().await, Ok("100".to_owned()));
        peer.send(&frame(DATA, END_STREAM, 1, b"body")).await;
        assert_eq!(peer.status().await, Ok("200".to_owned()));
        let log = log.borrow();
        assert_eq!(log[0].header("expect"), None);
        assert_eq!(log[0].header("x-a"), Some("spaced"));
    });
}

/// Counts its connections and streams; answers every stream but those for /never.
async fn counting_upstream() -> (SocketAddr, Rc<Cell<usize>>, Rc<Cell<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (connections, streams) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (counted, opened) = (Rc::clone(&connections), Rc::clone(&streams));
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            counted.set(counted.get() + 1);
            tcp.set_nodelay(true).expect("nodelay");
            let opened = Rc::clone(&opened);
            tokio::task::spawn_local(async move {
                let Ok(mut connection) = h2::server::handshake(tcp).await else {
                    return;
                };
                let mut held = Vec::new();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    opened.set(opened.get() + 1);
                    if request.uri().path() == "/never" {
                        held.push(respond);
                    } else if let Ok(mut send) = respond.send_response(http::Response::new(()), false) {
                        let _ = send.send_data(Bytes::from_static(b"ok"), true);
                    }
                }
            });
        }
    });
    (address, connections, streams)
}

#[test]
fn resets_after_the_request_was_taken_cost_no_upstream_connection_and_end() {
    type Offence = fn(u32) -> Vec<u8>;
    let offences: [(&str, Offence); 4] = [
        ("RST_STREAM", |id| frame(RST_STREAM, 0, id, &CANCEL.to_be_bytes())),
        // What makes the proxy reset the stream is as cheap.
        ("no increment", |id| frame(WINDOW_UPDATE, 0, id, &[0; 4])),
        ("a window too large", |id| {
            frame(WINDOW_UPDATE, 0, id, &i32::MAX.to_be_bytes())
        }),
        ("data behind the end", |id| frame(DATA, 0, id, b"x")),
    ];
    run(async {
        for (name, offence) in offences {
            let (up, connections, streams) = counting_upstream().await;
            let proxy = Proxy::start(manager(to("c")), vec![(cluster("c", UpstreamHttp::Http2), vec![up])]).await;
            let mut peer = Peer::client(&proxy).await;
            let mut sent = 0;
            loop {
                let id = 2 * sent + 1;
                peer.send(&frame(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    id,
                    &asks("GET", "/never", &[]),
                ))
                .await;
                let before = streams.get();
                let mut waited = 0;
                while streams.get() == before && waited < 1000 {
                    waited += 1;
                    tokio::task::yield_now().await;
                }
                peer.send(&offence(id)).await;
                sent += 1;
                if proxy.metric("envoy_http_downstream_rq_too_many_premature_resets", "") > 0 {
                    break;
                }
                assert!(sent < 300, "{name} without end");
            }
            assert!((250..=260).contains(&sent), "{name}: {sent}");
            assert_eq!(peer.next(&[GOAWAY]).await.expect(name).code(), ENHANCE_YOUR_CALM);
            // The same connection goes on serving others.
            assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.status, 200);
            assert_eq!(connections.get(), 1);
        }
    });
}

#[test]
fn requests_reset_before_they_were_looked_at_go_nowhere() {
    run(async {
        let (up, _, streams) = counting_upstream().await;
        let proxy = Proxy::start(manager(to("c")), vec![(cluster("c", UpstreamHttp::Http2), vec![up])]).await;
        let mut peer = Peer::client(&proxy).await;
        let mut both = Vec::new();
        for n in 0..20 {
            both.extend(frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                2 * n + 1,
                &asks("GET", "/", &[]),
            ));
            both.extend(frame(RST_STREAM, 0, 2 * n + 1, &CANCEL.to_be_bytes()));
        }
        both.extend(frame(HEADERS, END_HEADERS | END_STREAM, 41, &asks("GET", "/", &[])));
        peer.send(&both).await;
        assert_eq!(peer.status().await, Ok("200".to_owned()));
        assert_eq!(streams.get(), 1);
    });
}

/// An upstream of raw frames: `script` runs for each connection, after the client's preface and our SETTINGS.
async fn raw_upstream<F, Fut>(settings: &'static [u8], script: F) -> SocketAddr
where
    F: Fn(Peer) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let script = Rc::new(script);
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let script = Rc::clone(&script);
            tokio::task::spawn_local(async move {
                let mut peer = Peer::new(tcp);
                peer.exactly(24).await;
                peer.send(&frame(SETTINGS, 0, 0, settings)).await;
                script(peer).await;
            });
        }
    });
    address
}

#[test]
fn an_upstream_that_takes_no_streams_fails_requests_at_once() {
    run(async {
        let up = raw_upstream(&[0, 3, 0, 0, 0, 0], |mut peer| async move {
            while let Some(head) = peer.next(&[HEADERS]).await {
                peer.send(&frame(RST_STREAM, 0, head.stream, &7_u32.to_be_bytes()))
                    .await;
            }
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(cluster("c", UpstreamHttp::Http2), vec![up])]).await;
        for _ in 0..10 {
            let ask = proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            let answer = tokio::time::timeout(Duration::from_secs(2), ask)
                .await
                .expect("an answer");
            assert_eq!(answer.status, 503);
        }
    });
}

#[test]
fn hostile_upstreams() {
    run(async {
        let endless: &[u8] = &frame(HEADERS, END_HEADERS, 1, &block(&[(":status", "103")])).repeat(100);
        for (name, answer, status) in [
            ("endless interim heads", endless, 502),
            (
                "no status",
                &frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&[("x-a", "1")])),
                502,
            ),
            ("data before a head", &frame(DATA, END_STREAM, 1, b"hello"), 502),
            (
                "a push",
                &frame(5, END_HEADERS, 1, &[&[0, 0, 0, 2][..], &asks("GET", "/", &[])].concat()),
                502,
            ),
            (
                "a length without a body",
                &frame(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    1,
                    &block(&[(":status", "200"), ("content-length", "5")]),
                ),
                502,
            ),
            ("a flood", &frame(PING, ACK, 0, &[7; 8]).repeat(1200), 502),
            (
                "nothing but GOAWAY",
                &frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]),
                503,
            ),
        ] {
            let answer = answer.to_vec();
            let up = raw_upstream(&[], move |mut peer| {
                let answer = answer.clone();
                async move {
                    if peer.next(&[HEADERS]).await.is_some() {
                        peer.send(&answer).await;
                        let _ = peer.tcp.shutdown().await;
                        while peer.frame().await.is_some() {}
                    }
                }
            })
            .await;
            let proxy = Proxy::start(manager(to("c")), vec![(cluster("c", UpstreamHttp::Http2), vec![up])]).await;
            let mut client = proxy.connect().await;
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            let mut answer = client.answer().await.expect(name);
            while answer.status < 200 {
                answer = client.answer().await.expect(name);
            }
            assert_eq!(answer.status, status, "{name}");
        }
    });
}

/// Whether the connection still answers.
async fn is_alive(peer: &mut Peer) -> bool {
    peer.send(&frame(PING, 0, 0, b"are you?")).await;
    matches!(peer.next(&[PING, GOAWAY]).await, Some(pong) if pong.kind == PING)
}

#[test]
fn data_on_its_way_to_a_stream_that_was_reset_is_no_flood() {
    run(async {
        let (proxy, _) = echoing(manager(to("c"))).await;
        let mut peer = Peer::client(&proxy).await;
        let post = asks("POST", "/", &[("content-length", "1")]);
        peer.send(&frame(HEADERS, END_HEADERS, 1, &post)).await;
        peer.send(&frame(DATA, 0, 1, b"too much")).await;
        assert_eq!(peer.next(&[RST_STREAM]).await.expect("RST_STREAM").stream, 1);
        peer.send(&frame(DATA, 0, 1, b"x").repeat(2000)).await;
        assert!(is_alive(&mut peer).await);
        // Without a payload nothing bounds them but their number.
        peer.send(&frame(DATA, END_STREAM, 1, b"").repeat(1200)).await;
        assert!(!is_alive(&mut peer).await);
    });
}

#[test]
fn trailers_on_their_way_to_a_stream_reset_long_ago_end_nothing() {
    run(async {
        let (proxy, _) = echoing(manager(to("c"))).await;
        let mut peer = Peer::client(&proxy).await;
        let post = asks("POST", "/", &[("content-length", "1")]);
        for n in 0..200 {
            peer.send(&frame(HEADERS, END_HEADERS, 2 * n + 1, &post)).await;
            peer.send(&frame(DATA, 0, 2 * n + 1, b"too much")).await;
            assert_eq!(peer.next(&[RST_STREAM]).await.expect("RST_STREAM").stream, 2 * n + 1);
        }
        for n in 0..200 {
            let trailers = block(&[("x-checksum", "1")]);
            peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &trailers))
                .await;
        }
        assert!(is_alive(&mut peer).await);
    });
}

#[test]
fn answers_to_a_client_that_has_left_cost_the_others_nothing() {
    run(async {
        const LEFT: usize = 600;
        let connections = Rc::new(Cell::new(0));
        let (opened, asked) = (Rc::clone(&connections), Rc::new(Cell::new(0)));
        let arrived = Rc::clone(&asked);
        let up = raw_upstream(&[], move |mut peer| {
            opened.set(opened.get() + 1);
            let first = opened.get() == 1;
            let asked = Rc::clone(&asked);
            async move {
                let answer = |stream| {
                    [
                        frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "200")])),
                        frame(DATA, 0, stream, b"o"),
                        frame(DATA, END_STREAM, stream, b"k"),
                    ]
                    .concat()
                };
                let mut held = Vec::new();
                while let Some(frame) = peer.next(&[HEADERS, RST_STREAM]).await {
                    match frame.kind {
                        HEADERS if first && (3..2 * LEFT as u32 + 3).contains(&frame.stream) => {
                            held.push(frame.stream);
                            asked.set(held.len());
                        }
                        HEADERS => peer.send(&answer(frame.stream)).await,
                        // These were on their way.
                        _ => peer.send(&held.drain(..).flat_map(answer).collect::<Vec<_>>()).await,
                    }
                }
            }
        })
        .await;
        let mut manager = manager(to("c"));
        let mut upstream = cluster("c", UpstreamHttp::Http2);
        manager.http2.max_concurrent_streams = 1000;
        upstream.http2.max_concurrent_streams = 1000;
        let proxy = Proxy::start(manager, vec![(upstream, vec![up])]).await;
        assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.status, 200);
        let mut peer = Peer::client(&proxy).await;
        for n in 0..LEFT as u32 {
            let get = asks("GET", "/", &[]);
            peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 2 * n + 1, &get))
                .await;
        }
        while arrived.get() < LEFT {
            tokio::task::yield_now().await;
        }
        drop(peer);
        proxy.until("envoy_http_downstream_cx_http2_active", "", 0).await;
        for _ in 0..3 {
            assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.status, 200);
        }
        assert_eq!(connections.get(), 1);
    });
}
