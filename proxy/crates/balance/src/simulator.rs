//! Made-up loads on made-up workers, a period at a time: each way to place or move connections held against none.
//!
//! A worker does [`CAPACITY`] units of work a period; what it cannot do waits. It measures itself as a real one does, seldom while
//! it is at rest, so that others decide by what they would know of it. None is ever stuck: that a measurement is overdue is
//! for tests of the decision alone.
//!
//! `cargo test -p heddle-balance simulator -- --nocapture` prints what came of each kind of load, to compare thresholds by.

use std::fmt::{Debug, Display};
use std::time::Duration;

use crate::meter::{Load, Meter, PERIOD};
use crate::moving::Giver;
use crate::place::{Candidate, least_loaded};

mod moving;
mod placing;

/// What a worker does in a period.
const CAPACITY: u64 = 1000;

#[derive(Default)]
struct Worker {
    backlog: u64,
    meter: Meter,
    load: Load,
    giver: Giver,
    /// Work done, and periods gone, since the last measurement.
    done: u64,
    since: u32,
    /// Time from that to the next.
    period: Duration,
    /// How many connections were open at the last measurement, and came since.
    measured: u64,
    arrived: u64,
}

impl Worker {
    /// A connection comes, with so much work at once.
    fn open(&mut self, work: u64) {
        self.backlog += work;
        self.arrived += 1;
        if self.period > PERIOD {
            (self.done, self.since, self.period) = (0, 0, PERIOD);
        }
    }

    /// One period of work. True if it ended with a measurement.
    fn turn(&mut self, connections: u64) -> bool {
        let done = self.backlog.min(CAPACITY);
        self.backlog -= done;
        self.done += done;
        self.since += 1;
        if PERIOD * self.since < self.period {
            return false;
        }
        let unit = PERIOD / CAPACITY as u32;
        self.load = self
            .meter
            .measure(unit * self.done as u32, PERIOD * self.since, unit * self.backlog as u32);
        (self.done, self.since, self.period) = (0, 0, self.load.period(connections));
        (self.measured, self.arrived) = (connections, 0);
        true
    }

    fn candidate(&self, connections: u64) -> Candidate {
        Candidate {
            load: self.load,
            overdue_us: 0,
            connections,
            open: self.measured,
            arrived: self.arrived,
        }
    }
}

/// Where a connection goes that `hashed` accepted.
fn by_load(workers: &[Worker], connections: impl Fn(usize) -> u64, hashed: usize) -> usize {
    let candidates: Vec<_> = (0..)
        .zip(workers)
        .map(|(at, w)| Some(w.candidate(connections(at))))
        .collect();
    least_loaded(&candidates, hashed)
}

/// Sums over the scenarios of a test by kind, and of all of them last.
struct Sums<K, const N: usize> {
    names: [&'static str; N],
    by_kind: Vec<(K, [u64; N])>,
    all: [u64; N],
}

impl<K: Copy + PartialEq + Debug, const N: usize> Sums<K, N> {
    fn of(names: [&'static str; N]) -> Self {
        Self {
            names,
            by_kind: Vec::new(),
            all: [0; N],
        }
    }

    fn add(&mut self, kind: K, values: [u64; N]) {
        if !self.by_kind.iter().any(|(k, _)| *k == kind) {
            self.by_kind.push((kind, [0; N]));
        }
        let of_kind = self
            .by_kind
            .iter_mut()
            .filter(|(k, _)| *k == kind)
            .map(|(_, sums)| sums);
        for sums in of_kind.chain([&mut self.all]) {
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }

    fn print(&self) {
        let row = |name: &dyn Display, cells: &[String]| println!("{name:>14}{}", cells.concat());
        row(&"", &self.names.map(|name| format!("{name:>18}")));
        for (kind, sums) in &self.by_kind {
            row(&format!("{kind:?}"), &sums.map(|sum| format!("{sum:>18}")));
        }
        row(&"all", &self.all.map(|sum| format!("{sum:>18}")));
    }
}
