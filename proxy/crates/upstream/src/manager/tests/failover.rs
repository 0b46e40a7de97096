//! Priorities as they are used between clusters: own endpoints first (0), the gateways of others after them (1).

use std::collections::HashMap;

use super::*;

fn group(priority: u32, endpoints: Vec<Endpoint>) -> LocalityEndpoints {
    LocalityEndpoints {
        locality: Default::default(),
        priority,
        weight: 0,
        endpoints,
    }
}

fn weighted(n: u8, weight: u32) -> Endpoint {
    Endpoint {
        weight,
        ..endpoint(addr(n))
    }
}

/// A cluster as a global service has it: without panic, and any number of endpoints may be ejected.
fn global() -> Arc<Cluster> {
    let mut config = cluster("a");
    config.panic_threshold = 0.0;
    config.outlier_detection = Some(OutlierDetection {
        max_ejection_percent: 100,
        ..detection()
    });
    Arc::new(config)
}

fn counts(handle: &ClusterHandle<()>, picks: u32) -> HashMap<SocketAddr, u32> {
    let mut counts = HashMap::new();
    for _ in 0..picks {
        let host = handle.pick(&PickContext::default()).expect("host");
        *counts.entry(host.address()).or_default() += 1;
    }
    counts
}

fn eject(handle: &ClusterHandle<()>, n: u8) {
    let hosts = handle.hosts();
    let host = hosts.iter().find(|h| h.address() == addr(n)).expect("host");
    for _ in 0..3 {
        host.report(Outcome::ConnectFailed);
    }
}

#[test]
fn the_next_priority_takes_over_when_the_first_is_ejected_and_gives_back() {
    let upstreams = Upstreams::new();
    let manager: ClusterManager<()> = ClusterManager::new(upstreams.clone(), Stats::new(), on_drain, 1);
    let endpoints = Arc::new(vec![
        group(0, vec![endpoint(addr(1)), endpoint(addr(2))]),
        group(1, vec![weighted(11, 2), weighted(12, 2)]),
    ]);
    manager.update(&snapshot(vec![(global(), endpoints)]));
    let handle = manager.get("a").expect("cluster");
    let shared = upstreams.cluster(&"a".into());
    shared.members.store(4, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(counts(&handle, 100).len(), 2, "own endpoints only");
    // Half of it ejected is worth 70 of 100 with 140 % overprovisioning: 30 go to the next priority.
    eject(&handle, 1);
    let half = counts(&handle, 10_000);
    assert!(!half.contains_key(&addr(1)));
    assert!((6_700..7_300).contains(&half[&addr(2)]), "{half:?}");
    eject(&handle, 2);
    let far = counts(&handle, 100);
    assert_eq!(far, HashMap::from([(addr(11), 50), (addr(12), 50)]));
    // A gateway that fails too leaves the other one.
    eject(&handle, 11);
    assert_eq!(counts(&handle, 10), HashMap::from([(addr(12), 10)]));
    eject(&handle, 12);
    assert_eq!(
        handle.pick(&PickContext::default()).err(),
        Some(PickError::NoHealthyHost),
        "panic is turned off"
    );
    crate::outlier::clear(&shared);
    assert!(counts(&handle, 100).keys().all(|a| [addr(1), addr(2)].contains(a)));
}

#[test]
fn a_service_without_own_endpoints_is_served_by_the_others_at_once() {
    let manager = manager();
    let own = || group(0, vec![endpoint(addr(1))]);
    let far = || group(1, vec![weighted(11, 1), weighted(12, 3)]);
    let put = |list: Vec<LocalityEndpoints>| manager.update(&snapshot(vec![(global(), Arc::new(list))]));
    put(vec![own(), far()]);
    let handle = manager.get("a").expect("cluster");
    assert_eq!(counts(&handle, 8), HashMap::from([(addr(1), 8)]));
    // The last own replica goes: its group with it, so that priorities begin at 1. By weight among the gateways.
    let busy = handle.pick(&PickContext::default()).expect("host");
    let request = busy.begin_request(Instant::now()).expect("request");
    put(vec![far()]);
    assert!(busy.is_draining(), "finishes what it has");
    assert_eq!(counts(&handle, 8), HashMap::from([(addr(11), 2), (addr(12), 6)]));
    drop(request);
    // An empty group is no different.
    put(vec![group(0, vec![]), far()]);
    assert_eq!(counts(&handle, 8), HashMap::from([(addr(11), 2), (addr(12), 6)]));
    // Back again, under way or not.
    put(vec![own(), far()]);
    assert_eq!(counts(&handle, 8), HashMap::from([(addr(1), 8)]));
    // The link is cut: no gateway is left.
    put(vec![]);
    assert_eq!(
        handle.pick(&PickContext::default()).err(),
        Some(PickError::NoHealthyHost)
    );
}

#[test]
fn unhealthy_by_configuration_fails_over_and_draining_does_not_count() {
    let manager = manager();
    let with = |n: u8, health| Endpoint {
        health,
        ..endpoint(addr(n))
    };
    let put = |first: Vec<Endpoint>| {
        let list = vec![group(0, first), group(1, vec![endpoint(addr(11))])];
        manager.update(&snapshot(vec![(global(), Arc::new(list))]));
    };
    put(vec![
        with(1, EndpointHealth::Unhealthy),
        with(2, EndpointHealth::Unhealthy),
    ]);
    let handle = manager.get("a").expect("cluster");
    assert_eq!(counts(&handle, 10), HashMap::from([(addr(11), 10)]));
    // One of three is healthy; the two others leave on purpose, so nothing spills over.
    put(vec![
        endpoint(addr(1)),
        with(2, EndpointHealth::Draining),
        with(3, EndpointHealth::Draining),
    ]);
    assert_eq!(counts(&handle, 10), HashMap::from([(addr(1), 10)]));
}

#[test]
fn gateways_of_the_same_priority_share_by_weight() {
    // Failover off: everything is priority 0, a gateway weighs as many replicas as stand behind it.
    let manager = manager();
    let mut config = Arc::into_inner(global()).expect("unshared");
    config.circuit_breakers.max_requests = u32::MAX;
    config.lb_policy = LbPolicy::LeastRequest(2);
    let list = vec![group(
        0,
        vec![weighted(1, 1), weighted(2, 1), weighted(11, 4), weighted(12, 4)],
    )];
    manager.update(&snapshot(vec![(Arc::new(config), Arc::new(list))]));
    let handle = manager.get("a").expect("cluster");
    let idle = counts(&handle, 100);
    assert_eq!((idle[&addr(1)], idle[&addr(11)], idle[&addr(12)]), (10, 40, 40));
    // A busy one gets less than its weight.
    let busy = handle
        .hosts()
        .into_iter()
        .find(|h| h.address() == addr(11))
        .expect("host");
    let _requests: Vec<_> = (0..7)
        .map(|_| busy.begin_request(Instant::now()).expect("request"))
        .collect();
    let loaded = counts(&handle, 110);
    assert!(loaded[&addr(12)] >= 7 * loaded[&addr(11)], "{loaded:?}");
}

#[test]
fn envoys_bound_on_ejections() {
    let upstreams = Upstreams::new();
    let manager: ClusterManager<()> = ClusterManager::new(upstreams.clone(), Stats::new(), on_drain, 1);
    let put = |always: bool, percent: u32| {
        let mut config = cluster("a");
        config.outlier_detection = Some(OutlierDetection {
            max_ejection_percent: percent,
            always_eject_one: always,
            ..detection()
        });
        let endpoints = locality((1..=4).map(|n| endpoint(addr(n))).collect());
        manager.update(&snapshot(vec![(Arc::new(config), endpoints)]));
        let shared = upstreams.cluster(&"a".into());
        shared.members.store(4, std::sync::atomic::Ordering::Relaxed);
        crate::outlier::clear(&shared);
        let handle = manager.get("a").expect("cluster");
        for n in 1..=4 {
            eject(&handle, n);
        }
        upstreams.status()[0].hosts.iter().filter(|h| h.ejected).count()
    };
    assert_eq!(put(false, 10), 0, "a fourth is more than a tenth");
    assert_eq!(put(true, 10), 1);
    assert_eq!(put(false, 50), 2);
    assert_eq!(put(true, 0), 1);
    assert_eq!(put(false, 100), 4);
}
