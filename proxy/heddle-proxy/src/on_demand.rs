//! Listeners that are asked for by the destination of a connection.
//!
//! A name that was asked for once stays asked for: that is how the discovery server knows what this proxy uses, and has
//! what comes to be there later sent. Names have the form that listeners have in Istio's configuration, address, `_`,
//! port.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use heddle_config::{ResourceKind, Update};
use heddle_telemetry::{Counter, Gauge, Stats};
use heddle_worker::Ask;
use tokio::sync::oneshot;

/// Destinations that are asked for at once. Above that, the one that was asked for longest ago is given up: it is asked
/// for again when it is used again.
const MAX_DESTINATIONS: usize = 4096;

/// Destinations and who waits for them.
pub(crate) struct Demand {
    destinations: HashMap<String, Destination>,
    /// Oldest first.
    order: VecDeque<String>,
    /// Moved on when a destination is given up, so that workers ask again.
    epoch: Arc<AtomicU64>,
    /// `heddle_on_demand_destinations`.
    known: Gauge,
    /// `heddle_on_demand_destinations_given_up`.
    given_up: Counter,
}

struct Destination {
    heard: bool,
    /// Each is a connection, which has its own bound.
    waiting: Vec<oneshot::Sender<()>>,
}

/// The name of the listener of a destination.
fn name(destination: SocketAddr) -> String {
    format!("{}_{}", destination.ip(), destination.port())
}

impl Demand {
    pub(crate) fn new(epoch: Arc<AtomicU64>, stats: &Stats) -> Self {
        Self {
            destinations: HashMap::new(),
            order: VecDeque::new(),
            epoch,
            known: stats.gauge("heddle_on_demand_destinations", &[]),
            given_up: stats.counter("heddle_on_demand_destinations_given_up", &[]),
        }
    }

    /// Takes note of what a connection waits for. A listener that `exists` is not waited for. True when the names to ask for
    /// are others now.
    pub(crate) fn ask(&mut self, ask: Ask, exists: impl Fn(&str) -> bool) -> bool {
        let name = name(ask.destination);
        if let Some(known) = self.destinations.get_mut(&name) {
            // Who has given up waiting makes room.
            known.waiting.retain(|waiting| !waiting.is_closed());
            known.waiting.push(ask.answer);
            return false;
        }
        if self.destinations.len() >= MAX_DESTINATIONS
            && let Some(oldest) = self.order.pop_front()
        {
            // Whoever waits for it still is told that there is no answer.
            self.destinations.remove(&oldest);
            self.epoch.fetch_add(1, Ordering::Release);
            self.given_up.inc();
        }
        self.order.push_back(name.clone());
        let destination = Destination {
            heard: exists(&name),
            waiting: vec![ask.answer],
        };
        self.destinations.insert(name, destination);
        self.known.set(self.destinations.len() as i64);
        true
    }

    /// The names to ask for.
    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.destinations.keys().cloned().collect()
    }

    /// The server has answered some of them: with a listener, or that there is none.
    pub(crate) fn hear(&mut self, update: &Update) {
        if update.kind != ResourceKind::Listener {
            return;
        }
        let present = update.resources.iter().map(|resource| &resource.name);
        for name in present.chain(&update.removed) {
            if let Some(destination) = self.destinations.get_mut(name) {
                destination.heard = true;
            }
        }
    }

    /// All that was heard is in force: connections that waited for it go on.
    pub(crate) fn release(&mut self) {
        for destination in self.destinations.values_mut().filter(|d| d.heard) {
            for waiting in destination.waiting.drain(..) {
                // One that has given up does not listen.
                let _ = waiting.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use heddle_config::SecretSource;

    use super::*;

    fn ask(demand: &mut Demand, to: &str) -> (bool, oneshot::Receiver<()>) {
        let (answer, answered) = oneshot::channel();
        let destination = to.parse().expect("an address");
        (demand.ask(Ask { destination, answer }, |_| false), answered)
    }

    fn removed(names: &[&str]) -> Update {
        Update {
            kind: ResourceKind::Listener,
            source: SecretSource::Ads,
            resources: Vec::new(),
            removed: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn a_destination_is_asked_for_once_and_all_who_wait_are_told() {
        let mut demand = Demand::new(Arc::default(), &Stats::new());
        let (is_new, mut first) = ask(&mut demand, "10.0.0.1:80");
        let (again, mut second) = ask(&mut demand, "10.0.0.1:80");
        let (other, mut unheard) = ask(&mut demand, "[fd00::1]:80");
        assert!(is_new && !again && other);
        assert_eq!(
            demand.names(),
            BTreeSet::from(["10.0.0.1_80".to_owned(), "fd00::1_80".to_owned()])
        );
        demand.release();
        assert!(first.try_recv().is_err(), "nothing was heard yet");
        demand.hear(&removed(&["10.0.0.1_80", "0.0.0.0_80"]));
        demand.release();
        assert!(first.try_recv().is_ok() && second.try_recv().is_ok());
        assert!(unheard.try_recv().is_err());
        let (is_new, mut late) = ask(&mut demand, "10.0.0.1:80");
        demand.release();
        assert!(!is_new && late.try_recv().is_ok(), "what was heard once is known");
    }

    #[test]
    fn there_are_no_more_destinations_than_the_bound() {
        let epoch = Arc::new(AtomicU64::new(0));
        let mut demand = Demand::new(epoch.clone(), &Stats::new());
        let mut kept = Vec::new();
        for i in 0..=MAX_DESTINATIONS {
            let [high, low] = u16::try_from(i).expect("few").to_be_bytes();
            kept.push(ask(&mut demand, &format!("10.0.{high}.{low}:80")).1);
        }
        assert_eq!(demand.names().len(), MAX_DESTINATIONS);
        assert!(!demand.names().contains("10.0.0.0_80"), "the oldest goes");
        assert_eq!(epoch.load(Ordering::Acquire), 1, "workers are told to ask again");
        assert_eq!(kept[0].try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
