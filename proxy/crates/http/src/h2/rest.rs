//! A client's connection with no stream open, between two workers: what its next streams depend on.
//!
//! What a worker lends, or counts over all its connections, stays with that worker: buffers, the share of its memory, the growth of
//! the connection's window. Tables, windows, numbers and all that counts against the client go along: a connection that moves is no
//! new one.

use std::collections::VecDeque;

use heddle_config::snapshot::Http2Options;
use tokio::time::Instant;

use super::core::{Core, Farewell, Role};
use super::flow::RecvWindow;
use super::hpack::Decoder;
use super::limits::{Inbound, Outbound};
use super::premature::PrematureResets;
use super::receive::Position;
use super::stats::CodecStats;
use crate::h1::Limits;

/// What its driver knows of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driven {
    pub(super) resets: PrematureResets,
    /// When the next PING of `connection_keepalive` is due, if that was said.
    pub(super) ping_due: Option<Instant>,
}

/// A connection of HTTP/2 without its socket and on no worker.
#[derive(Debug)]
pub(crate) struct AtRest {
    options: Http2Options,
    limits: Limits,
    max_held: usize,
    pub(super) driven: Driven,
    received: u64,
    written: u64,
    decoder: Decoder,
    reset_table: bool,
    inbound: Inbound,
    outbound: Outbound,
    recv_window: RecvWindow,
    /// What that window had grown by.
    grown: u64,
    send_window: i64,
    peer_window: u32,
    peer_max_streams: Option<u32>,
    peer_connect: bool,
    last_peer: u32,
    resets: VecDeque<u32>,
    forgotten: u32,
    pong: bool,
}

impl Core {
    /// Whether no stream is open, nothing has come that was not handled, nothing is to be sent, and neither side has begun to end.
    pub(super) fn is_at_rest(&self) -> bool {
        let lines = [&self.waiting_heads, &self.waiting_bodies, &self.waiting_settings];
        self.role == Role::Server
            && self.streams.is_empty()
            && self.accepted.is_empty()
            && lines.iter().all(|line| line.is_empty())
            && self.input.is_empty()
            && self.block.is_none()
            && self.partial_since.is_none()
            && matches!(self.reading, Position::Frame)
            && self.settings_received
            && self.settings_acknowledged
            && self.out.is_empty()
            && self.broken.is_none()
            && self.farewell == Farewell::None
            && self.goaway.is_none()
            && !self.over
    }

    /// Takes a connection that is at rest off this worker.
    pub(super) fn into_rest(mut self, driven: Driven) -> AtRest {
        AtRest {
            grown: self.recv_window.leave(),
            options: self.options,
            limits: self.limits,
            max_held: self.max_held,
            driven,
            received: self.received,
            written: self.written,
            decoder: self.decoder,
            reset_table: self.reset_table,
            inbound: self.inbound,
            outbound: self.outbound,
            recv_window: self.recv_window,
            send_window: self.send_window,
            peer_window: self.peer_window,
            peer_max_streams: self.peer_max_streams,
            peer_connect: self.peer_connect,
            last_peer: self.last_peer,
            resets: self.resets,
            forgotten: self.forgotten,
            pong: self.pong,
        }
    }

    /// Has it go on, on this worker.
    pub(super) fn resume(at_rest: AtRest, stats: CodecStats) -> Self {
        let AtRest {
            options,
            limits,
            max_held,
            driven: _,
            received,
            written,
            decoder,
            reset_table,
            inbound,
            outbound,
            mut recv_window,
            grown,
            send_window,
            peer_window,
            peer_max_streams,
            peer_connect,
            last_peer,
            resets,
            forgotten,
            pong,
        } = at_rest;
        recv_window.arrive(grown);
        Self {
            received,
            written,
            decoder,
            reset_table,
            inbound,
            outbound,
            recv_window,
            send_window,
            peer_window,
            peer_max_streams,
            peer_connect,
            last_peer,
            resets,
            forgotten,
            pong,
            reading: Position::Frame,
            settings_received: true,
            settings_acknowledged: true,
            ..Self::blank(Role::Server, options, limits, max_held, stats)
        }
    }
}
