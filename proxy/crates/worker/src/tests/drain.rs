use super::*;

#[test]
fn a_drain_stops_accepting_and_reports_when_all_are_done() {
    local(async {
        let (address, echo) = (free_address().await, echo().await);
        let mut proxy = Proxy::start(snapshot(
            1,
            vec![Arc::new(proxying("l", address))],
            &[("echo", &[echo])],
        ))
        .await;
        let mut tcp = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut tcp, "one").await, "ONE");
        proxy.phase.send_replace(Phase::Draining);
        while TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask(&mut tcp, "two").await, "TWO");
        drop(tcp);
        assert_eq!(proxy.report().await, WorkerReport::Drained { worker: 0 });
        proxy.phase.send_replace(Phase::Stopping);
        assert_eq!(proxy.report().await, WorkerReport::Stopped { worker: 0 });
        proxy.task.await.expect("ends");
    });
}

#[test]
fn only_inbound_listeners_can_drain() {
    local(async {
        let (a, b, echo) = (free_address().await, free_address().await, echo().await);
        let mut inbound = proxying("in", a);
        inbound.direction = TrafficDirection::Inbound;
        let listeners = vec![Arc::new(inbound), Arc::new(proxying("out", b))];
        let proxy = Proxy::start(snapshot(1, listeners, &[("echo", &[echo])])).await;
        proxy.phase.send_replace(Phase::DrainingInbound);
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
        let (address, echo) = (free_address().await, echo().await);
        let mut proxy = Proxy::start(snapshot(
            1,
            vec![Arc::new(proxying("l", address))],
            &[("echo", &[echo])],
        ))
        .await;
        let mut tcp = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut tcp, "one").await, "ONE");
        proxy.phase.send_replace(Phase::Stopping);
        assert_eq!(tcp.read(&mut [0; 8]).await.unwrap_or(0), 0);
        assert_eq!(proxy.report().await, WorkerReport::Stopped { worker: 0 });
        proxy.task.await.expect("ends");
    });
}
