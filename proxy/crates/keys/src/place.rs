//! Where an operation's result is left for the handshake that waits for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// One end leaves a result, the other one takes it.
pub(crate) struct Place<T>(Arc<Mutex<Slot<T>>>);

struct Slot<T> {
    result: Option<T>,
    waker: Option<Waker>,
}

impl<T> Place<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Slot {
            result: None,
            waker: None,
        })))
    }

    /// Leaves the result and wakes who waits.
    pub(crate) fn settle(&self, result: T) {
        let waker = {
            let mut slot = self.slot();
            slot.result = Some(result);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the result, once.
    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<T> {
        let mut slot = self.slot();
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Whether both are ends of one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn slot(&self) -> MutexGuard<'_, Slot<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Place<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
