//! Expressions of the same pattern are one, however many routes, rules and versions of a configuration have it: of those that are tried
//! alone, a change compiles what is new in it. Sets are made anew with what they are of.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use super::Inner;

/// What the regular expressions of the process take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegexMemory {
    /// How many different ones there are.
    pub expressions: usize,
    /// Bytes that they take, without the states that workers keep of them, without sets, and without what rewrites need besides.
    pub bytes: usize,
}

/// Those that are in use, by their patterns. Locked where configurations are read and given up, never for a request.
#[derive(Default)]
struct Kept {
    by_pattern: HashMap<Box<str>, Weak<Inner>>,
    bytes: usize,
}

static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);

fn kept() -> MutexGuard<'static, Kept> {
    // Nothing in here is half done when something panics.
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the regular expressions of the process take now.
pub fn regex_memory() -> RegexMemory {
    let kept = kept();
    RegexMemory {
        expressions: kept.by_pattern.len(),
        bytes: kept.bytes,
    }
}

pub(super) fn find(pattern: &str) -> Option<Arc<Inner>> {
    kept().by_pattern.get(pattern)?.upgrade()
}

pub(super) fn keep(inner: &Arc<Inner>) {
    let mut kept = kept();
    kept.bytes += inner.memory;
    kept.by_pattern.insert(inner.pattern.clone(), Arc::downgrade(inner));
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut kept = kept();
        kept.bytes -= self.memory;
        // Two threads may have compiled it at the same time, or one when the other gave it up.
        if kept
            .by_pattern
            .get(&self.pattern)
            .is_some_and(|other| other.strong_count() == 0)
        {
            kept.by_pattern.remove(&self.pattern);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Regex;

    use super::*;

    #[test]
    fn expressions_of_one_pattern_are_one_while_one_is_used() {
        let pattern = "/only/in/this/test/[0-9]+";
        let one = Regex::new(pattern).expect("valid");
        let other = Regex::for_rewrite(pattern, "x").expect("valid");
        assert!(Arc::ptr_eq(&one.0, &other.0));
        drop(one);
        assert!(find(pattern).is_some());
        drop(other);
        assert!(find(pattern).is_none() && !kept().by_pattern.contains_key(pattern));
    }

    #[test]
    fn what_they_take_is_counted() {
        let large = Regex::new("only in this test [^a]{500}").expect("valid");
        let RegexMemory { expressions, bytes } = regex_memory();
        assert!(
            expressions >= 1 && bytes >= large.0.memory && large.0.memory > 100_000,
            "{bytes}"
        );
    }
}
