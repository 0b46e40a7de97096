//! Values that the next reader may take in more than one way.
//!
//! A field that comes twice is one joined value to one server, the first or the last one to another. A path with
//! parameters is another path to a servlet container than to a file server. What is forwarded cannot be made single
//! without breaking applications, so policies look at every reading instead.

/// How many of a value's readings must match for a condition to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// One is enough: for what refuses.
    Any,
    /// All must: for what lets in.
    Every,
}

impl Reading {
    /// The reading under a negation: who refuses unless something holds must be sure of it.
    pub(crate) fn negated(self) -> Self {
        match self {
            Self::Any => Self::Every,
            Self::Every => Self::Any,
        }
    }
}
