//! One HTTP/1.1 connection: what was read and not yet used, what is written and not yet sent, and the body in each
//! direction. The same code serves both sides of the proxy.

use std::io::IoSlice;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BytesMut};
use heddle_tls::Stream;

use super::chunked::{ChunkDecoder, ChunkStep};
use super::error::H1Error;
use super::parse::{HeadScan, Limits};
use crate::body::{Fill, Sink, Source, StreamError};
use crate::buffer::{self, BULK_SIZE, READ_SIZE};
use crate::head::{Fields, Framing};

/// Body bytes up to this many are copied behind the head and leave in one write; larger ones are written from where
/// they lie.
const COALESCE: usize = 8 * 1024;

/// Bytes read of a body although none can be passed on.
const PEEK: usize = 512;

/// Bytes read behind those that wait, to notice the peer's departure.
const AHEAD: usize = 16 * 1024;

/// Least room for another read before the buffer is tidied.
const LOW_ROOM: usize = 4 * 1024;

/// How the body that is being read ends.
#[derive(Debug, Default)]
enum Remaining {
    #[default]
    Done,
    Length(u64),
    Chunked(Box<ChunkDecoder>),
    UntilClose,
}

/// The reading direction of a connection.
#[derive(Debug)]
pub(crate) struct ReadHalf {
    buf: BytesMut,
    pos: usize,
    scan: HeadScan,
    /// The peer has sent its last byte.
    pub(crate) eof: bool,
    reading: Remaining,
    /// Bytes of `buf` from `pos` on that are body data.
    data: usize,
    trailers: Option<Fields>,
    limits: Limits,
    /// What every head begins with, as far as it is fixed: tells at once what can never become one.
    start: &'static [u8],
}

impl ReadHalf {
    pub(crate) fn new(first: BytesMut, limits: Limits) -> Self {
        Self {
            buf: first,
            pos: 0,
            scan: HeadScan::default(),
            eof: false,
            reading: Remaining::Done,
            data: 0,
            trailers: None,
            limits,
            start: b"",
        }
    }

    /// Bytes read and not used.
    pub(crate) fn unread(&self) -> &[u8] {
        self.buf.get(self.pos..).unwrap_or_default()
    }

    fn skip(&mut self, n: usize) {
        self.pos = (self.pos + n).min(self.buf.len());
        if self.pos == self.buf.len() {
            self.buf.clear();
            self.pos = 0;
        }
    }

    /// Reads more behind what is unread. `Ok(0)` is the end of the stream.
    fn poll_more(&mut self, cx: &mut Context<'_>, stream: &Stream, room: usize) -> Poll<Result<usize, StreamError>> {
        if self.eof {
            return Poll::Ready(Ok(0));
        }
        if self.buf.is_empty() && stream.poll_readable(cx).is_pending() {
            // Most reads only leave a waker behind: no buffer is taken out, or held, for them.
            self.relax();
            return Poll::Pending;
        }
        if self.buf.is_empty() && room < READ_SIZE {
            // What is read has to wait: no more than it needs.
            self.relax();
            self.buf = BytesMut::with_capacity(room);
        } else if self.buf.capacity() == 0 {
            self.buf = buffer::take_read();
        }
        if self.buf.capacity() - self.buf.len() < LOW_ROOM.min(room) || (self.buf.is_empty() && room > READ_SIZE) {
            self.buf.advance(self.pos);
            self.pos = 0;
            self.buf.reserve(room);
        }
        let polled = stream.poll_read(cx, &mut self.buf);
        match polled {
            Poll::Ready(Ok(n)) => {
                self.eof = n == 0;
                Poll::Ready(Ok(n))
            }
            Poll::Ready(Err(e)) => {
                self.eof = true;
                Poll::Ready(Err(e.into()))
            }
            Poll::Pending => {
                self.relax();
                Poll::Pending
            }
        }
    }

    /// Gives an empty buffer back to the pool.
    fn relax(&mut self) {
        if self.buf.is_empty() && self.buf.capacity() > 0 {
            self.pos = 0;
            buffer::give_read(std::mem::take(&mut self.buf));
        }
    }

    /// Ready with the length of the next head once it is complete in [`ReadHalf::unread`].
    pub(crate) fn poll_head(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<Result<usize, StreamError>> {
        loop {
            if let Some(end) = self
                .scan
                .advance(self.buf.get(self.pos..).unwrap_or_default(), self.limits)?
            {
                self.scan = HeadScan::default();
                return Poll::Ready(Ok(end));
            }
            // Seven bytes at most, one by one. `==` of two empty slices, which these mostly are, calls `memcmp`: glibc's reads from
            // where they dangle, with a mask that hides all of it, which costs AVX-512 processors 90 ns.
            if self
                .unread()
                .iter()
                .zip(self.start)
                .any(|(byte, wanted)| byte != wanted)
            {
                return Poll::Ready(Err(H1Error::StartLine.into()));
            }
            if !matches!(ready!(self.poll_more(cx, stream, READ_SIZE)), Ok(1..)) {
                let cut_short = !self.unread().is_empty();
                return Poll::Ready(Err(if cut_short {
                    H1Error::Incomplete.into()
                } else {
                    StreamError::Closed
                }));
            }
        }
    }

    /// Reads and forgets.
    pub(crate) fn poll_discard(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<Result<usize, StreamError>> {
        self.buf.clear();
        self.pos = 0;
        self.data = 0;
        self.poll_more(cx, stream, READ_SIZE)
    }

    /// The head is parsed: go on with its body.
    pub(crate) fn begin_body(&mut self, head: usize, framing: Framing) {
        self.skip(head);
        self.data = 0;
        self.trailers = None;
        self.reading = match framing {
            Framing::None => Remaining::Done,
            Framing::Length(n) => Remaining::Length(n),
            Framing::Chunked => Remaining::Chunked(Box::default()),
            Framing::UntilClose => Remaining::UntilClose,
        };
    }

    /// Whether the whole body was read and taken.
    pub(crate) fn body_done(&self) -> bool {
        self.data == 0 && matches!(self.reading, Remaining::Done)
    }

    /// Watches an idle or waiting connection: ready when the peer closed it, sent something unasked, or filled the
    /// buffer with what will come next. `Ok(true)` means bytes are there.
    pub(crate) fn poll_watch(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<Result<bool, StreamError>> {
        if self.eof {
            return Poll::Ready(Err(StreamError::Closed));
        }
        if !self.unread().is_empty() {
            return Poll::Ready(Ok(true));
        }
        match ready!(self.poll_more(cx, stream, READ_SIZE))? {
            0 => Poll::Ready(Err(StreamError::Closed)),
            _ => Poll::Ready(Ok(true)),
        }
    }

    /// Whether the peer has said nothing since what was read. Does not wait for more.
    pub(crate) fn is_quiet(&mut self, stream: &Stream) -> bool {
        if self.eof || !self.unread().is_empty() {
            return false;
        }
        // What came may be the business of TLS alone.
        let mut cx = Context::from_waker(Waker::noop());
        stream.is_quiet() || (stream.is_tls() && self.poll_watch(&mut cx, stream).is_pending())
    }

    /// Whether what is unread holds all that is left of a body, as far as its framing tells beforehand.
    pub(crate) fn holds_rest(&self) -> bool {
        match &self.reading {
            Remaining::Length(left) => self.unread().len() as u64 >= *left,
            Remaining::Done => true,
            Remaining::Chunked(_) | Remaining::UntilClose => false,
        }
    }

    /// Reads on behind bytes that nobody takes yet, up to a bound, to notice the peer's departure.
    pub(crate) fn look_ahead(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Result<(), StreamError> {
        while self.unread().len() < AHEAD {
            match self.poll_more(cx, stream, READ_SIZE)? {
                Poll::Ready(0) => return Err(StreamError::Closed),
                Poll::Ready(_) => {}
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>, stream: &Stream, room: usize) -> Poll<Result<Fill, StreamError>> {
        // The end of the body is looked for even where nothing can be passed on.
        let most = room.max(PEEK);
        loop {
            if self.data > 0 {
                return Poll::Ready(Ok(Fill::Data));
            }
            let unread = self.buf.get(self.pos..).unwrap_or_default();
            let room = match &mut self.reading {
                Remaining::Done => return Poll::Ready(Ok(Fill::End)),
                Remaining::Length(left) => {
                    if !unread.is_empty() {
                        self.data = usize::try_from(*left).unwrap_or(usize::MAX).min(unread.len());
                        continue;
                    }
                    if *left > READ_SIZE as u64 { BULK_SIZE } else { READ_SIZE }
                }
                Remaining::Chunked(decoder) => match decoder.step(unread, self.limits)? {
                    ChunkStep::Data(n) => {
                        self.data = n;
                        continue;
                    }
                    ChunkStep::Skip(n) => {
                        self.skip(n);
                        continue;
                    }
                    ChunkStep::End(n) => {
                        self.trailers = decoder.take_trailers();
                        self.reading = Remaining::Done;
                        self.skip(n);
                        continue;
                    }
                    ChunkStep::More => BULK_SIZE,
                },
                Remaining::UntilClose => {
                    if !unread.is_empty() {
                        self.data = unread.len();
                        continue;
                    }
                    BULK_SIZE
                }
            };
            if ready!(self.poll_more(cx, stream, room.min(most)))? == 0 {
                if matches!(self.reading, Remaining::UntilClose) {
                    self.reading = Remaining::Done;
                    continue;
                }
                return Poll::Ready(Err(H1Error::Incomplete.into()));
            }
        }
    }

    fn chunk(&self) -> &[u8] {
        self.buf.get(self.pos..self.pos + self.data).unwrap_or_default()
    }

    fn took(&mut self, n: usize) {
        self.data -= n;
        match &mut self.reading {
            Remaining::Length(left) => {
                *left -= (n as u64).min(*left);
                if *left == 0 {
                    self.reading = Remaining::Done;
                }
            }
            Remaining::Chunked(decoder) => decoder.consumed(n),
            Remaining::UntilClose | Remaining::Done => {}
        }
    }

    fn consume(&mut self, n: usize) {
        let n = n.min(self.data);
        self.took(n);
        self.skip(n);
    }

    fn ends_after(&self, n: usize) -> bool {
        match &self.reading {
            Remaining::Length(left) => *left <= n as u64,
            Remaining::Done => true,
            Remaining::Chunked(_) | Remaining::UntilClose => false,
        }
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        if self.buf.capacity() > 0 {
            buffer::give_read(std::mem::take(&mut self.buf));
        }
    }
}

/// The writing direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct WriteHalf {
    out: Vec<u8>,
    sent: usize,
    framing: Framing,
    /// Of [`Framing::Length`]: body bytes still owed. Of [`Framing::Chunked`]: bytes still owed to the open chunk.
    left: u64,
    /// The message in progress was ended.
    finished: bool,
}

impl WriteHalf {
    /// The bytes waiting, to append a head to.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        if self.out.capacity() == 0 {
            self.out = buffer::take_write();
        }
        &mut self.out
    }

    /// A head was appended; its body follows.
    pub(crate) fn begin_body(&mut self, framing: Framing) {
        self.framing = framing;
        self.left = if let Framing::Length(n) = framing { n } else { 0 };
        self.finished = false;
    }

    /// Whether the message in progress was ended properly and sent.
    pub(crate) fn idle(&self) -> bool {
        self.finished && self.sent == self.out.len()
    }

    /// Whether the reader of the message in progress can tell that its end is missing. The end of the connection, where
    /// it ends the message too, must not be told politely (TLS's close_notify) when the message is cut short.
    pub(crate) fn tells_length(&self) -> bool {
        self.framing != Framing::UntilClose
    }

    /// Bytes waiting to be sent.
    pub(crate) fn pending(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Gives the buffer back while nothing waits.
    pub(crate) fn relax(&mut self) {
        if self.out.capacity() > 0 && self.pending() == 0 {
            self.sent = 0;
            buffer::give_write(std::mem::take(&mut self.out));
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>, stream: &Stream) -> Poll<Result<(), StreamError>> {
        while self.sent < self.out.len() {
            let rest = IoSlice::new(self.out.get(self.sent..).unwrap_or_default());
            match ready!(stream.poll_write_vectored(cx, &[rest]))? {
                0 => return Poll::Ready(Err(StreamError::Closed)),
                n => self.sent += n,
            }
        }
        self.out.clear();
        self.sent = 0;
        stream.poll_flush(cx).map_err(StreamError::from)
    }

    fn poll_put<S: Source>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &Stream,
        source: &mut S,
    ) -> Poll<Result<usize, StreamError>> {
        let available = source.chunk().len();
        let n = match self.framing {
            // A response to HEAD and the like: the body is read and goes nowhere.
            Framing::None => {
                source.consume(available);
                return Poll::Ready(Ok(available));
            }
            Framing::Length(_) if available as u64 > self.left => {
                return Poll::Ready(Err(StreamError::Length));
            }
            Framing::Length(_) | Framing::UntilClose => available,
            Framing::Chunked => {
                if self.left == 0 {
                    let out = self.out();
                    write_hex(out, available);
                    out.extend_from_slice(b"\r\n");
                    self.left = available as u64;
                }
                usize::try_from(self.left).unwrap_or(usize::MAX).min(available)
            }
        };
        if self.pending() + n <= COALESCE {
            self.out()
                .extend_from_slice(source.chunk().get(..n).unwrap_or_default());
            source.consume(n);
            self.put(n);
            return Poll::Ready(Ok(n));
        }
        loop {
            let waiting = self.pending();
            let written = {
                let data = source.chunk().get(..n).unwrap_or_default();
                let slices = [
                    IoSlice::new(self.out.get(self.sent..).unwrap_or_default()),
                    IoSlice::new(data),
                ];
                let slices = if waiting == 0 { &slices[1..] } else { &slices[..] };
                ready!(stream.poll_write_vectored(cx, slices))?
            };
            if written == 0 {
                return Poll::Ready(Err(StreamError::Closed));
            }
            if written < waiting {
                self.sent += written;
                continue;
            }
            self.out.clear();
            self.sent = 0;
            let of_body = written - waiting;
            if of_body > 0 {
                source.consume(of_body);
                self.put(of_body);
                return Poll::Ready(Ok(of_body));
            }
        }
    }

    fn put(&mut self, n: usize) {
        match self.framing {
            Framing::Length(_) => self.left -= n as u64,
            Framing::Chunked => {
                self.left -= n as u64;
                if self.left == 0 {
                    self.out().extend_from_slice(b"\r\n");
                }
            }
            Framing::None | Framing::UntilClose => {}
        }
    }

    fn finish(&mut self, trailers: Option<&Fields>) -> Result<(), StreamError> {
        match self.framing {
            Framing::Length(_) | Framing::Chunked if self.left > 0 => {
                return Err(StreamError::Length);
            }
            Framing::Chunked => {
                let out = self.out();
                out.extend_from_slice(b"0\r\n");
                if let Some(trailers) = trailers {
                    trailers.write(out);
                }
                out.extend_from_slice(b"\r\n");
            }
            _ => {}
        }
        self.finished = true;
        Ok(())
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        if self.out.capacity() > 0 {
            buffer::give_write(std::mem::take(&mut self.out));
        }
    }
}

fn write_hex(out: &mut Vec<u8>, mut n: usize) {
    let mut digits = [0_u8; 16];
    let mut at = digits.len();
    loop {
        at -= 1;
        let nibble = (n & 15) as u8;
        digits[at] = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
        n >>= 4;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// A connection with both directions.
#[derive(Debug)]
pub(crate) struct H1Conn {
    pub(crate) stream: Stream,
    pub(crate) read: ReadHalf,
    pub(crate) write: WriteHalf,
}

impl H1Conn {
    pub(crate) fn new(stream: Stream, first: BytesMut, limits: Limits) -> Self {
        Self {
            stream,
            read: ReadHalf::new(first, limits),
            write: WriteHalf::default(),
        }
    }

    /// A connection to a server: what is read are responses (RFC 9112 section 4), of HTTP/1.0 or HTTP/1.1.
    pub(crate) fn to_server(stream: Stream, limits: Limits) -> Self {
        let mut conn = Self::new(stream, BytesMut::new(), limits);
        conn.read.start = b"HTTP/1.";
        conn
    }

    /// The two directions, usable at the same time.
    pub(crate) fn halves(&mut self) -> (H1Reader<'_>, H1Writer<'_>) {
        (
            H1Reader {
                stream: &self.stream,
                half: &mut self.read,
            },
            H1Writer {
                stream: &self.stream,
                half: &mut self.write,
            },
        )
    }
}

/// The reading direction of a borrowed connection.
#[derive(Debug)]
pub(crate) struct H1Reader<'c> {
    pub(crate) stream: &'c Stream,
    pub(crate) half: &'c mut ReadHalf,
}

/// The writing direction of a borrowed connection.
#[derive(Debug)]
pub(crate) struct H1Writer<'c> {
    pub(crate) stream: &'c Stream,
    pub(crate) half: &'c mut WriteHalf,
}

impl Source for H1Reader<'_> {
    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<Fill, StreamError>> {
        self.half.poll_fill(cx, self.stream, room)
    }

    fn chunk(&self) -> &[u8] {
        self.half.chunk()
    }

    fn consume(&mut self, n: usize) {
        self.half.consume(n);
    }

    fn ends_after(&self, n: usize) -> bool {
        self.half.ends_after(n)
    }

    fn take_trailers(&mut self) -> Option<Fields> {
        self.half.trailers.take()
    }
}

impl Sink for H1Writer<'_> {
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        // One message at a time: what is held is one read.
        Poll::Ready(Ok(()))
    }

    fn room(&self) -> usize {
        usize::MAX
    }

    fn poll_put<S: Source>(&mut self, cx: &mut Context<'_>, source: &mut S) -> Poll<Result<usize, StreamError>> {
        self.half.poll_put(cx, self.stream, source)
    }

    fn finish(&mut self, trailers: Option<&Fields>) -> Result<(), StreamError> {
        self.half.finish(trailers)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        self.half.poll_flush(cx, self.stream)
    }
}
