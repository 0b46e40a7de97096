//! The worker for a new connection.

use crate::meter::{Load, WAIT_UNIT};

/// What a connection that came since the last measurement is taken to cost at least, in thousandths of a worker: 20 µs of
/// a period, the order of accepting it and answering its first request. A flood of connections is spread by this before
/// anything of it is measured.
///
/// A TLS handshake is five times that, with an RSA key 25 times (`docs/design/0036-what-a-new-connection-costs.md`): of a
/// flood of those, the rest shows with the next measurement.
const LEAST_COST: u64 = 2;

/// And at most: the mean of few connections that do much says little of the next one, and must not weigh more than what is
/// measured. No more than [`MARGIN`]: its cost alone makes nobody's choice.
const MOST_COST: u64 = 50;

const _: () = assert!(MOST_COST <= MARGIN);

/// Weight of connection counts, in thousandths of a worker for the mean number of them, in proportion: twice the mean weighs as
/// much as half a worker's load. Connections that are idle now may all send
/// tomorrow, so equal loads are no reason to put every connection in one place; and where loads differ by more than counts
/// can outweigh, load decides.
const COUNT_WEIGHT: u64 = 250;

/// A connection stays where it was accepted unless another worker is better by so many thousandths: handing it over costs
/// system calls in one event loop and a wake-up of the other, and the kernel's even spread over equal workers needs no help.
const MARGIN: u64 = 50;

/// A worker that takes connections of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// As last measured.
    pub load: Load,
    /// Time by which its next measurement is overdue, in µs: a worker that is stuck measures nothing.
    pub overdue_us: u64,
    /// Connections of the listener that it has, or that are on their way to it.
    pub connections: u64,
    /// Connections of all listeners that it has, as of the last measurement: what its load comes from.
    pub open: u64,
    /// How many connections, of all listeners that ask, came since its last measurement.
    pub arrived: u64,
}

/// The worker with the fewest connections, `exact_balance`: the first of equals, as Envoy's `ExactConnectionBalancerImpl`.
/// `here`, the worker that accepted it, when that one has stopped taking connections: what it had accepted before is its
/// own to finish.
pub fn fewest(connections: &[Option<u64>], here: usize) -> usize {
    best(connections.iter().copied(), here).map_or(here, |(at, _)| at)
}

/// The worker with the least load, `extend_balance` with `envoy.network.connection_balance.dlb`: `here`, the one that accepted
/// the connection, unless another is better by a margin, or when `here` takes no more.
pub fn least_loaded(workers: &[Option<Candidate>], here: usize) -> usize {
    let taking = || workers.iter().flatten();
    let count = taking().count() as u64;
    let connections = taking().map(|w| w.connections).sum::<u64>().max(1);
    let busy = taking().map(|w| w.load.busy).sum::<u64>();
    let open = taking().fold(0_u64, |sum, w| sum.saturating_add(w.open));
    let each = (busy / open.max(1)).clamp(LEAST_COST, MOST_COST);
    let unit = WAIT_UNIT.as_micros() as u64;
    let score = |w: Candidate| {
        let wait = w.load.wait_us.max(w.overdue_us).saturating_mul(1000) / unit;
        let counted = COUNT_WEIGHT.saturating_mul(w.connections).saturating_mul(count) / connections;
        let expected = w.arrived.saturating_mul(each);
        w.load
            .busy
            .saturating_add(wait)
            .saturating_add(counted)
            .saturating_add(expected)
    };
    let scores = || workers.iter().map(|w| w.map(score));
    match (best(scores(), here), scores().nth(here).flatten()) {
        (Some((at, least)), Some(mine)) if mine > least.saturating_add(MARGIN) => at,
        _ => here,
    }
}

/// The first of those with the lowest value, if `here` is one of them.
fn best(values: impl Iterator<Item = Option<u64>> + Clone, here: usize) -> Option<(usize, u64)> {
    values.clone().nth(here).flatten()?;
    let taking = values.enumerate().filter_map(|(at, value)| Some((at, value?)));
    taking.min_by_key(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(busy: u64, wait_us: u64, connections: u64, arrived: u64) -> Option<Candidate> {
        Some(Candidate {
            load: Load { busy, wait_us },
            overdue_us: 0,
            connections,
            open: connections,
            arrived,
        })
    }

    #[test]
    fn the_fewest_connections_win_and_the_first_of_equals() {
        assert_eq!(fewest(&[Some(3), Some(1), Some(1)], 0), 1);
        assert_eq!(fewest(&[Some(0)], 0), 0);
        assert_eq!(fewest(&[Some(5), None, Some(6)], 2), 0);
    }

    #[test]
    fn a_worker_that_takes_no_more_keeps_what_it_accepted() {
        assert_eq!(fewest(&[Some(0), None], 1), 1);
        assert_eq!(least_loaded(&[worker(0, 0, 0, 0), None], 1), 1);
        assert_eq!(fewest(&[None, None], 1), 1);
        assert_eq!(fewest(&[], 0), 0);
        assert_eq!(least_loaded(&[], 0), 0);
    }

    #[test]
    fn a_busy_worker_gives_connections_away() {
        assert_eq!(least_loaded(&[worker(900, 0, 10, 0), worker(100, 0, 10, 0)], 0), 1);
        // And takes none, though it has fewer.
        assert_eq!(least_loaded(&[worker(950, 0, 2, 0), worker(100, 0, 3990, 0)], 1), 1);
    }

    #[test]
    fn work_that_queues_counts_beyond_a_busy_processor() {
        assert_eq!(
            least_loaded(&[worker(1000, 20_000, 10, 0), worker(1000, 500, 10, 0)], 0),
            1
        );
    }

    #[test]
    fn a_worker_that_is_stuck_is_avoided() {
        let mut stuck = worker(10, 0, 10, 0);
        if let Some(stuck) = &mut stuck {
            stuck.overdue_us = 200_000;
        }
        assert_eq!(least_loaded(&[stuck, worker(600, 0, 10, 0)], 0), 1);
    }

    #[test]
    fn a_small_difference_is_not_worth_a_hand_over() {
        assert_eq!(
            least_loaded(&[worker(500 + MARGIN, 0, 100, 0), worker(500, 0, 100, 0)], 0),
            0
        );
        assert_eq!(
            least_loaded(&[worker(501 + MARGIN, 0, 100, 0), worker(500, 0, 100, 0)], 0),
            1
        );
        assert_eq!(least_loaded(&[worker(0, 0, 2010, 0), worker(0, 0, 1990, 0)], 0), 0);
    }

    /// Nothing is measured yet when a flood begins; it must not all go to the worker that looks idle.
    #[test]
    fn a_flood_does_not_all_go_to_the_idle_worker() {
        let mut workers = [worker(900, 0, 20, 0), worker(0, 0, 20, 0)];
        for _ in 0..4000 {
            let at = least_loaded(&workers, 0);
            if let Some(w) = &mut workers[at] {
                w.connections += 1;
                w.arrived += 1;
            }
        }
        let first = workers[0].map_or(0, |w| w.arrived);
        assert!((1000..2000).contains(&first), "{first} of 4000 went to the busy one");
    }

    /// Load and arrivals are those of all listeners: divided among the few connections of this one, what arrived at the idle
    /// worker would outweigh any load.
    #[test]
    fn a_listener_with_few_connections_does_not_choose_the_busy_worker() {
        let mut workers = [worker(1000, 5_000, 1, 0), worker(300, 0, 1, 12)];
        for worker in workers.iter_mut().flatten() {
            worker.open = 2000;
        }
        assert_eq!(least_loaded(&workers, 1), 1);
        assert_eq!(least_loaded(&workers, 0), 1);
        // Nor does one that has the process for itself.
        let workers = [worker(1000, 5_000, 1, 0), worker(300, 0, 1, 12)];
        assert_eq!(least_loaded(&workers, 1), 1);
        assert_eq!(least_loaded(&workers, 0), 1);
    }

    #[test]
    fn no_value_overflows() {
        let most = Candidate {
            load: Load {
                busy: 1000,
                wait_us: u64::MAX,
            },
            overdue_us: u64::MAX,
            connections: u64::MAX / 4,
            open: u64::MAX,
            arrived: u64::MAX / 4,
        };
        assert_eq!(least_loaded(&[Some(most), Some(most)], 1), 1);
    }
}
