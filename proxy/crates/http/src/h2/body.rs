//! Bodies over HTTP/2, with flow control end to end: room is given back to the sender when its bytes have been passed
//! on, and bytes are taken from the other side when there is room for them.

use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};

use super::stream::Stream;
use crate::body::{Fill, Sink, Source, StreamError};
use crate::head::Fields;

/// The reading direction of a stream.
pub(crate) struct H2Reader {
    stream: Rc<Stream>,
    chunk: Bytes,
    trailers: Option<Fields>,
    /// What comes belongs to a tunnel that is not open yet; there is no body.
    waiting: bool,
}

impl H2Reader {
    pub(crate) fn new(stream: Rc<Stream>) -> Self {
        Self {
            stream,
            chunk: Bytes::new(),
            trailers: None,
            waiting: false,
        }
    }

    /// Of an upgrade: without a body, until [`H2Reader::open`] lets its bytes through.
    pub(crate) fn waiting(stream: Rc<Stream>) -> Self {
        let mut reader = Self::new(stream);
        reader.waiting = true;
        reader
    }

    /// The upgrade was accepted.
    pub(crate) fn open(&mut self) {
        self.waiting = false;
    }

    /// Whether nothing more comes.
    pub(crate) fn is_end(&self) -> bool {
        self.chunk.is_empty() && self.stream.is_end()
    }
}

impl Source for H2Reader {
    fn poll_fill(&mut self, cx: &mut Context<'_>, _: usize) -> Poll<Result<Fill, StreamError>> {
        if !self.chunk.is_empty() {
            return Poll::Ready(Ok(Fill::Data));
        }
        if self.waiting {
            return Poll::Ready(Ok(Fill::End));
        }
        Poll::Ready(match ready!(self.stream.poll_data(cx)) {
            Ok(Some(bytes)) => {
                self.chunk = bytes;
                Ok(Fill::Data)
            }
            Ok(None) => {
                if self.trailers.is_none() {
                    self.trailers = self.stream.take_trailers();
                }
                Ok(Fill::End)
            }
            Err(error) => Err(error),
        })
    }

    fn chunk(&self) -> &[u8] {
        &self.chunk
    }

    fn consume(&mut self, n: usize) {
        let n = n.min(self.chunk.len());
        self.chunk.advance(n);
        self.stream.release(n);
    }

    fn ends_after(&self, n: usize) -> bool {
        n >= self.chunk.len() && self.stream.is_end()
    }

    fn take_trailers(&mut self) -> Option<Fields> {
        self.trailers.take()
    }

    fn dropped(&self) -> Option<StreamError> {
        self.stream.dropped()
    }
}

impl Drop for H2Reader {
    fn drop(&mut self) {
        // What was taken and not passed on still counts against the connection's window.
        self.stream.release(self.chunk.len());
    }
}

/// The writing direction of a stream.
pub(crate) struct H2Writer {
    stream: Rc<Stream>,
    ended: bool,
}

impl H2Writer {
    /// `ended`: END_STREAM went with the head.
    pub(crate) fn new(stream: Rc<Stream>, ended: bool) -> Self {
        Self { stream, ended }
    }
}

impl Sink for H2Writer {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        self.stream.poll_ready(cx)
    }

    fn room(&self) -> usize {
        if self.ended { usize::MAX } else { self.stream.room() }
    }

    fn poll_put<S: Source>(&mut self, cx: &mut Context<'_>, source: &mut S) -> Poll<Result<usize, StreamError>> {
        let available = source.chunk().len();
        if self.ended {
            // An answer to HEAD: the body goes nowhere.
            source.consume(available);
            return Poll::Ready(Ok(available));
        }
        let n = ready!(self.stream.poll_room(cx, available))?.min(available);
        let end = source.ends_after(n);
        self.stream.send_data(source.chunk().get(..n).unwrap_or_default(), end);
        source.consume(n);
        self.ended = end;
        Poll::Ready(Ok(n))
    }

    fn finish(&mut self, trailers: Option<&Fields>) -> Result<(), StreamError> {
        if self.ended {
            return Ok(());
        }
        self.ended = true;
        match trailers {
            Some(trailers) => self.stream.send_trailers(trailers),
            None => self.stream.send_data(&[], true),
        }
        Ok(())
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        // The connection's task sends what all streams have written, at once.
        Poll::Ready(Ok(()))
    }
}
