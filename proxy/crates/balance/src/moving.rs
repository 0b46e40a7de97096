//! Which of a worker's open connections go to which other worker: how much load it gives away, and what a connection is worth.

use std::time::Duration;

use crate::meter::{Load, PERIOD, WAIT_UNIT};

/// A worker gives when it is busier than the least busy one by so many thousandths of a worker. Loads of equal workers differ by
/// less: a few requests for a megabyte more or less are a tenth of a worker for the time that is looked at.
const BEGIN: f64 = 200.0;

/// And goes on until the difference is less than this.
const END: f64 = 100.0;

const _: () = assert!(END < BEGIN, "hysteresis");

/// How long the difference must last first: a configuration that is put into force, or a burst, is over by then.
const HOLD: u32 = periods(300);

/// Between two decisions: what the one before has moved must show first, in loads that take 200 ms to follow.
const PAUSE: u32 = periods(400);

/// A connection that has moved stays at least so long. What it does is known better then, and no two workers send it to and fro.
const STAY: Duration = Duration::from_secs(2);

/// Each look counts an eighth, on top of what [`crate::Meter`] smooths.
const WEIGHT: f64 = 8.0;

/// Work that waits counts as load until it is worth this much. Beyond it says how late the worker is, not how much work comes.
const MOST_WAIT: f64 = 500.0;

/// The time in which a connection's work counts. Clients that ask every few seconds have little of a worker and need not move.
const MEMORY: Duration = Duration::from_secs(1);

/// The work of an exchange besides its bytes, in bytes: to parse, route and log it costs as much as to pass on so many.
pub const EXCHANGE: u64 = 64 * 1024;

/// Connections that leave in one [`PERIOD`]. To take one out of an event loop and into another costs about as much as a small
/// request, so a worker that has too much to do must not spend its time on that; and no queue fills at once.
const TURN: u32 = 32;

/// Least cost of a connection, in thousandths of a worker: what does next to nothing is not moved in masses for nothing.
const LEAST_COST: f64 = 0.01;

const fn periods(ms: u32) -> u32 {
    ms / PERIOD.as_millis() as u32
}

/// Work done lately: each is forgotten as time passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Work {
    sum: f64,
    at: Duration,
}

impl Work {
    /// What counts of it at a time.
    fn now(self, now: Duration) -> f64 {
        let since = now.saturating_sub(self.at).as_secs_f64();
        let memory = MEMORY.as_secs_f64();
        self.sum * memory / (memory + since)
    }

    fn add(&mut self, work: f64, now: Duration) {
        *self = Self {
            sum: (self.now(now) + work).max(0.0),
            at: self.at.max(now),
        };
    }
}

/// What is known of a connection that may move. It goes along with it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Guest {
    work: Work,
    /// When it moved last.
    moved: Option<Duration>,
    /// It is not to be asked again.
    settled: bool,
}

impl Guest {
    /// It stays where it is for as long as it lives.
    pub fn settle(&mut self) {
        self.settled = true;
    }
}

/// Load for another worker.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gift {
    to: usize,
    /// In thousandths of a worker.
    left: f64,
}

/// What one worker gives to the others. Times are since one moment that is the same for all workers.
#[derive(Debug, Default)]
pub struct Giver {
    /// Of every worker, smoothed.
    loads: Vec<f64>,
    /// Share of the time in which this one works, smoothed, in thousandths.
    busy: f64,
    /// Of all its connections that may move.
    work: Work,
    /// Periods since the difference is large.
    lasting: u32,
    giving: bool,
    /// Looks until the next decision.
    pause: u32,
    gifts: Vec<Gift>,
    /// Connections that may still leave in this period.
    turn: u32,
    /// Every connection that asks goes there.
    all_to: Option<usize>,
}

impl Giver {
    /// Looks at all workers, once for each measurement: a worker at rest, which has nothing to give, looks as seldom. None stands
    /// for one that takes no connections or is stuck.
    pub fn look(&mut self, here: usize, workers: &[Option<Load>]) {
        self.turn = TURN;
        self.pause = self.pause.saturating_sub(1);
        self.loads.resize(workers.len(), 0.0);
        for (kept, load) in self.loads.iter_mut().zip(workers) {
            *kept += load.map_or(0.0, |load| (weight(load) - *kept) / WEIGHT);
        }
        let Some(mine) = workers.get(here).copied().flatten() else {
            return self.stop();
        };
        self.busy += (mine.busy as f64 - self.busy) / WEIGHT;
        let present = || self.loads.iter().zip(workers).filter(|(_, w)| w.is_some());
        let least = present().map(|(load, _)| *load).fold(f64::INFINITY, f64::min);
        let wide = self.loads.get(here).map_or(0.0, |load| load - least);
        if wide < if self.giving { END } else { BEGIN } {
            return self.stop();
        }
        self.lasting += 1;
        self.giving |= self.lasting >= HOLD;
        if self.giving && self.pause == 0 {
            self.pause = PAUSE;
            self.gifts = gifts(here, &self.loads, workers);
        }
    }

    fn stop(&mut self) {
        self.lasting = 0;
        self.giving = false;
        self.gifts.clear();
    }

    /// A connection has done so many bytes' worth of work; see [`EXCHANGE`].
    pub fn worked(&mut self, guest: &mut Guest, bytes: u64, now: Duration) {
        guest.work.add(bytes as f64, now);
        self.work.add(bytes as f64, now);
    }

    /// The worker to which a connection is to go that has just ended an exchange, if it is to go. Counts it as gone.
    pub fn send(&mut self, guest: &Guest, now: Duration) -> Option<usize> {
        if guest.settled {
            return None;
        }
        if self.all_to.is_some() {
            return self.all_to;
        }
        if self.gifts.is_empty() || guest.moved.is_some_and(|moved| now.saturating_sub(moved) < STAY) {
            return None;
        }
        let work = guest.work.now(now);
        let cost = (self.busy * work / self.work.now(now).max(work).max(1.0)).max(LEAST_COST);
        let turn = self.turn.checked_sub(1)?;
        let gift = self.gifts.iter_mut().find(|gift| gift.left >= cost)?;
        gift.left -= cost;
        self.turn = turn;
        let to = gift.to;
        self.work.add(-work, now);
        Some(to)
    }

    /// A connection has come from another worker.
    pub fn receive(&mut self, guest: &mut Guest, now: Duration) {
        guest.moved = Some(now);
        self.work.add(guest.work.now(now), now);
    }

    /// From now on sends every connection to this worker, or, with none, those that load asks for. For tests of the way.
    pub fn send_all(&mut self, to: Option<usize>) {
        self.all_to = to;
    }
}

/// A worker's load in thousandths, with the work that waits.
fn weight(load: Load) -> f64 {
    let wait = load.wait_us as f64 * 1000.0 / WAIT_UNIT.as_micros() as f64;
    load.busy as f64 + wait.min(MOST_WAIT)
}

/// What this worker gives to whom: half of what it has above the mean, so that what is not known well does not lead to the
/// opposite. Each works out the same division of all that is above the mean among those below it and gives its own part, so
/// that several do not fill the same one. None gets more than half of what it can do besides.
fn gifts(here: usize, loads: &[f64], workers: &[Option<Load>]) -> Vec<Gift> {
    let present = || {
        (0..)
            .zip(loads.iter().zip(workers))
            .filter_map(|(at, (load, w))| Some((at, *load, (*w)?)))
    };
    let mean = present().map(|(_, load, _)| load).sum::<f64>() / (present().count() as f64).max(1.0);
    let above = |load: f64| (load - mean).max(0.0);
    let from = present()
        .filter(|(at, ..)| *at < here)
        .map(|(_, load, _)| above(load))
        .sum::<f64>();
    let to = from + loads.get(here).map_or(0.0, |load| above(*load));
    let mut filled = 0.0;
    let mut gifts = Vec::new();
    for (at, load, worker) in present().filter(|(at, ..)| *at != here) {
        let room = (mean - load).min(1000.0 - worker.busy as f64).max(0.0);
        let part = (filled + room).min(to) - f64::max(filled, from);
        filled += room;
        if part > 0.0 {
            gifts.push(Gift {
                to: at,
                left: part / 2.0,
            });
        }
    }
    gifts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(shares: &[u64]) -> Vec<Option<Load>> {
        shares
            .iter()
            .map(|busy| {
                Some(Load {
                    busy: *busy,
                    wait_us: 0,
                })
            })
            .collect()
    }

    /// After so many looks at the same loads.
    fn looked(here: usize, workers: &[Option<Load>], looks: u32) -> Giver {
        let mut giver = Giver::default();
        (0..looks).for_each(|_| giver.look(here, workers));
        giver
    }

    fn given(giver: &Giver) -> f64 {
        giver.gifts.iter().map(|gift| gift.left).sum()
    }

    const LONG: u32 = 200;

    #[test]
    fn only_a_difference_that_lasts_makes_a_worker_give() {
        let skewed = busy(&[800, 0]);
        assert!(looked(0, &skewed, HOLD - 1).gifts.is_empty());
        let giver = looked(0, &skewed, LONG);
        assert_eq!(giver.gifts.iter().map(|gift| gift.to).collect::<Vec<_>>(), [1]);
        assert!((190.0..=200.0).contains(&given(&giver)), "{giver:?}");
        assert!(looked(1, &skewed, LONG).gifts.is_empty(), "who has least gives nothing");
        assert!(looked(0, &busy(&[500, 350]), LONG).gifts.is_empty());
        let (mut burst, calm) = (Giver::default(), busy(&[0, 0]));
        for at in 0..1000 {
            burst.look(0, if at % 100 < 15 { &skewed } else { &calm });
            assert!(burst.gifts.is_empty(), "a burst of {at}");
        }
    }

    #[test]
    fn skew_that_comes_back_waits_no_longer_than_the_first() {
        let (skewed, calm) = (busy(&[800, 0]), busy(&[0, 0]));
        let until_it_gives = |giver: &mut Giver| {
            (1..=LONG).find(|_| {
                giver.look(0, &skewed);
                !giver.gifts.is_empty()
            })
        };
        let mut giver = Giver::default();
        let first = until_it_gives(&mut giver);
        // It gave a moment ago, and now has nothing more to give.
        (0..LONG).for_each(|_| giver.look(0, &calm));
        assert!(giver.gifts.is_empty());
        assert_eq!(until_it_gives(&mut giver), first);
    }

    #[test]
    fn it_begins_and_ends_at_its_thresholds() {
        let gives = |giver: &mut Giver, difference: u64| {
            (0..LONG).for_each(|_| giver.look(0, &busy(&[300 + difference, 300])));
            !giver.gifts.is_empty()
        };
        let (begin, end) = (BEGIN as u64, END as u64);
        let mut giver = Giver::default();
        assert!(!gives(&mut giver, begin - 1));
        assert!(gives(&mut giver, begin + 1));
        assert!(gives(&mut giver, end + 1));
        assert!(!gives(&mut giver, end - 1));
        assert!(!gives(&mut giver, begin - 1));
    }

    #[test]
    fn giving_goes_on_below_the_difference_at_which_it_began() {
        let mut giver = looked(0, &busy(&[800, 0]), LONG);
        (0..LONG).for_each(|_| giver.look(0, &busy(&[460, 300])));
        assert!((35.0..=45.0).contains(&given(&giver)), "{giver:?}");
        (0..LONG).for_each(|_| giver.look(0, &busy(&[430, 350])));
        assert!(giver.gifts.is_empty());
        (0..LONG).for_each(|_| giver.look(0, &busy(&[460, 300])));
        assert!(giver.gifts.is_empty());
    }

    #[test]
    fn several_givers_do_not_fill_one_worker() {
        let mut loads = vec![800; 16];
        loads[5] = 0;
        let workers = busy(&loads);
        let to_it: f64 = (0..16).map(|here| given(&looked(here, &workers, LONG))).sum();
        assert!((350.0..=376.0).contains(&to_it), "{to_it}");
    }

    #[test]
    fn one_giver_fills_several_workers() {
        let mut loads = vec![0; 16];
        loads[3] = 960;
        let giver = looked(3, &busy(&loads), LONG);
        assert_eq!(giver.gifts.len(), 15);
        assert!(
            giver.gifts.iter().all(|gift| (29.0..=30.1).contains(&gift.left)),
            "{giver:?}"
        );
    }

    #[test]
    fn a_worker_that_is_stuck_or_full_is_given_nothing() {
        let mut workers = busy(&[900, 0, 0]);
        workers[1] = None;
        let giver = looked(0, &workers, LONG);
        assert!(giver.gifts.iter().all(|gift| gift.to == 2) && given(&giver) > 200.0);
        let waits = Load {
            busy: 1000,
            wait_us: 1_000_000,
        };
        let giver = looked(0, &[Some(waits), Some(Load { busy: 990, wait_us: 0 })], LONG);
        assert!(given(&giver) <= 5.0, "{giver:?}");
        workers[0] = None;
        assert!(looked(0, &workers, LONG).gifts.is_empty());
        assert!(looked(7, &workers, LONG).gifts.is_empty());
        assert!(looked(0, &[], LONG).gifts.is_empty());
    }

    /// Ten connections of equal work on one of two workers: each is a tenth of its load.
    #[test]
    fn connections_go_while_what_they_cost_is_left() {
        let mut giver = looked(0, &busy(&[800, 0]), LONG);
        let mut guests = [Guest::default(); 10];
        let now = Duration::from_secs(100);
        for guest in &mut guests {
            giver.worked(guest, EXCHANGE, now);
        }
        let sent: Vec<_> = guests.iter().filter_map(|guest| giver.send(guest, now)).collect();
        // Half of the difference from the mean is 200; each is 80, and what has gone counts no more for those that stay.
        assert_eq!(sent, [1, 1]);
    }

    #[test]
    fn few_leave_at_once() {
        let mut giver = looked(0, &busy(&[800, 0]), LONG);
        let mut guests = [Guest::default(); 1000];
        let now = Duration::from_secs(100);
        for guest in &mut guests {
            giver.worked(guest, EXCHANGE, now);
        }
        let leave = |giver: &mut Giver| guests.iter().filter_map(|guest| giver.send(guest, now)).count();
        assert_eq!(leave(&mut giver), TURN as usize);
        giver.look(0, &busy(&[800, 0]));
        assert_eq!(leave(&mut giver), TURN as usize);
    }

    #[test]
    fn one_that_would_turn_the_skew_around_stays() {
        let mut giver = looked(0, &busy(&[800, 0]), LONG);
        let now = Duration::from_secs(100);
        let (mut heavy, mut light) = (Guest::default(), Guest::default());
        giver.worked(&mut heavy, 100 * EXCHANGE, now);
        giver.worked(&mut light, EXCHANGE, now);
        assert_eq!(giver.send(&heavy, now), None);
        assert_eq!(giver.send(&light, now), Some(1));
    }

    #[test]
    fn one_that_has_moved_stays_for_a_while() {
        let mut giver = looked(0, &busy(&[800, 0]), LONG);
        let (mut guest, mut other) = (Guest::default(), Guest::default());
        let now = Duration::from_secs(100);
        giver.worked(&mut other, 50 * EXCHANGE, now);
        giver.worked(&mut guest, EXCHANGE, now);
        giver.receive(&mut guest, now);
        assert_eq!(giver.send(&guest, now + STAY / 2), None);
        assert_eq!(giver.send(&guest, now + STAY), Some(1));
        guest.settle();
        assert_eq!(giver.send(&guest, now + STAY), None);
    }

    #[test]
    fn no_value_is_out_of_bounds() {
        let most = Load {
            busy: u64::MAX,
            wait_us: u64::MAX,
        };
        let mut giver = looked(0, &[Some(most), Some(Load::default())], LONG);
        let mut guest = Guest::default();
        giver.worked(&mut guest, u64::MAX, Duration::MAX);
        giver.worked(&mut guest, u64::MAX, Duration::ZERO);
        giver.send(&guest, Duration::ZERO);
        giver.receive(&mut guest, Duration::MAX);
        assert!(giver.work.sum.is_finite() && giver.loads.iter().all(|load| load.is_finite()));
    }
}
