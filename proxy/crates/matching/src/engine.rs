//! Which engine finds the expressions of sets (`default_regex_engine`).

use std::cell::Cell;
use std::time::{Duration, Instant};

use heddle_hyperscan::{Hyperscan, Unavailable};

/// Who finds the expressions that look at the same input. What they match does not depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub enum RegexEngine {
    /// The engines in Rust: [`crate::set`]'s `ends`, `literals` and `lazy`, over `regex-automata` and `aho-corasick`.
    #[default]
    Portable,
    /// Hyperscan or Vectorscan, in front of ours.
    Hyperscan(Hyperscan),
}

/// Time after which all sets of an update are left to the portable engines: what comes behind it, endpoints that are gone,
/// waits for them.
const COMPILE_WITHIN: Duration = Duration::from_secs(10);

/// The engine of the sets that are made now, and since when they are.
#[derive(Clone, Copy, Default)]
struct Current {
    engine: RegexEngine,
    since: Option<Instant>,
}

thread_local! {
    static CURRENT: Cell<Current> = const { Cell::new(Current { engine: RegexEngine::Portable, since: None }) };
}

/// Puts back what was there, also when what is built panics.
struct Before(Current);

impl Drop for Before {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

impl RegexEngine {
    /// Hyperscan, which is loaded now if it was not.
    pub fn open_hyperscan() -> Result<Self, Unavailable> {
        Hyperscan::open().map(Self::Hyperscan)
    }

    /// Has this engine compile all sets that `build` makes on this thread. The engine is one for the whole configuration, as in
    /// Envoy, and rules and routes deep in its messages make sets.
    pub fn compile<T>(self, build: impl FnOnce() -> T) -> T {
        let _before = Before(CURRENT.replace(Current {
            engine: self,
            since: Some(Instant::now()),
        }));
        build()
    }

    /// The engine of the sets that are made now.
    pub(crate) fn current() -> Self {
        let Current { engine, since } = CURRENT.get();
        if engine.compiles_slowly() && since.is_some_and(|since| since.elapsed() >= COMPILE_WITHIN) {
            tracing::warn!(
                "expressions are compiled for {COMPILE_WITHIN:?}; the portable engine finds this update's others"
            );
            CURRENT.set(Current {
                engine: Self::Portable,
                since,
            });
            return Self::Portable;
        }
        engine
    }

    /// How many expressions a set has at least for a scan of it to pay.
    pub(crate) fn least(self) -> usize {
        match self {
            Self::Portable => 2,
            Self::Hyperscan(_) => 1,
        }
    }

    /// Whether an expression may take long to compile, however short it is: a millisecond or more.
    pub fn compiles_slowly(self) -> bool {
        match self {
            Self::Portable => false,
            Self::Hyperscan(_) => true,
        }
    }

    pub(crate) fn hyperscan(self) -> Option<Hyperscan> {
        match self {
            Self::Portable => None,
            Self::Hyperscan(hyperscan) => Some(hyperscan),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever an update has more of, its time for Hyperscan is over then.
    #[test]
    fn an_update_is_compiled_within_a_time() {
        let engine = RegexEngine::open_hyperscan().unwrap_or_else(|e| panic!("{e}"));
        engine.compile(|| {
            assert!(RegexEngine::current().compiles_slowly());
            let late = Instant::now().checked_sub(COMPILE_WITHIN);
            CURRENT.set(Current { engine, since: late });
            assert!(!RegexEngine::current().compiles_slowly());
        });
        engine.compile(|| assert!(RegexEngine::current().compiles_slowly()));
    }
}
