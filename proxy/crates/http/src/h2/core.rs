//! The state of a connection but for its socket: what has come, what is to go, the streams, and how it ends.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::Waker;

use bytes::BytesMut;
use heddle_config::snapshot::Http2Options;
use tokio::time::Instant;

use super::blocks::{Accepted, Block};
use super::budget::{HeldHeads, Share};
use super::flow::{CONNECTION_START, RecvWindow, STREAM_START, UPSTREAM_STREAM_START};
use super::frame::{self, DEFAULT_WINDOW, Reason, Setting};
use super::head::HeadReader;
use super::hpack::Decoder;
use super::limits::{Flood, Inbound, Outbound};
use super::receive::Position;
use super::stats::CodecStats;
use super::stream::State;
use crate::body::StreamError;
use crate::h1::Limits;

/// What a client sends first (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Streams that were reset here and whose frames may still be on their way. When there were more, any stream up to the
/// highest forgotten one may have been reset.
const REMEMBERED_RESETS: usize = 128;

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
    pub(super) reading: Position,
    pub(super) received: u64,
    pub(super) decoder: Decoder,
    pub(super) heads: HeadReader,
    pub(super) block: Option<Block>,
    /// Since when a frame or block has been incomplete.
    pub(super) partial_since: Option<Instant>,
    pub(super) accepted: VecDeque<Accepted>,
    pub(super) inbound: Inbound,
    pub(super) recv_window: RecvWindow,
    /// Bytes of bodies that have come and were not passed on.
    pub(super) unread: usize,
    pub(super) held_heads: HeldHeads,
    pub(super) share: Share,
    /// What streams held that were reset for it, as far as nothing has come in its place.
    pub(super) given_up: usize,
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
    /// Bytes that the requests of the streams in these three lines hold.
    pub(super) held: usize,
    /// Most that they may hold, and that large heads may: `per_connection_buffer_limit_bytes`.
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
    pub(super) driver: Option<Waker>,
    /// The driver has its turn: it has read, and will send.
    pub(super) in_turn: bool,
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
            received: first.len() as u64,
            input: first,
            recv_window: RecvWindow::new(connection_start, options.connection_window, role == Role::Server),
            ..Self::blank(role, options, limits, max_held, stats)
        };
        core.greet(connection_start);
        core
    }

    /// A connection on which nothing was said.
    pub(super) fn blank(role: Role, options: Http2Options, limits: Limits, max_held: usize, stats: CodecStats) -> Self {
        Self {
            role,
            options,
            limits,
            stats,
            received: 0,
            input: BytesMut::new(),
            reading: match role {
                Role::Server => Position::Preface,
                Role::Client => Position::Frame,
            },
            decoder: Decoder::new(options.hpack_table_size as usize),
            heads: HeadReader::new(role == Role::Server && options.allow_connect),
            block: None,
            partial_since: None,
            accepted: VecDeque::new(),
            inbound: Inbound::new(&options),
            recv_window: RecvWindow::new(DEFAULT_WINDOW, DEFAULT_WINDOW, role == Role::Server),
            unread: 0,
            held_heads: HeldHeads::default(),
            share: Share::new(),
            given_up: 0,
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
            in_turn: false,
        }
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

    /// Has the driver send, unless that is what its turn comes to.
    pub(super) fn wake_driver(&self) {
        if let Some(driver) = &self.driver
            && !self.in_turn
        {
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

    /// Ends the streams that `error`, asked with their numbers, has one for.
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

    /// Ends every stream, and says GOAWAY where that is due.
    pub(super) fn end(&mut self, end: End) -> End {
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
