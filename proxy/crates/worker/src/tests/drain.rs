use super::*;

#[test]
fn a_drain_stops_accepting_and_reports_when_all_are_done() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let mut proxy = Proxy::start(snapshot(
            1,
            vec![Arc::new(proxying("l", address))],
            &[("echo", &[echo])],
        ))
        .await;
        let mut tcp = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut tcp, "one").await, "ONE");
        proxy.phase.send_replace(Phase::closed(Scope::All));
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(&mut tcp, "two").await, "TWO");
        drop(tcp);
        assert_eq!(proxy.report().await, WorkerReport::Drained { worker: 0 });
        proxy.phase.send_replace(Phase::STOPPING);
        assert_eq!(proxy.report().await, WorkerReport::Stopped { worker: 0 });
        proxy.task.await.expect("ends");
    });
}

#[test]
fn only_inbound_listeners_can_drain() {
    local(async {
        let (a, b, echo) = (free_address(), free_address(), echo().await);
        let mut inbound = proxying("in", a);
        inbound.direction = TrafficDirection::Inbound;
        let listeners = vec![Arc::new(inbound), Arc::new(proxying("out", b))];
        let proxy = Proxy::start(snapshot(1, listeners, &[("echo", &[echo])])).await;
        proxy.phase.send_replace(Phase::closed(Scope::Inbound));
        while TcpStream::connect(a).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            ask(&mut TcpStream::connect(b).await.expect("connects"), "one").await,
            "ONE"
        );
    });
}

#[test]
fn stopping_closes_what_is_open() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let mut proxy = Proxy::start(snapshot(
            1,
            vec![Arc::new(proxying("l", address))],
            &[("echo", &[echo])],
        ))
        .await;
        let mut tcp = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut tcp, "one").await, "ONE");
        proxy.phase.send_replace(Phase::STOPPING);
        assert_eq!(tcp.read(&mut [0; 8]).await.unwrap_or(0), 0);
        assert_eq!(proxy.report().await, WorkerReport::Stopped { worker: 0 });
        proxy.task.await.expect("ends");
    });
}

/// A server of HTTP that answers every request with its name.
async fn server(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("address");
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            spawn_local(async move {
                let mut buffer = [0; 4096];
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len());
                while let Ok(1..) = tcp.read(&mut buffer).await {
                    if tcp.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

fn serving(address: SocketAddr) -> Vec<Arc<Listener>> {
    vec![Arc::new(listener(
        "l",
        address,
        vec![chain(vec![super::dead_link::http()])],
    ))]
}

/// Head and body of an answer whose body is one letter.
async fn get(tcp: &mut TcpStream) -> String {
    tcp.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .expect("writes");
    let mut answer = Vec::new();
    while !answer.windows(4).any(|w| w == b"\r\n\r\n") {
        assert!(tcp.read_buf(&mut answer).await.expect("reads") > 0, "closed");
    }
    if answer.ends_with(b"\r\n\r\n") {
        tcp.read_buf(&mut answer).await.expect("reads");
    }
    String::from_utf8(answer).expect("text")
}

#[test]
fn a_graceful_drain_takes_new_connections_and_tells_all_to_finish() {
    local(async {
        let (address, a) = (free_address(), server("a").await);
        let proxy = Proxy::start(snapshot(1, serving(address), &[("echo", &[a])])).await;
        let mut open = TcpStream::connect(address).await.expect("connects");
        assert!(!get(&mut open).await.contains("connection: close"));
        proxy.phase.send_replace(Phase::draining(Scope::All));
        loop {
            let mut new = TcpStream::connect(address).await.expect("the socket stays open");
            if get(&mut new).await.contains("connection: close") {
                break;
            }
        }
        assert!(get(&mut open).await.contains("connection: close"));
        proxy.phase.send_replace(Phase::closed(Scope::All));
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_listener_that_drained_takes_endpoints_for_what_stays_open() {
    local(async {
        let (address, a, b) = (free_address(), server("a").await, server("b").await);
        let listeners = serving(address);
        let first = snapshot(1, listeners.clone(), &[("echo", &[a])]);
        let mut proxy = Proxy::start(first).await;
        let mut open = TcpStream::connect(address).await.expect("connects");
        assert!(get(&mut open).await.ends_with('a'));
        proxy.phase.send_replace(Phase::closed(Scope::All));
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        // One with another listener too: no socket is opened for it.
        let other = free_address();
        let mut second = snapshot(2, listeners, &[("echo", &[b])]);
        second.listeners.insert(Arc::from("n"), Arc::new(proxying("n", other)));
        let report = proxy.apply(second).await;
        assert_eq!(report, WorkerReport::Applied { worker: 0, version: 2 });
        assert!(TcpStream::connect(other).await.is_err());
        assert!(get(&mut open).await.ends_with('b'));
    });
}
