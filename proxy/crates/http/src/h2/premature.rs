//! Streams that a client resets before they were answered: a reset flood (CVE-2023-44487) looks like this.
//!
//! The rule is Envoy's (`ConnectionManagerImpl::maybeDrainDueToPrematureResets`). Each stream that ends is counted, and
//! as premature when it ended young and unanswered. With `total_streams` streams behind it, a connection has had enough
//! when half of them were premature; before that, as soon as so many were that no run of good ones could make it less
//! than half. With the default of 500 that is the 250th. Envoy closes the connection then; here it is drained
//! (docs/design/0006).

use std::time::Duration;

use heddle_config::snapshot::PrematureResetLimits;

/// The streams that have ended on one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrematureResets {
    limits: PrematureResetLimits,
    ended: u64,
    premature: u64,
}

impl PrematureResets {
    /// A connection without streams yet.
    pub(crate) fn new(limits: PrematureResetLimits) -> Self {
        Self {
            limits,
            ended: 0,
            premature: 0,
        }
    }

    /// Counts a stream that has ended. `reset_by_peer` says that the peer reset it before a response head was sent. True when
    /// too many were: the connection should take no more streams, and let those open finish.
    #[must_use]
    pub(crate) fn stream_ended(&mut self, lifetime: Duration, reset_by_peer: bool) -> bool {
        self.ended = self.ended.saturating_add(1);
        // Whole seconds, as Envoy counts them: with a bound of one second, a stream is young for two.
        if reset_by_peer && lifetime.as_secs() <= self.limits.min_stream_lifetime.as_secs() {
            self.premature = self.premature.saturating_add(1);
        }
        let out_of = self.ended.max(self.limits.total_streams);
        self.premature > 0 && self.premature >= out_of.div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YOUNG: Duration = Duration::from_millis(1999);
    const OLD: Duration = Duration::from_secs(2);

    /// The number of the stream after which the connection is drained, out of the first `most`.
    fn drained_after(total_streams: u64, most: u64, mut stream: impl FnMut(u64) -> (Duration, bool)) -> Option<u64> {
        let mut resets = PrematureResets::new(PrematureResetLimits {
            total_streams,
            ..PrematureResetLimits::default()
        });
        (1..=most).find(|n| {
            let (lifetime, reset) = stream(*n);
            resets.stream_ended(lifetime, reset)
        })
    }

    #[test]
    fn half_of_the_total_is_too_many_however_early() {
        assert_eq!(drained_after(500, 1000, |_| (YOUNG, true)), Some(250));
        assert_eq!(drained_after(501, 1000, |_| (YOUNG, true)), Some(251));
        assert_eq!(drained_after(100, 1000, |n| (YOUNG, n > 40)), Some(90));
    }

    #[test]
    fn later_the_share_of_all_streams_counts() {
        // 400 good ones first: the 250th of 650 is no half any more; the 400th of 800 is.
        assert_eq!(drained_after(500, 2000, |n| (YOUNG, n > 400)), Some(800));
        // Every other one: half of them from the start on, and drained when the total is reached.
        assert_eq!(drained_after(500, 2000, |n| (YOUNG, n % 2 == 1)), Some(499));
        assert_eq!(drained_after(500, 2000, |n| (YOUNG, n % 2 == 0)), Some(500));
        assert_eq!(drained_after(500, 20_000, |n| (YOUNG, n % 3 == 0)), None);
    }

    #[test]
    fn old_or_answered_streams_are_not_premature() {
        assert_eq!(drained_after(500, 20_000, |_| (OLD, true)), None);
        assert_eq!(drained_after(500, 20_000, |_| (YOUNG, false)), None);
        assert_eq!(drained_after(1, 20_000, |_| (YOUNG, false)), None);
        assert_eq!(drained_after(1, 20_000, |_| (YOUNG, true)), Some(1));
    }

    /// Envoy's form of the rule, as an oracle: twice the premature ones against the total, or against those ended.
    #[test]
    fn the_rule_is_envoys() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..200 {
            let total = random.u64(1..600);
            let share = random.f64();
            let (mut ended, mut premature, mut expected) = (0_u64, 0_u64, None);
            let streams: Vec<bool> = (0..1500).map(|_| random.f64() < share).collect();
            for reset in &streams {
                ended += 1;
                premature += u64::from(*reset);
                let too_many = if ended < total {
                    premature * 2 >= total
                } else {
                    premature * 2 >= ended
                };
                if too_many {
                    expected = Some(ended);
                    break;
                }
            }
            let mut streams = streams.iter();
            let got = drained_after(total, 1500, |_| (YOUNG, *streams.next().expect("as many")));
            assert_eq!(got, expected, "of {total}");
        }
    }
}
