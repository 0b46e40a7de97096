//! Deadlines without a new timer future per request.
//!
//! A [`Timer`] holds one sleep that stays armed for some moment not later than the deadline asked for. Moving a
//! deadline into the future costs a comparison; when the sleep fires early it is armed again. Timers come from a
//! per-worker pool, because the sleep itself is the expensive part.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// Most timers kept for later.
const KEEP: usize = 1024;

thread_local! {
    static POOL: RefCell<Vec<Pin<Box<Sleep>>>> = const { RefCell::new(Vec::new()) };
}

/// One reusable deadline of one task.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    sleep: Option<Pin<Box<Sleep>>>,
    /// The waker that is with the sleep.
    waker: Option<Waker>,
}

/// A deadline so far away that it never comes; also what "no timeout" means.
pub(crate) fn far_future(now: Instant) -> Instant {
    now + Duration::from_secs(86_400 * 365)
}

impl Timer {
    /// Ready once the deadline has passed. Registers nothing anew while neither the task nor the moment changes.
    pub(crate) fn poll_until(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        loop {
            let sleep = self.sleep.get_or_insert_with(|| match POOL.with_borrow_mut(Vec::pop) {
                Some(sleep) => sleep,
                None => Box::pin(sleep_until(deadline)),
            });
            if sleep.deadline() > deadline {
                sleep.as_mut().reset(deadline);
                self.waker = None;
            }
            if !self.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                self.waker = Some(cx.waker().clone());
                // Unconstrained: a poll refused by the cooperative budget would leave no waker behind.
                let mut sleep = tokio::task::unconstrained(sleep.as_mut());
                if Pin::new(&mut sleep).poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
            if !sleep.is_elapsed() {
                return Poll::Pending;
            }
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
            self.waker = None;
        }
    }

    #[cfg(test)]
    async fn until(&mut self, deadline: Instant) {
        std::future::poll_fn(|cx| self.poll_until(cx, deadline)).await;
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(sleep) = self.sleep.take() {
            // The thread's pool may be gone when the thread ends.
            let _ = POOL.try_with(|pool| {
                let mut pool = pool.borrow_mut();
                if pool.len() < KEEP && !sleep.is_elapsed() {
                    pool.push(sleep);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_moves_both_ways() {
        let start = Instant::now();
        let mut timer = Timer::default();
        let poll = |timer: &mut Timer, at| {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            timer.poll_until(&mut cx, at)
        };
        assert!(poll(&mut timer, start + Duration::from_secs(10)).is_pending());
        assert!(poll(&mut timer, start + Duration::from_secs(100)).is_pending());
        assert!(poll(&mut timer, start + Duration::from_secs(1)).is_pending());
        timer.until(start + Duration::from_secs(5)).await;
        assert_eq!(start.elapsed().as_secs(), 5);
        timer.until(start + Duration::from_secs(7)).await;
        assert_eq!(start.elapsed().as_secs(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pooled_timer_serves_another_deadline() {
        let start = Instant::now();
        {
            let mut timer = Timer::default();
            let mut cx = Context::from_waker(std::task::Waker::noop());
            assert!(timer.poll_until(&mut cx, start + Duration::from_secs(2)).is_pending());
        }
        let mut timer = Timer::default();
        timer.until(start + Duration::from_secs(9)).await;
        assert_eq!(start.elapsed().as_secs(), 9);
    }
}
