//! The system's time without a reading for each request.

use std::cell::Cell;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// A reading that is older is replaced: that somebody has set the system's clock is seen at most so much later.
const READ_AGAIN: Duration = Duration::from_millis(100);

thread_local! {
    /// The last reading, and when that was.
    static READ: Cell<Option<(Instant, SystemTime)>> = const { Cell::new(None) };
}

/// The system's time at `at`, which must be the current moment: what this thread read within the 100 ms before it, and what has
/// passed since.
pub(super) fn system_time(at: Instant) -> SystemTime {
    let read = READ.get();
    let read = read.and_then(|(read_at, time)| Some((at.checked_duration_since(read_at)?, time)));
    match read {
        Some((age, time)) if age < READ_AGAIN => time + age,
        _ => {
            let time = SystemTime::now();
            READ.set(Some((at, time)));
            time
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_again_when_it_is_old() {
        let start = Instant::now();
        let first = system_time(start);
        let planted = first - Duration::from_secs(1000);
        READ.set(Some((start, planted)));
        let age = READ_AGAIN - Duration::from_millis(1);
        assert_eq!(system_time(start + age), planted + age);
        assert!(system_time(start + READ_AGAIN) >= first);
        // A moment before the last reading is not known either.
        READ.set(Some((start + age, planted)));
        assert!(system_time(start) >= first);
    }
}
