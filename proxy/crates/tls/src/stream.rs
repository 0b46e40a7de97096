//! The byte stream that codecs and the TCP proxy use: plain TCP or TLS.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::net::TcpStream;

use crate::second_look::Left;
use crate::session::{self, BATCH, Session};
use crate::socket::{self, Then};

/// Room made for one read of a plain connection when the caller's buffer has none: one full TLS record's worth, which
/// also holds any usual request head.
const PLAIN_READ: usize = 16 * 1024;

/// A connection, plain or TLS. Belongs to one worker (it is not `Sync`) and is used through shared references, so that
/// one task can read and write at the same time. One task at a time may wait to read, and one to write.
pub struct Stream {
    pub(crate) tcp: TcpStream,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    /// What a listener filter has read, and what the last read left in the socket.
    Plain(RefCell<BytesMut>, Cell<Left>),
    // Boxed: a plain stream should not be as large as a TLS one.
    Tls(Box<RefCell<Session>>),
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("tcp", &self.tcp)
            .field("tls", &self.is_tls())
            .finish()
    }
}

impl Stream {
    /// A plain connection.
    pub fn plain(tcp: TcpStream) -> Self {
        Self::plain_with(tcp, BytesMut::new())
    }

    /// A plain connection from which `already_read` was read by a listener filter; reads return that first.
    pub fn plain_with(tcp: TcpStream, already_read: BytesMut) -> Self {
        let left = Cell::new(Left::after_another(&already_read));
        Self {
            tcp,
            kind: Kind::Plain(RefCell::new(already_read), left),
        }
    }

    pub(crate) fn tls(tcp: TcpStream, session: Session) -> Self {
        Self {
            tcp,
            kind: Kind::Tls(Box::new(RefCell::new(session))),
        }
    }

    /// Gives the socket back, without what was read from it or waits to be written.
    pub fn into_tcp(self) -> TcpStream {
        self.tcp
    }

    /// Ciphertext (or bytes read ahead) kept in this stream: not yet decrypted, not yet sent.
    pub fn buffered(&self) -> (usize, usize) {
        match &self.kind {
            Kind::Plain(already_read, _) => (already_read.borrow().len(), 0),
            Kind::Tls(session) => {
                let session = session.borrow();
                let memory = session.ssl.get_ref();
                (memory.leftover.len(), memory.unsent().len())
            }
        }
    }

    /// Looks at the engine's state; none on a plain stream.
    pub(crate) fn with_ssl<T>(&self, look: impl FnOnce(&boring::ssl::SslRef) -> T) -> Option<T> {
        match &self.kind {
            Kind::Plain(..) => None,
            Kind::Tls(session) => Some(look(session.borrow().ssl.ssl())),
        }
    }

    /// The peer's leaf certificate in PEM (RFC 7468), made anew at each call; none without TLS or a certificate. Whether it
    /// was verified is not said here.
    pub fn peer_certificate_pem(&self) -> Option<String> {
        let pem = self.with_ssl(|ssl| ssl.peer_certificate()?.to_pem().ok());
        String::from_utf8(pem.flatten()?).ok()
    }

    /// Whether the handshake resumed an earlier session, by a ticket.
    pub fn is_resumed(&self) -> bool {
        self.with_ssl(boring::ssl::SslRef::session_reused).unwrap_or(false)
    }

    /// Whether bytes are encrypted on the wire.
    pub fn is_tls(&self) -> bool {
        matches!(self.kind, Kind::Tls(_))
    }

    /// The socket, for addresses and options. Reading or writing it directly corrupts a TLS stream.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Appends what is there to `buf`, at most 64 KiB per call, and returns how much; 0 is a clean end.
    ///
    /// Room is made in `buf` only when there is something to read, so an idle connection holds no buffer.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when a TLS peer closed without `close_notify`: for a protocol that ends
    /// messages by closing, data may be missing. [`io::ErrorKind::InvalidData`] when a record does not decrypt.
    pub fn poll_read(&self, cx: &mut Context<'_>, buf: &mut BytesMut) -> Poll<io::Result<usize>> {
        match &self.kind {
            Kind::Tls(session) => session.borrow_mut().poll_read(&self.tcp, cx, buf),
            Kind::Plain(already_read, left) => {
                let mut first = already_read.borrow_mut();
                if !first.is_empty() {
                    let n = first.len();
                    if buf.is_empty() {
                        *buf = std::mem::take(&mut *first);
                    } else {
                        buf.extend_from_slice(&first);
                        *first = BytesMut::new();
                    }
                    return Poll::Ready(Ok(n));
                }
                if buf.capacity() == buf.len() {
                    ready!(socket::poll_readable(&self.tcp, cx, left));
                    buf.reserve(PLAIN_READ);
                }
                let spare = buf.spare_capacity_mut();
                let limit = spare.len().min(BATCH);
                let n = ready!(socket::poll_receive(&self.tcp, cx, &mut spare[..limit], left))?;
                // SAFETY: `poll_receive` has initialized the first `n` bytes of the spare capacity.
                unsafe { bytes::BufMut::advance_mut(buf, n) };
                Poll::Ready(Ok(n))
            }
        }
    }

    /// Ready when [`Stream::poll_read`] may bring something, if only the end or an error.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.holds_input() {
            true => Poll::Ready(()),
            false => match &self.kind {
                Kind::Plain(_, left) => socket::poll_readable(&self.tcp, cx, left),
                Kind::Tls(session) => session.borrow().poll_readable(&self.tcp, cx),
            },
        }
    }

    /// Whether nothing has come that was not read: no byte, no end, no error. Leaves no waker behind. What is not quiet may
    /// still bring nothing, such as a TLS session ticket.
    pub fn is_quiet(&self) -> bool {
        !self.holds_input() && socket::is_quiet(&self.tcp)
    }

    fn holds_input(&self) -> bool {
        match &self.kind {
            Kind::Plain(already_read, _) => !already_read.borrow().is_empty(),
            Kind::Tls(session) => session.borrow().holds_input(),
        }
    }

    /// Accepts bytes from `bufs` in order and returns how many. Plain bytes are then with the kernel. TLS encrypts up to
    /// 64 KiB and sends them in one system call; what the kernel does not take is kept, so call
    /// [`Stream::poll_flush`] before waiting for anything else.
    ///
    /// # Errors
    /// The socket's; a failed stream stays failed.
    pub fn poll_write_vectored(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|b| b.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        match &self.kind {
            Kind::Plain(..) => socket::poll_send(&self.tcp, cx, bufs, Then::Nothing),
            Kind::Tls(session) => session.borrow_mut().poll_write(&self.tcp, cx, bufs),
        }
    }

    /// Ready when all accepted bytes are with the kernel.
    ///
    /// # Errors
    /// The socket's.
    pub fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.kind {
            Kind::Plain(..) => Poll::Ready(Ok(())),
            Kind::Tls(session) => session.borrow_mut().poll_drain(&self.tcp, cx, Then::Nothing),
        }
    }

    /// Ends the sending side: `close_notify` on TLS, then FIN. Reading goes on.
    ///
    /// # Errors
    /// The socket's.
    pub fn poll_shutdown(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.kind {
            Kind::Plain(..) => Poll::Ready(session::shutdown_write(&self.tcp)),
            Kind::Tls(session) => session.borrow_mut().poll_shutdown(&self.tcp, cx),
        }
    }

    /// [`Stream::poll_read`] as a future. Cancelling it loses nothing.
    ///
    /// # Errors
    /// As [`Stream::poll_read`].
    pub async fn read(&self, buf: &mut BytesMut) -> io::Result<usize> {
        poll_fn(|cx| self.poll_read(cx, buf)).await
    }

    /// Writes all of `bytes` and flushes.
    ///
    /// # Errors
    /// The socket's; how much was written is not known then.
    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = poll_fn(|cx| self.poll_write_vectored(cx, &[IoSlice::new(rest)])).await?;
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = rest.get(n..).unwrap_or_default();
        }
        self.flush().await
    }

    /// [`Stream::poll_flush`] as a future.
    ///
    /// # Errors
    /// The socket's.
    pub async fn flush(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx)).await
    }

    /// [`Stream::poll_shutdown`] as a future.
    ///
    /// # Errors
    /// The socket's.
    pub async fn shutdown(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_shutdown(cx)).await
    }
}
