//! What the connections of a worker hold together of messages that nobody takes, and who has to give way above the bound.
//!
//! Below it, only the windows and each connection's own bound count. Above it, a connection that holds more than its part
//! reads no more answers for clients that do not take them, and when such bytes come all the same, the stream that holds
//! most of them is reset, as Envoy's overload action `reset_high_memory_stream` does. Connections with less than their part
//! notice nothing. So a worker holds no more than twice the bound, and [`FLOOR`] for each connection.

use std::cell::Cell;

/// Bytes that the HTTP/2 connections of a worker may hold together: received and not passed on, standing in line for a
/// connection's output, or in it.
pub(crate) const WORKER_BYTES: usize = 128 * 1024 * 1024;

/// What a connection may hold whatever the others do: so much that one which is read from is never held up.
pub(crate) const FLOOR: usize = 128 * 1024;

/// What all of them hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    bytes: usize,
    connections: usize,
}

thread_local! {
    static WORKER: Cell<Held> = const { Cell::new(Held { bytes: 0, connections: 0 }) };
}

/// What one connection holds of it.
#[derive(Debug)]
pub(super) struct Share(usize);

impl Share {
    /// Of a connection that begins, with nothing.
    pub(super) fn new() -> Self {
        WORKER.with(|worker| {
            let mut held = worker.get();
            held.connections += 1;
            worker.set(held);
        });
        Self(0)
    }

    /// It holds so much now.
    pub(super) fn set(&mut self, bytes: usize) {
        if bytes == self.0 {
            return;
        }
        WORKER.with(|worker| {
            let mut held = worker.get();
            held.bytes = held.bytes - self.0 + bytes;
            worker.set(held);
        });
        self.0 = bytes;
    }

    #[cfg(test)]
    pub(super) fn held_by_worker() -> usize {
        WORKER.get().bytes
    }

    /// Whether all hold too much, and this one more than its part.
    pub(super) fn is_above(&self) -> bool {
        let held = WORKER.get();
        held.bytes > WORKER_BYTES && self.0 > FLOOR.max(WORKER_BYTES / held.connections.max(1))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let bytes = self.0;
        // The thread's values may be gone when the thread ends.
        let _ = WORKER.try_with(|worker| {
            let mut held = worker.get();
            held.bytes -= bytes;
            held.connections -= 1;
            worker.set(held);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_most_gives_way() {
        let before = WORKER.get();
        let mut shares: Vec<_> = (0..100).map(|_| Share::new()).collect();
        for share in &mut shares {
            share.set(FLOOR);
        }
        shares[0].set(WORKER_BYTES);
        assert!(shares[0].is_above());
        assert!(!shares[1].is_above(), "what it may hold in any case");
        shares[1].set(WORKER_BYTES / 100);
        assert!(!shares[1].is_above(), "no more than its part");
        shares[1].set(2 * WORKER_BYTES / 100);
        assert!(shares[1].is_above());
        shares[0].set(FLOOR);
        assert!(!shares[1].is_above(), "all together hold little");
        drop(shares);
        assert_eq!(WORKER.get(), before);
    }
}
