//! Processes with several workers, and connections that the kernel gives all to one of them.

mod harness;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use h2::client::SendRequest;
use harness::*;
use tokio::net::TcpSocket;

const HANDED_OVER: &str = "heddle_listener_cx_handed_over{";
const MOVED: &str = "heddle_listener_cx_moved{";

const LOAD_AWARE: &str = r#"connection_balance_config: { extend_balance: { name: envoy.network.connection_balance.dlb, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.network.connection_balance.dlb.v3alpha.Dlb } } }"#;

/// A client's address, one of many on loopback. The kernel's hash of a connection depends on it.
fn client(number: u16) -> SocketAddr {
    let [high, low] = number.to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(127, 77, high, low), 20_000))
}

/// Connects from there. Closing resets, so that the same addresses can connect again at once.
async fn connect(from: SocketAddr, port: u16) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_zero_linger()?;
    socket.bind(from)?;
    let stream = socket.connect(SocketAddr::from(([127, 0, 0, 1], port))).await?;
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Clients whose connections the kernel gives to the first of so many sockets on that port.
async fn of_one_socket(port: u16, sockets: usize, count: usize) -> Vec<SocketAddr> {
    let listen = || {
        let socket = TcpSocket::new_v4()?;
        // Connections of a program before may still be ending there.
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(true)?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], port)))?;
        socket.listen(16)
    };
    let sockets: Vec<_> = (0..sockets).map(|_| listen().expect("a free port")).collect();
    let mut found = Vec::new();
    for number in 1.. {
        let _client = connect(client(number), port).await.expect("connects");
        let accepted = std::future::poll_fn(|context| {
            let which = sockets.iter().position(|socket| socket.poll_accept(context).is_ready());
            which.map_or(Poll::Pending, Poll::Ready)
        });
        if accepted.await == 0 {
            found.push(client(number));
        }
        if found.len() == count {
            break;
        }
    }
    found
}

fn block_on<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("runtime").block_on(what)
}

/// A proxy and clients whose connections it accepts with one worker.
fn start(balance: &str, clients: usize) -> (Proxy, u16, u16, Vec<SocketAddr>) {
    let (admin, port) = (free_port(), free_port());
    let clients = block_on(of_one_socket(port, 2, clients));
    let mut proxy = Proxy::start(&answering(admin, port, balance), admin);
    proxy.wait_for("LIVE");
    (proxy, admin, port, clients)
}

fn asked(from: SocketAddr, port: u16) -> TcpStream {
    let mut stream = block_on(connect(from, port)).expect("connects");
    ask(&mut stream);
    stream
}

const REQUEST: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

fn ask(stream: &mut TcpStream) {
    stream.write_all(REQUEST.as_bytes()).expect("written");
    answered(stream);
}

fn answered(stream: &mut TcpStream) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nhello") {
        let mut buffer = [0; 1024];
        let n = stream.read(&mut buffer).expect("an answer");
        assert!(n > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..n]);
    }
}

/// Connections by worker, the fewer first.
fn active(admin: u16) -> [u64; 2] {
    let [a, b] = by_worker(admin);
    [a.min(b), a.max(b)]
}

fn by_worker<const WORKERS: usize>(admin: u16) -> [u64; WORKERS] {
    let metrics = get(admin, "/stats/prometheus").expect("the admin interface answers");
    std::array::from_fn(|worker| {
        let name = "envoy_listener_worker_downstream_cx_active";
        let label = format!("worker_id=\"{worker}\"");
        let samples = metrics.lines().filter(|l| l.starts_with(name) && l.contains(&label));
        samples.filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    })
}

#[test]
fn without_a_balance_connections_stay_where_the_kernel_gave_them() {
    let (_proxy, admin, port, clients) = start("", 20);
    let _clients: Vec<_> = clients.into_iter().map(|from| asked(from, port)).collect();
    assert_eq!(active(admin), [0, 20]);
    assert_eq!(counter(admin, HANDED_OVER), 0);
}

#[test]
fn exact_balance_spreads_what_one_worker_accepts() {
    let (_proxy, admin, port, clients) = start("connection_balance_config: { exact_balance: {} }", 20);
    let mut clients: Vec<_> = clients.into_iter().map(|from| asked(from, port)).collect();
    assert_eq!(active(admin), [10, 10]);
    assert_eq!(counter(admin, HANDED_OVER), 10);
    clients.iter_mut().for_each(ask);
    drop(clients);
    wait_until("all are closed", || active(admin) == [0, 0]);
}

#[test]
fn load_aware_balance_spreads_what_one_worker_accepts() {
    let (_proxy, admin, port, clients) = start(LOAD_AWARE, 100);
    let mut clients: Vec<_> = clients.into_iter().map(|from| asked(from, port)).collect();
    // How many depends on what else this machine does: that makes a worker wait.
    let handed_over = counter(admin, HANDED_OVER);
    assert!(handed_over > 0);
    wait_until("all are some worker's", || active(admin).iter().sum::<u64>() == 100);
    clients.iter_mut().for_each(ask);
    drop(clients);
    wait_until("all are closed", || active(admin) == [0, 0]);
}

/// Slow clients among busy ones, all of one worker at first: a connection with half a request stays where it is, others may move,
/// and all are answered.
fn workers_serve_all<const WORKERS: usize>() {
    let (admin, port) = (free_port(), free_port());
    let clients = block_on(of_one_socket(port, WORKERS, 200));
    let mut proxy = Proxy::start_with_workers(&answering(admin, port, LOAD_AWARE), admin, WORKERS);
    proxy.wait_for("LIVE");
    let mut busy: Vec<_> = clients.into_iter().map(|from| asked(from, port)).collect();
    let mut slow = busy.split_off(150);
    let (half, rest) = REQUEST.as_bytes().split_at(REQUEST.len() / 2);
    slow.iter_mut().for_each(|c| c.write_all(half).expect("written"));
    for _ in 0..20 {
        busy.iter_mut().for_each(ask);
    }
    for client in &mut slow {
        client.write_all(rest).expect("written");
        answered(client);
    }
    // One on its way to another worker is in nobody's gauge.
    wait_until("all are some worker's", || {
        by_worker::<WORKERS>(admin).iter().sum::<u64>() == 200
    });
    assert_eq!(counter(admin, HANDED_OVER) > 0, WORKERS > 1);
    drop((busy, slow));
    wait_until("all are closed", || by_worker::<WORKERS>(admin) == [0; WORKERS]);
}

#[test]
fn one_worker_serves_all() {
    workers_serve_all::<1>();
}

#[test]
fn four_workers_serve_all() {
    workers_serve_all::<4>();
}

#[test]
fn sixteen_workers_serve_all() {
    workers_serve_all::<16>();
}

/// Sends a request on a connection of HTTP/2 and checks the answer.
async fn ask_http2(client: &SendRequest<Bytes>) {
    let request = http::Request::get("http://a/").body(()).expect("a request");
    let mut client = client.clone().ready().await.expect("the connection is open");
    let (answer, _) = client.send_request(request, true).expect("sends");
    let answer = answer.await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let (mut body, mut text) = (answer.into_body(), BytesMut::new());
    while let Some(data) = body.data().await {
        let data = data.expect("data");
        let _ = body.flow_control().release_capacity(data.len());
        text.extend_from_slice(&data);
    }
    assert_eq!(text, "hello");
}

/// All that is asked is asked of one worker. Connections leave it for the other's thread between two requests, and nobody notices.
#[test]
fn connections_of_http2_move_between_threads_under_load() {
    let (_proxy, admin, port, clients) = start(LOAD_AWARE, 24);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("runtime").block_on(async {
        let mut of_workers: [Vec<SendRequest<Bytes>>; 2] = Default::default();
        for from in clients {
            let [before, _] = by_worker(admin);
            let stream = connect(from, port).await.expect("connects");
            stream.set_nonblocking(true).expect("a socket");
            let stream = tokio::net::TcpStream::from_std(stream).expect("a socket");
            let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
            tokio::spawn(connection);
            ask_http2(&client).await;
            let [after, _] = by_worker(admin);
            of_workers[usize::from(after == before)].push(client);
        }
        of_workers.sort_by_key(Vec::len);
        let [idle, busy] = of_workers;
        let done = Arc::new(AtomicBool::new(false));
        let mut asking = Vec::new();
        for client in busy {
            let done = Arc::clone(&done);
            asking.push(tokio::spawn(async move {
                let mut asked = 0;
                while !done.load(Ordering::Relaxed) {
                    ask_http2(&client).await;
                    asked += 1;
                }
                (client, asked)
            }));
        }
        let before = counter(admin, MOVED);
        let moved = move || wait_until("connections have moved", || counter(admin, MOVED) > before);
        tokio::task::spawn_blocking(moved).await.expect("they move");
        done.store(true, Ordering::Relaxed);
        let mut open = idle;
        for one in asking {
            let (client, asked) = one.await.expect("all are answered");
            assert!(asked > 0);
            open.push(client);
        }
        for client in &open {
            ask_http2(client).await;
        }
        let all = move || active(admin).iter().sum::<u64>() == 24;
        let counted = move || wait_until("all are some worker's", all);
        tokio::task::spawn_blocking(counted).await.expect("they are");
    });
    wait_until("all are closed", || active(admin) == [0, 0]);
}
