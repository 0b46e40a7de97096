//! Key sets that are fetched (`RemoteJwks`), one of each on a worker, whichever filters ask for it.
//!
//! One request's need has them fetched, and the others wait for the same fetch. The fetch is a task of its own, so that it
//! outlives the request, and is bounded by the service's timeout and retries. Keys are good for `cache_duration`. With
//! `async_fetch` a task fetches them ahead, for as long as a filter holds the set, and they stay good until there are
//! others. A failure is not remembered: the next request that needs keys has them fetched again, never two at a time.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use heddle_config::filters::jwt_authn::RemoteJwks;
use heddle_jwt::{JwtError, KeySet, MAX_JWKS};
use heddle_telemetry::Counter;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::callout::{self, Callout};
use crate::head::{RequestHead, Scheme};
use crate::worker::HttpWorker;

/// Most requests of a worker that wait for a set. Those above it are refused as if the fetch had failed.
const MAX_WAITING: usize = 1024;

/// Who asks, in Envoy's words.
const USER_AGENT: &[u8] = b"Go-browser";

/// How long before their end keys are fetched ahead, as in Envoy.
const AHEAD: Duration = Duration::from_secs(5);

/// The sets that filters of this worker hold.
pub(crate) struct RemoteKeySets {
    worker: Weak<HttpWorker>,
    sets: RefCell<Vec<Weak<RemoteKeys>>>,
}

/// Counters of the filter that asks.
#[derive(Clone)]
pub(crate) struct Fetches {
    pub(crate) succeeded: Counter,
    pub(crate) failed: Counter,
    /// Requests that were too many to wait.
    pub(crate) overflow: Counter,
}

impl RemoteKeySets {
    /// None yet. They are fetched by this worker.
    pub(crate) fn new(worker: Weak<HttpWorker>) -> Self {
        Self {
            worker,
            sets: RefCell::default(),
        }
    }

    /// The set of this configuration, for as long as somebody holds it. A new version of a listener that says the same
    /// finds the keys of the one before.
    pub(crate) fn hold(&self, source: &Arc<RemoteJwks>, fetches: &Fetches) -> Rc<RemoteKeys> {
        let mut sets = self.sets.borrow_mut();
        sets.retain(|set| set.strong_count() > 0);
        let held = sets.iter().filter_map(Weak::upgrade).find(|set| set.source == *source);
        if let Some(held) = held {
            return held;
        }
        let set = Rc::new(RemoteKeys {
            source: Arc::clone(source),
            worker: Weak::clone(&self.worker),
            state: RefCell::default(),
            ended: Notify::new(),
        });
        sets.push(Rc::downgrade(&set));
        if let Some(after_failure) = source.refetch {
            let ahead = fetch_ahead(Rc::downgrade(&set), Arc::clone(source), after_failure, fetches.clone());
            set.state.borrow_mut().ahead = Some(tokio::task::spawn_local(ahead).abort_handle());
        }
        set
    }
}

/// Fetches a set for as long as somebody holds it.
async fn fetch_ahead(set: Weak<RemoteKeys>, source: Arc<RemoteJwks>, after_failure: Duration, fetches: Fetches) {
    let after_success = match source.cache_duration.checked_sub(AHEAD) {
        Some(pause) if !pause.is_zero() => pause,
        _ => source.cache_duration,
    };
    loop {
        let Some(held) = set.upgrade() else { return };
        let pause = match held.fetched(&fetches).await {
            Ok(_) => after_success,
            Err(_) => after_failure,
        };
        drop(held);
        tokio::time::sleep(pause).await;
    }
}

/// A key set that is fetched.
pub(crate) struct RemoteKeys {
    source: Arc<RemoteJwks>,
    worker: Weak<HttpWorker>,
    state: RefCell<State>,
    /// Woken when a fetch ends.
    ended: Notify,
}

#[derive(Default)]
struct State {
    keys: Option<Arc<KeySet>>,
    /// Until when they are good; none for ever.
    until: Option<Instant>,
    fetching: bool,
    /// How the last fetch ended.
    failed: bool,
    waiting: usize,
    /// What fetches ahead.
    ahead: Option<AbortHandle>,
}

impl Drop for RemoteKeys {
    fn drop(&mut self) {
        if let Some(ahead) = self.state.get_mut().ahead.take() {
            ahead.abort();
        }
    }
}

impl RemoteKeys {
    /// The keys, if there are some that are good.
    pub(crate) fn good(&self) -> Option<Arc<KeySet>> {
        let state = self.state.borrow();
        let good = state.until.is_none_or(|until| Instant::now() < until);
        state.keys.clone().filter(|_| good)
    }

    /// The keys, which are fetched when there are none that are good.
    ///
    /// # Errors
    /// They cannot be fetched, or too many wait for them.
    pub(crate) async fn get(self: &Rc<Self>, fetches: &Fetches) -> Result<Arc<KeySet>, JwtError> {
        match self.good() {
            Some(keys) => Ok(keys),
            None => self.fetched(fetches).await,
        }
    }

    /// The keys that the fetch under way, or a new one, brings.
    async fn fetched(self: &Rc<Self>, fetches: &Fetches) -> Result<Arc<KeySet>, JwtError> {
        let Some(_waiting) = Waiting::enter(self) else {
            fetches.overflow.inc();
            return Err(JwtError::JwksFetch);
        };
        // Before the fetch begins, so that its end is not missed.
        let ended = self.ended.notified();
        self.begin(fetches)?;
        ended.await;
        let state = self.state.borrow();
        // Those who waited for keys may use them, however short their time.
        let brought = state.keys.clone().filter(|_| !state.failed);
        brought.ok_or(JwtError::JwksFetch)
    }

    /// Begins a fetch unless one is under way.
    fn begin(self: &Rc<Self>, fetches: &Fetches) -> Result<(), JwtError> {
        let worker = self.worker.upgrade().ok_or(JwtError::JwksFetch)?;
        let mut state = self.state.borrow_mut();
        if std::mem::replace(&mut state.fetching, true) {
            return Ok(());
        }
        let fetch = Fetch {
            set: Rc::clone(self),
            fetches: fetches.clone(),
            result: Err(JwtError::JwksFetch),
        };
        tokio::task::spawn_local(fetch.run(worker));
        Ok(())
    }

    async fn fetch(&self, worker: &Rc<HttpWorker>) -> Result<KeySet, JwtError> {
        let service = &self.source.service;
        let mut request = RequestHead::default();
        request.set_method("GET");
        request.set_target(&service.path);
        request.set_host(&service.host);
        // As in Envoy: some servers refuse who does not say who they are.
        request.fields.push(b"user-agent", USER_AGENT);
        request.scheme = if service.https { Scheme::Https } else { Scheme::Http };
        let callout = Callout {
            cluster: Arc::clone(&service.cluster),
            request,
            body: bytes::Bytes::new(),
            timeout: service.timeout,
            limit: MAX_JWKS,
            retry: service.retry.clone(),
        };
        match callout::send(worker, callout).await {
            Ok(answer) if answer.head.status == 200 => KeySet::parse(&answer.body),
            // A redirect is not followed: keys come from where the configuration says.
            Ok(_) | Err(_) => Err(JwtError::JwksFetch),
        }
    }

    /// A fetch has ended. What was fetched ahead stays while no others come.
    fn end(&self, fetched: Result<KeySet, JwtError>) {
        let mut state = self.state.borrow_mut();
        state.fetching = false;
        state.failed = fetched.is_err();
        match fetched {
            Ok(keys) => {
                state.keys = Some(Arc::new(keys));
                state.until = match self.source.refetch {
                    Some(_) => None,
                    None => Some(Instant::now() + self.source.cache_duration),
                };
            }
            Err(_) if self.source.refetch.is_some() => {}
            Err(_) => state.keys = None,
        }
        drop(state);
        self.ended.notify_waiters();
    }
}

/// One who waits for a fetch.
struct Waiting<'s>(&'s RemoteKeys);

impl<'s> Waiting<'s> {
    /// None when too many do.
    fn enter(set: &'s RemoteKeys) -> Option<Self> {
        let mut state = set.state.borrow_mut();
        if state.waiting >= MAX_WAITING {
            return None;
        }
        state.waiting += 1;
        Some(Self(set))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.borrow_mut().waiting -= 1;
    }
}

/// A fetch under way. However it ends, those who wait are told.
struct Fetch {
    set: Rc<RemoteKeys>,
    fetches: Fetches,
    result: Result<KeySet, JwtError>,
}

impl Fetch {
    async fn run(mut self, worker: Rc<HttpWorker>) {
        self.result = self.set.fetch(&worker).await;
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        let result = std::mem::replace(&mut self.result, Err(JwtError::JwksFetch));
        match result {
            Ok(_) => self.fetches.succeeded.inc(),
            Err(_) => self.fetches.failed.inc(),
        }
        self.set.end(result);
    }
}

#[cfg(test)]
mod tests {
    use heddle_config::snapshot::HttpTarget;

    use super::*;

    #[test]
    fn those_who_wait_are_bounded() {
        let source = RemoteJwks {
            service: HttpTarget {
                cluster: "keys".into(),
                host: "keys.example".into(),
                path: "/".into(),
                https: true,
                timeout: Duration::from_secs(1),
                retry: None,
            },
            cache_duration: Duration::from_secs(1),
            refetch: None,
        };
        let fetches = Fetches {
            succeeded: Counter::default(),
            failed: Counter::default(),
            overflow: Counter::default(),
        };
        let sets = RemoteKeySets::new(Weak::new());
        let source = Arc::new(source);
        let set = sets.hold(&source, &fetches);
        assert!(Rc::ptr_eq(&set, &sets.hold(&source, &fetches)));
        let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| Waiting::enter(&set)).collect();
        assert!(waiting.iter().all(Option::is_some));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let refused = runtime.block_on(set.get(&fetches));
        assert_eq!(refused.err(), Some(JwtError::JwksFetch));
        assert_eq!((fetches.overflow.get(), fetches.failed.get()), (1, 0));
        waiting.pop();
        assert!(Waiting::enter(&set).is_some());
    }
}
