//! What a worker keeps of bodies for longer than until they are passed on: for another try or a copy, and for filters that wait
//! for a body. The peer's windows are open again for such bytes, so no other bound counts them together.
//!
//! Each purpose has a bound of its own, so that what is kept just in case takes no room from what has to be there. Below the
//! bound only the buffer limits of each request count. Above it, connections that keep more than their part get no more, as in
//! [`crate::h2::budget`]; those with less notice nothing. So a worker keeps no more than twice the bound, and [`FLOOR`] for
//! each connection.

use std::cell::Cell;
use std::rc::Rc;

/// Bytes that a worker may keep for one purpose.
pub(crate) const PURPOSE_BYTES: usize = 64 * 1024 * 1024;

/// What a connection may keep whatever the others do: an ordinary form, or message.
pub(crate) const FLOOR: usize = 16 * 1024;

/// What bytes are kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Another try, or a copy. Without room the request goes on without.
    Again,
    /// A filter that waits for the body. Without room the request is refused.
    Filter,
}

/// What all connections keep for one purpose, and how many keep something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Total {
    bytes: usize,
    keepers: usize,
}

thread_local! {
    static WORKER: [Cell<Total>; 2] = const { [const { Cell::new(Total { bytes: 0, keepers: 0 }) }; 2] };
}

/// A client's connection, as one that bytes are kept for.
#[derive(Debug, Default)]
pub(crate) struct Keeper([Cell<usize>; 2]);

impl Keeper {
    /// It keeps `after` bytes instead of `before`, both part of what it keeps.
    fn change(&self, purpose: Purpose, before: usize, after: usize) {
        let own = &self.0[purpose as usize];
        let (was, is) = (own.get(), own.get() - before + after);
        own.set(is);
        // The thread's values may be gone when the thread ends.
        let _ = WORKER.try_with(|worker| {
            let total = worker[purpose as usize].get();
            worker[purpose as usize].set(Total {
                bytes: total.bytes - before + after,
                keepers: total.keepers + usize::from(is > 0) - usize::from(was > 0),
            });
        });
    }

    /// Whether there is room for so many bytes more.
    fn has_room(&self, purpose: Purpose, more: usize) -> bool {
        let own = self.0[purpose as usize].get();
        let total = WORKER.with(|worker| worker[purpose as usize].get());
        let (all, mine) = (total.bytes + more, own + more);
        let keepers = total.keepers + usize::from(own == 0);
        all <= PURPOSE_BYTES || mine <= FLOOR || all <= 2 * PURPOSE_BYTES && mine <= PURPOSE_BYTES / keepers
    }
}

/// What is kept for a connection in one place.
#[derive(Debug)]
pub(crate) struct KeptBytes {
    keeper: Rc<Keeper>,
    purpose: Purpose,
    bytes: usize,
}

impl KeptBytes {
    /// Nothing yet.
    pub(crate) fn new(keeper: &Rc<Keeper>, purpose: Purpose) -> Self {
        Self {
            keeper: Rc::clone(keeper),
            purpose,
            bytes: 0,
        }
    }

    /// So many bytes are kept from now on; false, and nothing has changed, when there is no room for more.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes && !self.keeper.has_room(self.purpose, bytes - self.bytes) {
            return false;
        }
        self.keeper.change(self.purpose, self.bytes, bytes);
        self.bytes = bytes;
        true
    }

    /// No more than so many bytes are kept from now on.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        if bytes < self.bytes {
            self.keeper.change(self.purpose, self.bytes, bytes);
            self.bytes = bytes;
        }
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(keeper: &Rc<Keeper>) -> KeptBytes {
        KeptBytes::new(keeper, Purpose::Filter)
    }

    #[test]
    fn one_connection_alone_has_all_and_no_more() {
        let keeper = Rc::default();
        let (mut one, mut other) = (kept(&keeper), kept(&keeper));
        assert!(one.set(PURPOSE_BYTES - 10));
        assert!(other.set(10) && !other.set(11) && !one.set(PURPOSE_BYTES - 9));
        assert!(
            KeptBytes::new(&keeper, Purpose::Again).set(PURPOSE_BYTES),
            "the purposes are apart"
        );
        one.shrink(5);
        assert!(other.set(11));
        drop(one);
        assert!(other.set(PURPOSE_BYTES));
        drop(other);
        assert_eq!(WORKER.with(|worker| worker[1].get()), Total::default());
    }

    #[test]
    fn who_keeps_less_than_its_part_is_not_refused() {
        let full = Rc::default();
        let mut all = kept(&full);
        assert!(all.set(PURPOSE_BYTES));
        let (first, second) = (Rc::default(), Rc::default());
        let mut half = kept(&first);
        assert!(half.set(PURPOSE_BYTES / 2) && !half.set(PURPOSE_BYTES / 2 + 1));
        let mut third = kept(&second);
        assert!(third.set(PURPOSE_BYTES / 3) && !third.set(PURPOSE_BYTES / 3 + 1));
        assert!(!half.set(PURPOSE_BYTES / 2 + 1) && !all.set(PURPOSE_BYTES + 1));
    }

    #[test]
    fn all_together_keep_twice_the_bound_and_the_floor() {
        let mut all = Vec::new();
        for _ in 0..1000 {
            let mut kept = kept(&Rc::default());
            let mut bytes = PURPOSE_BYTES;
            while bytes > 0 && !kept.set(bytes) {
                bytes = bytes * 9 / 10;
            }
            assert!(bytes >= FLOOR / 2, "{bytes}");
            all.push(kept);
        }
        let bytes = WORKER.with(|worker| worker[1].get()).bytes;
        assert!(bytes <= 2 * PURPOSE_BYTES + 1000 * FLOOR, "{bytes}");
    }
}
