//! A provider for tests: completes when told to, fails when told to, counts what it was asked.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use boring::pkey::{PKey, Private};

use crate::provider::{KeyError, KeyFuture, PrivateKeyProvider, SignatureAlgorithm};
use crate::software::SoftwareProvider;

#[derive(Default)]
struct Slot {
    released: Option<Result<(), KeyError>>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<Mutex<Slot>>>,
    started: usize,
    immediate: bool,
}

/// The test's hand on a [`FakeProvider`].
#[derive(Clone, Default)]
pub struct FakeControl(Arc<Mutex<State>>);

impl FakeControl {
    /// Operations asked for so far.
    pub fn started(&self) -> usize {
        lock(&self.0).started
    }

    /// Operations that wait to be released.
    pub fn waiting(&self) -> usize {
        lock(&self.0).waiting.len()
    }

    /// Lets the oldest waiting operation complete. Returns whether there was one.
    pub fn release(&self) -> bool {
        self.settle(Ok(()))
    }

    /// Makes the oldest waiting operation fail. Returns whether there was one.
    pub fn fail(&self, error: KeyError) -> bool {
        self.settle(Err(error))
    }

    /// From now on operations complete at once, at their first poll.
    pub fn complete_at_once(&self) {
        lock(&self.0).immediate = true;
    }

    fn settle(&self, outcome: Result<(), KeyError>) -> bool {
        let Some(slot) = lock(&self.0).waiting.pop_front() else {
            return false;
        };
        let waker = {
            let mut slot = lock(&slot);
            slot.released = Some(outcome);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

/// Signs with a software key, but only after [`FakeControl::release`].
pub struct FakeProvider {
    inner: SoftwareProvider,
    control: FakeControl,
}

impl FakeProvider {
    /// A provider around a key, and the handle that controls it.
    pub fn new(inner: SoftwareProvider) -> (Self, FakeControl) {
        let control = FakeControl::default();
        (
            Self {
                inner,
                control: control.clone(),
            },
            control,
        )
    }

    fn start(&self, result: Result<Vec<u8>, KeyError>) -> KeyFuture {
        let mut state = lock(&self.control.0);
        state.started += 1;
        let slot = Arc::new(Mutex::new(Slot::default()));
        if state.immediate {
            lock(&slot).released = Some(Ok(()));
        } else {
            state.waiting.push_back(Arc::clone(&slot));
        }
        Box::pin(Waiting {
            slot,
            result: Some(result),
        })
    }
}

impl PrivateKeyProvider for FakeProvider {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn sign(&self, algorithm: SignatureAlgorithm, input: &[u8]) -> KeyFuture {
        self.start(self.inner.sign_now(algorithm, input))
    }

    fn decrypt(&self, ciphertext: &[u8]) -> KeyFuture {
        self.start(self.inner.decrypt_now(ciphertext))
    }

    fn key(&self) -> &PKey<Private> {
        self.inner.key()
    }
}

struct Waiting {
    slot: Arc<Mutex<Slot>>,
    result: Option<Result<Vec<u8>, KeyError>>,
}

impl Future for Waiting {
    type Output = Result<Vec<u8>, KeyError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = {
            let mut slot = lock(&self.slot);
            match slot.released.clone() {
                None => {
                    slot.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Some(outcome) => outcome,
            }
        };
        let result = self
            .result
            .take()
            .unwrap_or_else(|| Err(KeyError::Failed("polled after completion".to_owned())));
        Poll::Ready(outcome.and(result))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
