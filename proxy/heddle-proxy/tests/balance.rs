//! A process with two workers, and connections that the kernel gives all to one of them.

mod harness;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use harness::*;
use tokio::net::TcpSocket;

const HANDED_OVER: &str = "heddle_listener_cx_handed_over{";

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

/// Clients whose connections the kernel gives to the first of two sockets on that port.
async fn of_one_socket(port: u16, count: usize) -> Vec<SocketAddr> {
    let listen = || {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseport(true)?;
        socket.bind(SocketAddr::from(([127, 0, 0, 1], port)))?;
        socket.listen(16)
    };
    let (first, second) = (listen().expect("a free port"), listen().expect("shared"));
    let mut found = Vec::new();
    for number in 1.. {
        let _client = connect(client(number), port).await.expect("connects");
        tokio::select! {
            accepted = first.accept() => found.push(accepted.expect("accepts").1),
            accepted = second.accept() => drop(accepted.expect("accepts")),
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
    let clients = block_on(of_one_socket(port, clients));
    let mut proxy = Proxy::start(&answering(admin, port, balance), admin);
    proxy.wait_for("LIVE");
    (proxy, admin, port, clients)
}

fn asked(from: SocketAddr, port: u16) -> TcpStream {
    let mut stream = block_on(connect(from, port)).expect("connects");
    ask(&mut stream);
    stream
}

fn ask(stream: &mut TcpStream) {
    write!(stream, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").expect("written");
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
    let of = |worker: u8| -> u64 {
        let name = "envoy_listener_worker_downstream_cx_active";
        let metrics = get(admin, "/stats/prometheus").expect("the admin interface answers");
        let label = format!("worker_id=\"{worker}\"");
        let samples = metrics.lines().filter(|l| l.starts_with(name) && l.contains(&label));
        samples.filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    };
    let (a, b) = (of(0), of(1));
    [a.min(b), a.max(b)]
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
    let balance = r#"connection_balance_config: { extend_balance: { name: envoy.network.connection_balance.dlb, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.network.connection_balance.dlb.v3alpha.Dlb } } }"#;
    let (_proxy, admin, port, clients) = start(balance, 100);
    let mut clients: Vec<_> = clients.into_iter().map(|from| asked(from, port)).collect();
    // How many depends on what else this machine does: that makes a worker wait.
    let handed_over = counter(admin, HANDED_OVER);
    assert!(handed_over > 0);
    assert_eq!(active(admin).iter().sum::<u64>(), 100);
    clients.iter_mut().for_each(ask);
    drop(clients);
    wait_until("all are closed", || active(admin) == [0, 0]);
}
