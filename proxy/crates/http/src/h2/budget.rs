//! What the connections of a worker hold together of messages, and who has to give way above the bound; and what each
//! connection notes as bytes come and go: of bodies, and of heads and trailers, which no window bounds and of which a few
//! bytes of HPACK make large ones.
//!
//! Below it, only the windows and each connection's own bounds count. Above it, a connection that holds more than its part
//! takes no more requests, reads no more answers for clients that do not take them, and when such bytes come all the same,
//! the streams that hold most of them are reset, as Envoy's overload action `reset_high_memory_stream` does. Connections
//! with less than their part notice nothing. So a worker holds no more than twice the bound, and [`FLOOR`] for each
//! connection.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::rc::{Rc, Weak};

use slab::Slab;

use super::connection::Connection;
use super::core::{Core, Role};
use super::frame::{self, Reason};
use super::stream::State;
use crate::body::StreamError;

/// Bytes that the HTTP/2 connections of a worker may hold together: received and not passed on, standing in line for a
/// connection's output, or in it.
pub(crate) const WORKER_BYTES: usize = 128 * 1024 * 1024;

/// What a connection may hold whatever the others do: so much that one which is read from is never held up.
pub(crate) const FLOOR: usize = 128 * 1024;

/// What the heads and trailers of a stream may take before they count against its connection's bound: others' large ones on
/// a connection that many share do not have an ordinary request refused.
const ORDINARY_HEAD: usize = 4 * 1024;

/// What all of them hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    bytes: usize,
    connections: usize,
}

thread_local! {
    static WORKER: Cell<Held> = const { Cell::new(Held { bytes: 0, connections: 0 }) };
    static CONNECTIONS: RefCell<Slab<Weak<Connection>>> = const { RefCell::new(Slab::new()) };
}

/// A connection's place in the worker's list of them.
#[derive(Debug)]
pub(super) struct Listed(usize);

impl Listed {
    pub(super) fn new(connection: &Weak<Connection>) -> Self {
        Self(CONNECTIONS.with_borrow_mut(|list| list.insert(Weak::clone(connection))))
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        // The thread's values may be gone when the thread ends.
        let _ = CONNECTIONS.try_with(|list| list.borrow_mut().try_remove(self.0));
    }
}

/// Resets the streams of this worker's connections that hold most, those with `least` bytes or more, but no more than `most`
/// of them. Returns how many.
pub(crate) fn reset_largest(least: usize, most: usize) -> usize {
    let connections: Vec<_> =
        CONNECTIONS.with_borrow(|list| list.iter().filter_map(|(_, connection)| connection.upgrade()).collect());
    let mut large = Vec::new();
    for connection in &connections {
        let core = connection.core.borrow();
        let open = core.streams.values().filter(|state| state.error.get().is_none());
        large.extend(open.filter_map(|state| {
            let held = state.held();
            (held >= least).then(|| (held, connection, Rc::clone(state)))
        }));
    }
    large.sort_by_key(|(held, ..)| Reverse(*held));
    large.truncate(most);
    for (_, connection, state) in &large {
        let mut core = connection.core.borrow_mut();
        core.give_up(state);
        core.wake_driver();
    }
    large.len()
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

/// Bytes of heads and trailers that a connection's streams hold.
#[derive(Debug, Default)]
pub(super) struct HeldHeads {
    all: usize,
    /// What each has above [`ORDINARY_HEAD`].
    large: usize,
}

impl HeldHeads {
    /// A stream's have changed.
    fn set(&mut self, state: &State, bytes: usize) {
        let before = state.heads.replace(bytes);
        self.all = self.all - before + bytes;
        self.large = self.large - before.saturating_sub(ORDINARY_HEAD) + bytes.saturating_sub(ORDINARY_HEAD);
    }
}

impl Core {
    /// Whether one more request is taken, with a head of so many bytes. If not, it costs the peer what any other costs: one
    /// side of a connection that many share cannot know what is held here.
    pub(super) fn takes_request(&self, head: usize) -> bool {
        let large = head > ORDINARY_HEAD && self.held_heads.large > self.max_held;
        !large && !self.share.is_above()
    }

    /// A head or trailers of so many bytes are kept for a stream, until [`Core::let_go`] or its end.
    pub(super) fn hold(&mut self, state: &State, bytes: usize) {
        self.held_heads.set(state, state.heads.get() + bytes);
        self.share();
    }

    /// So many of them are not kept any more.
    pub(super) fn let_go(&mut self, state: &State, bytes: usize) {
        debug_assert!(bytes <= state.heads.get(), "given back twice");
        self.held_heads.set(state, state.heads.get().saturating_sub(bytes));
        self.share();
    }

    /// Says to the peer that it may send so much more on the connection.
    pub(super) fn credit(&mut self, n: usize) {
        if n > 0
            && let Some(increment) = self.recv_window.consume(n)
        {
            self.control(|out| frame::window_update(0, increment, out));
        }
    }

    /// The same for a stream.
    pub(super) fn credit_stream(&mut self, state: &State, n: usize) {
        let mut inbox = state.inbox.borrow_mut();
        let increment = inbox.window.consume(n);
        if inbox.end || state.error.get().is_some() {
            return;
        }
        drop(inbox);
        if let Some(increment) = increment {
            self.control(|out| frame::window_update(state.id.get(), increment, out));
        }
    }

    /// Bytes of a body were kept for a stream. Those of an upstream count against their streams' windows only: a client
    /// that does not read must not hold up the others whose answers come on the same connection.
    pub(super) fn kept(&mut self, n: usize) {
        self.unread += n;
        if self.role == Role::Client {
            self.credit(n);
        }
        self.share();
    }

    /// Bytes that were kept are gone.
    pub(super) fn gone(&mut self, n: usize) {
        debug_assert!(n <= self.unread, "given back twice");
        self.unread = self.unread.saturating_sub(n);
        if self.role == Role::Server {
            self.credit(n);
        }
        self.share();
    }

    /// Tells the worker's budget what is held.
    pub(super) fn share(&mut self) {
        let block = self.block.as_ref().map_or(0, |block| block.held() + self.heads.held());
        self.share
            .set(self.unread + self.held + self.held_heads.all + self.pending() + block);
    }

    /// So many bytes have come. If that is too much, the streams that hold most are reset until as many are given up: what
    /// their requests hold is not free at once, and need not be for what comes in its place.
    pub(super) fn make_room(&mut self, bytes: usize) {
        if !self.share.is_above() {
            self.given_up = 0;
            return;
        }
        while self.given_up < bytes {
            let open = self.streams.values().filter(|state| state.error.get().is_none());
            let largest = open.map(|state| (state.held(), state)).max_by_key(|(held, _)| *held);
            let Some((held @ 1.., state)) = largest.map(|(held, state)| (held, Rc::clone(state))) else {
                break;
            };
            self.stats.held_bytes_overflow.inc();
            self.given_up += held;
            self.give_up(&state);
        }
        self.given_up = self.given_up.saturating_sub(bytes);
    }

    /// Resets a stream for what it holds.
    fn give_up(&mut self, state: &State) {
        let (data, heads) = {
            let mut inbox = state.inbox.borrow_mut();
            (std::mem::take(&mut inbox.data), std::mem::take(&mut inbox.heads))
        };
        self.let_go(state, heads.iter().map(|head| head.fields.held()).sum());
        self.gone(data.len());
        self.reset(state, Reason::ENHANCE_YOUR_CALM, StreamError::Overload);
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
