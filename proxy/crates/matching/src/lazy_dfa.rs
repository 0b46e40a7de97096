//! An automaton whose states are worked out when a text first needs them.

use regex_automata::hybrid::dfa::{Cache, Config, DFA};
use regex_automata::nfa::thompson::NFA;
use regex_automata::util::pool::{Pool, PoolGuard};

type NewCache = Box<dyn Fn() -> Cache + Send + Sync + std::panic::UnwindSafe + std::panic::RefUnwindSafe>;

pub(crate) struct LazyDfa {
    pub(crate) dfa: DFA,
    /// The states, for each worker its own where there are no more than eight.
    caches: Pool<Cache, NewCache>,
}

impl LazyDfa {
    /// None where the program has what no such automaton can do.
    pub(crate) fn new(config: Config, program: NFA) -> Option<Self> {
        let dfa = DFA::builder().configure(config).build_from_nfa(program).ok()?;
        let for_caches = dfa.clone();
        let new_cache: NewCache = Box::new(move || for_caches.create_cache());
        Some(Self {
            dfa,
            caches: Pool::new(new_cache),
        })
    }

    /// The states of this worker.
    #[inline]
    pub(crate) fn cache(&self) -> PoolGuard<'_, Cache, NewCache> {
        self.caches.get()
    }
}
