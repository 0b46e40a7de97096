//! Workers that share a stream of connections: placement held against leaving them where the kernel's hash puts them. Those that
//! arrive in a period are placed one after the other, knowing the load of the period before.

use fastrand::Rng;

use super::{CAPACITY, Sums, Worker, by_load};
use crate::place::fewest;

/// Length of a simulation.
const PERIODS: u64 = 100;

/// Connections that arrive in a period at most, so that thousands of simulations take seconds.
const MOST_ARRIVALS: usize = 100;

/// How connections are placed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Balance {
    None,
    Exact,
    LoadAware,
}

/// A connection that arrives.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: u64,
    /// The worker that the kernel's hash gives it to.
    hashed: usize,
    /// Work at once, for accepting it and shaking hands.
    setup: u64,
    /// Work each period for as long as it lives.
    demand: u64,
    lives: u64,
}

/// What loads are made of. Each scenario draws from one of them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Short connections, all hashed to one worker.
    Flood,
    /// A few that take a large part of a worker each, among many light ones.
    HeavyStreams,
    /// Very many that hardly do anything.
    SlowClients,
    /// Equal connections that the hash spreads evenly.
    Even,
    /// Some of everything, with a hash that prefers some workers.
    Mixed,
}

const KINDS: [Kind; 5] = [
    Kind::Flood,
    Kind::HeavyStreams,
    Kind::SlowClients,
    Kind::Even,
    Kind::Mixed,
];

/// What came of a simulation.
#[derive(Debug, Default)]
struct Outcome {
    /// Sum over periods of the longest wait, in units of work.
    worst_wait: u64,
    handed_over: u64,
    arrivals: u64,
    /// The largest difference of connection counts in the last period.
    skew: u64,
}

/// Arrivals whose work fits the workers together with a fifth to spare.
fn arrivals(kind: Kind, workers: usize, rng: &mut Rng) -> Vec<Arrival> {
    let favourite = rng.usize(..workers);
    let capacity = CAPACITY * workers as u64;
    let load = rng.u64(200..=800);
    let (heavy, lives) = match kind {
        Kind::Flood => (0.0, 1..4),
        Kind::HeavyStreams => (rng.f64() * 0.05, 30..PERIODS),
        Kind::SlowClients => (0.0, 60..PERIODS),
        Kind::Even => (0.0, 5..40),
        Kind::Mixed => (rng.f64() * 0.02, 1..80),
    };
    let bias = match kind {
        Kind::Flood => 1.0,
        Kind::Even => 0.0,
        _ => rng.f64(),
    };
    let mut budget = 0;
    let mut until = Vec::new();
    let mut made = Vec::new();
    for at in 0..PERIODS {
        // Work that connections of before still do in this period.
        until.retain(|(end, _)| *end > at);
        let running: u64 = until.iter().map(|(_, demand)| demand).sum();
        budget = (budget + capacity * load / 1000).saturating_sub(running).min(capacity);
        for _ in 0..MOST_ARRIVALS {
            let is_heavy = rng.f64() < heavy;
            let (setup, demand) = match kind {
                _ if is_heavy => (2, rng.u64(100..700)),
                Kind::SlowClients => (rng.u64(1..4), rng.u64(0..2)),
                _ => (rng.u64(1..200), rng.u64(0..30)),
            };
            if setup + demand > budget {
                break;
            }
            budget -= setup + demand;
            let lives = rng.u64(lives.clone());
            until.push((at + lives, demand));
            let hashed = if rng.f64() < bias {
                favourite
            } else {
                rng.usize(..workers)
            };
            made.push(Arrival {
                at,
                hashed,
                setup,
                demand,
                lives,
            });
        }
    }
    made
}

fn run(balance: Balance, workers: usize, arrivals: &[Arrival]) -> Outcome {
    observe(balance, workers, arrivals, |_, _| {})
}

/// Simulates, and shows the workers after each period.
fn observe(balance: Balance, workers: usize, arrivals: &[Arrival], mut see: impl FnMut(u64, &[Worker])) -> Outcome {
    let mut all: Vec<Worker> = (0..workers).map(|_| Worker::default()).collect();
    let mut open: Vec<Vec<Arrival>> = vec![Vec::new(); workers];
    let mut outcome = Outcome::default();
    let mut next = arrivals.iter().peekable();
    let count = |open: &[Vec<Arrival>], at: usize| open[at].len() as u64;
    for now in 0..PERIODS {
        while let Some(arrival) = next.next_if(|a| a.at == now) {
            let at = match balance {
                Balance::None => arrival.hashed,
                Balance::Exact => {
                    let counts: Vec<_> = (0..workers).map(|at| Some(count(&open, at))).collect();
                    fewest(&counts, arrival.hashed)
                }
                Balance::LoadAware => by_load(&all, |at| count(&open, at), arrival.hashed),
            };
            outcome.arrivals += 1;
            outcome.handed_over += u64::from(at != arrival.hashed);
            open[at].push(*arrival);
            all[at].open(arrival.setup);
        }
        for (worker, open) in all.iter_mut().zip(&mut open) {
            worker.backlog += open.iter().map(|c| c.demand).sum::<u64>();
            worker.turn(open.len() as u64);
            open.retain(|c| c.at + c.lives > now);
        }
        outcome.worst_wait += all.iter().map(|w| w.backlog).max().unwrap_or(0);
        see(now, &all);
    }
    let counts = || (0..workers).map(|at| count(&open, at));
    outcome.skew = counts().max().unwrap_or(0) - counts().min().unwrap_or(0);
    outcome
}

/// Runs `each` against this many scenarios of every kind.
fn scenarios(kinds: &[Kind], count: u64, mut each: impl FnMut(Kind, u64, usize, &[Arrival])) {
    for seed in 0..count {
        for kind in kinds {
            let mut rng = Rng::with_seed(seed);
            let workers = 1 + seed as usize % 16;
            let arrivals = arrivals(*kind, workers, &mut rng);
            each(*kind, seed, workers, &arrivals);
        }
    }
}

/// A placement that does not know what comes may be unlucky; it must not cost more than one and a half periods of waiting on
/// average, and over all scenarios it has to pay.
#[test]
fn load_aware_is_never_much_worse_than_none_and_pays() {
    let mut sums = Sums::of(["waits, none", "exact", "load-aware", "handed over", "of arrivals"]);
    scenarios(&KINDS, 400, |kind, seed, workers, arrivals| {
        let none = run(Balance::None, workers, arrivals);
        let aware = run(Balance::LoadAware, workers, arrivals);
        let bound = none.worst_wait + PERIODS * CAPACITY * 3 / 2;
        assert!(
            aware.worst_wait <= bound,
            "{kind:?} {seed} of {workers}: {none:?} {aware:?}"
        );
        let exact = run(Balance::Exact, workers, arrivals);
        let waits = (none.worst_wait, exact.worst_wait, aware.worst_wait);
        sums.add(kind, [waits.0, waits.1, waits.2, aware.handed_over, aware.arrivals]);
    });
    sums.print();
    let [without, exact, with, ..] = sums.all;
    assert!(10 * with <= without, "waits {with}, {without} without");
    assert!(2 * with <= exact, "waits {with}, {exact} with the fewest connections");
}

#[test]
fn one_worker_keeps_everything() {
    scenarios(&KINDS, 16 * 4, |kind, seed, workers, arrivals| {
        if workers == 1 {
            let handed = run(Balance::LoadAware, 1, arrivals).handed_over;
            assert_eq!(handed, 0, "{kind:?} {seed}");
        }
    });
}

/// Connections that come and go all the time, and always to the same worker: the loads settle, they do not swing.
#[test]
fn loads_settle_under_churn() {
    for workers in 2..=16 {
        let each = 4 * workers as u64;
        let arrivals: Vec<_> = (0..PERIODS * each)
            .map(|i| Arrival {
                at: i / each,
                hashed: 0,
                setup: 10,
                demand: 9,
                lives: 10,
            })
            .collect();
        let mut settled = Vec::new();
        observe(Balance::LoadAware, workers, &arrivals, |now, all| {
            if now >= PERIODS / 2 {
                settled.extend(all.iter().map(|w| w.load.busy));
            }
        });
        // Forty connections each, with 9 units a period, and four new ones.
        let (least, most) = (settled.iter().min(), settled.iter().max());
        assert!(
            least >= Some(&250) && most <= Some(&550),
            "{workers}: {least:?} to {most:?}"
        );
    }
}

/// All connections of a flood arrive at one worker: the others get theirs, and no more is handed over than needed.
#[test]
fn a_flood_on_one_worker_is_spread() {
    scenarios(&[Kind::Flood], 400, |kind, seed, workers, arrivals| {
        let none = run(Balance::None, workers, arrivals);
        let aware = run(Balance::LoadAware, workers, arrivals);
        assert!(
            2 * aware.worst_wait <= none.worst_wait.max(2 * PERIODS * CAPACITY),
            "{kind:?} {seed}: {none:?} {aware:?}"
        );
        let share = aware.arrivals - aware.arrivals / workers as u64;
        assert!(
            aware.handed_over <= share + share / 4,
            "{kind:?} {seed} of {workers}: {aware:?}"
        );
    });
}

#[test]
fn exact_counts_are_even() {
    scenarios(&[Kind::SlowClients], 200, |kind, seed, workers, arrivals| {
        let lasting: Vec<_> = arrivals.iter().map(|a| Arrival { lives: PERIODS, ..*a }).collect();
        let exact = run(Balance::Exact, workers, &lasting);
        assert!(exact.skew <= 1, "{kind:?} {seed}: {exact:?}");
    });
}
