//! One HTTP/2 connection, of either side: its turns, and what its driver and its streams do with it.
//!
//! ```text
//! socket ─▶ input ─▶ frames (receive) ─▶ streams' inboxes ─▶ requests
//! socket ◀─ one write per turn ◀─ output ◀─ frames ◀────────── requests
//! ```
//!
//! A task of its own drives the connection by [`Connection::poll_turn`]; a client's also runs its streams, between the
//! turn's two halves, [`Connection::poll_receive`] and [`Connection::poll_send_out`]. Body bytes are copied into the output
//! only while less than [`super::send::OUTPUT_ROOM`] waits there and both windows allow it; otherwise their streams stand in
//! line. So what a connection holds for a peer that does not read is bounded, however many streams it has and however large
//! its windows are.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use heddle_config::snapshot::Http2Options;
use heddle_tls::Stream as Transport;
use tokio::task::unconstrained;
use tokio::time::Instant;

use super::blocks::Accepted;
use super::budget::Listed;
use super::core::{Core, End, FAREWELL_PING, Farewell, KEEPALIVE_PING, Role};
use super::frame::{self, Reason};
use super::head::encode_request;
use super::rest::{AtRest, Driven};
use super::stats::CodecStats;
use super::stream::{Follows, Line, State, Stream};
use crate::body::StreamError;
use crate::buffer::{self, READ_SIZE};
use crate::h1::Limits;
use crate::head::{Method, RequestHead};

/// Most frames handled before other tasks of the worker get their turn. A frame costs between 50 ns and a few
/// microseconds.
const TURN: u32 = 64;

/// Least room for another read before the input is tidied.
const LOW_ROOM: usize = 4 * 1024;

/// Streams opened before the peer's SETTINGS tell its limit: what RFC 9113 section 6.5.2 says no peer should go below.
const UNANNOUNCED_STREAMS: u32 = 100;

/// A connection, shared by its driver and its streams.
pub(crate) struct Connection {
    pub(super) transport: Transport,
    pub(super) core: RefCell<Core>,
    _listed: Listed,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// A connection of which `first` was read already. It says its own first frames at its first turn. The requests of its
    /// streams may hold `max_held` bytes that cannot be sent.
    pub(crate) fn new(
        role: Role,
        transport: Transport,
        first: BytesMut,
        options: Http2Options,
        limits: Limits,
        max_held: usize,
        stats: CodecStats,
    ) -> Rc<Self> {
        Rc::new_cyclic(|itself| Self {
            transport,
            core: RefCell::new(Core::new(role, first, options, limits, max_held, stats)),
            _listed: Listed::new(itself),
        })
    }

    /// One that was at rest goes on, on this worker.
    pub(super) fn resume(transport: Transport, at_rest: AtRest, stats: CodecStats) -> Rc<Self> {
        Rc::new_cyclic(|itself| Self {
            transport,
            core: RefCell::new(Core::resume(at_rest, stats)),
            _listed: Listed::new(itself),
        })
    }

    /// Whether it could go to another worker now: nobody but its driver has it, and nothing is under way.
    pub(super) fn is_at_rest(self: &Rc<Self>) -> bool {
        // The second one is the driver's.
        Rc::strong_count(self) == 2 && self.core.borrow().is_at_rest() && self.transport.is_at_rest()
    }

    /// Takes one that is at rest off this worker. None when somebody else has it.
    pub(super) fn into_rest(self: Rc<Self>, driven: Driven) -> Option<(Transport, AtRest)> {
        let Self { transport, core, .. } = Rc::into_inner(self)?;
        Some((transport, core.into_inner().into_rest(driven)))
    }

    /// The byte stream below.
    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Bytes that have come from the peer.
    pub(crate) fn received(&self) -> u64 {
        self.core.borrow().received
    }

    /// Streams open, counting those whose requests have not ended yet.
    pub(crate) fn active(&self) -> usize {
        self.core.borrow().streams.len()
    }

    /// Since when a frame or a header block has been incomplete.
    pub(crate) fn partial_since(&self) -> Option<Instant> {
        self.core.borrow().partial_since
    }

    /// Whether the client's SETTINGS, or the server's, have come.
    pub(crate) fn is_greeted(&self) -> bool {
        self.core.borrow().settings_received
    }

    /// Does what can be done without waiting: reads and handles frames, a bounded number of them, and sends what has
    /// gathered.
    pub(crate) fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<End> {
        let received = self.poll_receive(cx);
        self.poll_send_out(cx, received)
    }

    /// The first half of a turn: reads and handles frames, a bounded number of them. Requests that have come are in
    /// [`Connection::next_accepted`]. Ready when nothing more comes.
    pub(crate) fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<End> {
        let mut core = self.core.borrow_mut();
        core.in_turn = true;
        let mut left = TURN;
        loop {
            let handled = core.handle_input(&mut left);
            if let Err(error) = handled {
                core.broken.get_or_insert(error);
            }
            if let Some(error) = core.broken {
                return Poll::Ready(End::Failed(error));
            }
            if left == 0 {
                // The others of this worker first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match ready!(self.poll_input(cx, &mut core)) {
                Ok(n) if n > 0 => {}
                Ok(_) => return Poll::Ready(End::Finished),
                Err(_) => return Poll::Ready(End::Transport),
            }
        }
    }

    /// The second half: sends what has gathered. Ready when the connection is over, as it is when nothing more comes.
    pub(crate) fn poll_send_out(&self, cx: &mut Context<'_>, received: Poll<End>) -> Poll<End> {
        let mut core = self.core.borrow_mut();
        core.in_turn = false;
        match &mut core.driver {
            Some(driver) if driver.will_wake(cx.waker()) => {}
            driver => *driver = Some(cx.waker().clone()),
        }
        let mut closed = match received {
            Poll::Ready(end) => Some(end),
            Poll::Pending => None,
        };
        if let Some(error) = core.broken {
            let end = core.end(End::Failed(error));
            let _ = self.poll_send(cx, &mut core);
            return Poll::Ready(end);
        }
        // Unconstrained: the streams of this turn may have used up the task's budget, and what they say would wait.
        let mut send = unconstrained(poll_fn(|cx| self.poll_send(cx, &mut core)));
        if let Poll::Ready(Err(_)) = Pin::new(&mut send).poll(cx) {
            closed.get_or_insert(End::Transport);
        }
        core.share();
        core.wake_waiting();
        if core.has_room_for_waiting() {
            // Those let run need not use it. Who does not get it then stands in line for room that is not there.
            cx.waker().wake_by_ref();
        }
        if closed.is_none() && core.streams.is_empty() && core.accepted.is_empty() {
            // Nothing may follow, so this was all.
            let done =
                matches!(core.farewell, Farewell::Final(_)) || (core.role == Role::Client && core.goaway.is_some());
            if done {
                closed = Some(End::Finished);
            }
        }
        match closed {
            Some(end) => Poll::Ready(core.end(end)),
            None => Poll::Pending,
        }
    }

    fn poll_input(&self, cx: &mut Context<'_>, core: &mut Core) -> Poll<io::Result<usize>> {
        if core.input.capacity() == 0 {
            core.input = buffer::take_read();
        } else if core.input.capacity() - core.input.len() < LOW_ROOM {
            core.input.reserve(READ_SIZE);
        }
        let polled = self.transport.poll_read(cx, &mut core.input);
        if let Poll::Ready(Ok(n)) = &polled {
            core.received += *n as u64;
        }
        if core.input.is_empty() {
            buffer::give_read(std::mem::take(&mut core.input));
        }
        polled
    }

    /// Sends what has gathered, ends the sending side, and reads on until the peer closes, so that it gets the last
    /// frames and not a reset. The caller bounds the time.
    pub(crate) fn poll_close(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut core = self.core.borrow_mut();
        if ready!(self.poll_send(cx, &mut core)).is_err() || ready!(self.transport.poll_shutdown(cx)).is_err() {
            return Poll::Ready(());
        }
        core.input.clear();
        match ready!(self.poll_input(cx, &mut core)) {
            Ok(n) if n > 0 => {
                // The others of this worker first.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// A request that has come.
    pub(crate) fn next_accepted(&self) -> Option<Accepted> {
        self.core.borrow_mut().accepted.pop_front()
    }

    /// The stream of an accepted request.
    pub(crate) fn stream(self: &Rc<Self>, accepted: &Accepted) -> Stream {
        Stream {
            connection: Rc::clone(self),
            state: Rc::clone(&accepted.state),
        }
    }

    /// Begins a graceful end: GOAWAY, while streams on their way are still taken and those open finish.
    pub(crate) fn graceful_shutdown(&self) {
        let mut core = self.core.borrow_mut();
        if core.farewell == Farewell::None {
            core.farewell = Farewell::Announced;
            core.stats.goaway_sent.inc();
            core.control(|out| frame::goaway(0x7fff_ffff, Reason::NO_ERROR, out));
            core.control(|out| frame::ping(FAREWELL_PING, false, out));
        }
    }

    /// Takes no new stream from now on; those open finish. False when that was said before.
    pub(crate) fn take_no_more(&self, reason: Reason) -> bool {
        let mut core = self.core.borrow_mut();
        let news = !core.over && !matches!(core.farewell, Farewell::Final(_));
        core.send_goaway(reason);
        news
    }

    /// Ends a client's connection once its streams have ended.
    pub(crate) fn retire(&self) {
        self.take_no_more(Reason::NO_ERROR);
    }

    /// Ends the connection for a reason that is not the peer's: GOAWAY, and every stream fails.
    pub(crate) fn abort(&self) {
        let mut core = self.core.borrow_mut();
        core.send_goaway(Reason::NO_ERROR);
        core.end(End::Finished);
    }

    /// Lets all streams run again.
    pub(crate) fn wake_streams(&self) {
        self.core.borrow().streams.values().for_each(|state| state.wake());
    }

    /// To be held by whoever drives the connection: it does not outlive its driver, though it panics or is dropped.
    pub(crate) fn driver(self: &Rc<Self>) -> Driver {
        Driver(Some(Rc::clone(self)))
    }

    /// Sends the PING of `connection_keepalive`.
    pub(crate) fn ping(&self) {
        let mut core = self.core.borrow_mut();
        core.pong = false;
        core.control(|out| frame::ping(KEEPALIVE_PING, false, out));
    }

    /// Whether the last PING was answered.
    pub(crate) fn is_answered(&self) -> bool {
        self.core.borrow().pong
    }

    /// Whether a client may open streams: no GOAWAY has come, numbers are left, and the peer takes any.
    pub(crate) fn is_open(&self) -> bool {
        let core = self.core.borrow();
        !core.over
            && core.goaway.is_none()
            && core.farewell == Farewell::None
            && core.next_local < 0x7fff_ffff
            && core.peer_max_streams != Some(0)
    }

    /// How many streams a client may have open.
    pub(crate) fn max_streams(&self) -> u32 {
        let core = self.core.borrow();
        let announced = match core.peer_max_streams {
            Some(max) => max,
            None if core.settings_received => u32::MAX,
            None => UNANNOUNCED_STREAMS,
        };
        announced.min(core.options.max_concurrent_streams)
    }

    pub(super) fn unopened(&self) -> Rc<State> {
        let core = self.core.borrow();
        State::new(0, 0, core.new_window())
    }

    /// Numbers are given as heads are sent: a lower one after a higher one would be taken for closed.
    pub(super) fn poll_open(
        &self,
        state: &Rc<State>,
        cx: &mut Context<'_>,
        head: &RequestHead,
        follows: Follows,
    ) -> Poll<Result<(), StreamError>> {
        if !self.is_open() || self.active() >= self.max_streams() as usize {
            return Poll::Ready(Err(StreamError::GoneAway));
        }
        let tunnel = follows == Follows::Tunnel;
        if tunnel {
            ready!(self.poll_tunnel(state, cx))?;
        }
        // The head is the request's, and counts where it came from.
        ready!(self.poll_head_room(state, cx, 0))?;
        let mut core = self.core.borrow_mut();
        let id = core.next_local;
        core.next_local += 2;
        state.id.set(id);
        state.send_window.set(i64::from(core.peer_window));
        state.head_request.set(head.method == Method::Head);
        core.streams.insert(id, Rc::clone(state));
        core.inbound.stream_opened();
        state.tunnel.set(tunnel);
        core.headers(state, follows == Follows::Nothing, |encoder| {
            encode_request(head, tunnel, encoder);
        });
        Poll::Ready(Ok(()))
    }

    /// Ready when the peer is known to take extended CONNECT: before its SETTINGS say so, none may be sent (RFC 8441
    /// section 3).
    fn poll_tunnel(&self, state: &Rc<State>, cx: &Context<'_>) -> Poll<Result<(), StreamError>> {
        let mut core = self.core.borrow_mut();
        if core.peer_connect {
            return Poll::Ready(Ok(()));
        }
        if core.settings_received {
            return Poll::Ready(Err(StreamError::NoTunnel));
        }
        if let Some(error) = state.error.get() {
            return Poll::Ready(Err(error));
        }
        state.register(cx);
        core.queue(state, Line::Settings, 0);
        Poll::Pending
    }

    /// A response head of so many bytes has left the inbox of a stream.
    pub(super) fn response_taken(&self, state: &State, bytes: usize) {
        self.core.borrow_mut().let_go(state, bytes);
    }

    pub(super) fn release(&self, state: &State, n: usize) {
        let mut core = self.core.borrow_mut();
        core.gone(n);
        core.credit_stream(state, n);
    }

    pub(super) fn reset(&self, state: &State, reason: Reason) {
        let over = state.local_end.get() && state.inbox.borrow().end;
        if !over {
            self.core.borrow_mut().reset(state, reason, StreamError::Reset);
        }
    }

    /// Who had the stream has let go of it.
    pub(super) fn end_stream(&self, state: &Rc<State>) {
        let mut core = self.core.borrow_mut();
        core.leave(state);
        if core.streams.remove(&state.id.get()).is_none() {
            return;
        }
        let (held, ended) = {
            let inbox = state.inbox.borrow();
            (inbox.data.len(), inbox.end)
        };
        core.let_go(state, state.heads.get());
        core.gone(held);
        if state.error.get().is_none() && !(ended && state.local_end.get()) {
            let reason = match core.role {
                // RFC 9113 section 8.1: the answer is complete without the rest of the request.
                Role::Server if state.local_end.get() => Reason::NO_ERROR,
                Role::Server => Reason::INTERNAL_ERROR,
                Role::Client => Reason::CANCEL,
            };
            core.reset(state, reason, StreamError::Reset);
        }
        core.wake_driver();
    }
}

/// A connection's driver. When it is gone, so is the connection: its streams would wait for ever.
pub(crate) struct Driver(Option<Rc<Connection>>);

impl Driver {
    /// Lets go of a connection that will have another driver.
    pub(super) fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(connection) = &self.0
            && let Ok(mut core) = connection.core.try_borrow_mut()
            && !core.over
        {
            core.end(End::Finished);
        }
    }
}

#[cfg(test)]
mod tests;
