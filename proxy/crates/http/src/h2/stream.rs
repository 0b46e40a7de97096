//! One stream: what has come and was not taken, what may be sent, and how it ended. The connection's driver fills it, the
//! request empties it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};

use super::connection::Connection;
use super::flow::RecvWindow;
use super::frame::Reason;
use crate::body::StreamError;
use crate::head::{Fields, RequestHead, ResponseHead};

/// Most response heads that wait to be taken: interim ones and the final one. The router gives up before that.
const MAX_HEADS: usize = 34;

/// What a stream stands in line for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Room in the output.
    Head,
    /// That, and what the connection's window allows.
    Body,
    /// The peer's SETTINGS, which say whether it takes an extended CONNECT.
    Settings,
}

/// What follows a request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follows {
    /// Nothing.
    Nothing,
    /// A body.
    Body,
    /// A tunnel for the protocol that `upgrade` names: the head goes out as an extended CONNECT (RFC 8441).
    Tunnel,
}

/// What has come.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) data: BytesMut,
    pub(super) heads: VecDeque<ResponseHead>,
    pub(super) trailers: Option<Fields>,
    /// The peer has ended its side.
    pub(super) end: bool,
    pub(super) window: RecvWindow,
    /// What is missing of the announced length.
    pub(super) missing: Option<u64>,
}

impl Inbox {
    /// Whether one more interim head may wait. All of them together take no more than one head may: a few bytes of HPACK
    /// make a large one.
    pub(super) fn has_room_for(&self, head: &ResponseHead, max_bytes: usize) -> bool {
        let waiting: usize = self.heads.iter().map(|head| head.fields.byte_size()).sum();
        self.heads.len() < MAX_HEADS && waiting + head.fields.byte_size() <= max_bytes
    }
}

/// A stream's state, shared by the connection and its [`Stream`].
#[derive(Debug)]
pub(super) struct State {
    /// Zero before it is opened.
    pub(super) id: Cell<u32>,
    pub(super) inbox: RefCell<Inbox>,
    /// What the peer allows to be sent; below zero after SETTINGS have made it smaller.
    pub(super) send_window: Cell<i64>,
    /// We have ended our side.
    pub(super) local_end: Cell<bool>,
    /// A response head without a body is expected: the request was HEAD.
    pub(super) head_request: Cell<bool>,
    /// A final head was sent or received.
    pub(super) answered: Cell<bool>,
    /// An extended CONNECT that is not refused: there are no trailers.
    pub(super) tunnel: Cell<bool>,
    pub(super) error: Cell<Option<StreamError>>,
    /// The peer has reset it.
    pub(super) reset_by_peer: Cell<bool>,
    /// The line that it stands in.
    pub(super) queued: Cell<Option<Line>>,
    /// Bytes that its request holds meanwhile.
    pub(super) holding: Cell<usize>,
    /// Bytes of heads and trailers: of a client's stream its request's until its end, and its answer's; of one towards an
    /// upstream what waits in the inbox.
    pub(super) heads: Cell<usize>,
    waker: RefCell<Option<Waker>>,
}

impl State {
    pub(super) fn new(id: u32, send_window: i64, window: RecvWindow) -> Rc<Self> {
        Rc::new(Self {
            id: Cell::new(id),
            inbox: RefCell::new(Inbox {
                data: BytesMut::new(),
                heads: VecDeque::new(),
                trailers: None,
                end: false,
                window,
                missing: None,
            }),
            send_window: Cell::new(send_window),
            local_end: Cell::new(false),
            head_request: Cell::new(false),
            answered: Cell::new(false),
            tunnel: Cell::new(false),
            error: Cell::new(None),
            reset_by_peer: Cell::new(false),
            queued: Cell::new(None),
            holding: Cell::new(0),
            heads: Cell::new(0),
            waker: RefCell::new(None),
        })
    }

    /// Bytes that are held for it: received and not passed on, or waiting to be sent.
    pub(super) fn held(&self) -> usize {
        self.inbox.borrow().window.held() + self.holding.get() + self.heads.get()
    }

    /// Lets the request run again.
    pub(super) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Notes how it ended, unless that is known, and wakes its request.
    pub(super) fn fail(&self, error: StreamError) {
        if self.error.get().is_none() {
            self.error.set(Some(error));
        }
        self.wake();
    }

    pub(super) fn register(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
    }
}

/// A stream as its request has it. Dropping it ends the stream: what is not finished is reset.
pub(crate) struct Stream {
    pub(super) connection: Rc<Connection>,
    pub(super) state: Rc<State>,
}

impl Stream {
    /// A client's stream that is not open yet.
    pub(crate) fn unopened(connection: &Rc<Connection>) -> Self {
        Self {
            connection: Rc::clone(connection),
            state: connection.unopened(),
        }
    }

    /// Opens the stream with this request head once there is room for it.
    ///
    /// # Errors
    /// [`StreamError::GoneAway`]: the connection takes no more streams; nothing was sent. [`StreamError::NoTunnel`]: the
    /// peer takes no extended CONNECT.
    pub(crate) fn poll_open(
        &self,
        cx: &mut Context<'_>,
        head: &RequestHead,
        follows: Follows,
    ) -> Poll<Result<(), StreamError>> {
        self.connection.poll_open(&self.state, cx, head, follows)
    }

    /// Ready with the next response head in `head`, interim or final.
    pub(crate) fn poll_head(&self, cx: &mut Context<'_>, head: &mut ResponseHead) -> Poll<Result<(), StreamError>> {
        let taken = self.state.inbox.borrow_mut().heads.pop_front();
        match (taken, self.state.error.get()) {
            (Some(mut taken), _) => {
                let bytes = taken.fields.held();
                std::mem::swap(head, &mut taken);
                taken.give_back();
                self.connection.response_taken(&self.state, bytes);
                Poll::Ready(Ok(()))
            }
            (None, Some(error)) => Poll::Ready(Err(error)),
            (None, None) => {
                self.state.register(cx);
                Poll::Pending
            }
        }
    }

    /// Ready with what has come of the body; none at its end. Call [`Stream::release`] for what was passed on.
    pub(crate) fn poll_data(&self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        let mut inbox = self.state.inbox.borrow_mut();
        if !inbox.data.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut inbox.data).freeze())));
        }
        if inbox.end {
            return Poll::Ready(Ok(None));
        }
        if let Some(error) = self.state.error.get() {
            return Poll::Ready(Err(error));
        }
        self.state.register(cx);
        Poll::Pending
    }

    /// So many bytes of the body were passed on: the peer may send as many more.
    pub(crate) fn release(&self, n: usize) {
        self.connection.release(&self.state, n);
    }

    /// The trailers, once, after the body's end.
    pub(crate) fn take_trailers(&self) -> Option<Fields> {
        self.state.inbox.borrow_mut().trailers.take()
    }

    /// Whether nothing more comes and nothing is left.
    pub(crate) fn is_end(&self) -> bool {
        let inbox = self.state.inbox.borrow();
        inbox.end && inbox.data.is_empty() && inbox.trailers.is_none()
    }

    /// Ready with how many bytes may be sent now: one at least. `holding` so many is what waits with the caller.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>, holding: usize) -> Poll<Result<usize, StreamError>> {
        self.connection.poll_room(&self.state, cx, holding)
    }

    /// How many bytes may be sent now.
    pub(crate) fn room(&self) -> usize {
        self.connection.room(&self.state)
    }

    /// Ready unless the connection's streams hold too much that cannot be sent.
    pub(crate) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        self.connection.poll_ready(&self.state, cx)
    }

    /// Ready when a head may be sent: what waits on the connection is within its bound. `holding` so many bytes is the head
    /// that waits with the caller.
    pub(crate) fn poll_head_room(&self, cx: &mut Context<'_>, holding: usize) -> Poll<Result<(), StreamError>> {
        self.connection.poll_head_room(&self.state, cx, holding)
    }

    /// Sends body bytes, no more than [`Stream::poll_room`] has allowed.
    pub(crate) fn send_data(&self, bytes: &[u8], end: bool) {
        self.connection.send_data(&self.state, bytes, end);
    }

    /// Sends a response head.
    ///
    /// # Errors
    /// How the stream has ended.
    pub(crate) fn send_response(&self, head: &ResponseHead, end: bool) -> Result<(), StreamError> {
        match self.state.error.get() {
            Some(error) => Err(error),
            None => {
                self.connection.send_response(&self.state, head, end);
                Ok(())
            }
        }
    }

    /// Ends our side with trailers.
    pub(crate) fn send_trailers(&self, trailers: &Fields) {
        self.connection.send_trailers(&self.state, trailers);
    }

    /// Resets the stream, unless it is over.
    pub(crate) fn reset(&self, reason: Reason) {
        self.connection.reset(&self.state, reason);
    }

    /// Whether the peer has reset the stream, or broken the protocol on it so that it had to be reset here: one costs a
    /// peer as little as the other.
    pub(crate) fn was_given_up(&self) -> bool {
        let broken = matches!(self.state.error.get(), Some(StreamError::H2 | StreamError::Length));
        self.state.reset_by_peer.get() || broken
    }

    /// [`StreamError::Overload`] when it had to give way.
    pub(crate) fn dropped(&self) -> Option<StreamError> {
        self.state.error.get().filter(|error| *error == StreamError::Overload)
    }

    /// Ready when the stream has ended badly.
    pub(crate) fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<StreamError> {
        match self.state.error.get() {
            Some(error) => Poll::Ready(error),
            None => {
                self.state.register(cx);
                Poll::Pending
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.end_stream(&self.state);
    }
}
