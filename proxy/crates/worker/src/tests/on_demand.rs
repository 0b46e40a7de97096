//! Connections that wait until the listener of their destination was asked for. Needs root, nft and unshare.

use super::capture::{RULES, add_passthrough, at, capture, named, unbound, who_answers};
use super::*;

/// Everything is passed through, unless there is a listener for it, which is asked for.
fn waiting(version: u64, limit: Duration, found: bool) -> Snapshot {
    let mut first = capture("127.0.0.1:15001");
    first.on_demand = Some(limit);
    let mut listeners = vec![Arc::new(first)];
    let mut clusters: Vec<(&str, &[SocketAddr])> = Vec::new();
    let discovered = [at("127.0.0.1:7001")];
    if found {
        listeners.push(Arc::new(unbound("10.96.0.10_7000", at("10.96.0.10:7000"), "found")));
        clusters.push(("found", &discovered));
    }
    let mut snapshot = snapshot(version, listeners, &clusters);
    add_passthrough(&mut snapshot, "127.0.0.6");
    snapshot
}

#[test]
fn the_first_connection_waits_for_its_listener() {
    if !namespace::inside("on_demand::the_first_connection_waits_for_its_listener", RULES) {
        return;
    }
    local(async {
        named("10.96.0.10:7000", "passed").await;
        named("127.0.0.1:7001", "discovered").await;
        let limit = Duration::from_secs(15);
        let mut proxy = Proxy::start(waiting(1, limit, false)).await;
        let client = spawn_local(who_answers("10.96.0.10:7000"));
        let ask = proxy.asks.recv().await.expect("it is asked for");
        assert_eq!(ask.destination, at("10.96.0.10:7000"));
        proxy.apply(waiting(2, limit, true)).await;
        assert!(!client.is_finished(), "the answer is awaited");
        assert_eq!(proxy.metric("heddle_on_demand_listener_waiting"), Some(1.0));
        ask.answer.send(()).expect("it waits");
        assert_eq!(client.await.expect("no panic"), "discovered");
        // The second one goes at once.
        assert_eq!(who_answers("10.96.0.10:7000").await, "discovered");
        assert!(proxy.asks.try_recv().is_err());
        assert_eq!(proxy.metric("heddle_on_demand_listener_success"), Some(1.0));
        // Until an answer may not hold any more.
        proxy.epoch.fetch_add(1, Ordering::Release);
        let client = spawn_local(who_answers("10.96.0.10:7000"));
        let ask = proxy.asks.recv().await.expect("it is asked for again");
        ask.answer.send(()).expect("it waits");
        assert_eq!(client.await.expect("no panic"), "discovered");
    });
}

#[test]
fn without_an_answer_a_connection_goes_on_with_what_is_there() {
    if !namespace::inside(
        "on_demand::without_an_answer_a_connection_goes_on_with_what_is_there",
        RULES,
    ) {
        return;
    }
    local(async {
        named("10.96.0.10:7000", "passed").await;
        let mut proxy = Proxy::start(waiting(1, Duration::from_millis(20), false)).await;
        assert_eq!(who_answers("10.96.0.10:7000").await, "passed");
        let ask = proxy.asks.recv().await.expect("it was asked for");
        assert!(ask.answer.is_closed(), "nobody waits any more");
        assert_eq!(proxy.metric("heddle_on_demand_listener_timeouts"), Some(1.0));
        assert_eq!(proxy.metric("heddle_on_demand_listener_waiting"), Some(0.0));
    });
}
