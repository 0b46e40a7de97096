//! Bodies in motion: where bytes come from, where they go, and the pump between the two.
//!
//! A [`Source`] shows the bytes that it holds before they are taken, so that a sink decides how many it has room for
//! (backpressure) and whether they must be owned (HTTP/2) or may be written from where they lie (HTTP/1.1).

use std::task::{Context, Poll, ready};

use bytes::Bytes;

use crate::h1::H1Error;
use crate::head::Fields;

/// Why a stream, or one direction of it, ended badly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StreamError {
    /// The peer broke HTTP/1.1.
    #[error("{0}")]
    H1(#[from] H1Error),
    /// The peer broke HTTP/2, or the connection failed by its rules.
    #[error("HTTP/2 protocol error")]
    H2,
    /// The peer closed the connection, or it failed.
    #[error("connection closed")]
    Closed,
    /// The peer had closed the connection, which was kept from an earlier request, before it said a word about this one.
    #[error("connection closed while it was kept")]
    Stale,
    /// The peer reset this stream.
    #[error("stream reset")]
    Reset,
    /// The peer reset this stream and says that it did nothing with it.
    #[error("stream refused")]
    Refused,
    /// The peer is going away and did nothing with this stream.
    #[error("going away")]
    GoneAway,
    /// The peer takes no extended CONNECT, so no upgrade.
    #[error("no extended CONNECT")]
    NoTunnel,
    /// It had to give way: too much is held that nobody takes.
    #[error("too much is held")]
    Overload,
    /// A message's body does not have the length that was announced.
    #[error("body length differs from content-length")]
    Length,
    /// A filter cannot read a request's body.
    #[error("{0}")]
    Content(ContentError),
}

/// What is wrong with a request's body, for the filter that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ContentError {
    /// It ends within four characters of base64.
    #[error("base64 that ends too early")]
    Base64Length,
    /// It holds what is no base64.
    #[error("no base64")]
    Base64,
}

impl ContentError {
    /// What a client is told, with status 400.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Base64Length | Self::Base64 => "Bad gRPC-web request, invalid base64 data.",
        }
    }

    /// `%RESPONSE_CODE_DETAILS%`.
    pub(crate) fn details(self) -> &'static str {
        match self {
            Self::Base64Length => "grpc_base_64_decode_failed_bad_size",
            Self::Base64 => "grpc_base_64_decode_failed",
        }
    }
}

impl From<std::io::Error> for StreamError {
    fn from(_: std::io::Error) -> Self {
        Self::Closed
    }
}

/// What [`Source::poll_fill`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    /// [`Source::chunk`] holds bytes.
    Data,
    /// The body is over; trailers, if any, can be taken.
    End,
}

/// The length of a body, as far as it is known before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyLength {
    /// No body.
    Empty,
    /// Exactly so many bytes.
    Known(u64),
    /// Until its end is announced.
    Unknown,
    /// Raw bytes in both directions after an upgrade.
    Tunnel,
}

/// Where body bytes come from.
pub(crate) trait Source {
    /// Ready when bytes are there or the body is over. So many can be passed on at once as `room` says; what is read
    /// beyond it has to be held here.
    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<Fill, StreamError>>;
    /// The bytes at the front; empty before [`Source::poll_fill`] said [`Fill::Data`].
    fn chunk(&self) -> &[u8];
    /// Drops bytes from the front of the chunk.
    fn consume(&mut self, n: usize);
    /// Whether the body ends right after `n` bytes of the chunk, without trailers, as far as is known now.
    fn ends_after(&self, n: usize) -> bool;
    /// The trailers, once, after the end.
    fn take_trailers(&mut self) -> Option<Fields>;
    /// Why what it holds is not to be passed on, however much that is.
    fn dropped(&self) -> Option<StreamError> {
        None
    }
}

/// Where body bytes go.
pub(crate) trait Sink {
    /// Ready unless so much is held for this sink already that its source should not read.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>>;
    /// How many bytes it would take now, as far as is known.
    fn room(&self) -> usize;
    /// Takes bytes from the source's chunk; ready when it took at least one.
    fn poll_put<S: Source>(&mut self, cx: &mut Context<'_>, source: &mut S) -> Poll<Result<usize, StreamError>>;
    /// The body is over. Nothing is put afterwards.
    fn finish(&mut self, trailers: Option<&Fields>) -> Result<(), StreamError>;
    /// Ready when nothing is held back on this side any more.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>>;
}

/// Which side of a pump failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PumpError {
    /// Reading.
    Source(StreamError),
    /// Writing.
    Sink(StreamError),
}

/// Bytes moved before other tasks of the worker get their turn. Hundreds of connections may all have a turn before it is
/// the others: with 200 that nobody reads from, a tenth of a millisecond each is what the others notice.
const TURN_BYTES: usize = 128 * 1024;

/// What a piece counts besides its bytes: a body of tiny chunks costs by their number.
const PIECE: usize = 256;

/// Progress of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pump {
    /// Body bytes moved.
    pub(crate) bytes: u64,
    /// The end was handed to the sink.
    pub(crate) finished: bool,
    /// Everything was flushed as well.
    pub(crate) flushed: bool,
}

impl Pump {
    /// Moves what can be moved. The sink is flushed when the source has nothing more for now, so that a head and the
    /// body bytes already there leave together. However much the source has, a turn ends after [`TURN_BYTES`].
    pub(crate) fn poll<S: Source, K: Sink>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut S,
        sink: &mut K,
    ) -> Poll<Result<(), PumpError>> {
        let mut left = TURN_BYTES;
        while !self.finished {
            if left == 0 {
                // The others of this worker first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some(error) = source.dropped() {
                return Poll::Ready(Err(PumpError::Source(error)));
            }
            if sink.poll_ready(cx).map_err(PumpError::Sink)?.is_pending() {
                let _ = sink.poll_flush(cx).map_err(PumpError::Sink)?;
                return Poll::Pending;
            }
            match source.poll_fill(cx, sink.room()) {
                Poll::Ready(Ok(Fill::Data)) => match sink.poll_put(cx, source) {
                    Poll::Ready(Ok(n)) => {
                        self.bytes += n as u64;
                        left = left.saturating_sub(n + PIECE);
                    }
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(PumpError::Sink(e))),
                    Poll::Pending => {
                        // The sink is full: what it holds must be on its way.
                        let _ = sink.poll_flush(cx).map_err(PumpError::Sink)?;
                        return Poll::Pending;
                    }
                },
                Poll::Ready(Ok(Fill::End)) => {
                    let trailers = source.take_trailers();
                    sink.finish(trailers.as_ref()).map_err(PumpError::Sink)?;
                    self.finished = true;
                }
                Poll::Ready(Err(e)) => return Poll::Ready(Err(PumpError::Source(e))),
                Poll::Pending => {
                    ready!(sink.poll_flush(cx)).map_err(PumpError::Sink)?;
                    return Poll::Pending;
                }
            }
        }
        if !self.flushed {
            ready!(sink.poll_flush(cx)).map_err(PumpError::Sink)?;
            self.flushed = true;
        }
        Poll::Ready(Ok(()))
    }
}

/// A source that holds bytes from the start: local answers, and replays.
#[derive(Debug, Default)]
pub(crate) struct Static(pub(crate) Bytes);

impl Source for Static {
    fn poll_fill(&mut self, _: &mut Context<'_>, _: usize) -> Poll<Result<Fill, StreamError>> {
        Poll::Ready(Ok(if self.0.is_empty() { Fill::End } else { Fill::Data }))
    }

    fn chunk(&self) -> &[u8] {
        &self.0
    }

    fn consume(&mut self, n: usize) {
        let n = n.min(self.0.len());
        bytes::Buf::advance(&mut self.0, n);
    }

    fn ends_after(&self, n: usize) -> bool {
        n >= self.0.len()
    }

    fn take_trailers(&mut self) -> Option<Fields> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;

    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    /// A source of pieces of one size that never has to wait.
    struct Endless(&'static [u8]);

    impl Source for Endless {
        fn poll_fill(&mut self, _: &mut Context<'_>, _: usize) -> Poll<Result<Fill, StreamError>> {
            Poll::Ready(Ok(Fill::Data))
        }

        fn chunk(&self) -> &[u8] {
            self.0
        }

        fn consume(&mut self, _: usize) {}

        fn ends_after(&self, _: usize) -> bool {
            false
        }

        fn take_trailers(&mut self) -> Option<Fields> {
            None
        }
    }

    /// A sink that takes everything; it counts pieces.
    #[derive(Clone, Default)]
    struct Abyss(Rc<Cell<usize>>);

    impl Sink for Abyss {
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
            Poll::Ready(Ok(()))
        }

        fn room(&self) -> usize {
            usize::MAX
        }

        fn poll_put<S: Source>(&mut self, _: &mut Context<'_>, source: &mut S) -> Poll<Result<usize, StreamError>> {
            let n = source.chunk().len();
            source.consume(n);
            self.0.set(self.0.get() + 1);
            Poll::Ready(Ok(n))
        }

        fn finish(&mut self, _: Option<&Fields>) -> Result<(), StreamError> {
            Ok(())
        }

        fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
            Poll::Ready(Ok(()))
        }
    }

    /// A greedy body beside an honest one that needs ten turns: how many pieces the greedy one has moved meanwhile.
    async fn moved_beside_ten_turns(piece: &'static [u8]) -> usize {
        let abyss = Abyss::default();
        let mut sink = abyss.clone();
        let greedy = spawn_local(async move {
            let mut pump = Pump::default();
            poll_fn(|cx| pump.poll(cx, &mut Endless(piece), &mut sink)).await
        });
        let mut turns = 0;
        let honest = spawn_local(poll_fn(move |cx| {
            turns += 1;
            if turns > 10 {
                return Poll::Ready(abyss.0.get());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let moved = honest.await.expect("it ends");
        greedy.abort();
        moved
    }

    #[tokio::test(start_paused = true)]
    async fn a_greedy_body_leaves_turns_to_others() {
        let test = async {
            let large = moved_beside_ten_turns(&[0; 64 * 1024]).await;
            assert!((10..=11 * 2).contains(&large), "{large} pieces of 64 KiB");
            let tiny = moved_beside_ten_turns(b"x").await;
            assert!(
                (10..=11 * TURN_BYTES / PIECE).contains(&tiny),
                "{tiny} pieces of one byte"
            );
        };
        LocalSet::new().run_until(test).await;
    }
}
