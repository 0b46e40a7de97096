//! Connections of HTTP/2 that go to another worker between their streams, with another project's client.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use h2::client::SendRequest;
use heddle_config::snapshot::{H2Keepalive, HttpCodec, HttpConnectionManager};
use heddle_tls::Stream;
use tokio::io::DuplexStream;

use super::*;

const HTTP2_TOTAL: &str = "envoy_http_downstream_cx_http2_total";
const HTTP2_ACTIVE: &str = "envoy_http_downstream_cx_http2_active";

async fn site(transport: Transport, filters: Vec<HttpFilter>) -> Site {
    site_with(transport, |manager| manager.filters = filters).await
}

async fn site_with(transport: Transport, adapt: impl FnOnce(&mut HttpConnectionManager)) -> Site {
    let adapt = |manager: &mut HttpConnectionManager| {
        manager.codec = HttpCodec::Http2;
        adapt(manager);
    };
    Site::start_with(2, transport, adapt, |_| {}).await
}

/// How many frames of each type a server has sent.
type Frames = Rc<RefCell<HashMap<u8, usize>>>;

/// Counts the frames that begin in `read`, of which `rest` belongs to the one before.
fn count(frames: &Frames, read: &[u8], rest: &mut usize) {
    let mut at = *rest;
    // Each call sees whole heads: what a server sends comes in whole writes.
    while let Some([a, b, c, kind, ..]) = read.get(at..) {
        *frames.borrow_mut().entry(*kind).or_default() += 1;
        at += 9 + usize::from(*a) * 65536 + usize::from(*b) * 256 + usize::from(*c);
    }
    *rest = at - read.len();
}

/// The bytes of a stream for who wants to have a socket, and the frames that come.
fn socket(stream: Stream) -> (DuplexStream, Frames) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (mut from, mut to) = tokio::io::split(theirs);
    let writing = Rc::new(stream);
    let reading = Rc::clone(&writing);
    let frames = Frames::default();
    let seen = Rc::clone(&frames);
    spawn_local(async move {
        let mut read = BytesMut::new();
        let mut rest = 0;
        while let Ok(1..) = reading.read(&mut read).await {
            count(&seen, &read, &mut rest);
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
    (ours, frames)
}

async fn connect(site: &Site) -> SendRequest<Bytes> {
    connect_and_count(site).await.0
}

async fn connect_and_count(site: &Site) -> (SendRequest<Bytes>, Frames) {
    let (stream, frames) = socket(site.connect().await.stream);
    let (requests, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    spawn_local(async move {
        let _ = connection.await;
    });
    (requests, frames)
}

/// Sends a body, with a field that the client's table of fields is to remember, and checks the answer.
async fn ask(client: &SendRequest<Bytes>, path: &str, body: usize) {
    try_ask(client, path, body).await.expect("an answer");
}

/// [`ask`], which fails where the connection has ended.
async fn try_ask(client: &SendRequest<Bytes>, path: &str, body: usize) -> Result<(), h2::Error> {
    let request = request(path, body);
    let mut client = client.clone().ready().await?;
    let (answer, mut sending) = client.send_request(request, body == 0)?;
    if body > 0 {
        sending.send_data(Bytes::from(vec![b'x'; body]), true)?;
    }
    let answer = answer.await?;
    assert_eq!(answer.status(), 200);
    let mut got = answer.into_body();
    let mut text = BytesMut::new();
    while let Some(data) = got.data().await {
        let data = data.expect("data");
        let _ = got.flow_control().release_capacity(data.len());
        text.extend_from_slice(&data);
    }
    assert_eq!(text, path);
    Ok(())
}

/// Asks until the connection has moved, and is not asked on its way.
async fn ask_until_one_moved(site: &Site, client: &SendRequest<Bytes>) {
    while site.sum(MOVED) < 1.0 {
        ask(client, "/first", 0).await;
        // Not for as long as a connection may be idle, however slow the machine is.
        let asked = std::time::Instant::now();
        while site.sum(MOVED) < 1.0 && asked.elapsed() < Duration::from_millis(50) {
            tokio::task::yield_now().await;
        }
    }
}

/// What a connection that ends without an error says.
fn ended_well(error: &h2::Error) -> bool {
    error.is_io() || error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR)
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

/// All of them at once, each answer checked; those that ended well are gone.
async fn ask_all(clients: &mut Vec<SendRequest<Bytes>>, rounds: usize) {
    for round in 0..rounds {
        let mut left = Vec::new();
        for client in clients.drain(..) {
            match try_ask(&client, &format!("/{round}"), 0).await {
                Ok(()) => left.push(client),
                Err(error) => assert!(ended_well(&error), "{error}"),
            }
        }
        *clients = left;
    }
}

#[test]
fn a_worker_that_drains_is_sent_none_and_ends() {
    local(async {
        let mut site = site(Transport::Tls13, Vec::new()).await;
        site.force(2);
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(connect(&site).await);
        }
        ask_all(&mut clients, 5).await;
        assert!(site.sum(MOVED) > 2.0);
        site.workers[0].phase.send_replace(Phase::closed(Scope::All));
        ask_all(&mut clients, 20).await;
        assert!(clients.len() < 8);
        let report = site.workers[0].report().await;
        assert!(matches!(report, WorkerReport::Drained { .. }), "{report:?}");
        assert_eq!(shares(&site).counts(), [0, clients.len() as u64]);
        let before = site.sum(REFUSED);
        let last = connect(&site).await;
        ask(&last, "/last", 0).await;
        site.until(REFUSED, before + 1.0).await;
        ask(&last, "/last", 0).await;
        assert_eq!(site.workers[1].total(ACTIVE), clients.len() as f64 + 1.0);
    });
}

/// A site whose second worker takes part but does not run, with a client's connection in its queue.
async fn waiting_for_the_second() -> (Site, Inbox, SendRequest<Bytes>) {
    let adapt = |manager: &mut HttpConnectionManager| manager.codec = HttpCodec::Http2;
    let (mut site, mut inboxes) = Site::prepare(2, Transport::Tls13, adapt, |_| {}).await;
    let second = inboxes.pop().expect("two");
    site.launch(0, inboxes.remove(0)).await;
    let config = Arc::clone(&site.process.snapshot.listeners["l"]);
    let client = connect(&site).await;
    ask(&client, "/first", 0).await;
    let taking = shares(&site).take_part(1, &config);
    site.process.shared.exchange.force(0, Some(1));
    ask_until_one_moved(&site, &client).await;
    drop(taking);
    (site, second, client)
}

#[test]
fn streams_that_come_on_the_way_are_answered_on_the_other_worker() {
    local(async {
        let (mut site, second, client) = waiting_for_the_second().await;
        let asked = [("/early", 0), ("/with/a/body", 5000), ("/late", 0)];
        let asked = asked.map(|(path, body)| {
            let client = client.clone();
            spawn_local(async move { ask(&client, path, body).await })
        });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(shares(&site).counts(), [0, 1]);
        assert_eq!((open(&site), site.sum(ACTIVE)), (1, 0.0));
        site.launch(1, second).await;
        for one in asked {
            one.await.expect("answered");
        }
        assert_eq!(site.workers[1].total("envoy_http_downstream_rq_total"), 3.0);
        assert_eq!((site.workers[1].total(ACTIVE), site.sum(TOTAL)), (1.0, 1.0));
    });
}

/// Where its version has drained meanwhile it ends, as it would have where it was.
#[test]
fn one_that_comes_after_its_version_has_gone_is_closed_and_counted() {
    local(async {
        let (mut site, second, client) = waiting_for_the_second().await;
        let changed = manager(|manager| manager.codec = HttpCodec::Http2);
        let other = Arc::new(http(site.address, Transport::Tls13, changed));
        site.process.snapshot = Arc::new(site.snapshot(&other));
        site.launch(1, second).await;
        try_ask(&client, "/late", 0).await.expect_err("it is closed");
        site.until("heddle_listener_hand_over_failure", 1.0).await;
        assert_eq!((open(&site), site.sum(DESTROYED), site.sum(ACTIVE)), (0, 1.0, 0.0));
        assert_eq!(site.sum(HTTP2_ACTIVE), 0.0);
        assert_eq!(shares(&site).counts(), [0, 0]);
    });
}

#[test]
fn a_full_queue_keeps_them_where_they_are() {
    local(async {
        let (site, _second, _first) = waiting_for_the_second().await;
        let _full = fill_the_second_queue(&site);
        let client = connect(&site).await;
        for at in 0..5 {
            ask(&client, &format!("/{at}"), 0).await;
        }
        site.until(MOVED, 1.0).await;
        assert!(
            site.workers[0].total(REFUSED) >= 4.0,
            "{}",
            site.workers[0].total(REFUSED)
        );
        assert_eq!(site.workers[0].total(ACTIVE), 1.0);
    });
}

#[test]
fn a_connection_that_moves_lasts_as_long_as_it_may() {
    local(async {
        let most = Duration::from_millis(300);
        let site = site_with(Transport::Plain, |m| m.max_connection_duration = Some(most)).await;
        site.force(2);
        let begun = std::time::Instant::now();
        let client = connect(&site).await;
        let error = loop {
            if let Err(error) = try_ask(&client, "/again", 0).await {
                break error;
            }
        };
        assert!(ended_well(&error), "{error}");
        assert!(begun.elapsed() >= most && site.sum(MOVED) > 1.0);
        drop(client);
        site.until(DESTROYED, 1.0).await;
        assert_eq!((site.sum(TOTAL), open(&site)), (1.0, 0));
    });
}

#[test]
fn one_that_has_moved_may_be_idle_for_as_long_as_others() {
    local(async {
        let idle = Duration::from_millis(500);
        let site = site_with(Transport::Tls13, |m| m.idle_timeout = idle).await;
        site.force(2);
        let client = connect(&site).await;
        ask_until_one_moved(&site, &client).await;
        site.until(DESTROYED, 1.0).await;
        assert_eq!(site.sum("envoy_http_downstream_cx_idle_timeout"), 1.0);
        let error = try_ask(&client, "/late", 0).await.expect_err("it is closed");
        assert!(ended_well(&error), "{error}");
        assert_eq!((site.sum(TOTAL), open(&site)), (1.0, 0));
    });
}

/// A connection that moves more often than PINGs are due is sent them all the same, and one that was sent and not answered stays.
#[test]
fn pings_are_sent_when_they_are_due_wherever_a_connection_is() {
    const PING: u8 = 6;
    local(async {
        let site = site_with(Transport::Plain, |m| {
            m.http2.keepalive = Some(H2Keepalive {
                interval: Duration::from_millis(100),
                timeout: Duration::from_secs(30),
                jitter: 0.0,
            });
        })
        .await;
        site.force(2);
        let (client, frames) = connect_and_count(&site).await;
        let begun = std::time::Instant::now();
        let mut moves = Vec::new();
        while moves.len() < 3 {
            ask(&client, "/again", 0).await;
            if frames.borrow().get(&PING).is_some_and(|pings| *pings > moves.len()) {
                moves.push(site.sum(MOVED));
            }
        }
        assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
        let between = moves.windows(2).map(|two| two[1] - two[0]);
        assert!(between.clone().all(|moves| moves > 1.0), "{moves:?}");
    });
}

/// Streams that a client gives up count against its connection on all workers together.
#[test]
fn streams_given_up_are_counted_wherever_a_connection_is() {
    local(async {
        let site = site(Transport::Plain, Vec::new()).await;
        site.force(2);
        let client = connect(&site).await;
        let mut given_up = 0;
        let error = loop {
            let mut ready = match client.clone().ready().await {
                Ok(ready) => ready,
                Err(error) => break error,
            };
            // Its body never comes, so it cannot be answered before it is given up.
            match ready.send_request(request("/given-up", 10), false) {
                Ok((_, mut sending)) => sending.send_reset(h2::Reason::CANCEL),
                Err(error) => break error,
            }
            given_up += 1;
            if let Err(error) = try_ask(&client, "/answered", 0).await {
                break error;
            }
        };
        assert_eq!(error.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM), "{error}");
        site.until("envoy_http_downstream_rq_too_many_premature_resets", 1.0)
            .await;
        assert!(site.sum(MOVED) > 50.0, "{} moves", site.sum(MOVED));
        // Half of the 500 that `overload.premature_reset_total_stream_count` has without being set.
        assert!((248..=252).contains(&given_up), "{given_up}");
    });
}
