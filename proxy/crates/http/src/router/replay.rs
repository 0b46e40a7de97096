//! A request body that can be sent again: what was passed on is kept, up to the buffer limit and what the worker's requests
//! may keep together, while a retry may need it.

use std::rc::Rc;
use std::task::{Context, Poll};

use super::mirror::Copies;
use crate::body::{BodyLength, Fill, Source, StreamError};
use crate::hcm::RequestBody;
use crate::head::Fields;
use crate::kept::{Keeper, KeptBytes, Purpose};

/// Bytes of a piece of what is kept. One that grew as a whole would leave behind what it was in before, again and again.
const PIECE: usize = 16 * 1024;

/// A body with memory.
pub(crate) struct ReplayBody<'b, B> {
    inner: &'b mut B,
    /// What is kept, each piece but the last [`PIECE`] long.
    kept: Vec<Vec<u8>>,
    /// How long that is.
    length: usize,
    /// The worker's account of it.
    account: KeptBytes,
    /// How much of it the present try has been given.
    given: usize,
    limit: usize,
    /// Something was passed on that is not in `kept`.
    lost: bool,
    /// It was lost because it was too much, and nobody was told.
    abandoned: bool,
    trailers: Option<Fields>,
    arrived: bool,
    /// Who else gets it.
    copies: Option<Copies>,
}

impl<'b, B: RequestBody> ReplayBody<'b, B> {
    /// Keeps nothing yet. What it will keep, it keeps for this connection.
    pub(crate) fn new(inner: &'b mut B, length: BodyLength, keeper: &Rc<Keeper>) -> Self {
        let arrived = length == BodyLength::Empty;
        Self {
            inner,
            kept: Vec::new(),
            length: 0,
            account: KeptBytes::new(keeper, Purpose::Again),
            given: 0,
            limit: 0,
            lost: false,
            abandoned: false,
            trailers: None,
            arrived,
            copies: None,
        }
    }

    /// Others get it too.
    pub(super) fn copy_to(&mut self, copies: Option<Copies>) {
        self.copies = copies;
    }

    /// Keeps what is passed on from now on, up to so many bytes.
    pub(super) fn keep_up_to(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Starts over for another try; false when the beginning is gone.
    pub(crate) fn rewind(&mut self) -> bool {
        self.given = 0;
        !self.lost
    }

    /// Whether the request could be sent again from its beginning.
    pub(crate) fn rewindable(&self) -> bool {
        !self.lost
    }

    /// No further try will come: nothing needs to be kept.
    pub(crate) fn commit(&mut self) {
        self.limit = 0;
        self.lost = self.lost || self.length > 0;
        if !self.replaying() {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.kept = Vec::new();
        self.account.shrink(0);
        self.length = 0;
        self.given = 0;
    }

    /// Whether too much of it came to be kept, once.
    pub(super) fn take_abandoned(&mut self) -> bool {
        std::mem::take(&mut self.abandoned)
    }

    /// Whether the client has sent everything.
    pub(crate) fn arrived(&self) -> bool {
        self.arrived
    }

    /// Ready when the client has gone. Only asked after its request has arrived.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<StreamError> {
        self.inner.poll_gone(cx)
    }

    /// Raw bytes from now on.
    pub(crate) fn tunnel(&mut self) {
        self.arrived = false;
        self.inner.tunnel();
    }

    fn replaying(&self) -> bool {
        self.given < self.length
    }

    fn keep(&mut self, n: usize) {
        if n == 0 || self.lost {
            return;
        }
        let length = self.length + n;
        if self.limit == 0 || length > self.limit || !self.account.set(length) {
            self.abandoned = self.limit > 0;
            self.lost = true;
            self.forget();
            return;
        }
        let mut bytes = self.inner.chunk().get(..n).unwrap_or_default();
        while !bytes.is_empty() {
            if self.kept.last().is_none_or(|piece| piece.len() == PIECE) {
                self.kept.push(Vec::with_capacity(bytes.len().min(PIECE)));
            }
            let Some(piece) = self.kept.last_mut() else { break };
            let (now, rest) = bytes.split_at(bytes.len().min(PIECE - piece.len()));
            piece.extend_from_slice(now);
            bytes = rest;
        }
        self.length = length;
        self.given = length;
    }
}

impl<B: RequestBody> Source for ReplayBody<'_, B> {
    fn poll_fill(&mut self, cx: &mut Context<'_>, room: usize) -> Poll<Result<Fill, StreamError>> {
        if self.replaying() {
            return Poll::Ready(Ok(Fill::Data));
        }
        if self.arrived {
            return Poll::Ready(Ok(Fill::End));
        }
        let filled = self.inner.poll_fill(cx, room);
        if matches!(filled, Poll::Ready(Ok(Fill::End))) {
            self.arrived = true;
            self.trailers = self.inner.take_trailers();
            if let Some(copies) = &self.copies {
                copies.finish(self.trailers.as_ref());
            }
        }
        filled
    }

    fn chunk(&self) -> &[u8] {
        if self.replaying() {
            let piece = self.kept.get(self.given / PIECE);
            piece
                .and_then(|piece| piece.get(self.given % PIECE..))
                .unwrap_or_default()
        } else {
            self.inner.chunk()
        }
    }

    fn consume(&mut self, n: usize) {
        if self.replaying() {
            self.given = (self.given + n).min(self.length);
            return;
        }
        self.keep(n);
        if let Some(copies) = &self.copies {
            copies.put(self.inner.chunk().get(..n).unwrap_or_default());
        }
        self.inner.consume(n);
    }

    fn ends_after(&self, n: usize) -> bool {
        if self.replaying() {
            return self.arrived && self.trailers.is_none() && self.given + n >= self.length;
        }
        self.inner.ends_after(n)
    }

    fn take_trailers(&mut self) -> Option<Fields> {
        if self.limit > 0 && !self.lost {
            self.trailers.clone()
        } else {
            self.trailers.take()
        }
    }

    fn dropped(&self) -> Option<StreamError> {
        self.inner.dropped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::Static;
    use crate::kept::PURPOSE_BYTES;
    use bytes::Bytes;
    use std::task::Waker;

    fn read_all<B: RequestBody>(body: &mut ReplayBody<'_, B>, piece: usize) -> Vec<u8> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut all = Vec::new();
        while let Poll::Ready(Ok(Fill::Data)) = body.poll_fill(&mut cx, usize::MAX) {
            let n = piece.min(body.chunk().len());
            all.extend_from_slice(&body.chunk()[..n]);
            body.consume(n);
        }
        all
    }

    #[test]
    fn a_body_is_sent_twice_within_the_limit() {
        let mut inner = Static(Bytes::from_static(b"hello world"));
        let mut body = ReplayBody::new(&mut inner, BodyLength::Known(11), &Rc::default());
        body.keep_up_to(64);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(body.poll_fill(&mut cx, usize::MAX).is_ready());
        body.consume(5);
        assert!(body.rewind());
        assert_eq!(read_all(&mut body, 3), b"hello world");
        assert!(body.rewind());
        assert_eq!(read_all(&mut body, 100), b"hello world");
    }

    #[test]
    fn pieces_come_back_as_they_were() {
        let text: Vec<u8> = (0..3 * PIECE + 5).map(|i| i as u8).collect();
        for piece in [1, 1000, PIECE, PIECE + 1, usize::MAX] {
            let mut inner = Static(Bytes::from(text.clone()));
            let mut body = ReplayBody::new(&mut inner, BodyLength::Known(text.len() as u64), &Rc::default());
            body.keep_up_to(text.len());
            for _ in 0..3 {
                assert!(read_all(&mut body, piece) == text && body.rewind(), "{piece}");
            }
        }
    }

    #[test]
    fn beyond_the_limit_there_is_no_second_try() {
        let mut inner = Static(Bytes::from_static(b"hello world"));
        let mut body = ReplayBody::new(&mut inner, BodyLength::Known(11), &Rc::default());
        body.keep_up_to(4);
        assert_eq!(read_all(&mut body, 3), b"hello world");
        assert!(!body.rewind());
        assert!(body.take_abandoned() && !body.take_abandoned());
    }

    #[test]
    fn what_the_worker_has_no_room_for_is_not_sent_twice() {
        let keeper = Rc::default();
        let mut others = KeptBytes::new(&keeper, Purpose::Again);
        assert!(others.set(PURPOSE_BYTES - 10));
        let mut inner = Static(Bytes::from_static(b"hello world"));
        let mut body = ReplayBody::new(&mut inner, BodyLength::Known(11), &keeper);
        body.keep_up_to(64);
        assert_eq!(read_all(&mut body, 3), b"hello world");
        assert!(!body.rewind() && body.take_abandoned());
        assert!(others.set(PURPOSE_BYTES), "it gave back what it had");
    }
}
