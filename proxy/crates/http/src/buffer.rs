//! Buffers kept per worker: taken when bytes are there, given back when a connection falls idle.
//!
//! A worker is one thread, so the pool is thread-local: no lock, and a warm buffer is in this core's cache.

use std::cell::RefCell;

use bytes::BytesMut;
use heddle_memory::Spares;

/// Room offered to one read. A head and a small body fit; more makes idle memory, less makes system calls.
pub(crate) const READ_SIZE: usize = 16 * 1024;

/// Room offered to reads inside a long body, where fewer and larger system calls pay.
pub(crate) const BULK_SIZE: usize = 64 * 1024;

/// Most buffers kept for later.
const KEEP: usize = 256;

struct Pool {
    read: Spares<BytesMut>,
    write: Spares<Vec<u8>>,
}

thread_local! {
    static POOL: RefCell<Pool> = const {
        RefCell::new(Pool {
            read: Spares::new(KEEP),
            write: Spares::new(KEEP),
        })
    };
}

/// [`Spares::trim`] of both kinds.
pub(crate) fn trim() -> bool {
    POOL.with_borrow_mut(|p| p.read.trim() | p.write.trim())
}

/// An empty read buffer of at least [`READ_SIZE`].
pub(crate) fn take_read() -> BytesMut {
    POOL.with_borrow_mut(|p| p.read.take())
        .unwrap_or_else(|| BytesMut::with_capacity(READ_SIZE))
}

/// Gives a read buffer back. One that has grown or shrunk is freed instead.
pub(crate) fn give_read(mut buffer: BytesMut) {
    buffer.clear();
    if buffer.capacity() < READ_SIZE || buffer.capacity() > 2 * READ_SIZE {
        return;
    }
    POOL.with_borrow_mut(|p| p.read.keep(buffer));
}

/// An empty write buffer.
pub(crate) fn take_write() -> Vec<u8> {
    POOL.with_borrow_mut(|p| p.write.take())
        .unwrap_or_else(|| Vec::with_capacity(4096))
}

/// Gives a write buffer back. One that has grown large is freed instead.
pub(crate) fn give_write(mut buffer: Vec<u8>) {
    buffer.clear();
    if buffer.capacity() == 0 || buffer.capacity() > 2 * READ_SIZE {
        return;
    }
    POOL.with_borrow_mut(|p| p.write.keep(buffer));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_empty() {
        let mut buffer = take_read();
        buffer.extend_from_slice(b"secret");
        give_read(buffer);
        assert!(take_read().is_empty());
        let mut buffer = take_write();
        buffer.extend_from_slice(b"secret");
        give_write(buffer);
        assert!(take_write().is_empty());
    }

    #[test]
    fn what_is_not_needed_is_freed() {
        let kept = || POOL.with_borrow(|p| p.read.len() + p.write.len());
        give_read(take_read());
        give_write(take_write());
        assert!(trim(), "both were needed");
        assert_eq!(kept(), 2);
        assert!(!trim());
        assert_eq!(kept(), 0);
    }
}
