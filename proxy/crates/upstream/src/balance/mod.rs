//! Choosing a host: priorities, localities, then the cluster's policy.
//!
//! Priorities take load as Envoy's do: a priority is worth its healthy share times the overprovisioning factor, capped
//! at 100; what it cannot take spills over to the next one, to degraded hosts after all healthy ones, and when all
//! together are worth less than 100 a priority below the panic threshold uses all its hosts.

mod edf;
mod picker;

use heddle_config::snapshot::LbPolicy;

use edf::Edf;
pub(crate) use picker::Balanced;
use picker::Picker;

/// `overprovisioning_factor`'s default, 140 percent.
const OVERPROVISIONING: f64 = 1.4;

/// Effective health of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Healthy,
    Degraded,
    Unhealthy,
    /// Not healthy, and on purpose (EDS `DRAINING`): it does not count against its priority or locality either.
    Excluded,
}

/// Hosts of one locality in one priority.
pub(crate) struct Group<H> {
    pub(crate) priority: u32,
    pub(crate) weight: u32,
    pub(crate) hosts: Vec<(H, Health)>,
}

/// How a cluster balances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) policy: LbPolicy,
    /// Percent.
    pub(crate) panic_threshold: f64,
    pub(crate) locality_weighted: bool,
}

/// Localities of one priority and availability, picked by weight.
struct Localities<H> {
    schedule: Edf,
    weights: Vec<f64>,
    pickers: Vec<Picker<H>>,
}

struct Level<H> {
    all: Picker<H>,
    /// Hosts without those that are excluded: what shares are shares of.
    counted: usize,
    healthy: Picker<H>,
    degraded: Picker<H>,
    healthy_localities: Option<Localities<H>>,
    degraded_localities: Option<Localities<H>>,
    /// Percent of the load that goes to healthy and to degraded hosts of this priority.
    load: (f64, f64),
    panic: bool,
}

/// The balancing state of one cluster in one worker. Rebuilt when hosts or their health change.
pub(crate) struct Balancer<H> {
    levels: Vec<Level<H>>,
    settings: Settings,
    rng: fastrand::Rng,
}

/// A host, and whether it was taken in panic.
pub(crate) struct Picked<H> {
    pub(crate) host: H,
    pub(crate) panic: bool,
}

impl<H: Balanced + Clone> Balancer<H> {
    pub(crate) fn new(groups: Vec<Group<H>>, settings: Settings, mut rng: fastrand::Rng) -> Self {
        let mut groups = groups;
        groups.sort_by_key(|g| g.priority);
        let mut levels = Vec::new();
        for level in groups.chunk_by(|a, b| a.priority == b.priority) {
            levels.push(Level::new(level, settings, &mut rng));
        }
        distribute(&mut levels, settings.panic_threshold);
        Self { levels, settings, rng }
    }

    pub(crate) fn pick(&mut self) -> Option<Picked<H>> {
        let mut dice = self.rng.f64() * 100.0;
        let degraded_from = self.levels.len();
        let parts = self
            .levels
            .iter()
            .map(|l| l.load.0)
            .chain(self.levels.iter().map(|l| l.load.1));
        let mut chosen = None;
        for (part, load) in parts.enumerate() {
            if load <= 0.0 {
                continue;
            }
            // Kept even when rounding leaves the dice above the last part.
            chosen = Some(part);
            if dice < load {
                break;
            }
            dice -= load;
        }
        let part = chosen?;
        let degraded = part >= degraded_from;
        let level = self
            .levels
            .get_mut(if degraded { part - degraded_from } else { part })?;
        let policy = self.settings.policy;
        let panic = level.panic;
        let (localities, flat) = if panic {
            (None, &mut level.all)
        } else if degraded {
            (level.degraded_localities.as_mut(), &mut level.degraded)
        } else {
            (level.healthy_localities.as_mut(), &mut level.healthy)
        };
        if let Some(localities) = localities {
            let weights = &localities.weights;
            if let Some(index) = localities.schedule.pick(|i| weights.get(i).copied().unwrap_or(0.0)) {
                let host = localities.pickers.get_mut(index)?.pick(policy, &mut self.rng)?.clone();
                return Some(Picked { host, panic });
            }
        }
        flat.pick(policy, &mut self.rng).map(|host| Picked {
            host: host.clone(),
            panic,
        })
    }
}

impl<H: Balanced + Clone> Level<H> {
    fn new(groups: &[Group<H>], settings: Settings, rng: &mut fastrand::Rng) -> Self {
        let having = |group: &Group<H>, wanted: Option<Health>| -> Vec<H> {
            group
                .hosts
                .iter()
                .filter(|(_, h)| wanted.is_none_or(|w| w == *h))
                .map(|(host, _)| host.clone())
                .collect()
        };
        let mut flat = |wanted| {
            let hosts = groups.iter().flat_map(|g| having(g, wanted)).collect();
            Picker::new(hosts, settings.policy, rng)
        };
        let counting = |group: &Group<H>| group.hosts.iter().filter(|(_, h)| *h != Health::Excluded).count();
        let (all, healthy, degraded) = (flat(None), flat(Some(Health::Healthy)), flat(Some(Health::Degraded)));
        let mut localities = |wanted| {
            settings.locality_weighted.then(|| {
                let mut weights = Vec::new();
                let mut pickers = Vec::new();
                for group in groups {
                    let hosts = having(group, Some(wanted));
                    let share = hosts.len() as f64 / counting(group).max(1) as f64;
                    weights.push(f64::from(group.weight) * (share * OVERPROVISIONING).min(1.0));
                    pickers.push(Picker::new(hosts, settings.policy, rng));
                }
                Localities {
                    schedule: Edf::new(weights.iter().copied()),
                    weights,
                    pickers,
                }
            })
        };
        let (healthy_localities, degraded_localities) = (localities(Health::Healthy), localities(Health::Degraded));
        Self {
            all,
            counted: groups.iter().map(counting).sum(),
            healthy,
            degraded,
            healthy_localities,
            degraded_localities,
            load: (0.0, 0.0),
            panic: false,
        }
    }

    /// What the hosts of one kind are worth, in percent.
    fn worth(&self, hosts: usize) -> f64 {
        match self.counted {
            0 => 0.0,
            all => (100.0 * OVERPROVISIONING * hosts as f64 / all as f64).min(100.0),
        }
    }
}

fn distribute<H: Balanced + Clone>(levels: &mut [Level<H>], panic_threshold: f64) {
    let worth: Vec<(f64, f64)> = levels
        .iter()
        .map(|l| (l.worth(l.healthy.len()), l.worth(l.degraded.len())))
        .collect();
    let total = worth
        .iter()
        .map(|(healthy, degraded)| healthy + degraded)
        .sum::<f64>()
        .min(100.0);
    if total < 100.0 {
        for level in levels.iter_mut() {
            let usable = (level.healthy.len() + level.degraded.len()) as f64;
            // Without any host that counts it is in panic too, unless panic is turned off.
            level.panic = level.all.len() > 0 && 100.0 * usable < panic_threshold * level.counted.max(1) as f64;
        }
    }
    // All in panic: by number of hosts, so that none is overrun.
    let hosts: usize = levels.iter().map(|l| l.all.len()).sum();
    if hosts > 0 && levels.iter().all(|l| l.panic || l.all.len() == 0) {
        for level in levels.iter_mut() {
            level.load = (100.0 * level.all.len() as f64 / hosts as f64, 0.0);
        }
        return;
    }
    if total == 0.0 {
        // Nothing is usable and panic is turned off: there is nobody to pick.
        return;
    }
    let mut left = 100.0;
    for (level, (healthy, _)) in levels.iter_mut().zip(&worth) {
        level.load.0 = (healthy * 100.0 / total).min(left);
        left -= level.load.0;
    }
    for (level, (_, degraded)) in levels.iter_mut().zip(&worth) {
        level.load.1 = (degraded * 100.0 / total).min(left);
        left -= level.load.1;
    }
}

#[cfg(test)]
mod tests;
