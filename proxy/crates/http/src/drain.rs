//! The signal that a listener (or the whole proxy) is going away and its connections should finish.
//!
//! Two stages. After [`DrainTrigger::start`], HTTP/1.1 answers carry `connection: close`, HTTP/2 connections send
//! GOAWAY, and a connection without a request waits at most the connection manager's `drain_timeout` for one last
//! request. After [`DrainTrigger::close_now`] every connection is closed as soon as its task runs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

/// How far a drain has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DrainStage {
    /// Business as usual.
    #[default]
    Serving,
    /// Finish: announce the end to peers, take no new connection-long work.
    Draining,
    /// Close at once.
    Closing,
}

#[derive(Debug, Default)]
struct Inner {
    stage: Cell<DrainStage>,
    wakers: RefCell<Slab<Waker>>,
}

/// The triggering side. Dropping it changes nothing.
#[derive(Clone, Debug, Default)]
pub struct DrainTrigger(Rc<Inner>);

/// The listening side; one per connection. Cloning makes an independent listener of the same signal.
#[derive(Debug, Default)]
pub struct Drain {
    inner: Rc<Inner>,
    slot: Cell<Option<usize>>,
}

impl DrainTrigger {
    /// A signal that nobody has triggered.
    pub fn new() -> Self {
        Self::default()
    }

    /// A listener of this signal.
    pub fn listener(&self) -> Drain {
        Drain {
            inner: Rc::clone(&self.0),
            slot: Cell::new(None),
        }
    }

    /// Begins the graceful stage.
    pub fn start(&self) {
        self.advance(DrainStage::Draining);
    }

    /// Ends the graceful stage: connections close.
    pub fn close_now(&self) {
        self.advance(DrainStage::Closing);
    }

    /// The stage reached.
    pub fn stage(&self) -> DrainStage {
        self.0.stage.get()
    }

    /// Has every listener run again, to look at what else may have changed.
    pub fn wake(&self) {
        for (_, waker) in self.0.wakers.borrow().iter() {
            waker.wake_by_ref();
        }
    }

    /// Listeners that wait on this signal, which are the connections still open.
    pub fn listeners(&self) -> usize {
        self.0.wakers.borrow().len()
    }

    fn advance(&self, stage: DrainStage) {
        if stage <= self.0.stage.get() {
            return;
        }
        self.0.stage.set(stage);
        self.wake();
    }
}

impl Drain {
    /// The stage reached; a plain memory read.
    #[inline]
    pub fn stage(&self) -> DrainStage {
        self.inner.stage.get()
    }

    /// Whether a drain has begun.
    #[inline]
    pub fn is_draining(&self) -> bool {
        self.stage() >= DrainStage::Draining
    }

    /// Leaves the task's waker behind, so that it runs again at every change of stage. Cheap when called again from
    /// the same task.
    pub fn register(&self, cx: &Context<'_>) {
        let mut wakers = self.inner.wakers.borrow_mut();
        match self.slot.get() {
            Some(slot) => {
                if let Some(waker) = wakers.get_mut(slot)
                    && !waker.will_wake(cx.waker())
                {
                    waker.clone_from(cx.waker());
                }
            }
            None => self.slot.set(Some(wakers.insert(cx.waker().clone()))),
        }
    }

    /// Ready once at least `stage` is reached.
    pub fn poll_stage(&self, cx: &Context<'_>, stage: DrainStage) -> Poll<()> {
        if self.stage() >= stage {
            return Poll::Ready(());
        }
        self.register(cx);
        Poll::Pending
    }
}

impl Clone for Drain {
    fn clone(&self) -> Self {
        Self {
            inner: Rc::clone(&self.inner),
            slot: Cell::new(None),
        }
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.inner.wakers.borrow_mut().try_remove(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_only_advance_and_wake() {
        let trigger = DrainTrigger::new();
        let drain = trigger.listener();
        let cx = Context::from_waker(Waker::noop());
        assert!(drain.poll_stage(&cx, DrainStage::Draining).is_pending());
        assert_eq!(trigger.listeners(), 1);
        trigger.start();
        assert!(drain.poll_stage(&cx, DrainStage::Draining).is_ready());
        assert!(drain.poll_stage(&cx, DrainStage::Closing).is_pending());
        trigger.close_now();
        trigger.start();
        assert_eq!(drain.stage(), DrainStage::Closing);
        drop(drain);
        assert_eq!(trigger.listeners(), 0);
    }
}
