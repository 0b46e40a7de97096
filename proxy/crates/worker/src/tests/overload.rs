use heddle_config::snapshot::{LoadShedPoint, OverloadActionKind};

use super::*;

/// Puts one action in a state and waits until the worker has it.
async fn set(proxy: &Proxy, action: OverloadActionKind, state: f64) {
    let mut states = OverloadStates::default();
    states.set(action, state);
    set_all(proxy, states).await;
}

async fn set_all(proxy: &Proxy, states: OverloadStates) {
    proxy.overload.send_replace(states);
    // One turn of each task is enough; nothing here waits for the clock.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A metric of the listener at that address.
fn of(proxy: &Proxy, name: &str, address: SocketAddr) -> Option<f64> {
    let label = address.to_string().replace(':', "_");
    proxy.metric(&format!("{name}{{listener_address=\"{label}\"}}"))
}

/// One listener that the actions are for, and one that they are not for.
async fn proxy() -> (Proxy, SocketAddr, SocketAddr) {
    let (a, b, echo) = (free_address(), free_address(), echo().await);
    let mut bypassing = proxying("bypassing", b);
    bypassing.bypass_overload_manager = true;
    let listeners = vec![Arc::new(proxying("l", a)), Arc::new(bypassing)];
    (Proxy::start(snapshot(1, listeners, &[("echo", &[echo])])).await, a, b)
}

#[test]
fn connections_wait_while_none_are_accepted() {
    local(async {
        let (proxy, address, bypassing) = proxy().await;
        set(&proxy, OverloadActionKind::StopAcceptingConnections, 1.0).await;
        let mut waiting = TcpStream::connect(address).await.expect("the kernel takes it");
        let mut other = TcpStream::connect(bypassing).await.expect("connects");
        assert_eq!(ask(&mut other, "one").await, "ONE");
        assert_eq!(of(&proxy, "envoy_listener_downstream_cx_total", address), Some(0.0));
        set(&proxy, OverloadActionKind::StopAcceptingConnections, 0.5).await;
        assert_eq!(ask(&mut waiting, "two").await, "TWO");
    });
}

#[test]
fn connections_are_shed() {
    local(async {
        let (proxy, address, bypassing) = proxy().await;
        let mut states = OverloadStates::default();
        states.shed(LoadShedPoint::TcpListenerAccept, 1.0);
        set_all(&proxy, states).await;
        let mut shed = TcpStream::connect(address).await.expect("connects");
        assert!(is_closed(&mut shed).await);
        assert_eq!(
            of(&proxy, "envoy_listener_downstream_cx_overload_reject", address),
            Some(1.0)
        );
        let mut other = TcpStream::connect(bypassing).await.expect("connects");
        assert_eq!(ask(&mut other, "one").await, "ONE");
    });
}

#[test]
fn connections_are_closed_while_they_are_rejected() {
    local(async {
        let (proxy, address, bypassing) = proxy().await;
        let mut open = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut open, "one").await, "ONE");
        set(&proxy, OverloadActionKind::RejectIncomingConnections, 1.0).await;
        let mut rejected = TcpStream::connect(address).await.expect("connects");
        assert!(is_closed(&mut rejected).await);
        assert_eq!(
            of(&proxy, "envoy_listener_downstream_cx_overload_reject", address),
            Some(1.0)
        );
        let mut other = TcpStream::connect(bypassing).await.expect("connects");
        assert_eq!(ask(&mut other, "two").await, "TWO");
        assert_eq!(ask(&mut open, "three").await, "THREE", "what is open stays");
        set(&proxy, OverloadActionKind::RejectIncomingConnections, 0.0).await;
        let mut again = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut again, "four").await, "FOUR");
    });
}
