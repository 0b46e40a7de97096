use super::*;
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

struct Fake {
    name: u32,
    weight: u32,
    active: Cell<u32>,
}

impl Balanced for Rc<Fake> {
    fn weight(&self) -> u32 {
        self.weight
    }
    fn active(&self) -> u32 {
        self.active.get()
    }
}

fn host(name: u32, weight: u32) -> Rc<Fake> {
    Rc::new(Fake {
        name,
        weight,
        active: Cell::new(0),
    })
}

fn settings(policy: LbPolicy) -> Settings {
    Settings {
        policy,
        panic_threshold: 50.0,
        locality_weighted: false,
    }
}

fn balancer(groups: Vec<Group<Rc<Fake>>>, settings: Settings) -> Balancer<Rc<Fake>> {
    Balancer::new(groups, settings, fastrand::Rng::with_seed(7))
}

/// A group of hosts named from `first`, `healthy` + `degraded` + `unhealthy` of them.
fn group(priority: u32, first: u32, healthy: u32, degraded: u32, unhealthy: u32) -> Group<Rc<Fake>> {
    let kinds = std::iter::repeat_n(Health::Healthy, healthy as usize)
        .chain(std::iter::repeat_n(Health::Degraded, degraded as usize))
        .chain(std::iter::repeat_n(Health::Unhealthy, unhealthy as usize));
    Group {
        priority,
        weight: 1,
        hosts: (first..).zip(kinds).map(|(name, kind)| (host(name, 1), kind)).collect(),
    }
}

fn counts(balancer: &mut Balancer<Rc<Fake>>, picks: u32) -> HashMap<u32, u32> {
    let mut counts = HashMap::new();
    for _ in 0..picks {
        *counts.entry(balancer.pick().expect("a host").host.name).or_default() += 1;
    }
    counts
}

#[test]
fn round_robin_is_even() {
    let mut b = balancer(vec![group(0, 0, 4, 0, 0)], settings(LbPolicy::RoundRobin));
    assert_eq!(counts(&mut b, 400).into_values().collect::<Vec<_>>(), [100; 4]);
}

#[test]
fn round_robin_follows_weights() {
    let hosts = vec![(host(0, 1), Health::Healthy), (host(1, 3), Health::Healthy)];
    let mut b = balancer(
        vec![Group {
            priority: 0,
            weight: 1,
            hosts,
        }],
        settings(LbPolicy::RoundRobin),
    );
    let counts = counts(&mut b, 400);
    assert_eq!((counts[&0], counts[&1]), (100, 300));
}

#[test]
fn least_request_avoids_the_busy() {
    let g = group(0, 0, 3, 0, 0);
    g.hosts[1].0.active.set(100);
    let mut b = balancer(vec![g], settings(LbPolicy::LeastRequest(2)));
    let counts = counts(&mut b, 900);
    // Taken only when both choices fall on it: one in nine.
    assert!(counts[&1] < 150, "{counts:?}");
}

#[test]
fn least_request_with_weights_counts_activity() {
    let hosts = vec![(host(0, 1), Health::Healthy), (host(1, 2), Health::Healthy)];
    hosts[1].0.active.set(3);
    let mut b = balancer(
        vec![Group {
            priority: 0,
            weight: 1,
            hosts,
        }],
        settings(LbPolicy::LeastRequest(2)),
    );
    let counts = counts(&mut b, 300);
    // Weight 2 / (3 + 1) is half of weight 1 / (0 + 1).
    assert!((195..=205).contains(&counts[&0]), "{counts:?}");
}

#[test]
fn unhealthy_hosts_are_left_out() {
    let mut b = balancer(vec![group(0, 0, 3, 0, 1)], settings(LbPolicy::Random));
    assert!(!counts(&mut b, 500).contains_key(&3));
}

#[test]
fn priorities_spill_over() {
    // 50 % healthy is worth 70 with overprovisioning: 30 go to the next priority.
    let mut b = balancer(
        vec![group(1, 10, 4, 0, 0), group(0, 0, 2, 0, 2)],
        settings(LbPolicy::RoundRobin),
    );
    let counts = counts(&mut b, 10_000);
    let first: u32 = counts.iter().filter(|(name, _)| **name < 10).map(|(_, n)| n).sum();
    assert!((6_800..7_200).contains(&first), "{first}");
    // 75 % healthy is worth more than 100: nothing spills.
    let mut b = balancer(
        vec![group(0, 0, 3, 0, 1), group(1, 10, 4, 0, 0)],
        settings(LbPolicy::RoundRobin),
    );
    assert!(self::counts(&mut b, 1_000).keys().all(|name| *name < 10));
}

#[test]
fn degraded_hosts_take_what_healthy_ones_cannot() {
    let mut b = balancer(vec![group(0, 0, 1, 1, 0)], settings(LbPolicy::RoundRobin));
    let counts = counts(&mut b, 10_000);
    assert!((6_800..7_200).contains(&counts[&0]), "{counts:?}");
}

#[test]
fn panic_uses_all_hosts() {
    let mut b = balancer(vec![group(0, 0, 1, 0, 3)], settings(LbPolicy::RoundRobin));
    assert_eq!(counts(&mut b, 400).len(), 4);
    assert!(b.pick().is_some_and(|p| p.panic));
    // Turned off: only what is healthy.
    let off = Settings {
        panic_threshold: 0.0,
        ..settings(LbPolicy::RoundRobin)
    };
    let mut b = balancer(vec![group(0, 0, 1, 0, 3)], off);
    assert_eq!(counts(&mut b, 400).len(), 1);
    let mut b = balancer(vec![group(0, 0, 0, 0, 3)], off);
    assert!(b.pick().is_none());
    assert!(balancer(Vec::new(), settings(LbPolicy::RoundRobin)).pick().is_none());
}

#[test]
fn a_healthy_second_priority_keeps_the_first_out_of_panic() {
    let mut b = balancer(
        vec![group(0, 0, 0, 0, 4), group(1, 10, 4, 0, 0)],
        settings(LbPolicy::RoundRobin),
    );
    assert!(counts(&mut b, 400).keys().all(|name| *name >= 10));
}

#[test]
fn localities_by_weight() {
    let mut near = group(0, 0, 4, 0, 0);
    near.weight = 3;
    let far = group(0, 10, 1, 0, 0);
    let weighted = Settings {
        locality_weighted: true,
        ..settings(LbPolicy::RoundRobin)
    };
    let mut b = balancer(vec![near, far], weighted);
    let counts = counts(&mut b, 400);
    assert_eq!(counts[&10], 100);
}

#[test]
fn localities_without_weight_get_none_of_the_weighted_load() {
    let (mut near, mut far) = (group(0, 0, 2, 0, 0), group(0, 10, 2, 0, 0));
    near.weight = 1;
    far.weight = 0;
    let weighted = Settings {
        locality_weighted: true,
        ..settings(LbPolicy::RoundRobin)
    };
    let mut b = balancer(vec![near, far], weighted);
    assert!(counts(&mut b, 100).keys().all(|name| *name < 10));
    // Weights everywhere absent: as if there were no localities.
    let (mut near, mut far) = (group(0, 0, 1, 0, 0), group(0, 10, 1, 0, 0));
    (near.weight, far.weight) = (0, 0);
    let mut b = balancer(vec![near, far], weighted);
    assert_eq!(counts(&mut b, 100), HashMap::from([(0, 50), (10, 50)]));
}

#[test]
fn a_locality_takes_its_weight_times_its_health() {
    // One of four is worth 35 %: 0.35 × 2 against 1 × 1.
    let (mut sick, far) = (group(0, 0, 1, 0, 3), group(0, 10, 4, 0, 0));
    sick.weight = 2;
    let weighted = Settings {
        locality_weighted: true,
        panic_threshold: 0.0,
        ..settings(LbPolicy::RoundRobin)
    };
    let mut b = balancer(vec![sick, far], weighted);
    let counts = counts(&mut b, 1_700);
    assert!((695..=705).contains(&counts[&0]), "{counts:?}");
}

#[test]
fn excluded_hosts_are_used_in_panic_only() {
    let hosts = vec![
        (host(0, 1), Health::Unhealthy),
        (host(1, 1), Health::Excluded),
        (host(2, 1), Health::Excluded),
    ];
    let group = Group {
        priority: 0,
        weight: 1,
        hosts,
    };
    let mut b = balancer(vec![group], settings(LbPolicy::RoundRobin));
    assert_eq!(counts(&mut b, 300).len(), 3);
    let hosts = vec![(host(0, 1), Health::Healthy), (host(1, 1), Health::Excluded)];
    let group = Group {
        priority: 0,
        weight: 1,
        hosts,
    };
    let mut b = balancer(vec![group], settings(LbPolicy::RoundRobin));
    assert_eq!(counts(&mut b, 100), HashMap::from([(0, 100)]));
}
