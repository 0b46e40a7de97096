//! Second looks at sockets whose last read may have left something.
//!
//! Where peers of this machine bypass TCP (`docs/design/0032-tcp-bypass.md`), a socket has two receive queues: a read ends with the first, and
//! the event that told of both is over then. To ask again after each read would cost a system call for most of what comes. So
//! what may be left is asked for once a little later, if nothing else has happened by then.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

/// Time until the second look: what it finds comes so much later, at most.
const LATER: Duration = Duration::from_millis(50);

/// Set once, by [`expect_two_queues`].
static TWO_QUEUES: AtomicBool = AtomicBool::new(false);

thread_local! {
    static LOOKS: Rc<Looks> = Rc::default();
}

/// Of one thread.
#[derive(Default)]
struct Looks {
    /// Whether [`second_looks`] runs here.
    run: Cell<bool>,
    /// How many there have been.
    turn: Cell<u32>,
    /// Who waits for the next one, after each short read: those that have read again since are woken for nothing.
    waiting: RefCell<Vec<Waker>>,
    begun: Notify,
}

/// What the last read of a socket left in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing: the next byte raises an event.
    #[default]
    Nothing,
    /// Maybe more: the read filled its room.
    More,
    /// Maybe the second queue's, to be looked for when that turn is over; and whether somebody waits for it.
    Unsure(u32, bool),
}

/// Has this process read sockets that have two queues to their end: each again after every short read, or, on threads where
/// [`second_looks`] runs, a little later.
pub fn expect_two_queues() {
    TWO_QUEUES.store(true, Ordering::Relaxed);
}

/// Looks once more, on this thread, at what was left by reads. Does nothing, and ends, without [`expect_two_queues`].
pub async fn second_looks() {
    if TWO_QUEUES.load(Ordering::Relaxed) {
        LOOKS.with(|looks| looks.run.set(true));
        look().await;
    }
}

async fn look() {
    let looks = LOOKS.with(Rc::clone);
    loop {
        looks.begun.notified().await;
        sleep(LATER).await;
        looks.turn.set(looks.turn.get().wrapping_add(1));
        for waker in looks.waiting.take() {
            waker.wake();
        }
    }
}

impl Left {
    /// After a read that did not fill its room, and did not follow one that did: none where the next read has to find out.
    pub(crate) fn after_short_read() -> Option<Self> {
        if !TWO_QUEUES.load(Ordering::Relaxed) {
            return Some(Self::Nothing);
        }
        LOOKS.with(|looks| looks.run.get().then(|| Self::Unsure(looks.turn.get(), false)))
    }

    /// Of a socket from which somebody else has read this.
    pub(crate) fn after_another(read: &[u8]) -> Self {
        match read {
            [] => Self::Nothing,
            _ => Self::after_short_read().unwrap_or_default(),
        }
    }

    /// Whether the second look is due.
    pub(crate) fn is_due(self) -> bool {
        matches!(self, Self::Unsure(turn, _) if LOOKS.with(|looks| looks.turn.get() != turn))
    }

    /// Has the task woken for the second look: the first one that waits after a short read, since a socket has one reader at a time.
    /// Called by who waits for an event as well.
    pub(crate) fn wait(left: &Cell<Self>, cx: &Context<'_>) {
        let Self::Unsure(turn, false) = left.get() else { return };
        left.set(Self::Unsure(turn, true));
        LOOKS.with(|looks| {
            let mut waiting = looks.waiting.borrow_mut();
            if waiting.is_empty() {
                looks.begun.notify_one();
            }
            waiting.push(cx.waker().clone());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_woken_once_when_the_look_is_due() {
        // The process of these tests has one queue: what `second_looks` does is begun by hand.
        let looks = LOOKS.with(Rc::clone);
        let local = tokio::task::LocalSet::new();
        let before = tokio::time::Instant::now();
        local
            .run_until(async {
                tokio::task::spawn_local(look());
                let left = Cell::new(Left::Unsure(looks.turn.get(), false));
                poll_fn(|cx| {
                    if left.get().is_due() {
                        return Poll::Ready(());
                    }
                    // As often as it is polled meanwhile.
                    Left::wait(&left, cx);
                    Left::wait(&left, cx);
                    assert_eq!(LOOKS.with(|looks| looks.waiting.borrow().len()), 1);
                    Poll::Pending
                })
                .await;
            })
            .await;
        assert_eq!(before.elapsed(), LATER);
        assert!(looks.waiting.borrow().is_empty());
        let sure = Cell::new(Left::Nothing);
        poll_fn(|cx| {
            Left::wait(&sure, cx);
            Poll::Ready(())
        })
        .await;
        assert!(looks.waiting.borrow().is_empty());
    }
}
