//! Bounds the time that texts can cost a database beyond what the portable engine would take.
//!
//! No text is known to be slow before it is scanned, a scan cannot be cut off where nothing is found, and what a database is slow
//! with follows from how the library builds it. So the time above a limit is counted, and a database that has had a hundredth
//! of the time lately is put aside until it is less. Whatever a client sends, that hundredth of one processor is all it can waste
//! with one database, on all workers together. Many databases are bounded one by one.
//!
//! The same holds for scans that ended without an answer, whose time was for nothing.
//!
//! An interrupt makes any scan slow, and on a busy machine there are many. So a slow one is done again, and both count only if the
//! second is slow too.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a scan may take: this, and so much for each byte. 9 us for 4 kB, where the portable engine takes 4 to 8.
const LEAST: Duration = Duration::from_micros(1);
const NANOSECONDS_PER_BYTE: u64 = 2;

/// The part of the time that scans may take above that.
const SHARE: u64 = 100;

/// How much they may take at once, when there was nothing lately: of a hundred times as long, this window.
const WINDOW: Duration = Duration::from_millis(100);

/// When a database may be used. Shared by all workers.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// By [`now`]: when the time that was taken above the limit is a [`SHARE`] of all time.
    even: AtomicU64,
}

/// Nanoseconds since this was asked first.
pub(super) fn now() -> u64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    nanoseconds(BEGUN.get_or_init(Instant::now).elapsed())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The nanoseconds that a scan of so many bytes may take.
fn limit(bytes: usize) -> u64 {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    nanoseconds(LEAST).saturating_add(bytes.saturating_mul(NANOSECONDS_PER_BYTE))
}

impl Pace {
    /// Whether the database is put aside at that time.
    pub(super) fn is_aside(&self, now: u64) -> bool {
        self.even.load(Ordering::Relaxed) > now.saturating_add(nanoseconds(WINDOW))
    }

    /// A scan of so many bytes has begun and ended then. `again` does it again, and returns when it has begun and ended.
    pub(super) fn scanned(&self, (begun, ended): (u64, u64), bytes: usize, again: impl FnOnce() -> (u64, u64)) {
        let limit = limit(bytes);
        let above = ended.saturating_sub(begun).saturating_sub(limit);
        if above > 0 {
            self.count_if_slow_again(above, limit, again);
        }
    }

    /// A scan of so many bytes has begun and ended then, and told nothing.
    #[cold]
    pub(super) fn wasted(&self, (begun, ended): (u64, u64), bytes: usize) {
        // What took longer was interrupted.
        self.count(ended, ended.saturating_sub(begun).min(limit(bytes)));
    }

    #[cold]
    fn count_if_slow_again(&self, above: u64, limit: u64, again: impl FnOnce() -> (u64, u64)) {
        let (begun, ended) = again();
        let took = ended.saturating_sub(begun);
        if took <= limit {
            return;
        }
        // Without what interrupts have taken of one of them. All of the second is time that nobody else would have needed.
        let above = above.min(took - limit).saturating_mul(2).saturating_add(limit);
        self.count(ended, above);
    }

    fn count(&self, now: u64, took: u64) {
        let even = |even: u64| Some(even.max(now).saturating_add(took.saturating_mul(SHARE)));
        // It always says yes.
        let _ = self.even.fetch_update(Ordering::Relaxed, Ordering::Relaxed, even);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scan that takes as long each time.
    fn scan(pace: &Pace, now: &mut u64, took: u64, bytes: usize) {
        let begun = *now;
        *now += took;
        let mut end = *now;
        pace.scanned((begun, *now), bytes, || {
            end += took;
            (end - took, end)
        });
        *now = end;
    }

    #[test]
    fn slow_scans_put_a_database_aside() {
        let pace = Pace::default();
        let mut now = 0;
        (0..1_000_000).for_each(|_| scan(&pace, &mut now, 9_192, 4_096));
        assert!(!pace.is_aside(now), "9 us for 4 kB are none");
        // A millisecond is there at once, and no more; it comes back in a hundred.
        for _ in 0..10 {
            assert!(!pace.is_aside(now));
            scan(&pace, &mut now, 51_000, 0);
        }
        assert!(pace.is_aside(now) && !pace.is_aside(now + 20_000_000));
    }

    /// Texts as slow as one likes, as many as one likes: the time that they take is a hundredth.
    #[test]
    fn slow_texts_take_a_hundredth_of_the_time() {
        for took in [10_000, 700_000, 5_000_000] {
            let pace = Pace::default();
            let (mut now, mut wasted) = (0, 0);
            while now < 10_000_000_000 {
                if pace.is_aside(now) {
                    now += 10_000;
                    continue;
                }
                let begun = now;
                scan(&pace, &mut now, 9_192 + took, 4_096);
                wasted += now - begun - 9_192;
            }
            assert!(wasted <= now / SHARE + 1_000_000 + 2 * took, "{wasted} of {now} ns");
        }
    }

    /// Scans that end without an answer count as well, without the interrupts among them.
    #[test]
    fn scans_for_nothing_put_a_database_aside() {
        let pace = Pace::default();
        for i in 0..800 {
            assert!(i > 600 || !pace.is_aside(i * 1_500));
            pace.wasted((i * 1_500, (i + 1) * 1_500), 4_096);
        }
        assert!(pace.is_aside(800 * 1_500));
        let pace = Pace::default();
        pace.wasted((0, 60_000_000_000), 4_096);
        assert!(!pace.is_aside(60_000_000_000));
    }

    /// A scan that is fast the second time was interrupted, however often that is so.
    #[test]
    fn interrupts_do_not() {
        let pace = Pace::default();
        for i in 0..10_000 {
            let now = i * 1_000_000;
            assert!(!pace.is_aside(now));
            pace.scanned((now, now + 900_000), 60, || (now + 900_000, now + 900_200));
        }
        // Two interrupts in a row are few milliseconds at most.
        pace.scanned((0, 4_000_000), 60, || (4_000_000, 5_000_000));
        assert!(pace.is_aside(5_000_000) && !pace.is_aside(206_000_000));
    }
}
