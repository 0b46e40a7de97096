//! `connection_keepalive`: PING frames (RFC 9113 §6.7) that tell whether the peer is still there.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use heddle_config::snapshot::H2Keepalive;
use tokio::time::Instant;

use super::connection::Connection;
use crate::timer::Timer;

/// The pings of one connection. Poll it after the connection itself, in the same task: that sends what it has to say.
pub(crate) struct KeepAlive {
    settings: H2Keepalive,
    timer: Timer,
    state: State,
}

enum State {
    /// The next ping is due then.
    Resting(Instant),
    /// An answer, or anything else, must come before that. `received` counts what had come when that was decided.
    Waiting { until: Instant, received: u64 },
}

impl KeepAlive {
    /// The first ping goes out an interval from now.
    pub(crate) fn new(settings: H2Keepalive) -> Self {
        Self::due(settings, Instant::now() + pause(settings))
    }

    /// The first ping goes out then.
    pub(super) fn due(settings: H2Keepalive, due: Instant) -> Self {
        Self {
            settings,
            timer: Timer::default(),
            state: State::Resting(due),
        }
    }

    /// When the next ping goes out; none while an answer is waited for.
    pub(super) fn next(&self) -> Option<Instant> {
        match self.state {
            State::Resting(due) => Some(due),
            State::Waiting { .. } => None,
        }
    }

    /// Ready when the peer is to be taken for dead.
    pub(crate) fn poll_dead(&mut self, cx: &mut Context<'_>, connection: &Connection) -> Poll<()> {
        let received = connection.received();
        loop {
            match self.state {
                State::Resting(due) => {
                    ready!(self.timer.poll_until(cx, due));
                    connection.ping();
                    self.state = State::Waiting {
                        until: Instant::now() + self.settings.timeout,
                        received,
                    };
                }
                State::Waiting {
                    until,
                    received: before,
                } => {
                    if connection.is_answered() {
                        self.state = State::Resting(Instant::now() + pause(self.settings));
                        continue;
                    }
                    ready!(self.timer.poll_until(cx, until));
                    if received == before {
                        return Poll::Ready(());
                    }
                    // As Envoy: an answer may wait behind data, and data is a sign of life as well.
                    self.state = State::Waiting {
                        until: Instant::now() + self.settings.timeout,
                        received,
                    };
                }
            }
        }
    }
}

/// The interval with its jitter.
fn pause(settings: H2Keepalive) -> Duration {
    settings
        .interval
        .mul_f64(1.0 + settings.jitter / 100.0 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_bounded() {
        let settings = H2Keepalive {
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            jitter: 15.0,
        };
        for _ in 0..100 {
            let pause = pause(settings).as_secs_f64();
            assert!((10.0..11.5).contains(&pause), "{pause}");
        }
        let steady = H2Keepalive {
            jitter: 0.0,
            ..settings
        };
        assert_eq!(pause(steady), Duration::from_secs(10));
    }
}
