//! The batches of a worker, and what waits in them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::{Future, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use heddle_simd::{LANES, OperationError};
use heddle_telemetry::Stats;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local, yield_now};
use tokio::time::{Instant, sleep_until};
use zeroize::Zeroizing;

use super::key::{BatchKey, KeyType, LaneError, in_lanes};
use super::stats::{BatchStats, By, Flush};
use crate::place::Place;
use crate::provider::{Expected, KeyError, KeyFuture};

/// How often the worker looks at its sockets before a batch counts as alone: once for connections that wait to be
/// accepted, once for what they have sent already.
const LOOKS: usize = 2;

thread_local! {
    /// None on threads that are no workers.
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

struct Worker {
    queues: [Queue; KeyType::COUNT],
    stats: BatchStats,
}

/// The batch that is being collected for one key type.
#[derive(Default)]
struct Queue {
    /// Fewer than [`LANES`], except for a moment.
    jobs: Vec<Job>,
    /// Number of the batch that `jobs` are.
    batch: u64,
    /// The task that starts it.
    keeper: Option<AbortHandle>,
    /// Tells the keeper that there is something new to look at.
    changed: Rc<Notify>,
    /// Handshakes that may still ask for an operation, numbered as they began.
    expected: BTreeSet<u64>,
    /// Number of the next handshake.
    next: u64,
    /// Handshakes with numbers below this had begun when the batch was opened.
    opened: u64,
}

/// One operation that waits.
struct Job {
    key: Arc<BatchKey>,
    input: Zeroizing<Vec<u8>>,
    place: Place<Outcome>,
    since: Instant,
}

/// What becomes of an operation.
type Outcome = Result<Vec<u8>, KeyError>;

/// What a batch waits for.
enum Next {
    /// Nobody: no other handshake can join.
    Nobody,
    /// Others, until then.
    Others(Instant),
}

impl Job {
    /// When it has waited enough.
    fn until(&self) -> Instant {
        self.since + self.key.poll_delay()
    }
}

impl Queue {
    /// Takes the batch; the next one has another number.
    fn take(&mut self) -> Vec<Job> {
        self.batch += 1;
        self.keeper = None;
        std::mem::take(&mut self.jobs)
    }

    fn next(&self) -> Option<Next> {
        let until = self.jobs.iter().map(Job::until).min()?;
        Some(match self.expected.is_empty() {
            true => Next::Nobody,
            false => Next::Others(until),
        })
    }
}

/// See [`crate::collect_here`].
pub(crate) fn collect_here(stats: &Stats) {
    let worker = Worker {
        queues: Default::default(),
        stats: BatchStats::new(stats),
    };
    WORKER.with_borrow_mut(|slot| *slot = Some(worker));
}

fn with<T>(key_type: KeyType, f: impl FnOnce(&mut Queue, &BatchStats) -> T) -> Option<T> {
    WORKER.with_borrow_mut(|worker| {
        let worker = worker.as_mut()?;
        let queue = &mut worker.queues[key_type.index()];
        Some(f(queue, &worker.stats))
    })
}

/// A handshake has begun.
pub(super) fn expect(key_type: KeyType) -> Option<Expected> {
    with(key_type, |queue, _| {
        let serial = queue.next;
        queue.next += 1;
        queue.expected.insert(serial);
        Expected { key_type, serial }
    })
}

/// A handshake has asked, or will not ask.
pub(crate) fn no_longer_expected(expected: &Expected) {
    with(expected.key_type, |queue, _| {
        if queue.expected.remove(&expected.serial) && queue.expected.is_empty() && !queue.jobs.is_empty() {
            queue.changed.notify_one();
        }
    });
}

/// Adds an operation to the batch of its type, and starts it when that was the last place.
pub(super) fn join(key: &Arc<BatchKey>, key_type: KeyType, input: Vec<u8>) -> KeyFuture {
    let input = Zeroizing::new(input);
    let joined = with(key_type, |queue, _| {
        let place = Place::new();
        queue.jobs.push(Job {
            key: Arc::clone(key),
            input: input.clone(),
            place: place.clone(),
            since: Instant::now(),
        });
        if queue.jobs.len() == LANES {
            if let Some(keeper) = &queue.keeper {
                keeper.abort();
            }
            return (place, Joined::Filled(queue.take()));
        }
        if queue.jobs.len() == 1 {
            queue.opened = queue.next;
            return (place, Joined::Opened(queue.batch));
        }
        // Its delay may be shorter than the others'.
        queue.changed.notify_one();
        (place, Joined::Waits)
    });
    let Some((place, joined)) = joined else {
        return Box::pin(ready(key.in_software(key_type, &input)));
    };
    match joined {
        Joined::Opened(batch) => {
            let keeper = spawn_local(Keeper { key_type, batch }.run()).abort_handle();
            with(key_type, |queue, _| queue.keeper = Some(keeper));
        }
        Joined::Waits => {}
        Joined::Filled(jobs) => run(key_type, &jobs, Flush::Full),
    }
    Box::pin(Waiting { key_type, place })
}

/// What an operation has made of its batch.
enum Joined {
    /// It is the first.
    Opened(u64),
    /// It is one of several.
    Waits,
    /// It took the last place.
    Filled(Vec<Job>),
}

/// Starts a batch when its time has come.
struct Keeper {
    key_type: KeyType,
    batch: u64,
}

impl Keeper {
    async fn run(self) {
        let Some(changed) = self.look(|queue| Rc::clone(&queue.changed)) else {
            return;
        };
        while let Some(Some(next)) = self.look(|queue| queue.next()) {
            match next {
                Next::Others(until) => {
                    tokio::select! {
                        biased;
                        () = changed.notified() => {}
                        () = sleep_until(until) => return self.start(Flush::Delay),
                    }
                }
                Next::Nobody => {
                    for _ in 0..LOOKS {
                        yield_now().await;
                    }
                    if let Some(Some(Next::Nobody)) = self.look(|queue| queue.next()) {
                        return self.start(Flush::Alone);
                    }
                }
            }
        }
    }

    /// Looks at the queue; none when its batch is another one.
    fn look<T>(&self, f: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        with(self.key_type, |queue, _| (queue.batch == self.batch).then(|| f(queue)))?
    }

    fn start(&self, reason: Flush) {
        let jobs = self.look(|queue| {
            if reason == Flush::Delay {
                // They had the whole delay, and did not come.
                queue.expected = queue.expected.split_off(&queue.opened);
            }
            queue.take()
        });
        if let Some(jobs) = jobs {
            run(self.key_type, &jobs, reason);
        }
    }
}

impl Drop for Keeper {
    /// A keeper that goes with its runtime leaves nobody waiting.
    fn drop(&mut self) {
        for job in self.look(Queue::take).into_iter().flatten() {
            job.place
                .settle(Err(KeyError::Failed("the worker has ended".to_owned())));
        }
    }
}

/// Does a batch.
fn run(key_type: KeyType, jobs: &[Job], reason: Flush) {
    let stats = WORKER.with_borrow(|worker| worker.as_ref().map(|worker| worker.stats.clone()));
    let Some(stats) = stats else { return };
    let now = Instant::now();
    stats.flushed(key_type, jobs.len(), reason);
    jobs.iter().for_each(|job| stats.waited(now - job.since));
    let results = if jobs.len() < key_type.pays_from() {
        None
    } else {
        let operations: Vec<_> = jobs.iter().map(|job| (&*job.key, job.input.as_slice())).collect();
        in_lanes(key_type, &operations)
    };
    let Some(results) = results else {
        for job in jobs {
            stats.done(key_type, By::Software);
            job.place.settle(job.key.in_software(key_type, &job.input));
        }
        return;
    };
    for (job, result) in jobs.iter().zip(results) {
        stats.done(key_type, By::Vector);
        job.place.settle(match result {
            Ok(output) => Ok(output),
            Err(LaneError::Input) => Err(KeyError::Failed(OperationError::Input.to_string())),
            Err(LaneError::Mismatch) => {
                stats.mismatched();
                tracing::error!(
                    key = %key_type,
                    "a private operation in vector registers did not pass its check; its result was dropped and software \
                     has done it anew: this processor may be faulty, take the machine out of service if it happens again"
                );
                job.key.in_software(key_type, &job.input)
            }
        });
    }
}

/// A handshake's end of an operation.
struct Waiting {
    key_type: KeyType,
    place: Place<Outcome>,
}

impl Future for Waiting {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.place.poll(cx)
    }
}

impl Drop for Waiting {
    /// The client has gone, or the handshake's time is up: the lane is for somebody else.
    fn drop(&mut self) {
        with(self.key_type, |queue, stats| {
            let Some(place) = queue.jobs.iter().position(|job| job.place.is(&self.place)) else {
                return;
            };
            queue.jobs.remove(place);
            stats.abandoned();
            if queue.jobs.is_empty() {
                if let Some(keeper) = &queue.keeper {
                    keeper.abort();
                }
                queue.take();
            }
        });
    }
}
