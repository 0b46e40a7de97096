//! Connections that ask again and again: what workers wait where these move, held against the same where none does. They are open
//! already when load appears, or come and are placed by load, which must not work against moving them.
//!
//! Connections ask in periods of their own; one that waits idle may move when an exchange of it has ended, which is when its
//! worker has done all that came before.

use std::time::Duration;

use fastrand::Rng;

use super::{CAPACITY, Sums, Worker, by_load};
use crate::meter::PERIOD;
use crate::moving::{EXCHANGE, Guest};

/// Length of a simulation: six seconds.
const PERIODS: u64 = 600;

/// Work of accepting a connection.
const OPENING: u64 = 2;

#[derive(Clone, Copy, Debug)]
struct Connection {
    at: usize,
    /// When it comes, and is placed; none for one that is there from the beginning.
    opens: Option<u64>,
    /// Work of one exchange.
    work: u64,
    /// Share of the periods in which it asks, from `begins` on and before `ends`.
    rate: f64,
    begins: u64,
    ends: u64,
    /// A stream that never ends: it works each period, and cannot move.
    streams: bool,
    guest: Guest,
    moves: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// All were opened while nobody asked; then those of some workers ask.
    Late,
    /// Streams take a large part of some workers, among connections that could move.
    HeavyStreams,
    /// Very many that hardly ask, and a few that do.
    SlowClients,
    /// Equal connections, the same number on each worker.
    Neutral,
    /// Some of everything, and connections stop and others begin to ask.
    Mixed,
    /// A few connections, each a large part of a worker.
    Few,
    /// They come all the time, most to few of the workers, and ask at once or much later, until they go.
    Arriving,
}

/// Those whose connections are all there from the beginning.
const KINDS: [Kind; 6] = [
    Kind::Late,
    Kind::HeavyStreams,
    Kind::SlowClients,
    Kind::Neutral,
    Kind::Mixed,
    Kind::Few,
];

#[derive(Debug, Default)]
struct Outcome {
    /// Sum over periods of the longest wait, in units of work.
    worst_wait: u64,
    moves: u64,
    /// The most that one connection moved.
    most_moves: u64,
    handed_over: u64,
    /// Mean of the busy share of the busiest less that of the least busy worker, in the last second.
    skew: f64,
}

fn connections(kind: Kind, workers: usize, rng: &mut Rng) -> Vec<Connection> {
    let total = rng.f64() * 0.6 + 0.2;
    let mut budget = CAPACITY as f64 * workers as f64 * total;
    let bias = match kind {
        Kind::Neutral => 0.0,
        _ => rng.f64(),
    };
    let favourites = 1 + rng.usize(..workers);
    let mut made = Vec::new();
    let ordinary = |at, rng: &mut Rng| Connection {
        at,
        opens: None,
        work: rng.u64(2..40),
        rate: 0.02 + rng.f64() * 0.2,
        begins: 0,
        ends: PERIODS,
        streams: false,
        guest: Guest::default(),
        moves: 0,
    };
    while budget > 0.0 && made.len() < 500 {
        let next = made.len() % workers;
        let at = if rng.f64() < bias {
            rng.usize(..favourites)
        } else {
            next
        };
        let mut made_now = ordinary(at, rng);
        match kind {
            Kind::Late => made_now.begins = 100,
            Kind::HeavyStreams if rng.f64() < 0.02 => {
                made_now.streams = true;
                made_now.work = rng.u64(50..500);
                made_now.rate = 1.0;
            }
            Kind::SlowClients if rng.f64() < 0.9 => made_now.rate = 0.002,
            Kind::Neutral => (made_now.work, made_now.rate) = (10, 0.1),
            Kind::Mixed => {
                made_now.begins = rng.u64(..PERIODS / 2);
                made_now.ends = made_now.begins + rng.u64(50..PERIODS);
                if rng.f64() < 0.1 {
                    made_now.work = rng.u64(100..400);
                }
            }
            Kind::Arriving => {
                let opens = rng.u64(..PERIODS / 2);
                made_now.opens = Some(opens);
                made_now.begins = opens + if rng.bool() { 0 } else { rng.u64(..PERIODS / 4) };
                made_now.ends = made_now.begins + rng.u64(50..PERIODS);
                // At most some six in ten ask at a time.
                made_now.rate *= 1.6;
                if rng.f64() < 0.2 {
                    made_now.work = rng.u64(100..400);
                }
                budget += made_now.work as f64 * made_now.rate * 0.4;
            }
            Kind::Few => (made_now.work, made_now.rate) = (rng.u64(100..600), 0.4 + rng.f64() * 0.6),
            _ => {}
        }
        budget -= made_now.work as f64 * made_now.rate;
        made.push(made_now);
    }
    made
}

/// Simulates connections of which those that come are placed by load.
fn run(moving: bool, workers: usize, mut connections: Vec<Connection>, seed: u64) -> Outcome {
    let mut all: Vec<Worker> = std::iter::repeat_with(Worker::default).take(workers).collect();
    let mut open = vec![0; workers];
    for connection in connections.iter().filter(|c| c.opens.is_none()) {
        open[connection.at] += 1;
    }
    let mut outcome = Outcome::default();
    let mut rng = Rng::with_seed(seed);
    let mut ended = Vec::new();
    for period in 0..PERIODS {
        let now = PERIOD * period as u32 + Duration::from_secs(1);
        ended.clear();
        for (number, connection) in connections.iter_mut().enumerate() {
            if connection.opens == Some(period) {
                let at = by_load(&all, |at| open[at], connection.at);
                outcome.handed_over += u64::from(at != connection.at);
                connection.at = at;
                open[at] += 1;
                all[at].open(OPENING);
            }
            if connection.opens.is_some() && connection.ends == period {
                open[connection.at] -= 1;
            }
            // Drawn for each, so that the same ask whether they move or not.
            let asks = rng.f64() < connection.rate && (connection.begins..connection.ends).contains(&period);
            if asks {
                let worker = &mut all[connection.at];
                worker.backlog += connection.work;
                if !connection.streams {
                    worker
                        .giver
                        .worked(&mut connection.guest, EXCHANGE * connection.work, now);
                    ended.push(number);
                }
            }
        }
        let mut measured = Vec::new();
        for (at, worker) in all.iter_mut().enumerate() {
            if worker.turn(open[at]) {
                measured.push(at);
            }
        }
        outcome.worst_wait += all.iter().map(|w| w.backlog).max().unwrap_or(0);
        if period >= PERIODS - 100 {
            let busy = || all.iter().map(|w| w.load.busy as f64);
            outcome.skew += (busy().fold(0.0, f64::max) - busy().fold(f64::INFINITY, f64::min)) / 100.0;
        }
        if !moving {
            continue;
        }
        let loads: Vec<_> = all.iter().map(|w| Some(w.load)).collect();
        for here in measured {
            all[here].giver.look(here, &loads);
        }
        for number in &ended {
            let connection = &mut connections[*number];
            let Some(to) = all[connection.at].giver.send(&connection.guest, now) else {
                continue;
            };
            assert_ne!(to, connection.at);
            all[to].giver.receive(&mut connection.guest, now);
            // It opens there, as a new one does.
            all[to].open(0);
            open[connection.at] -= 1;
            open[to] += 1;
            connection.at = to;
            connection.moves += 1;
        }
    }
    outcome.moves = connections.iter().map(|c| c.moves).sum();
    outcome.most_moves = connections.iter().map(|c| c.moves).max().unwrap_or(0);
    outcome
}

fn scenarios(kinds: &[Kind], count: u64, mut each: impl FnMut(Kind, u64, usize, Outcome, Outcome)) {
    for seed in 0..count {
        for kind in kinds {
            let workers = 1 + seed as usize % 16;
            let made = connections(*kind, workers, &mut Rng::with_seed(seed));
            let without = run(false, workers, made.clone(), seed);
            each(*kind, seed, workers, without, run(true, workers, made, seed));
        }
    }
}

/// It does not know what comes: it must not cost more than a period of waiting on average anywhere, and has to pay over all.
#[test]
fn moving_is_never_much_worse_and_pays() {
    let mut sums = Sums::of(WAITS);
    scenarios(&KINDS, 352, |kind, seed, workers, none, moved| {
        assert_not_much_worse(1, kind, seed, workers, &none, &moved);
        sums.add(kind, [none.worst_wait, moved.worst_wait, moved.moves]);
    });
    sums.print();
    let [without, with, _] = sums.all;
    assert!(2 * with <= without, "waits {with}, {without} without");
}

/// New connections go where load is least, and open ones too: the two must not send the load to and fro between them.
#[test]
fn moving_and_placing_agree() {
    let mut sums = Sums::of(WAITS);
    let mut handed_over = [0; 2];
    scenarios(&[Kind::Arriving], 352, |kind, seed, workers, none, moved| {
        assert_not_much_worse(2, kind, seed, workers, &none, &moved);
        sums.add(kind, [none.worst_wait, moved.worst_wait, moved.moves]);
        handed_over[0] += none.handed_over;
        handed_over[1] += moved.handed_over;
    });
    sums.print();
    println!(
        "handed over {} where none moves, {} where some do",
        handed_over[0], handed_over[1]
    );
    let [without, with, _] = sums.all;
    assert!(with <= without * 3 / 4, "waits {with}, {without} without");
    assert!(10 * handed_over[1] <= 11 * handed_over[0], "{handed_over:?}");
}

const WAITS: [&str; 3] = ["waits, none move", "where some move", "moves"];

/// By no more than so many periods of waiting on average.
fn assert_not_much_worse(periods: u64, kind: Kind, seed: u64, workers: usize, none: &Outcome, moved: &Outcome) {
    assert!(
        moved.worst_wait <= none.worst_wait + periods * PERIODS * CAPACITY,
        "{kind:?} {seed} of {workers}: {none:?} {moved:?}"
    );
    // Six seconds, of which two are for each stay.
    assert!(moved.most_moves <= 3, "{kind:?} {seed} of {workers}: {moved:?}");
}

#[test]
fn nothing_moves_where_there_is_no_skew() {
    scenarios(&[Kind::Neutral], 208, |_, seed, workers, none, moved| {
        assert_eq!(moved.moves, 0, "{seed} of {workers}: {none:?} {moved:?}");
    });
}

/// Skew that appears after the connections were opened is gone within a few seconds.
#[test]
fn late_skew_goes() {
    scenarios(&[Kind::Late], 208, |kind, seed, workers, none, moved| {
        assert!(
            moved.skew <= f64::max(250.0, none.skew / 2.0),
            "{kind:?} {seed} of {workers}: {none:?} {moved:?}"
        );
    });
}
