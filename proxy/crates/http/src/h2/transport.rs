//! The byte stream that the `h2` crate reads and writes.
//!
//! `h2` flushes after every DATA frame. Here its writes gather in memory, `poll_flush` is always ready, and the task
//! that drives the connection flushes once at the end of its turn (−14 % CPU for 4 kB bodies).

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use heddle_tls::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::scan::FrameScan;
use crate::buffer;

/// Gathered bytes above which writing waits for the socket.
const HIGH: usize = 64 * 1024;

/// A connection's bytes in both directions, shared by `h2` and the driving task.
pub(crate) struct Io {
    stream: Stream,
    input: RefCell<BytesMut>,
    out: RefCell<Vec<u8>>,
    sent: Cell<usize>,
    received: Cell<u64>,
    scan: RefCell<FrameScan>,
    scanning: bool,
}

impl Io {
    /// `first` was read already. `scanning` looks for GOAWAY in what comes; only for the client side, where the
    /// stream starts with a frame.
    pub(crate) fn new(stream: Stream, first: BytesMut, scanning: bool) -> Rc<Self> {
        Rc::new(Self {
            stream,
            input: RefCell::new(first),
            out: RefCell::default(),
            sent: Cell::new(0),
            received: Cell::new(0),
            scan: RefCell::default(),
            scanning,
        })
    }

    /// Bytes that have come from the peer.
    pub(crate) fn received(&self) -> u64 {
        self.received.get()
    }

    /// The stream below.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The peer's last word on which streams it works on; none before GOAWAY.
    pub(crate) fn goaway(&self) -> Option<u32> {
        self.scan.borrow().last_stream()
    }

    /// Sends what has gathered.
    pub(crate) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut out = self.out.borrow_mut();
        while self.sent.get() < out.len() {
            let rest = IoSlice::new(out.get(self.sent.get()..).unwrap_or_default());
            match ready!(self.stream.poll_write_vectored(cx, &[rest]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.sent.set(self.sent.get() + n),
            }
        }
        if out.capacity() > 0 {
            self.sent.set(0);
            buffer::give_write(std::mem::take(&mut *out));
        }
        self.stream.poll_flush(cx)
    }

    /// Sends what has gathered and ends the sending side.
    pub(crate) fn poll_finish(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        self.stream.poll_shutdown(cx)
    }

    fn poll_read(&self, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut input = self.input.borrow_mut();
        if input.is_empty() {
            if input.capacity() == 0 {
                *input = buffer::take_read();
            }
            let polled = self.stream.poll_read(cx, &mut input);
            let empty = !matches!(polled, Poll::Ready(Ok(n)) if n > 0);
            self.received.set(self.received.get() + input.len() as u64);
            if empty {
                buffer::give_read(std::mem::take(&mut *input));
            }
            ready!(polled)?;
            if empty {
                return Poll::Ready(Ok(()));
            }
        }
        let n = room.remaining().min(input.len());
        let bytes = input.get(..n).unwrap_or_default();
        if self.scanning {
            self.scan.borrow_mut().advance(bytes);
        }
        room.put_slice(bytes);
        if n == input.len() {
            input.clear();
        } else {
            input.advance(n);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_gather(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.out.borrow().len() - self.sent.get() >= HIGH {
            ready!(self.poll_send(cx))?;
        }
        let mut out = self.out.borrow_mut();
        if out.capacity() == 0 {
            *out = buffer::take_write();
        }
        let before = out.len();
        for buf in bufs {
            out.extend_from_slice(buf);
            if out.len() - before >= HIGH {
                break;
            }
        }
        Poll::Ready(Ok(out.len() - before))
    }
}

/// The handle that `h2` owns.
#[derive(Clone)]
pub(crate) struct Transport(pub(crate) Rc<Io>);

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read(cx, buf)
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.poll_gather(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.poll_gather(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The driving task flushes; see the module's head.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_finish(cx)
    }
}
