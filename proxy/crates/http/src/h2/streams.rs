//! The streams of a client's connection, run by the connection's task.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt;
use futures_util::task::AtomicWaker;
use slab::Slab;
use tokio::task::coop;

/// Most streams that run in one turn before other tasks of the worker do.
const TURN: u32 = 32;

/// Runs the streams of a connection in the order in which they were woken.
pub(super) struct Streams<S> {
    running: Slab<Running<S>>,
    ready: Arc<Ready>,
}

struct Running<S> {
    run: S,
    wake: Arc<WakeStream>,
    waker: Waker,
}

/// Those that are to run, and how their task is woken for them.
#[derive(Default)]
struct Ready {
    queue: Mutex<VecDeque<usize>>,
    task: AtomicWaker,
    /// The task has its turn, at whose end it looks into the queue.
    in_turn: AtomicBool,
}

impl Ready {
    fn queue(&self) -> MutexGuard<'_, VecDeque<usize>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct WakeStream {
    ready: Arc<Ready>,
    /// Another stream may have it after the end of this one, and runs for nothing when this one is woken late.
    key: usize,
    queued: AtomicBool,
}

impl Wake for WakeStream {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::SeqCst) {
            return;
        }
        self.ready.queue().push_back(self.key);
        if !self.ready.in_turn.load(Ordering::SeqCst) {
            self.ready.task.wake();
        }
    }
}

impl<S: Future<Output = ()> + Unpin> Streams<S> {
    pub(super) fn new() -> Self {
        Self {
            running: Slab::new(),
            ready: Arc::default(),
        }
    }

    /// A stream that is to run.
    pub(super) fn push(&mut self, run: S) {
        let place = self.running.vacant_entry();
        let wake = Arc::new(WakeStream {
            ready: Arc::clone(&self.ready),
            key: place.key(),
            queued: AtomicBool::new(true),
        });
        self.ready.queue().push_back(place.key());
        place.insert(Running {
            run,
            waker: Waker::from(Arc::clone(&wake)),
            wake,
        });
    }

    /// The connection's turn begins: streams that are woken from now on, until [`Streams::run`] ends, wake nobody.
    pub(super) fn begin_turn(&self, cx: &Context<'_>) {
        self.ready.task.register(cx.waker());
        self.ready.in_turn.store(true, Ordering::SeqCst);
    }

    /// Runs those that are new or were woken, a bounded number of them, and has the task run again if any are left.
    pub(super) fn run(&mut self, cx: &Context<'_>) {
        let mut left = TURN;
        // Without budget their sockets would refuse them.
        while left > 0 && coop::has_budget_remaining() {
            let Some(key) = self.ready.queue().pop_front() else {
                break;
            };
            let Some(stream) = self.running.get_mut(key) else {
                continue;
            };
            left -= 1;
            stream.wake.queued.store(false, Ordering::SeqCst);
            if stream
                .run
                .poll_unpin(&mut Context::from_waker(&stream.waker))
                .is_ready()
            {
                self.running.remove(key);
            }
        }
        self.ready.in_turn.store(false, Ordering::SeqCst);
        // After that: what is queued later wakes the task.
        if !self.ready.queue().is_empty() {
            cx.waker().wake_by_ref();
        }
    }

    /// Runs them all to their end.
    pub(super) async fn finish(&mut self) {
        poll_fn(|cx| {
            self.begin_turn(cx);
            self.run(cx);
            match self.running.is_empty() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// Ends a stream that panics, and calls `panicked`: the others of its connection go on. State that they share is in cells that
/// hold whole values at every await.
pub(super) fn guarded(
    run: impl Future<Output = ()> + Unpin,
    panicked: impl FnOnce(),
) -> impl Future<Output = ()> + Unpin {
    AssertUnwindSafe(run).catch_unwind().map(|outcome| {
        if outcome.is_err() {
            panicked();
        }
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// A connection's task that notes whether it was woken.
    #[derive(Default)]
    struct Task(AtomicBool);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// One turn. True when the task is to run again.
    fn turn<S: Future<Output = ()> + Unpin>(streams: &mut Streams<S>, task: &Arc<Task>) -> bool {
        task.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(task));
        let cx = Context::from_waker(&waker);
        streams.begin_turn(&cx);
        streams.run(&cx);
        task.0.load(Ordering::SeqCst)
    }

    #[test]
    fn a_turn_is_bounded_and_goes_round() {
        let polls: Vec<_> = (0..100).map(|_| Cell::new(0_u32)).collect();
        let mut streams = Streams::new();
        for mine in &polls {
            streams.push(poll_fn(move |cx: &mut Context<'_>| {
                mine.set(mine.get() + 1);
                cx.waker().wake_by_ref();
                if mine.get() < 10 {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            }));
        }
        let task = Arc::default();
        let sum = || polls.iter().map(Cell::get).sum::<u32>();
        let mut turns = 0;
        loop {
            let before = sum();
            let again = turn(&mut streams, &task);
            turns += 1;
            assert!(sum() - before <= TURN);
            let (least, most) = (polls.iter().min(), polls.iter().max());
            assert!(
                most.map(Cell::get) <= least.map(|polls| polls.get() + 1),
                "nobody runs twice before another"
            );
            if !again {
                break;
            }
        }
        assert_eq!(sum(), 1000);
        assert_eq!(turns, 1000_u32.div_ceil(TURN));
        assert!(streams.running.is_empty());
    }

    #[test]
    fn wakes_of_the_turn_need_no_other() {
        let waker = Cell::new(None::<Waker>);
        let polls = Cell::new(0);
        let mut streams = Streams::new();
        streams.push(poll_fn(|cx: &mut Context<'_>| {
            polls.set(polls.get() + 1);
            waker.set(Some(cx.waker().clone()));
            Poll::Pending
        }));
        let task = Arc::default();
        assert!(
            !turn(&mut streams, &task),
            "it waits, and the only one of a connection does not run for nothing"
        );
        // Frames of this turn wake it, and it runs in it.
        let own = Waker::from(Arc::clone(&task));
        let cx = Context::from_waker(&own);
        streams.begin_turn(&cx);
        waker.take().expect("kept").wake();
        streams.run(&cx);
        assert_eq!(polls.get(), 2);
        assert!(!task.0.load(Ordering::SeqCst));
        // At any other time the task is woken for it, from other threads too.
        let outside = waker.take().expect("kept");
        std::thread::spawn(move || outside.wake()).join().expect("no panic");
        assert!(task.0.load(Ordering::SeqCst));
        assert!(!turn(&mut streams, &task));
        assert_eq!(polls.get(), 3);
    }

    #[tokio::test]
    async fn a_turn_without_budget_loses_nobody() {
        let done = Cell::new(0);
        let mut streams = Streams::new();
        for _ in 0..200 {
            streams.push(Box::pin(async {
                // As a socket would use it up.
                for _ in 0..20 {
                    coop::consume_budget().await;
                }
                done.set(done.get() + 1);
            }));
        }
        streams.finish().await;
        assert_eq!(done.get(), 200);
        assert!(streams.running.is_empty());
    }
}
