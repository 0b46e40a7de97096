//! The memory that BoringSSL reads ciphertext from and writes ciphertext to, in place of a socket.

use std::cell::RefCell;
use std::io::{self, Read, Write};

use bytes::{Buf, BytesMut};

/// Ciphertext that one read of the socket may bring: four full records, and the most that TCP hands out at once on a
/// busy connection with default buffers.
pub(crate) const SCRATCH: usize = 64 * 1024;

thread_local! {
    /// One receive buffer per worker. Lent to a connection for the time of one call.
    static RECEIVE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// One send buffer per worker, likewise.
    static SEND: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Where small pieces are gathered into one record.
    static GATHER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Takes the worker's receive buffer; its length is zero, its capacity at least [`SCRATCH`].
pub(crate) fn take_receive() -> Vec<u8> {
    take(&RECEIVE, SCRATCH)
}

/// Gives the receive buffer back.
pub(crate) fn give_receive(buffer: Vec<u8>) {
    give(&RECEIVE, buffer);
}

/// Takes the buffer in which records are gathered.
pub(crate) fn take_gather() -> Vec<u8> {
    take(&GATHER, super::session::RECORD)
}

/// Gives the gathering buffer back.
pub(crate) fn give_gather(buffer: Vec<u8>) {
    give(&GATHER, buffer);
}

fn take(slot: &'static std::thread::LocalKey<RefCell<Vec<u8>>>, capacity: usize) -> Vec<u8> {
    let mut buffer = slot.with(RefCell::take);
    buffer.clear();
    buffer.reserve_exact(capacity);
    buffer
}

fn give(slot: &'static std::thread::LocalKey<RefCell<Vec<u8>>>, buffer: Vec<u8>) {
    slot.with(|s| *s.borrow_mut() = buffer);
}

/// The two ends of one connection's ciphertext.
#[derive(Default)]
pub(crate) struct Memory {
    /// Ciphertext kept from an earlier call because it was not consumed.
    pub(crate) leftover: BytesMut,
    /// The worker's receive buffer, while a call runs.
    pub(crate) fresh: Vec<u8>,
    /// How much of `fresh` BoringSSL has taken.
    pub(crate) taken: usize,
    /// The peer has sent FIN.
    pub(crate) eof: bool,
    /// Ciphertext to be sent: the worker's buffer while a call runs, the connection's own when the socket was full.
    pub(crate) output: Vec<u8>,
    /// How much of `output` has been sent.
    pub(crate) sent: usize,
}

impl Memory {
    /// Whether ciphertext waits to be decrypted.
    pub(crate) fn has_input(&self) -> bool {
        !self.leftover.is_empty() || self.taken < self.fresh.len()
    }

    /// Ciphertext that has not been sent.
    pub(crate) fn unsent(&self) -> &[u8] {
        self.output.get(self.sent..).unwrap_or_default()
    }

    /// Keeps what BoringSSL did not take and returns the worker's buffer.
    pub(crate) fn settle_input(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        if let Some(rest) = fresh.get(self.taken..).filter(|rest| !rest.is_empty()) {
            self.leftover.extend_from_slice(rest);
        }
        self.taken = 0;
        give_receive(fresh);
    }

    /// Gives the send buffer back to the worker when all of it was sent; otherwise the connection keeps it.
    pub(crate) fn settle_output(&mut self) {
        if self.sent >= self.output.len() && self.output.capacity() > 0 {
            self.sent = 0;
            let mut done = std::mem::take(&mut self.output);
            done.clear();
            SEND.with(|s| {
                let mut kept = s.borrow_mut();
                // Keep one buffer of the usual size; anything else goes back to the allocator.
                if kept.capacity() == 0 && done.capacity() <= 2 * SCRATCH {
                    *kept = done;
                }
            });
        }
    }
}

impl Read for Memory {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if !self.leftover.is_empty() {
            let n = room.len().min(self.leftover.len());
            self.leftover.copy_to_slice(&mut room[..n]);
            if self.leftover.is_empty() {
                self.leftover = BytesMut::new();
            }
            return Ok(n);
        }
        let rest = self.fresh.get(self.taken..).unwrap_or_default();
        if rest.is_empty() {
            return if self.eof {
                Ok(0)
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            };
        }
        let n = room.len().min(rest.len());
        room[..n].copy_from_slice(&rest[..n]);
        self.taken += n;
        Ok(n)
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.output.capacity() == 0 {
            self.output = SEND.with(RefCell::take);
        }
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
