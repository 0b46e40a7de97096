//! Picking one of a list of hosts by the cluster's policy.

use heddle_config::snapshot::LbPolicy;

use super::edf::Edf;

/// What balancing needs to know of a host.
pub(crate) trait Balanced {
    /// `load_balancing_weight`, at least 1.
    fn weight(&self) -> u32;
    /// Requests (TCP: connections) under way from this worker.
    fn active(&self) -> u32;
}

/// One list of hosts with the state of its policy.
#[derive(Debug)]
pub(crate) struct Picker<H> {
    hosts: Vec<H>,
    /// Set when weights differ.
    schedule: Option<Edf>,
    next: usize,
}

impl<H: Balanced> Picker<H> {
    pub(crate) fn new(hosts: Vec<H>, policy: LbPolicy, rng: &mut fastrand::Rng) -> Self {
        let first = hosts.first().map_or(1, Balanced::weight);
        let weighted = policy != LbPolicy::Random && hosts.iter().any(|h| h.weight() != first);
        let mut schedule = weighted.then(|| Edf::new(hosts.iter().map(|h| f64::from(h.weight().max(1)))));
        // Workers and restarts begin at different hosts, so that the first one is not everyone's first.
        let next = if hosts.is_empty() { 0 } else { rng.usize(..hosts.len()) };
        if let Some(schedule) = &mut schedule {
            for _ in 0..next {
                schedule.pick(|i| hosts.get(i).map_or(1.0, |h| f64::from(h.weight().max(1))));
            }
        }
        Self { hosts, schedule, next }
    }

    pub(crate) fn len(&self) -> usize {
        self.hosts.len()
    }

    pub(crate) fn pick(&mut self, policy: LbPolicy, rng: &mut fastrand::Rng) -> Option<&H> {
        let count = self.hosts.len();
        if count == 0 {
            return None;
        }
        let hosts = &self.hosts;
        let index = match (policy, &mut self.schedule) {
            (LbPolicy::LeastRequest(_), Some(schedule)) => schedule.pick(|i| {
                hosts.get(i).map_or(1.0, |h| {
                    f64::from(h.weight().max(1)) / f64::from(h.active().saturating_add(1))
                })
            })?,
            (LbPolicy::LeastRequest(choices), None) => {
                let mut best = rng.usize(..count);
                for _ in 1..choices.max(1) {
                    let other = rng.usize(..count);
                    if hosts.get(other)?.active() < hosts.get(best)?.active() {
                        best = other;
                    }
                }
                best
            }
            (LbPolicy::Random, _) => rng.usize(..count),
            (_, Some(schedule)) => schedule.pick(|i| hosts.get(i).map_or(1.0, |h| f64::from(h.weight().max(1))))?,
            (_, None) => {
                let index = self.next % count;
                self.next = index + 1;
                index
            }
        };
        self.hosts.get(index)
    }
}
