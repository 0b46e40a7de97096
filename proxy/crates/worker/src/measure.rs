//! How loaded this worker is, measured for those that place and move connections and for the metrics.

use std::rc::Rc;
use std::time::{Duration, Instant};

use heddle_balance::{Meter, PERIOD, PERIOD_IDLE};
use heddle_telemetry::Gauge;
use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::state::WorkerState;
use crate::turns::turn;

/// A worker that has something to do measures with the first turn of its event loop that has waited, a [`PERIOD`] after the last time;
/// where none comes, within this.
pub(crate) const LATEST: Duration = PERIOD.saturating_mul(2);

/// A worker that is busy for more of the time than this, in thousandths, hardly waits: nothing of its timers is the kernel's.
const SATURATED: u64 = 900;

/// A worker's metrics of its load.
struct Gauges {
    /// Thousandths of the time.
    busy: Gauge,
    wait: Gauge,
    /// The process's; the first worker has it.
    skew: Option<Gauge>,
}

/// Measures until the worker ends.
pub(crate) async fn run(state: Rc<WorkerState>) {
    let worker = state.index.to_string();
    let labels = [("worker_id", worker.as_str())];
    let gauges = Gauges {
        busy: state.stats.gauge("heddle_worker_busy_permille", &labels),
        wait: state.stats.gauge("heddle_worker_wait_us", &labels),
        skew: (state.index == 0).then(|| state.stats.gauge("heddle_worker_skew_permille", &[])),
    };
    let exchange = state.shared.exchange.clone();
    let metrics = Handle::current().metrics();
    let mut meter = Meter::default();
    let mut loads = Vec::new();
    let until_now = || (Instant::now(), metrics.worker_total_busy_duration(0));
    let (mut before, mut busy) = until_now();
    let mut period = PERIOD;
    loop {
        let latest = if meter.load().busy < SATURATED { LATEST } else { PERIOD };
        tokio::select! {
            () = turn(before + PERIOD), if period == PERIOD && state.places_by_load() => {}
            () = sleep(if state.places_by_load() { period.max(latest) } else { PERIOD_IDLE }) => {}
            () = state.balance_changed() => {}
            () = state.opened(), if period > PERIOD && state.places_by_load() => {
                // What is measured now is what the connection brings, not the rest before.
                exchange.due_within(state.index, LATEST);
                (before, busy) = until_now();
                sleep(PERIOD).await;
            }
        }
        // The end of the queue of tasks: everything that is ready now has its turn first.
        let queued = Instant::now();
        yield_now().await;
        let (now, total) = until_now();
        let load = meter.measure(total.saturating_sub(busy), now - before, now - queued);
        (before, busy) = (now, total);
        let open = state.open_connections() as u64;
        period = load.period(open);
        exchange.measured(state.index, load, open, period.max(LATEST));
        if state.places_by_load() {
            exchange.loads(&mut loads);
            state.moves.look(state.index, &loads);
            #[cfg(test)]
            state.moves.send_all(exchange.forced(state.index));
        }
        gauges.busy.set(load.busy.cast_signed());
        gauges.wait.set(load.wait_us.cast_signed());
        if let Some(skew) = &gauges.skew {
            skew.set(exchange.skew().cast_signed());
        }
    }
}
