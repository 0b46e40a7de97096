//! What a worker holds of bodies for longer than until they are passed on: for another try, for copies, for filters that wait
//! for a body. The peer's windows are open again for such bytes, so no other bound counts them together.

use std::cell::Cell;

/// Bytes that they may hold together. Above, a request is not tried again, a copy given up, and the stream of a body that a
/// filter waits for reset, as Envoy's overload action `reset_high_memory_stream` does.
pub(crate) const WORKER_BYTES: usize = 128 * 1024 * 1024;

thread_local! {
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// What one of them holds.
#[derive(Debug, Default)]
pub(crate) struct Kept(usize);

impl Kept {
    /// Holds so many bytes from now on; false, and nothing has changed, when there is no room for more.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let total = WORKER.get() - self.0 + bytes;
        if bytes > self.0 && total > WORKER_BYTES {
            return false;
        }
        WORKER.set(total);
        self.0 = bytes;
        true
    }

    /// Holds no more than so many bytes from now on.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        if bytes < self.0 {
            WORKER.set(WORKER.get() - self.0 + bytes);
            self.0 = bytes;
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // The thread's values may be gone when the thread ends.
        let _ = WORKER.try_with(|total| total.set(total.get() - self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_together_hold_no_more_than_the_bound() {
        let (mut one, mut other) = (Kept::default(), Kept::default());
        assert!(one.set(WORKER_BYTES - 10));
        assert!(other.set(10));
        assert!(!other.set(11));
        assert!(!one.set(WORKER_BYTES - 9));
        assert!(one.set(5));
        assert!(other.set(11));
        drop(one);
        assert!(other.set(WORKER_BYTES));
        drop(other);
        assert_eq!(WORKER.get(), 0);
    }
}
