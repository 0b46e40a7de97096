//! How loaded a worker is.

use std::time::Duration;

/// Least time between two measurements of a worker that has something to do. Short beside the 100 ms in which people notice a
/// queue, long beside a turn of an event loop.
pub const PERIOD: Duration = Duration::from_millis(10);

/// Of one that has nearly nothing to do.
const PERIOD_AT_REST: Duration = Duration::from_millis(100);

/// And of one without connections, or of which nobody wants to know, so that an idle process sleeps.
pub const PERIOD_IDLE: Duration = Duration::from_secs(5);

/// A worker is at rest that is busy for less of the time than this, in thousandths. The measurements themselves take less.
const REST_BUSY: u64 = 20;

/// And whose tasks wait for less, in µs: several turns of an event loop in which nothing much happens.
const REST_WAIT_US: u64 = 500;

/// A task that waits so long for its turn weighs as much as a worker that is busy all the time.
pub(crate) const WAIT_UNIT: Duration = Duration::from_millis(10);

/// Each measurement counts a quarter: a single slow turn, such as putting a configuration into force, moves little, and
/// after four of them two thirds of a change are seen.
const WEIGHT: u64 = 4;

/// The longest wait told apart, in µs. Beyond it a worker is as bad as can be.
const LONGEST_WAIT_US: u64 = 10_000_000;

/// One worker's load, smoothed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Share of the time in which tasks ran, in thousandths: 0 to 1000.
    pub busy: u64,
    /// Queued work: how long a task that is ready waits for its turn, in µs.
    pub wait_us: u64,
}

impl Load {
    /// Time until it is to be measured again, unless a connection comes, for a worker with so many of them: [`PERIOD`], 100 ms for
    /// one at rest, and [`PERIOD_IDLE`] for one that has none.
    pub fn period(self, connections: u64) -> Duration {
        match self.busy < REST_BUSY && self.wait_us < REST_WAIT_US {
            true if connections == 0 => PERIOD_IDLE,
            true => PERIOD_AT_REST,
            false => PERIOD,
        }
    }
}

/// Turns what an event loop has done since the last look into its [`Load`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    /// Both kept with a factor of 1024, so that small changes are not rounded away.
    busy: u64,
    wait_us: u64,
}

impl Meter {
    /// Takes in one measurement: tasks ran for `busy` of `elapsed`, and a task that was due had to wait for `late`.
    pub fn measure(&mut self, busy: Duration, elapsed: Duration, late: Duration) -> Load {
        let elapsed = elapsed.as_micros().max(1);
        let share = (busy.as_micros() * 1000 / elapsed).min(1000);
        smooth(&mut self.busy, u64::try_from(share).unwrap_or(1000));
        let late = u64::try_from(late.as_micros()).unwrap_or(LONGEST_WAIT_US);
        smooth(&mut self.wait_us, late.min(LONGEST_WAIT_US));
        self.load()
    }

    /// The load as of the last measurement.
    pub fn load(&self) -> Load {
        Load {
            busy: self.busy >> 10,
            wait_us: self.wait_us >> 10,
        }
    }
}

fn smooth(value: &mut u64, measured: u64) {
    *value = *value - *value / WEIGHT + (measured << 10) / WEIGHT;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_follow_what_is_measured() {
        let mut meter = Meter::default();
        assert_eq!(meter.load(), Load::default());
        let busy = |meter: &mut Meter, share: f64| {
            meter.measure(PERIOD.mul_f64(share), PERIOD, PERIOD.mul_f64(share) / 10);
        };
        for _ in 0..4 {
            busy(&mut meter, 1.0);
        }
        let load = meter.load();
        assert!((650..750).contains(&load.busy), "{load:?}");
        for _ in 0..40 {
            busy(&mut meter, 1.0);
        }
        let load = meter.load();
        assert!(load.busy >= 998 && load.wait_us >= 990, "{load:?}");
        for _ in 0..60 {
            busy(&mut meter, 0.0);
        }
        assert_eq!(meter.load(), Load::default());
    }

    #[test]
    fn a_worker_with_nothing_to_do_is_measured_less_often() {
        let period = |busy, wait_us| Load { busy, wait_us }.period(1);
        assert_eq!(period(0, 0), PERIOD_AT_REST);
        assert_eq!(period(REST_BUSY - 1, REST_WAIT_US - 1), PERIOD_AT_REST);
        assert_eq!(period(REST_BUSY, 0), PERIOD);
        assert_eq!(period(0, REST_WAIT_US), PERIOD);
        assert_eq!(Load::default().period(0), PERIOD_IDLE);
        let busy = Load {
            busy: REST_BUSY,
            wait_us: 0,
        };
        assert_eq!(busy.period(0), PERIOD);
    }

    #[test]
    fn no_measurement_leads_out_of_bounds() {
        let mut meter = Meter::default();
        for _ in 0..100 {
            meter.measure(Duration::MAX, Duration::ZERO, Duration::MAX);
        }
        let load = meter.load();
        assert!(load.busy <= 1000 && load.wait_us <= LONGEST_WAIT_US, "{load:?}");
    }
}
