//! Work that waits for the event loop to have waited, which a busy worker's does all the time.
//!
//! A timer of a few milliseconds is the next event of its processor: the kernel sets the clock for it whenever the thread waits,
//! which a virtual machine pays dearly. What is due when the thread goes on anyway costs a look at
//! the clock. A worker that never waits has no such turn: who asks for one has a timer besides.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

thread_local! {
    static TURNS: Turns = const { Turns(RefCell::new(None)) };
}

/// Who waits for a turn at or after which moment: one at a time.
struct Turns(RefCell<Option<(Instant, Waker)>>);

impl Turns {
    fn begun(&self, now: impl FnOnce() -> Instant) {
        let due = self.0.borrow_mut().take_if(|(due, _)| *due <= now());
        if let Some((_, waker)) = due {
            waker.wake();
        }
    }

    fn poll(&self, due: Instant, now: Instant, cx: &Context<'_>) -> Poll<()> {
        if due <= now {
            return Poll::Ready(());
        }
        *self.0.borrow_mut() = Some((due, cx.waker().clone()));
        Poll::Pending
    }
}

/// The event loop of this thread has waited and goes on.
pub(crate) fn begun() {
    TURNS.with(|turns| turns.begun(Instant::now));
}

/// Ready when this thread's event loop goes on for the first time at or after `due`. Who asks last is told, and nobody else.
pub(crate) fn turn(due: Instant) -> impl Future<Output = ()> {
    poll_fn(move |cx| TURNS.with(|turns| turns.poll(due, Instant::now(), cx)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_first_turn_that_is_late_enough_wakes_once() {
        let (turns, woken) = (Turns(RefCell::default()), Arc::new(Woken::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let cx = Context::from_waker(&waker);
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let count = || woken.0.load(Ordering::Relaxed);
        turns.begun(|| at(0));
        assert!(turns.poll(at(10), at(1), &cx).is_pending());
        turns.begun(|| at(9));
        assert_eq!(count(), 0);
        turns.begun(|| at(12));
        turns.begun(|| at(13));
        assert_eq!(count(), 1);
        assert!(turns.poll(at(10), at(13), &cx).is_ready());
        turns.begun(|| at(30));
        assert_eq!(count(), 1, "nobody waits");
    }
}
