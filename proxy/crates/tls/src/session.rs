//! One TLS connection: BoringSSL over [`Memory`], and the socket that ciphertext comes from and goes to.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use boring::ssl::{ErrorCode, SslStream};
use bytes::{BufMut, BytesMut};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;

use crate::memory::{self, Memory};
use crate::second_look::Left;
use crate::socket::{self, Then};

/// Most plaintext in one TLS record (RFC 8446 §5.1).
pub(crate) const RECORD: usize = 16 * 1024;
/// Most plaintext that one call reads or writes: bounds what a connection can hold, and how long it keeps its worker.
pub(crate) const BATCH: usize = 64 * 1024;

/// The engine and its state. Lives in a cell of [`crate::Stream`].
pub(crate) struct Session {
    pub(crate) ssl: SslStream<Memory>,
    /// The last thing read was an end or an error: ask the engine again, not the socket.
    ended: bool,
    /// `close_notify` has been produced.
    closing: bool,
    /// What the last read left in the socket.
    left: Cell<Left>,
}

impl Session {
    pub(crate) fn new(ssl: SslStream<Memory>, left: Left) -> Self {
        Self {
            ssl,
            ended: false,
            closing: false,
            left: Cell::new(left),
        }
    }

    /// Appends what can be decrypted to `buf`; 0 means that the peer said `close_notify`.
    pub(crate) fn poll_read(
        &mut self,
        tcp: &TcpStream,
        cx: &mut Context<'_>,
        buf: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        if self.holds_input()
            && let Some(n) = self.decrypt(buf)?
        {
            return Poll::Ready(Ok(n));
        }
        loop {
            ready!(self.poll_fill(tcp, cx))?;
            let outcome = self.decrypt(buf);
            self.ssl.get_mut().settle_input();
            // Key updates and alerts. Interest in writing belongs to the writer: what does not fit now goes with its
            // next write.
            self.try_drain(tcp)?;
            if let Some(n) = outcome? {
                return Poll::Ready(Ok(n));
            }
        }
    }

    /// Whether there may be something to read before the socket has more.
    pub(crate) fn holds_input(&self) -> bool {
        self.ended || self.ssl.get_ref().has_input() || self.ssl.ssl().pending() > 0
    }

    /// Whether nothing waits to be decrypted or sent, and neither side has ended.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.holds_input() && !self.closing && self.ssl.get_ref().unsent().is_empty()
    }

    /// In an event loop that tells what the socket has.
    pub(crate) fn left_nothing(&self) {
        self.left.set(Left::Nothing);
    }

    /// Ready when the socket may have something.
    pub(crate) fn poll_readable(&self, tcp: &TcpStream, cx: &mut Context<'_>) -> Poll<()> {
        socket::poll_readable(tcp, cx, &self.left)
    }

    /// Receives ciphertext into the worker's buffer and lends it to the engine. The caller settles it.
    pub(crate) fn poll_fill(&mut self, tcp: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut fresh = memory::take_receive();
        let room = fresh.spare_capacity_mut();
        let received = match socket::poll_receive(tcp, cx, room, &self.left) {
            Poll::Ready(Ok(n)) => n,
            Poll::Ready(Err(e)) => {
                memory::give_receive(fresh);
                return Poll::Ready(Err(e));
            }
            Poll::Pending => {
                memory::give_receive(fresh);
                return Poll::Pending;
            }
        };
        // SAFETY: `poll_receive` has initialized the first `received` bytes of the spare capacity of an empty Vec.
        unsafe { fresh.set_len(received) };
        let memory = self.ssl.get_mut();
        memory.eof = received == 0;
        memory.fresh = fresh;
        memory.taken = 0;
        Poll::Ready(Ok(()))
    }

    /// Decrypts what is in memory. `None`: more ciphertext is needed. `Some(0)`: the peer has said it is done.
    fn decrypt(&mut self, buf: &mut BytesMut) -> io::Result<Option<usize>> {
        let start = buf.len();
        loop {
            let done = buf.len() - start;
            let budget = BATCH.saturating_sub(done);
            if budget == 0 {
                return Ok(Some(done));
            }
            let memory = self.ssl.get_ref();
            // Plaintext is shorter than its ciphertext: no more room than that is needed.
            let waiting = memory.leftover.len() + memory.fresh.len().saturating_sub(memory.taken);
            let room = (waiting + self.ssl.ssl().pending()).clamp(1, RECORD);
            if buf.capacity() - buf.len() < room {
                buf.reserve(room);
            }
            let spare = buf.spare_capacity_mut();
            let limit = spare.len().min(budget);
            match self.ssl.ssl_read_uninit(&mut spare[..limit]) {
                Ok(n) => {
                    // SAFETY: `ssl_read_uninit` has initialized the first `n` bytes of the spare capacity.
                    unsafe { buf.advance_mut(n) };
                    if !self.holds_input() {
                        // All was read that had come: the engine need not be asked to say so.
                        return Ok(Some(done + n));
                    }
                }
                Err(e) => {
                    let done = buf.len() - start;
                    if e.code() == ErrorCode::WANT_READ {
                        return Ok((done > 0).then_some(done));
                    }
                    self.ended = true;
                    if done > 0 {
                        return Ok(Some(done));
                    }
                    return match e.code() {
                        ErrorCode::ZERO_RETURN => Ok(Some(0)),
                        ErrorCode::SYSCALL => Err(io::Error::new(
                            io::ErrorKind::UnexpectedEof,
                            "the peer closed without close_notify, data may be missing",
                        )),
                        _ => Err(io::Error::new(io::ErrorKind::InvalidData, e)),
                    };
                }
            }
        }
    }

    /// Encrypts up to [`BATCH`] bytes and sends them in one system call. What the socket does not take stays here and
    /// goes out with the next call; nothing more is accepted until it has.
    pub(crate) fn poll_write(
        &mut self,
        tcp: &TcpStream,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(tcp, cx, Then::Nothing))?;
        let accepted = self.encrypt(bufs)?;
        match self.poll_drain(tcp, cx, Then::Nothing) {
            Poll::Ready(Err(e)) => Poll::Ready(Err(e)),
            _ => Poll::Ready(Ok(accepted)),
        }
    }

    fn encrypt(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut accepted = 0;
        let mut index = 0;
        let mut offset = 0;
        let mut gather = None::<Vec<u8>>;
        let mut failed = None;
        while accepted < BATCH {
            let Some(slice) = bufs.get(index) else { break };
            let rest = slice.get(offset..).unwrap_or_default();
            if rest.is_empty() {
                index += 1;
                offset = 0;
                continue;
            }
            let last = bufs.iter().skip(index + 1).all(|b| b.is_empty());
            if last || rest.len() >= RECORD {
                // Long or last: encrypted from where it is.
                let n = rest.len().min(BATCH - accepted);
                match self.ssl.ssl_write(&rest[..n]) {
                    Ok(written) => {
                        accepted += written;
                        offset += written;
                    }
                    Err(e) => {
                        failed = Some(e);
                        break;
                    }
                }
                continue;
            }
            // Short pieces, such as a head and the beginning of a body, share a record.
            let record = gather.get_or_insert_with(memory::take_gather);
            record.clear();
            let limit = RECORD.min(BATCH - accepted);
            while record.len() < limit {
                let Some(slice) = bufs.get(index) else { break };
                let rest = slice.get(offset..).unwrap_or_default();
                let n = rest.len().min(limit - record.len());
                record.extend_from_slice(&rest[..n]);
                offset += n;
                if offset >= slice.len() {
                    index += 1;
                    offset = 0;
                }
            }
            match self.ssl.ssl_write(record) {
                Ok(written) => accepted += written,
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        if let Some(buffer) = gather {
            memory::give_gather(buffer);
        }
        match failed {
            Some(e) if accepted == 0 => Err(e.into_io_error().unwrap_or_else(io::Error::other)),
            _ => Ok(accepted),
        }
    }

    /// Sends all ciphertext that waits.
    pub(crate) fn poll_drain(&mut self, tcp: &TcpStream, cx: &mut Context<'_>, then: Then) -> Poll<io::Result<()>> {
        let memory = self.ssl.get_mut();
        while !memory.unsent().is_empty() {
            match ready!(socket::poll_send(tcp, cx, &[IoSlice::new(memory.unsent())], then)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(n) => memory.sent += n,
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        memory.settle_output();
        Poll::Ready(Ok(()))
    }

    fn try_drain(&mut self, tcp: &TcpStream) -> io::Result<()> {
        let memory = self.ssl.get_mut();
        while !memory.unsent().is_empty() {
            match socket::try_send(tcp, &[IoSlice::new(memory.unsent())], Then::Nothing) {
                Ok(0) => break,
                Ok(n) => memory.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        memory.settle_output();
        Ok(())
    }

    /// Says `close_notify` and then ends the sending side of the socket.
    pub(crate) fn poll_shutdown(&mut self, tcp: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            self.closing = true;
            // Fails only when the connection has failed before: then FIN alone is the honest end.
            let _ = self.ssl.shutdown();
        }
        ready!(self.poll_drain(tcp, cx, Then::Fin))?;
        Poll::Ready(shutdown_write(tcp))
    }
}

/// Sends FIN. A socket that is gone already counts as shut down.
pub(crate) fn shutdown_write(tcp: &TcpStream) -> io::Result<()> {
    match shutdown(tcp, Shutdown::Write) {
        Ok(()) | Err(Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
