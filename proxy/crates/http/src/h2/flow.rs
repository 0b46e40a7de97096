//! Flow control of what is received (RFC 9113 section 5.2): how much the peer may still send, and when it is told that
//! it may send more.
//!
//! A window is what a peer can make us hold. It begins small, whatever the configuration allows, and doubles each time
//! its owner has passed half of it on: who reads gets a window that fills a long and fast path, who does not read holds
//! little. What all connections of a worker have grown by is bounded as well.

use std::cell::Cell;

/// A stream's window to begin with.
pub(crate) const STREAM_START: u32 = 256 * 1024;

/// A connection's window to begin with.
pub(crate) const CONNECTION_START: u32 = 1024 * 1024;

/// How much the windows of all connections of a worker may have grown together.
pub(crate) const WORKER_GROWTH: u64 = 128 * 1024 * 1024;

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
#[derive(Clone, Copy, Debug)]
pub(super) struct RecvWindow {
    /// What the peer may have outstanding.
    size: u32,
    /// What it may become.
    max: u32,
    /// What the peer may still send.
    left: i64,
    /// What was passed on and not yet announced.
    owed: u32,
}

impl RecvWindow {
    /// A window that the peer takes to be `size` bytes now.
    pub(super) fn new(size: u32, max: u32) -> Self {
        Self {
            size,
            max: max.max(size),
            left: i64::from(size),
            owed: 0,
        }
    }

    /// Bytes have come. False when the peer was not allowed to send them.
    pub(super) fn receive(&mut self, n: usize) -> bool {
        self.left -= n as i64;
        self.left >= 0
    }

    /// Bytes were passed on. Returns what to announce by WINDOW_UPDATE once it is worth a frame. `grow` decides on more
    /// room of so many bytes.
    pub(super) fn consume(&mut self, n: usize, grow: impl FnOnce(u64) -> bool) -> Option<u32> {
        self.owed = self.owed.saturating_add(n as u32);
        if self.owed < self.size / 2 {
            return None;
        }
        let more = self.size.min(self.max - self.size);
        let more = if more > 0 && grow(u64::from(more)) { more } else { 0 };
        self.size += more;
        let increment = std::mem::take(&mut self.owed) + more;
        self.left += i64::from(increment);
        (increment > 0).then_some(increment)
    }

    /// As [`RecvWindow::consume`], with growth out of the worker's share.
    pub(super) fn consume_shared(&mut self, n: usize, growth: &mut Growth) -> Option<u32> {
        self.consume(n, |bytes| growth.take(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_for_who_reads() {
        let mut window = RecvWindow::new(1000, 3000);
        assert!(window.receive(1000));
        assert_eq!(window.consume(400, |_| true), None);
        assert_eq!(
            window.consume(600, |_| true),
            Some(2000),
            "what was taken, and as much again"
        );
        assert!(window.receive(2000));
        assert_eq!(window.consume(2000, |_| true), Some(3000));
        assert!(window.receive(3000));
        assert_eq!(window.consume(3000, |_| true), Some(3000), "as large as it may be");
        assert!(!window.receive(3001));
    }

    #[test]
    fn a_worker_grants_so_much_and_gets_it_back() {
        let mut windows = Vec::new();
        let mut grown = 0;
        for _ in 0..100 {
            let mut window = RecvWindow::new(CONNECTION_START, 24 << 20);
            let mut growth = Growth::default();
            for _ in 0..10 {
                let _ = window.consume_shared(window.size as usize, &mut growth);
            }
            grown += u64::from(window.size - CONNECTION_START);
            windows.push((window, growth));
        }
        assert!(grown <= WORKER_GROWTH && grown > WORKER_GROWTH / 2, "{grown}");
        windows.clear();
        assert_eq!(GROWN.get(), 0);
    }
}
