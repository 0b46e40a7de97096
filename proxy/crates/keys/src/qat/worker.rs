//! A worker's instance of the device, and the task that asks it for answers.

use std::cell::RefCell;
use std::future::{poll_fn, ready};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_qat::{Failure, Instance, Refused};
use heddle_telemetry::Stats;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until, timeout};
use zeroize::Zeroizing;

use super::DeviceKey;
use super::stats::{Fallback, QatStats};
use crate::place::Place;
use crate::provider::{KeyError, KeyFuture};

/// How long an operation waits for its answer at most, besides two `poll_delay`s; then BoringSSL does it.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(1);

thread_local! {
    /// None on threads that are no workers.
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

struct Worker {
    /// None before the first operation.
    instance: Option<&'static Instance>,
    /// None while nothing is under way.
    poller: Option<Poller>,
    stats: QatStats,
}

/// When the instance is asked next.
struct Poller {
    next: Instant,
    /// The shortest `poll_delay` of the operations since the poller began.
    delay: Duration,
    /// Tells the task that `next` has changed.
    changed: Rc<Notify>,
}

/// See [`crate::collect_here`].
pub(crate) fn collect_here(stats: &Stats) {
    let worker = Worker {
        instance: None,
        poller: None,
        stats: QatStats::new(stats),
    };
    WORKER.with_borrow_mut(|slot| *slot = Some(worker));
}

fn with<T>(f: impl FnOnce(&mut Worker) -> T) -> Option<T> {
    WORKER.with_borrow_mut(|worker| worker.as_mut().map(f))
}

/// Hands an operation to the device. Where that is not possible, software does it at once.
pub(super) fn begin(key: &Arc<DeviceKey>, input: Vec<u8>) -> KeyFuture {
    let input = Zeroizing::new(input);
    let Some((instance, stats)) = with(|worker| {
        let instance = *worker.instance.get_or_insert_with(|| key.device.instance());
        (instance, worker.stats.clone())
    }) else {
        return Box::pin(ready(key.software.in_software(&input)));
    };
    let place = Place::new();
    let left = place.clone();
    let answer = Box::new(move |result| left.settle(result));
    if let Err(refused) = instance.begin(&key.numbers, &input, answer) {
        stats.fell_back(match refused {
            Refused::Busy => Fallback::Busy,
            _ => Fallback::Refused,
        });
        tracing::debug!(%refused, "software does a private RSA operation that qat did not take");
        return Box::pin(ready(key.software.in_software(&input)));
    }
    poll_after(instance, key.poll_delay);
    let operation = Operation {
        key: Arc::clone(key),
        input,
        place,
        since: Instant::now(),
        stats,
        answered: false,
    };
    Box::pin(operation.result())
}

/// Has the instance asked for answers after `delay`, and so on until it has given them all.
fn poll_after(instance: &'static Instance, delay: Duration) {
    let next = Instant::now() + delay;
    let changed = with(|worker| match &mut worker.poller {
        Some(poller) => {
            poller.delay = poller.delay.min(delay);
            if next < poller.next {
                poller.next = next;
                poller.changed.notify_one();
            }
            None
        }
        None => {
            let changed = Rc::new(Notify::new());
            worker.poller = Some(Poller {
                next,
                delay,
                changed: Rc::clone(&changed),
            });
            Some(changed)
        }
    });
    if let Some(Some(changed)) = changed {
        spawn_local(poll(instance, changed));
    }
}

/// The task that asks.
async fn poll(instance: &'static Instance, changed: Rc<Notify>) {
    let _polling = Polling;
    while let Some(Some(next)) = with(|worker| worker.poller.as_ref().map(|poller| poller.next)) {
        tokio::select! {
            biased;
            () = changed.notified() => continue,
            () = sleep_until(next) => {}
        }
        let failed = instance.poll().is_err();
        let under_way = instance.in_flight() > 0;
        with(|worker| {
            if failed {
                worker.stats.poll_failed();
            }
            if let Some(poller) = &mut worker.poller {
                poller.next = Instant::now() + poller.delay;
            }
        });
        if !under_way {
            return;
        }
    }
}

/// While it lives, the worker has a task that polls.
struct Polling;

impl Drop for Polling {
    fn drop(&mut self) {
        with(|worker| worker.poller = None);
    }
}

/// One operation that the device has.
struct Operation {
    key: Arc<DeviceKey>,
    input: Zeroizing<Vec<u8>>,
    place: Place<Result<Vec<u8>, Failure>>,
    since: Instant,
    stats: QatStats,
    answered: bool,
}

impl Operation {
    async fn result(mut self) -> Result<Vec<u8>, KeyError> {
        let within = ANSWER_WITHIN + 2 * self.key.poll_delay;
        let answer = timeout(within, poll_fn(|cx| self.place.poll(cx))).await;
        self.answered = true;
        let reason = match answer {
            Ok(Ok(output)) if self.key.software.verifies(&self.input, &output) => {
                self.stats.done(self.since.elapsed());
                return Ok(output);
            }
            Ok(Ok(_)) => {
                tracing::error!(
                    bits = self.key.software.size().bits(),
                    "a private RSA operation of a QuickAssist device did not verify; its result was dropped and software has \
                     done it anew: this device may be faulty, take it out of service if it happens again"
                );
                Fallback::Unverified
            }
            Ok(Err(failure)) => {
                tracing::debug!(%failure, "software does a private RSA operation that qat could not do");
                Fallback::Failed
            }
            Err(_) => Fallback::Late,
        };
        self.stats.fell_back(reason);
        self.key.software.in_software(&self.input)
    }
}

impl Drop for Operation {
    /// The client has gone, or the handshake's time is up. The device keeps the request until it has answered.
    fn drop(&mut self) {
        if !self.answered {
            self.stats.abandoned();
        }
    }
}
