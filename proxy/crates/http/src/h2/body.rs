//! Bodies over HTTP/2, with flow control end to end: room is given back to the sender when its bytes have been passed
//! on, and bytes are taken from the other side when there is room for them.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::{Reason, RecvStream, SendStream};

use super::convert::{fields_of, map_of};
use super::transport::Io;
use crate::body::{Fill, Sink, Source, StreamError};
use crate::head::Fields;

/// Most bytes handed to `h2` at once.
const MAX_PIECE: usize = 64 * 1024;

/// What an error of `h2` means for a stream. `io` and `stream` tell whether the peer worked on it before going away.
pub(crate) fn stream_error(error: &h2::Error, io: Option<&Io>, stream: u32) -> StreamError {
    let untouched = io.and_then(Io::goaway).is_some_and(|last| stream > last);
    if error.is_reset() && error.is_remote() {
        return match error.reason() {
            Some(Reason::REFUSED_STREAM) => StreamError::Refused,
            _ => StreamError::Reset,
        };
    }
    if untouched {
        return StreamError::GoneAway;
    }
    if error.is_io() || (error.is_go_away() && error.is_remote()) {
        StreamError::Closed
    } else {
        StreamError::H2
    }
}

/// The reading direction of a stream.
pub(crate) struct H2Reader {
    recv: Option<RecvStream>,
    chunk: Bytes,
    trailers: Option<Fields>,
    io: Option<Rc<Io>>,
    data_done: bool,
}

impl H2Reader {
    pub(crate) fn new(recv: RecvStream, io: Option<Rc<Io>>) -> Self {
        Self {
            recv: Some(recv),
            chunk: Bytes::new(),
            trailers: None,
            io,
            data_done: false,
        }
    }

    /// A reader whose stream is not known yet.
    pub(crate) fn unopened(io: Option<Rc<Io>>) -> Self {
        Self {
            recv: None,
            chunk: Bytes::new(),
            trailers: None,
            io,
            data_done: false,
        }
    }

    pub(crate) fn open(&mut self, recv: RecvStream) {
        self.recv = Some(recv);
    }

    /// Whether nothing more comes.
    pub(crate) fn is_end(&self) -> bool {
        self.chunk.is_empty() && self.recv.as_ref().is_none_or(RecvStream::is_end_stream)
    }

    fn error(&self, error: &h2::Error) -> StreamError {
        let id = self.recv.as_ref().map_or(0, |r| r.stream_id().as_u32());
        stream_error(error, self.io.as_deref(), id)
    }
}

impl Source for H2Reader {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<Fill, StreamError>> {
        loop {
            if !self.chunk.is_empty() {
                return Poll::Ready(Ok(Fill::Data));
            }
            let Some(recv) = &mut self.recv else {
                return Poll::Ready(Ok(Fill::End));
            };
            if self.data_done {
                match ready!(recv.poll_trailers(cx)) {
                    Ok(None) => {}
                    Ok(Some(map)) => {
                        let mut fields = Fields::new();
                        fields_of(&map, &mut fields);
                        self.trailers = Some(fields);
                    }
                    Err(e) => return Poll::Ready(Err(self.error(&e))),
                }
                self.recv = None;
                return Poll::Ready(Ok(Fill::End));
            }
            match ready!(recv.poll_data(cx)) {
                Some(Ok(bytes)) => self.chunk = bytes,
                // The client may reset with NO_ERROR after it has its answer (RFC 9113 section 8.1).
                Some(Err(e)) => return Poll::Ready(Err(self.error(&e))),
                None => self.data_done = true,
            }
        }
    }

    fn chunk(&self) -> &[u8] {
        &self.chunk
    }

    fn consume(&mut self, n: usize) {
        let n = n.min(self.chunk.len());
        self.chunk.advance(n);
        if let Some(recv) = &mut self.recv {
            // Fails only when more is released than was received.
            let _ = recv.flow_control().release_capacity(n);
        }
    }

    fn take(&mut self, n: usize) -> Bytes {
        let n = n.min(self.chunk.len());
        let bytes = self.chunk.split_to(n);
        if let Some(recv) = &mut self.recv {
            let _ = recv.flow_control().release_capacity(n);
        }
        bytes
    }

    fn ends_after(&self, n: usize) -> bool {
        n >= self.chunk.len() && self.recv.as_ref().is_none_or(RecvStream::is_end_stream)
    }

    fn take_trailers(&mut self) -> Option<Fields> {
        self.trailers.take()
    }
}

/// The writing direction of a stream.
pub(crate) struct H2Writer {
    send: Option<SendStream<Bytes>>,
    ended: bool,
    io: Option<Rc<Io>>,
}

impl H2Writer {
    pub(crate) fn new(send: SendStream<Bytes>, ended: bool, io: Option<Rc<Io>>) -> Self {
        Self {
            send: Some(send),
            ended,
            io,
        }
    }

    /// A writer whose stream is not open yet: bytes have nowhere to go.
    pub(crate) fn unopened() -> Self {
        Self {
            send: None,
            ended: false,
            io: None,
        }
    }

    /// Whether the end of the stream was sent.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    pub(crate) fn stream(&mut self) -> Option<&mut SendStream<Bytes>> {
        self.send.as_mut()
    }

    fn error(&self, error: &h2::Error) -> StreamError {
        let id = self.send.as_ref().map_or(0, |s| s.stream_id().as_u32());
        stream_error(error, self.io.as_deref(), id)
    }
}

impl Sink for H2Writer {
    fn poll_put<S: Source>(&mut self, cx: &mut Context<'_>, source: &mut S) -> Poll<Result<usize, StreamError>> {
        let available = source.chunk().len().min(MAX_PIECE);
        let Some(send) = &mut self.send else {
            return Poll::Ready(Err(StreamError::Closed));
        };
        if self.ended {
            // An answer to HEAD: the body goes nowhere.
            source.consume(available);
            return Poll::Ready(Ok(available));
        }
        send.reserve_capacity(available);
        let mut room = send.capacity();
        while room == 0 {
            match ready!(send.poll_capacity(cx)) {
                Some(Ok(n)) => room = n,
                Some(Err(e)) => return Poll::Ready(Err(self.error(&e))),
                None => return Poll::Ready(Err(StreamError::Reset)),
            }
        }
        let n = room.min(available);
        let end = source.ends_after(n);
        let piece = source.take(n);
        if let Err(e) = send.send_data(piece, end) {
            return Poll::Ready(Err(self.error(&e)));
        }
        self.ended |= end;
        Poll::Ready(Ok(n))
    }

    fn finish(&mut self, trailers: Option<&Fields>) -> Result<(), StreamError> {
        if self.ended {
            return Ok(());
        }
        self.ended = true;
        let Some(send) = &mut self.send else {
            return Err(StreamError::Closed);
        };
        let result = match trailers {
            Some(trailers) => send.send_trailers(map_of(trailers)),
            None => send.send_data(Bytes::new(), true),
        };
        result.map_err(|e| self.error(&e))
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        // `h2` wakes the task that drives the connection, which flushes.
        Poll::Ready(Ok(()))
    }
}
