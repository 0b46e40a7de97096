//! Which engine finds the expressions of sets (`default_regex_engine`).

use std::cell::Cell;

use heddle_hyperscan::{Hyperscan, Unavailable};

/// Who finds the expressions that look at the same input. What they match does not depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub enum RegexEngine {
    /// Ours, in Rust.
    #[default]
    Portable,
    /// Hyperscan or Vectorscan, in front of ours.
    Hyperscan(Hyperscan),
}

thread_local! {
    static CURRENT: Cell<RegexEngine> = const { Cell::new(RegexEngine::Portable) };
}

/// Puts back what was there, also when what is built panics.
struct Before(RegexEngine);

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
        let _before = Before(CURRENT.replace(self));
        build()
    }

    /// The engine of the sets that are made now.
    pub(crate) fn current() -> Self {
        CURRENT.get()
    }

    pub(crate) fn hyperscan(self) -> Option<Hyperscan> {
        match self {
            Self::Portable => None,
            Self::Hyperscan(hyperscan) => Some(hyperscan),
        }
    }
}
