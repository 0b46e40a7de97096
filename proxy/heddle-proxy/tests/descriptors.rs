//! A process with few descriptors: clients cannot take the last ones, and what they held comes back.

mod harness;

use std::io::Read;
use std::net::TcpStream;

use harness::*;

const FILES: u32 = 64;
const CLIENTS: usize = 200;

/// Connections that the proxy neither answers nor is sent anything on.
fn crowd(port: u16) -> Vec<TcpStream> {
    let connect = |_| TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    (0..CLIENTS).map(connect).collect()
}

fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("a socket");
    match stream.read(&mut [0]) {
        Ok(n) => n == 0,
        Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
    }
}

fn serves_again(port: u16) {
    wait_until("an answer", || {
        get(port, "/").is_some_and(|answer| answer.ends_with("hello"))
    });
}

#[test]
fn clients_leave_descriptors_to_the_admin_interface() {
    let (admin, port) = (free_port(), free_port());
    let mut proxy = Proxy::start_with_files(&answering(admin, port, ""), admin, FILES);
    proxy.wait_for("LIVE");
    let clients = crowd(port);
    // 16 of them: half of the 64 are headroom, and each client may need an upstream.
    let overflow = "envoy_listener_downstream_global_cx_overflow";
    wait_until("the others are closed", || {
        counter(admin, overflow) == CLIENTS as u64 - 16
    });
    assert_eq!(counter(admin, "envoy_listener_downstream_cx_active"), 16);
    assert_eq!(counter(admin, "envoy_listener_accept_failure"), 0);
    wait_until("the clients know", || {
        clients.iter().filter(|c| !is_closed(c)).count() == 16
    });
    drop(clients);
    serves_again(port);
}

#[test]
fn the_admin_interface_answers_when_no_descriptor_is_left() {
    let (admin, port) = (free_port(), free_port());
    let exempt = "ignore_global_conn_limit: true";
    let mut proxy = Proxy::start_with_files(&answering(admin, port, exempt), admin, FILES);
    proxy.wait_for("LIVE");
    let clients = crowd(port);
    let served = || counter(admin, "envoy_listener_downstream_cx_active");
    let turned_away = || counter(admin, "envoy_listener_downstream_global_cx_overflow");
    wait_until("all are served or closed", || {
        served() + turned_away() == CLIENTS as u64
    });
    assert!(turned_away() > CLIENTS as u64 - u64::from(FILES));
    // Nobody waits in the queue, so nobody makes a worker try again.
    let failures = counter(admin, "envoy_listener_accept_failure");
    assert!(
        (turned_away()..2 * CLIENTS as u64).contains(&failures),
        "{failures} failures"
    );
    wait_until("the clients know", || {
        clients.iter().filter(|c| is_closed(c)).count() as u64 == turned_away()
    });
    drop(clients);
    serves_again(port);
}
