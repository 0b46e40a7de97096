//! One HTTP/2 connection, of either side: its state, and everything that is sent.
//!
//! ```text
//! socket ─▶ input ─▶ frames (receive) ─▶ streams' inboxes ─▶ requests' tasks
//! socket ◀─ one write per turn ◀─ output ◀─ frames ◀────────── requests' tasks
//! ```
//!
//! A task of its own drives the connection by [`Connection::poll_turn`]. Body bytes are copied into the output only while
//! less than [`super::send::OUTPUT_ROOM`] waits there and both windows allow it; otherwise their streams stand in line. So
//! what a connection holds for a peer that does not read is bounded, however many streams it has and however large its
//! windows are.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::BytesMut;
use heddle_config::snapshot::Http2Options;
use heddle_tls::Stream as Transport;
use tokio::time::Instant;

use super::blocks::{Accepted, Block};
use super::budget::{Listed, Share};
use super::flow::{CONNECTION_START, RecvWindow, STREAM_START, UPSTREAM_STREAM_START};
use super::frame::{self, DEFAULT_WINDOW, Reason, Setting};
use super::head::{HeadReader, encode_request};
use super::hpack::Decoder;
use super::limits::{Flood, Inbound, Outbound};
use super::receive::Reading;
use super::stats::CodecStats;
use super::stream::{Follows, Line, State, Stream};
use crate::body::StreamError;
use crate::buffer::{self, READ_SIZE};
use crate::h1::Limits;
use crate::head::{Method, RequestHead, ResponseHead};

/// What a client sends first (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Most frames handled before other tasks of the worker get their turn. A frame costs between 50 ns and a few
/// microseconds.
const TURN: u32 = 64;

/// Least room for another read before the input is tidied.
const LOW_ROOM: usize = 4 * 1024;

/// Streams that were reset here and whose frames may still be on their way. When there were more, any stream up to the
/// highest forgotten one may have been reset.
const REMEMBERED_RESETS: usize = 128;

/// Streams opened before the peer's SETTINGS tell its limit: what RFC 9113 section 6.5.2 says no peer should go below.
const UNANNOUNCED_STREAMS: u32 = 100;

/// Which end we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Client,
}

/// A violation that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionError {
    pub(crate) reason: Reason,
    /// Which bound was crossed, if it is that.
    pub(crate) flood: Option<Flood>,
}

impl From<Reason> for ConnectionError {
    fn from(reason: Reason) -> Self {
        Self { reason, flood: None }
    }
}

impl From<Flood> for ConnectionError {
    fn from(flood: Flood) -> Self {
        Self {
            reason: Reason::ENHANCE_YOUR_CALM,
            flood: Some(flood),
        }
    }
}

/// Why a connection is over.
#[derive(Debug)]
pub(crate) enum End {
    /// The peer closed it, or all that was announced by GOAWAY is done.
    Finished,
    /// The socket failed.
    Transport,
    /// The peer broke the protocol, or crossed a bound.
    Failed(ConnectionError),
}

/// How far our own GOAWAY has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Farewell {
    #[default]
    None,
    /// Sent with the highest number, so that streams on their way are still taken; a PING tells when they are here.
    Announced,
    /// Sent with the last stream taken.
    Final(u32),
}

/// The PING that tells when an announced GOAWAY has arrived.
pub(super) const FAREWELL_PING: [u8; 8] = *b"farewell";

/// The PING of `connection_keepalive`.
pub(super) const KEEPALIVE_PING: [u8; 8] = *b"are you?";

/// Everything but the socket.
pub(super) struct Core {
    pub(super) role: Role,
    pub(super) options: Http2Options,
    pub(super) limits: Limits,
    pub(super) stats: CodecStats,
    // What comes.
    pub(super) input: BytesMut,
    pub(super) reading: Reading,
    pub(super) received: u64,
    pub(super) decoder: Decoder,
    pub(super) heads: HeadReader,
    /// Memory of a head that was taken, for the next one.
    pub(super) spare_response: ResponseHead,
    pub(super) spare_request: RequestHead,
    pub(super) block: Option<Block>,
    /// Since when a frame or block has been incomplete.
    pub(super) partial_since: Option<Instant>,
    pub(super) accepted: VecDeque<Accepted>,
    pub(super) inbound: Inbound,
    pub(super) recv_window: RecvWindow,
    /// Bytes of bodies that have come and were not passed on.
    pub(super) unread: usize,
    pub(super) share: Share,
    /// A stream was reset for it in this turn; what its task holds is not free yet.
    pub(super) shed: bool,
    pub(super) settings_received: bool,
    pub(super) settings_acknowledged: bool,
    pub(super) pong: bool,
    // What goes.
    pub(super) out: Vec<u8>,
    pub(super) sent: usize,
    pub(super) written: u64,
    pub(super) outbound: Outbound,
    pub(super) broken: Option<ConnectionError>,
    pub(super) send_window: i64,
    /// SETTINGS_INITIAL_WINDOW_SIZE of the peer.
    pub(super) peer_window: u32,
    pub(super) peer_max_streams: Option<u32>,
    /// SETTINGS_ENABLE_CONNECT_PROTOCOL of the peer.
    pub(super) peer_connect: bool,
    pub(super) reset_table: bool,
    /// Streams that wait for room for a head, and for their bodies' turn.
    pub(super) waiting_heads: VecDeque<Rc<State>>,
    pub(super) waiting_bodies: VecDeque<Rc<State>>,
    /// Streams that wait for the peer's SETTINGS.
    pub(super) waiting_settings: VecDeque<Rc<State>>,
    /// What the tasks of the latter hold.
    pub(super) held: usize,
    /// Most that they may: `per_connection_buffer_limit_bytes`.
    pub(super) max_held: usize,
    // Streams.
    pub(super) streams: HashMap<u32, Rc<State>, ahash::RandomState>,
    pub(super) last_peer: u32,
    pub(super) next_local: u32,
    pub(super) resets: VecDeque<u32>,
    /// The highest number that was dropped from those.
    pub(super) forgotten: u32,
    pub(super) farewell: Farewell,
    /// The last stream of the peer's GOAWAY.
    pub(super) goaway: Option<u32>,
    pub(super) over: bool,
    driver: Option<Waker>,
}

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

impl Core {
    pub(super) fn new(
        role: Role,
        first: BytesMut,
        options: Http2Options,
        limits: Limits,
        max_held: usize,
        stats: CodecStats,
    ) -> Self {
        let connection_start = options.connection_window.max(DEFAULT_WINDOW);
        let connection_start = match role {
            Role::Server => connection_start.min(CONNECTION_START),
            Role::Client => connection_start,
        };
        let mut core = Self {
            role,
            options,
            limits,
            stats,
            received: first.len() as u64,
            input: first,
            reading: match role {
                Role::Server => Reading::Preface,
                Role::Client => Reading::Frame,
            },
            decoder: Decoder::new(options.hpack_table_size as usize),
            heads: HeadReader::new(role == Role::Server && options.allow_connect),
            spare_response: ResponseHead::default(),
            spare_request: RequestHead::default(),
            block: None,
            partial_since: None,
            accepted: VecDeque::new(),
            inbound: Inbound::new(&options),
            recv_window: RecvWindow::new(connection_start, options.connection_window, role == Role::Server),
            unread: 0,
            share: Share::new(),
            shed: false,
            settings_received: false,
            settings_acknowledged: false,
            pong: false,
            out: Vec::new(),
            sent: 0,
            written: 0,
            outbound: Outbound::new(&options),
            broken: None,
            send_window: i64::from(DEFAULT_WINDOW),
            peer_window: DEFAULT_WINDOW,
            peer_max_streams: None,
            peer_connect: false,
            reset_table: false,
            waiting_heads: VecDeque::new(),
            waiting_bodies: VecDeque::new(),
            waiting_settings: VecDeque::new(),
            held: 0,
            max_held,
            streams: HashMap::default(),
            last_peer: 0,
            next_local: 1,
            resets: VecDeque::new(),
            forgotten: 0,
            farewell: Farewell::None,
            goaway: None,
            over: false,
            driver: None,
        };
        core.greet(connection_start);
        core
    }

    /// Our side's first frames.
    fn greet(&mut self, connection_start: u32) {
        let mut values = vec![
            (Setting::HeaderTableSize, self.options.hpack_table_size),
            (Setting::InitialWindowSize, self.stream_start()),
            (
                Setting::MaxHeaderListSize,
                u32::try_from(self.limits.max_bytes).unwrap_or(u32::MAX),
            ),
        ];
        match self.role {
            Role::Server => {
                values.push((Setting::MaxConcurrentStreams, self.options.max_concurrent_streams));
                if self.options.allow_connect {
                    values.push((Setting::EnableConnectProtocol, 1));
                }
            }
            Role::Client => {
                values.push((Setting::EnablePush, 0));
                self.control(|out| out.extend_from_slice(PREFACE));
            }
        }
        self.control(|out| frame::settings(&values, out));
        if connection_start > DEFAULT_WINDOW {
            self.control(|out| frame::window_update(0, connection_start - DEFAULT_WINDOW, out));
        }
    }

    /// SETTINGS_INITIAL_WINDOW_SIZE of ours.
    fn stream_start(&self) -> u32 {
        self.options.stream_window.min(match self.role {
            Role::Server => STREAM_START,
            Role::Client => UPSTREAM_STREAM_START,
        })
    }

    pub(super) fn new_window(&self) -> RecvWindow {
        let start = match self.settings_acknowledged {
            true => self.stream_start(),
            // The peer may not have seen our SETTINGS yet.
            false => self.stream_start().max(DEFAULT_WINDOW),
        };
        RecvWindow::new(start, self.options.stream_window, self.role == Role::Client)
    }

    pub(super) fn wake_driver(&self) {
        if let Some(driver) = &self.driver {
            driver.wake_by_ref();
        }
    }

    /// Resets a stream; frames of it that come later are no offence.
    pub(super) fn reset(&mut self, state: &State, reason: Reason, error: StreamError) {
        if state.error.get().is_some() {
            return;
        }
        self.reset_number(state.id.get(), reason);
        state.fail(error);
    }

    /// Resets a stream that has no state.
    pub(super) fn reset_number(&mut self, id: u32, reason: Reason) {
        self.stats.tx_reset.inc();
        if !self.resets.contains(&id) {
            if self.resets.len() >= REMEMBERED_RESETS {
                let oldest = self.resets.pop_front().unwrap_or_default();
                self.forgotten = self.forgotten.max(oldest);
            }
            self.resets.push_back(id);
        }
        self.control(|out| frame::rst_stream(id, reason, out));
    }

    /// Ends every stream.
    pub(super) fn fail_streams(&self, error: impl Fn(u32) -> Option<StreamError>) {
        for state in self.streams.values() {
            if let Some(error) = error(state.id.get()) {
                state.fail(error);
            }
        }
    }

    /// GOAWAY with the last stream that was taken; nothing newer is.
    pub(super) fn send_goaway(&mut self, reason: Reason) {
        if matches!(self.farewell, Farewell::Final(_)) {
            return;
        }
        let last = self.last_peer;
        self.farewell = Farewell::Final(last);
        self.stats.goaway_sent.inc();
        self.control(|out| frame::goaway(last, reason, out));
    }

    fn end(&mut self, end: End) -> End {
        if let End::Failed(error) = &end {
            self.farewell = Farewell::None;
            self.send_goaway(error.reason);
            if let Some(flood) = error.flood {
                self.stats.flood(flood);
            }
        }
        let goaway = self.goaway;
        let failed = matches!(&end, End::Failed(_));
        self.fail_streams(|id| {
            Some(match goaway {
                Some(last) if self.role == Role::Client && id > last => StreamError::GoneAway,
                _ if failed => StreamError::H2,
                _ => StreamError::Closed,
            })
        });
        let lines = [
            &mut self.waiting_heads,
            &mut self.waiting_bodies,
            &mut self.waiting_settings,
        ];
        for state in lines.map(std::mem::take).into_iter().flatten() {
            self.unqueue(&state);
            // Those not open yet have sent nothing.
            state.fail(StreamError::GoneAway);
        }
        self.over = true;
        end
    }
}

impl Connection {
    /// A connection of which `first` was read already. It says its own first frames at its first turn. The tasks of its
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

    /// The byte stream below.
    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Bytes that have come from the peer.
    pub(crate) fn received(&self) -> u64 {
        self.core.borrow().received
    }

    /// Streams open, counting those whose tasks have not ended yet.
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
    /// gathered. Requests that have come are in [`Connection::next_accepted`].
    pub(crate) fn poll_turn(&self, cx: &mut Context<'_>) -> Poll<End> {
        let mut core = self.core.borrow_mut();
        match &mut core.driver {
            Some(driver) if driver.will_wake(cx.waker()) => {}
            driver => *driver = Some(cx.waker().clone()),
        }
        core.shed = false;
        let mut left = TURN;
        let mut closed = None;
        loop {
            let handled = core.handle_input(&mut left);
            if let Err(error) = handled {
                core.broken.get_or_insert(error);
            }
            if core.broken.is_some() {
                break;
            }
            if left == 0 {
                // The others of this worker first.
                cx.waker().wake_by_ref();
                break;
            }
            match self.poll_input(cx, &mut core) {
                Poll::Ready(Ok(n)) if n > 0 => {}
                Poll::Ready(Ok(_)) => {
                    closed = Some(End::Finished);
                    break;
                }
                Poll::Ready(Err(_)) => {
                    closed = Some(End::Transport);
                    break;
                }
                Poll::Pending => break,
            }
        }
        if let Some(error) = core.broken {
            let end = core.end(End::Failed(error));
            let _ = self.poll_send(cx, &mut core);
            return Poll::Ready(end);
        }
        if let Poll::Ready(Err(_)) = self.poll_send(cx, &mut core) {
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

    /// Lets the tasks of all streams run again.
    pub(crate) fn wake_streams(&self) {
        self.core.borrow().streams.values().for_each(|state| state.wake());
    }

    /// To be held by whoever drives the connection: it does not outlive its driver, though it panics or is dropped.
    pub(crate) fn driver(self: &Rc<Self>) -> Driver {
        Driver(Rc::clone(self))
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
        ready!(self.poll_head_room(state, cx))?;
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

    pub(super) fn keep_response(&self, head: ResponseHead) {
        self.core.borrow_mut().spare_response = head;
    }

    /// Takes a request head that is not needed any more, for its memory.
    pub(crate) fn keep_request(&self, head: RequestHead) {
        self.core.borrow_mut().spare_request = head;
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

    /// The stream's task has let go of it.
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
pub(crate) struct Driver(Rc<Connection>);

impl Drop for Driver {
    fn drop(&mut self) {
        if let Ok(mut core) = self.0.core.try_borrow_mut()
            && !core.over
        {
            core.end(End::Finished);
        }
    }
}

#[cfg(test)]
mod tests;
