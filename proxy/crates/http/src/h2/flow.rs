//! Flow control of what is received (RFC 9113 section 5.2): how much the peer may still send, and when it is told that
//! it may send more.
//!
//! A window is what a peer can make us hold. It begins small, whatever the configuration allows, and doubles when half of
//! it was passed on and it was the window that its owner waited for: who reads fast gets a window that fills a long and
//! fast path, who reads slowly or not at all holds little. What all windows of a worker have grown by is bounded as well.

use std::cell::Cell;

/// The window of a client's stream to begin with.
pub(crate) const STREAM_START: u32 = 256 * 1024;

/// The window of a stream towards an upstream to begin with: many clients' answers come on one connection, and each may
/// be left unread.
pub(crate) const UPSTREAM_STREAM_START: u32 = 64 * 1024;

/// The window of a client's connection to begin with. Towards an upstream it is as large as configured at once: what has
/// come there counts against the streams' windows only.
pub(crate) const CONNECTION_START: u32 = 1024 * 1024;

/// How much all windows of a worker may have grown together.
pub(crate) const WORKER_GROWTH: u64 = 64 * 1024 * 1024;

thread_local! {
    static GROWN: Cell<u64> = const { Cell::new(0) };
}

/// Gives growth back when its window is gone.
#[derive(Debug, Default)]
pub(super) struct Growth(u64);

impl Growth {
    /// Whether the worker has so much left; it is then taken.
    fn take(&mut self, bytes: u64) -> bool {
        GROWN.with(|grown| {
            let after = grown.get() + bytes;
            if after > WORKER_GROWTH {
                return false;
            }
            grown.set(after);
            self.0 += bytes;
            true
        })
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        let held = self.0;
        // The thread's values may be gone when the thread ends.
        let _ = GROWN.try_with(|grown| grown.set(grown.get().saturating_sub(held)));
    }
}

/// The window of a connection or stream.
#[derive(Debug)]
pub(super) struct RecvWindow {
    /// What the peer may have outstanding.
    size: u32,
    /// What it may become.
    max: u32,
    /// What the peer may still send.
    left: i64,
    /// What was passed on and not yet announced.
    owed: u32,
    /// Its owner has had nothing left to read since the last announcement.
    drained: bool,
    /// Growth is taken out of the worker's share: this window is what bounds the memory.
    shared: bool,
    growth: Growth,
}

impl RecvWindow {
    /// A window that the peer takes to be `size` bytes now. `shared`: it grows as far as the worker's share allows.
    pub(super) fn new(size: u32, max: u32, shared: bool) -> Self {
        Self {
            size,
            max: max.max(size),
            left: i64::from(size),
            owed: 0,
            drained: false,
            shared,
            growth: Growth::default(),
        }
    }

    /// Gives what it has grown by back to this worker, and says how much that is: its connection goes to another one.
    pub(super) fn leave(&mut self) -> u64 {
        let grown = self.growth.0;
        self.growth = Growth::default();
        grown
    }

    /// Takes so much of this worker, though no more may be left: the peer was told that it may send it.
    pub(super) fn arrive(&mut self, grown: u64) {
        GROWN.with(|all| all.set(all.get() + grown));
        self.growth.0 += grown;
    }

    /// Bytes that have come and were not passed on.
    pub(super) fn held(&self) -> usize {
        usize::try_from(i64::from(self.size) - self.left - i64::from(self.owed)).unwrap_or(0)
    }

    /// Bytes have come. False when the peer was not allowed to send them.
    pub(super) fn receive(&mut self, n: usize) -> bool {
        self.left -= n as i64;
        self.left >= 0
    }

    /// Bytes were passed on. Returns what to announce by WINDOW_UPDATE once it is worth a frame.
    pub(super) fn consume(&mut self, n: usize) -> Option<u32> {
        self.owed = self.owed.saturating_add(n as u32);
        self.drained |= self.held() == 0;
        if self.owed < self.size / 2 {
            return None;
        }
        let wanted = if std::mem::take(&mut self.drained) {
            self.size
        } else {
            0
        };
        let wanted = wanted.min(self.max - self.size);
        let granted = wanted > 0 && (!self.shared || self.growth.take(u64::from(wanted)));
        let more = if granted { wanted } else { 0 };
        self.size += more;
        let increment = std::mem::take(&mut self.owed) + more;
        self.left += i64::from(increment);
        (increment > 0).then_some(increment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_for_who_reads() {
        let mut window = RecvWindow::new(1000, 3000, false);
        assert!(window.receive(1000));
        assert_eq!(window.consume(400), None);
        assert_eq!(window.held(), 600);
        assert_eq!(window.consume(600), Some(2000), "what was taken, and as much again");
        assert!(window.receive(2000));
        assert_eq!(window.consume(2000), Some(3000));
        assert!(window.receive(3000));
        assert_eq!(window.consume(3000), Some(3000), "as large as it may be");
        assert_eq!(window.held(), 0);
        assert!(!window.receive(3001));
    }

    #[test]
    fn who_reads_slower_than_the_peer_sends_needs_no_more() {
        let mut window = RecvWindow::new(1000, 3000, false);
        assert!(window.receive(1000));
        for _ in 0..100 {
            assert_eq!(window.consume(500), Some(500));
            assert!(window.receive(500), "the peer fills it at once");
        }
        assert_eq!((window.size, window.held()), (1000, 1000));
    }

    /// The other worker takes it although it has nothing left: the peer was told.
    #[test]
    fn growth_goes_along() {
        let mut window = RecvWindow::new(1000, 3000, true);
        assert!(window.receive(1000));
        assert_eq!(window.consume(1000), Some(2000));
        let grown = window.leave();
        assert_eq!((grown, GROWN.get()), (1000, 0));
        GROWN.set(WORKER_GROWTH);
        window.arrive(grown);
        assert_eq!(GROWN.get(), WORKER_GROWTH + 1000);
        assert!(window.receive(2000));
        assert_eq!(window.consume(2000), Some(2000), "it grows no further");
        drop(window);
        assert_eq!(GROWN.get(), WORKER_GROWTH);
        GROWN.set(0);
    }

    #[test]
    fn a_worker_grants_so_much_and_gets_it_back() {
        let mut windows = Vec::new();
        let mut grown = 0;
        for _ in 0..100 {
            let mut window = RecvWindow::new(CONNECTION_START, 24 << 20, true);
            for _ in 0..10 {
                let size = window.size as usize;
                assert!(window.receive(size));
                let _ = window.consume(size);
            }
            grown += u64::from(window.size - CONNECTION_START);
            windows.push(window);
        }
        assert!(grown <= WORKER_GROWTH && grown > WORKER_GROWTH / 2, "{grown}");
        windows.clear();
        assert_eq!(GROWN.get(), 0);
    }
}
