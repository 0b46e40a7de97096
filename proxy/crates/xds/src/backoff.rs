//! When to try again.

use std::time::Duration;

/// Exponential with full jitter, as Envoy's: the n-th wait is random between zero and `base * 2^n`, at most `cap`. Many
/// proxies that lose their controller at once come back spread out.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    next: Duration,
}

impl Backoff {
    /// Shortest wait, so that a server that refuses at once is not asked in a tight loop.
    pub const FLOOR: Duration = Duration::from_millis(20);

    /// A sequence that begins at `base`.
    pub fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap, next: base }
    }

    /// The next wait. `random` is uniform in 0..1.
    pub fn wait(&mut self, random: f64) -> Duration {
        let bound = self.next;
        self.next = self.next.saturating_mul(2).min(self.cap);
        bound.mul_f64(random.clamp(0.0, 1.0)).max(Self::FLOOR)
    }

    /// Begins again, after something worked.
    pub fn reset(&mut self) {
        self.next = self.base;
    }
}

impl Default for Backoff {
    /// Envoy's: 500 ms, at most 30 s.
    fn default() -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs(30))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_cap_and_begins_again() {
        let mut backoff = Backoff::default();
        let seconds: Vec<f64> = (0..8).map(|_| backoff.wait(1.0).as_secs_f64()).collect();
        assert_eq!(seconds, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]);
        backoff.reset();
        assert_eq!(backoff.wait(0.5), Duration::from_millis(250));
    }

    #[test]
    fn never_waits_less_than_the_floor() {
        assert_eq!(Backoff::default().wait(0.0), Backoff::FLOOR);
    }
}
