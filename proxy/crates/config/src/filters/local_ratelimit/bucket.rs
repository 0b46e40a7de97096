//! Token buckets that all workers share.

use std::sync::atomic::{AtomicU64, Ordering};

/// Of a token: what rounding may lose.
const ROUNDING: f64 = 1e-6;

/// `envoy.type.v3.TokenBucket`, filled evenly, as Envoy does: `tokens_per_fill` within `fill_interval`. One number holds
/// its state: the moment at which it would have been empty.
#[derive(Debug)]
pub struct TokenBucket {
    max: f64,
    /// Tokens a second.
    rate: f64,
    /// The bits of a number of seconds; minus infinity is a full one that nobody has used.
    empty_at: AtomicU64,
}

impl TokenBucket {
    /// A full one. `rate` is in tokens a second.
    pub fn new(max: u32, rate: f64) -> Self {
        Self {
            max: f64::from(max),
            rate,
            empty_at: AtomicU64::new(f64::NEG_INFINITY.to_bits()),
        }
    }

    /// A full one of the same size.
    #[must_use]
    pub fn fresh(&self) -> Self {
        Self {
            max: self.max,
            rate: self.rate,
            empty_at: AtomicU64::new(f64::NEG_INFINITY.to_bits()),
        }
    }

    /// Takes a token, when there is one. `now` is in seconds since some moment that is the same for all callers.
    pub fn take(&self, now: f64) -> bool {
        let taken = self.empty_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |empty_at| {
            let tokens = self.tokens(now, empty_at);
            (tokens >= 1.0).then(|| (now - (tokens - 1.0) / self.rate).to_bits())
        });
        taken.is_ok()
    }

    fn tokens(&self, now: f64, empty_at: u64) -> f64 {
        // A clock reading of another worker may be a little ahead.
        let filled = (now - f64::from_bits(empty_at)).max(0.0) * self.rate;
        (filled + ROUNDING).min(self.max)
    }

    fn left(&self, now: f64) -> f64 {
        self.tokens(now, self.empty_at.load(Ordering::Relaxed))
    }

    /// How many it can hold.
    pub fn max(&self) -> u64 {
        self.max as u64
    }

    /// Whole tokens left.
    pub fn remaining(&self, now: f64) -> u64 {
        self.left(now) as u64
    }

    /// Whole seconds until there is a token, rounded up; zero while there is one.
    pub fn reset_seconds(&self, now: f64) -> u64 {
        let missing = 1.0 - self.left(now);
        if missing <= 0.0 {
            return 0;
        }
        (missing / self.rate).ceil() as u64
    }

    /// Tokens a second.
    pub fn rate(&self) -> f64 {
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_full_and_fills_evenly() {
        let bucket = TokenBucket::new(2, 0.5);
        assert_eq!((bucket.max(), bucket.remaining(0.0), bucket.reset_seconds(0.0)), (2, 2, 0));
        assert!(bucket.take(0.0) && bucket.take(0.0) && !bucket.take(0.0));
        assert_eq!((bucket.remaining(0.0), bucket.reset_seconds(0.0)), (0, 2));
        assert!(!bucket.take(1.0));
        assert_eq!(bucket.reset_seconds(1.0), 1);
        assert!(bucket.take(2.0) && !bucket.take(2.0));
        assert_eq!(bucket.remaining(3600.0), 2, "no more than it holds");
        assert_eq!(bucket.fresh().remaining(0.0), 2);
    }

    /// Tokens left are whole, whatever the rate.
    #[test]
    fn no_token_is_lost_to_rounding() {
        for (tokens, interval) in [(3, 600.0), (3, 1000.0), (7, 0.05), (1_000_000, 3600.0), (u32::MAX, 3e8)] {
            let bucket = TokenBucket::new(tokens, f64::from(tokens) / interval);
            for left in (0..tokens.min(100)).rev() {
                assert!(bucket.take(12_345.678_901));
                let over = tokens.saturating_sub(100);
                assert_eq!(bucket.remaining(12_345.678_901), u64::from(over + left), "{tokens} in {interval}");
            }
        }
    }

    /// Each token is taken once, whoever asks.
    #[test]
    fn workers_share_it() {
        let bucket = TokenBucket::new(1000, 1e-9);
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..1000).filter(|_| bucket.take(0.0)).count()))
                .collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).sum()
        });
        assert_eq!(taken, 1000);
    }
}
