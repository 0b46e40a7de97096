//! The receiving direction without a socket, for fuzzing and comparison.

use bytes::BytesMut;
use heddle_config::snapshot::Http2Options;
use heddle_telemetry::Stats;

use super::core::{Core, Role};
use super::stats::CodecStats;
use super::stream::State;
use crate::h1::Limits;

/// A connection that receives bytes and sends nothing.
pub struct Receiver {
    core: Core,
    requests: Vec<String>,
}

impl Receiver {
    /// A server that has just accepted a connection.
    pub fn server(options: Http2Options, limits: Limits) -> Self {
        Self::new(Role::Server, options, limits)
    }

    /// A client that has opened so many streams.
    pub fn client(options: Http2Options, limits: Limits, streams: u32) -> Self {
        let mut receiver = Self::new(Role::Client, options, limits);
        for _ in 0..streams {
            let core = &mut receiver.core;
            let id = core.next_local;
            core.next_local += 2;
            let state = State::new(id, i64::from(core.peer_window), core.new_window());
            core.streams.insert(id, state);
        }
        receiver
    }

    fn new(role: Role, options: Http2Options, limits: Limits) -> Self {
        let stats = CodecStats::downstream(&Stats::new(), &[]);
        Self {
            core: Core::new(role, BytesMut::new(), options, limits, usize::MAX, stats),
            requests: Vec::new(),
        }
    }

    /// Takes the next bytes of the peer.
    ///
    /// # Errors
    /// The error code (RFC 9113 section 7) that ends the connection.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), u32> {
        self.core.input.extend_from_slice(bytes);
        let mut left = u32::MAX;
        let result = self.core.handle_input(&mut left);
        for accepted in self.core.accepted.drain(..) {
            let head = &accepted.head;
            self.requests.push(match &accepted.result {
                Ok(_) => format!("{} {} {}", head.method_text(), head.host(), head.target()),
                Err(failure) => format!("{}", failure.status()),
            });
        }
        match (result, self.core.broken) {
            (Err(error), _) | (Ok(()), Some(error)) => Err(error.reason.0),
            (Ok(()), None) => Ok(()),
        }
    }

    /// The requests that have come: method, host and target, or the status that refuses them.
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    /// Bytes held for the peer: bodies that nobody has taken, and what is not complete.
    pub fn held(&self) -> usize {
        let bodies: usize = self
            .core
            .streams
            .values()
            .map(|state| state.inbox.borrow().data.len())
            .sum();
        bodies + self.core.input.len() + self.core.block.as_ref().map_or(0, super::blocks::Block::held)
    }
}
