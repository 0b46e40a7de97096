//! Buffers that are used again instead of being allocated for every connection.

use std::cell::RefCell;

use bytes::BytesMut;
use heddle_memory::Spares;

/// Capacity of a pooled buffer: one TLS record of plaintext, and one usual read of a plain socket.
pub const BUFFER_SIZE: usize = 16 * 1024;

/// Buffers kept per worker. 64 of them are 1 MiB: enough for the connections that are between read and write at one
/// moment on one thread.
const KEPT: usize = 64;

thread_local! {
    static FREE: RefCell<Spares<BytesMut>> = const { RefCell::new(Spares::new(KEPT)) };
}

/// This worker's buffers. Every method works on the calling thread's pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct BufferPool;

impl BufferPool {
    /// An empty buffer of at least [`BUFFER_SIZE`].
    pub fn take() -> BytesMut {
        FREE.with_borrow_mut(Spares::take)
            .unwrap_or_else(|| BytesMut::with_capacity(BUFFER_SIZE))
    }

    /// Gives a buffer back. One that is still shared (parts of it were split off and live on) or has grown far beyond
    /// the usual size is freed instead.
    pub fn give(mut buffer: BytesMut) {
        buffer.clear();
        if !buffer.try_reclaim(BUFFER_SIZE) || buffer.capacity() > 4 * BUFFER_SIZE {
            return;
        }
        FREE.with_borrow_mut(|free| free.keep(buffer));
    }

    /// Buffers that wait to be used.
    pub fn idle() -> usize {
        FREE.with_borrow(Spares::len)
    }

    /// [`Spares::trim`] of the buffers that wait.
    pub fn trim() -> bool {
        FREE.with_borrow_mut(Spares::trim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_empty() {
        let mut buffer = BufferPool::take();
        assert!(buffer.capacity() >= BUFFER_SIZE);
        buffer.extend_from_slice(b"secret");
        BufferPool::give(buffer);
        assert_eq!(BufferPool::idle(), 1);
        assert!(BufferPool::take().is_empty());
        assert_eq!(BufferPool::idle(), 0);
    }

    #[test]
    fn shared_small_and_huge_buffers_are_not_kept() {
        let mut shared = BufferPool::take();
        shared.extend_from_slice(b"head and body");
        let head = shared.split_to(4);
        BufferPool::give(shared);
        assert_eq!(BufferPool::idle(), 0);
        drop(head);
        BufferPool::give(BytesMut::new());
        BufferPool::give(BytesMut::with_capacity(BUFFER_SIZE * 8));
        assert_eq!(BufferPool::idle(), 0);
    }

    #[test]
    fn the_pool_is_bounded() {
        let taken: Vec<_> = (0..KEPT + 10).map(|_| BufferPool::take()).collect();
        taken.into_iter().for_each(BufferPool::give);
        assert_eq!(BufferPool::idle(), KEPT);
    }
}
