//! What the overload manager has a worker do: its actions' states, and the questions that the data path asks of them.
//!
//! The main thread measures and decides; the worker's loop writes the states down here when they change. So a question costs
//! a read of this thread's memory. Without an overload manager nothing is ever written.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use heddle_config::snapshot::{LoadShedPoint, OverloadActionKind, OverloadLimits, ScaledTimer};
use heddle_telemetry::{Counter, Stats};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::h2;

/// How far each action is on, and how much is shed at each point, from 0 to 1. All off to begin with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OverloadStates {
    actions: [f64; OverloadActionKind::ALL.len()],
    points: [f64; LoadShedPoint::ALL.len()],
}

impl OverloadStates {
    /// How far an action is on.
    pub fn get(&self, action: OverloadActionKind) -> f64 {
        self.actions[action as usize]
    }

    /// Switches an action on so far.
    pub fn set(&mut self, action: OverloadActionKind, state: f64) {
        self.actions[action as usize] = state;
    }

    /// Has so much shed at a point.
    pub fn shed(&mut self, point: LoadShedPoint, state: f64) {
        self.points[point as usize] = state;
    }
}

/// Most streams that one worker resets in one look at the pressure, as in Envoy.
const MAX_RESETS: usize = 50;

/// Classes of streams by what they hold, each twice the one before, as in Envoy.
const CLASSES: u32 = 8;

/// How far `reduce_timeouts` moves before all who wait are woken for it, which costs something for each of them while memory is
/// short.
const TIMER_STEP: f64 = 0.05;

/// One worker's view.
#[derive(Debug, Default)]
pub struct Overload {
    limits: OverloadLimits,
    states: [Cell<f64>; OverloadActionKind::ALL.len()],
    points: [Cell<f64>; LoadShedPoint::ALL.len()],
    /// Whether any of what refuses requests is on: one look for each request while nothing is.
    refusing: Cell<bool>,
    /// Told after every change.
    changed: Notify,
    /// The state of `reduce_timeouts` of which whoever waits was told.
    told: Cell<f64>,
    counters: OverloadCounters,
}

/// What a worker counts of it.
#[derive(Clone, Debug, Default)]
pub struct OverloadCounters {
    /// `envoy.overload_actions.reset_high_memory_stream.count`.
    resets: Counter,
    /// `shed_load_count` of each [`LoadShedPoint`].
    shed: [Counter; LoadShedPoint::ALL.len()],
}

impl OverloadCounters {
    /// A worker's counters, in Envoy's names.
    pub fn new(stats: &Stats) -> Self {
        let shed = |point| match point {
            LoadShedPoint::TcpListenerAccept => {
                "envoy_overload_envoy_load_shed_points_tcp_listener_accept_shed_load_count"
            }
            LoadShedPoint::CreatingCodec => {
                "envoy_overload_envoy_load_shed_points_hcm_ondata_creating_codec_shed_load_count"
            }
            LoadShedPoint::DecodeHeaders => {
                "envoy_overload_envoy_load_shed_points_http_connection_manager_decode_headers_shed_load_count"
            }
            LoadShedPoint::Http1AbortDispatch => {
                "envoy_overload_envoy_load_shed_points_http1_server_abort_dispatch_shed_load_count"
            }
            LoadShedPoint::Http2GoAway => {
                "envoy_overload_envoy_load_shed_points_http2_server_go_away_on_dispatch_shed_load_count"
            }
        };
        Self {
            resets: stats.counter("envoy_envoy_overload_actions_reset_high_memory_stream_count", &[]),
            shed: LoadShedPoint::ALL.map(|point| stats.counter(shed(point), &[])),
        }
    }
}

impl Overload {
    /// All actions are off.
    pub fn new(limits: OverloadLimits, counters: OverloadCounters) -> Rc<Self> {
        Rc::new(Self {
            limits,
            counters,
            ..Self::default()
        })
    }

    /// Puts the actions in this state. True when timers run at another speed than whoever waits was told: all must look at their
    /// deadlines again.
    pub fn set(&self, states: OverloadStates) -> bool {
        for (now, next) in self.states.iter().zip(states.actions) {
            now.set(next);
        }
        for (now, next) in self.points.iter().zip(states.points) {
            now.set(next);
        }
        self.refusing.set(
            self.state(OverloadActionKind::StopAcceptingRequests) > 0.0
                || states.points.iter().any(|state| *state > 0.0),
        );
        self.changed.notify_waiters();
        let (told, timers) = (self.told.get(), self.state(OverloadActionKind::ReduceTimeouts));
        let moved = (timers - told).abs() >= TIMER_STEP || (timers != told && [0.0, 1.0].contains(&timers));
        if moved {
            self.told.set(timers);
        }
        moved
    }

    /// Returns at the next change.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// How far an action is on, from 0 to 1.
    #[inline]
    pub fn state(&self, action: OverloadActionKind) -> f64 {
        self.states[action as usize].get()
    }

    /// Whether an action is on in full.
    #[inline]
    pub fn is_saturated(&self, action: OverloadActionKind) -> bool {
        self.state(action) >= 1.0
    }

    /// Whether an action that is on by and by hits this one: `random` is a number from 0 to below 1.
    #[inline]
    pub fn hits(&self, action: OverloadActionKind, random: impl FnOnce() -> f64) -> bool {
        is_hit(self.state(action), random)
    }

    /// Whether a request may have to be refused.
    #[inline]
    pub(crate) fn is_refusing(&self) -> bool {
        self.refusing.get()
    }

    /// Whether this one is shed at a point, which is counted. `random` as for [`Overload::hits`].
    #[inline]
    pub fn sheds(&self, point: LoadShedPoint, random: impl FnOnce() -> f64) -> bool {
        let shed = is_hit(self.points[point as usize].get(), random);
        if shed {
            self.counters.shed[point as usize].inc();
        }
        shed
    }

    /// A timeout as it is now. Zero, which means none, stays so.
    #[inline]
    pub(crate) fn timeout(&self, timer: ScaledTimer, timeout: Duration) -> Duration {
        match self.limits.timers[timer as usize] {
            Some(minimum) if !timeout.is_zero() => {
                let scaled = minimum.apply(timeout, self.state(OverloadActionKind::ReduceTimeouts));
                scaled.max(Duration::from_nanos(1))
            }
            _ => timeout,
        }
    }

    /// Whether `reduce_timeouts` may change a timer.
    pub(crate) fn scales(&self, timer: ScaledTimer) -> bool {
        self.limits.timers[timer as usize].is_some()
    }

    /// Returns when the timeout is over, which may come nearer meanwhile.
    pub async fn elapsed(&self, timer: ScaledTimer, timeout: Duration) {
        let begun = Instant::now();
        loop {
            tokio::select! {
                () = sleep_until(begun + self.timeout(timer, timeout)) => return,
                () = self.changed(), if self.scales(timer) => {}
            }
        }
    }

    /// Resets the HTTP/2 streams of this worker that hold most, as far as `reset_high_memory_stream` is on. As in Envoy,
    /// streams are in classes by what they hold, the more of which are hit the higher the pressure is. Returns how many.
    pub fn reset_streams(&self) -> usize {
        let state = self.state(OverloadActionKind::ResetHighMemoryStream);
        let Some(power) = self.limits.tracked_stream_power.filter(|_| state > 0.0) else {
            return 0;
        };
        let hit = ((state * f64::from(CLASSES)) as u32 + 1).min(CLASSES);
        let least = 1_usize.checked_shl(power + CLASSES - hit).unwrap_or(usize::MAX);
        let reset = h2::reset_largest(least, MAX_RESETS);
        self.counters.resets.add(reset as u64);
        reset
    }
}

#[inline]
fn is_hit(state: f64, random: impl FnOnce() -> f64) -> bool {
    state > 0.0 && (state >= 1.0 || random() < state)
}

#[cfg(test)]
mod tests {
    use heddle_config::snapshot::TimerMinimum;

    use super::*;

    #[test]
    fn a_scaled_action_hits_its_part() {
        let overload = Overload::default();
        let action = OverloadActionKind::StopAcceptingRequests;
        assert!(!overload.hits(action, || unreachable!("off: no dice")));
        let mut states = OverloadStates::default();
        states.set(action, 0.25);
        overload.set(states);
        assert!(overload.hits(action, || 0.24));
        assert!(!overload.hits(action, || 0.25));
        assert!(!overload.is_saturated(action));
        states.set(action, 1.0);
        overload.set(states);
        assert!(overload.hits(action, || unreachable!("on in full: no dice")));
    }

    #[test]
    fn what_is_shed_is_counted() {
        let overload = Overload::new(OverloadLimits::default(), OverloadCounters::default());
        assert!(!overload.is_refusing());
        let point = LoadShedPoint::DecodeHeaders;
        assert!(!overload.sheds(point, || unreachable!("off: no dice")));
        let mut states = OverloadStates::default();
        states.shed(point, 0.5);
        overload.set(states);
        assert!(overload.is_refusing());
        assert!(overload.sheds(point, || 0.4));
        assert!(!overload.sheds(point, || 0.5));
        assert!(!overload.sheds(LoadShedPoint::TcpListenerAccept, || unreachable!("off: no dice")));
        assert_eq!(overload.counters.shed[point as usize].get(), 1);
        overload.set(OverloadStates::default());
        assert!(!overload.is_refusing());
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeout_under_way_becomes_shorter_and_longer() {
        let mut limits = OverloadLimits::default();
        limits.timers[ScaledTimer::TransportSocketConnect as usize] = Some(TimerMinimum::Scale(0.1));
        let overload = Overload::new(limits, OverloadCounters::default());
        let begun = Instant::now();
        let timeout = Duration::from_secs(10);
        let waits = overload.elapsed(ScaledTimer::TransportSocketConnect, timeout);
        let changes = async {
            let mut states = OverloadStates::default();
            tokio::time::sleep(Duration::from_millis(500)).await;
            states.set(OverloadActionKind::ReduceTimeouts, 0.5);
            assert!(overload.set(states));
            tokio::time::sleep(Duration::from_secs(2)).await;
            states.set(OverloadActionKind::ReduceTimeouts, 1.0);
            assert!(overload.set(states));
        };
        tokio::join!(waits, changes);
        assert_eq!(
            begun.elapsed(),
            Duration::from_millis(2500),
            "over as soon as it was shortened"
        );
        // Small steps add up before anybody is woken for them.
        for (state, woken) in [
            (0.98, false),
            (0.96, false),
            (0.94, true),
            (0.92, false),
            (0.0, true),
            (0.02, false),
        ] {
            let mut states = OverloadStates::default();
            states.set(OverloadActionKind::ReduceTimeouts, state);
            assert_eq!(overload.set(states), woken, "{state}");
        }
        // Others stay as they are.
        overload.elapsed(ScaledTimer::HttpDownstreamStreamIdle, timeout).await;
        assert_eq!(begun.elapsed(), Duration::from_millis(12_500));
    }
}
