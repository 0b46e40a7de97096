//! What is received: frames out of the input, one after the other, and what each of them means (RFC 9113 sections 5
//! and 6).

use std::rc::Rc;

use bytes::Buf;
use tokio::time::Instant;

use super::core::{ConnectionError, Core, Farewell, PREFACE, Role};
use super::frame::{FrameHeader, HEADER, MAX_PAYLOAD, Reason, flag, kind};
use super::stream::State;
use crate::body::StreamError;
use crate::buffer;

/// Where in the input the next byte stands.
#[derive(Debug)]
pub(super) enum Position {
    /// In the client's preface.
    Preface,
    /// At a frame header.
    Frame,
    /// In a DATA frame; its stream takes the bytes unless it is closed.
    Data {
        state: Option<Rc<State>>,
        left: usize,
        pad: usize,
        end: bool,
    },
    /// In padding.
    Skip(usize),
}

enum Step {
    /// So many bytes are done with, at this cost.
    Took(usize, u32),
    /// More bytes are needed.
    More,
}

pub(super) type Checked<T> = Result<T, ConnectionError>;

impl Core {
    /// Handles the frames that are whole in the input, at a cost of at most `left`.
    pub(super) fn handle_input(&mut self, left: &mut u32) -> Checked<()> {
        if self.input.is_empty() {
            return Ok(());
        }
        let mut input = std::mem::take(&mut self.input);
        let mut at = 0;
        let result = loop {
            if *left == 0 {
                break Ok(());
            }
            match self.step(input.get(at..).unwrap_or_default()) {
                Ok(Step::Took(n, cost)) => {
                    at += n;
                    *left = left.saturating_sub(cost);
                }
                Ok(Step::More) => {
                    let inside = at < input.len() && !matches!(self.reading, Position::Data { .. } | Position::Skip(_));
                    if inside || self.block.is_some() {
                        self.partial_since.get_or_insert_with(Instant::now);
                    } else {
                        self.partial_since = None;
                    }
                    break Ok(());
                }
                Err(error) => break Err(error),
            }
        };
        input.advance(at);
        if input.is_empty() {
            buffer::give_read(input);
        } else {
            self.input = input;
        }
        result
    }

    fn step(&mut self, rest: &[u8]) -> Checked<Step> {
        match &mut self.reading {
            Position::Preface => {
                let n = rest.len().min(PREFACE.len());
                if rest.get(..n) != PREFACE.get(..n) {
                    return Err(Reason::PROTOCOL_ERROR.into());
                }
                if n < PREFACE.len() {
                    return Ok(Step::More);
                }
                self.reading = Position::Frame;
                Ok(Step::Took(n, 1))
            }
            Position::Skip(left) => {
                let n = rest.len().min(*left);
                *left -= n;
                if *left == 0 {
                    self.reading = Position::Frame;
                }
                Ok(if n == 0 { Step::More } else { Step::Took(n, 0) })
            }
            Position::Data { left, .. } => {
                let n = rest.len().min(*left);
                if n == 0 {
                    return Ok(Step::More);
                }
                self.data_bytes(rest.get(..n).unwrap_or_default());
                Ok(Step::Took(n, (n / 8192) as u32))
            }
            Position::Frame => self.frame(rest),
        }
    }

    fn frame(&mut self, rest: &[u8]) -> Checked<Step> {
        let Some(header) = FrameHeader::read(rest) else {
            return Ok(Step::More);
        };
        if header.length > MAX_PAYLOAD {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        }
        if let Some(block) = &self.block
            && (header.kind != kind::CONTINUATION || header.stream != block.stream)
        {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        if !self.settings_received && (header.kind != kind::SETTINGS || header.has(flag::ACK)) {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        if header.kind == kind::DATA {
            return self.data_header(header, rest);
        }
        let Some(payload) = rest.get(HEADER..HEADER + header.length) else {
            return Ok(Step::More);
        };
        let mut cost = 1 + (header.length / 512) as u32;
        match header.kind {
            kind::HEADERS => self.headers_frame(header, payload)?,
            kind::CONTINUATION => self.continuation(header, payload)?,
            kind::PRIORITY => self.priority(header, payload)?,
            kind::RST_STREAM => self.rst_stream(header, payload)?,
            kind::SETTINGS => cost += self.settings(header, payload)?,
            kind::PUSH_PROMISE => return Err(Reason::PROTOCOL_ERROR.into()),
            kind::PING => self.ping(header, payload)?,
            kind::GOAWAY => self.peer_goaway(header, payload)?,
            kind::WINDOW_UPDATE => self.window_update(header, payload)?,
            // Unknown types are ignored (section 4.1), not free.
            _ => self.inbound.control()?,
        }
        Ok(Step::Took(HEADER + header.length, cost))
    }

    /// Whether a stream was never opened, by its number.
    pub(super) fn is_idle(&self, id: u32) -> bool {
        let ours = id % 2 == u32::from(self.role == Role::Client);
        match self.role {
            Role::Server => ours || id > self.last_peer,
            Role::Client => !ours || id >= self.next_local,
        }
    }

    fn data_header(&mut self, header: FrameHeader, rest: &[u8]) -> Checked<Step> {
        let padded = header.has(flag::PADDED);
        let taken = HEADER + usize::from(padded);
        if rest.len() < taken {
            return Ok(Step::More);
        }
        let pad = if padded {
            usize::from(rest.get(HEADER).copied().unwrap_or_default())
        } else {
            0
        };
        let overhead = usize::from(padded) + pad;
        if header.stream == 0 || (padded && overhead > header.length) {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        if self.is_idle(header.stream) {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        if !self.recv_window.receive(header.length) {
            return Err(Reason::FLOW_CONTROL_ERROR.into());
        }
        let length = header.length - overhead;
        let end = header.has(flag::END_STREAM);
        self.inbound.message_frame(length, end)?;
        let state = self.data_stream(header, length)?;
        // Padding is used up as it comes.
        self.credit(overhead);
        if let Some(state) = &state {
            self.credit_stream(state, overhead);
            self.inbound.earn();
            self.make_room(length);
        }
        if length == 0 {
            if let Some(state) = &state
                && end
            {
                self.body_ended(state);
            }
            self.after_data(pad);
        } else {
            self.reading = Position::Data {
                state,
                left: length,
                pad,
                end,
            };
        }
        Ok(Step::Took(taken, 1))
    }

    /// The stream that takes a DATA frame with so many bytes; none when it is closed.
    fn data_stream(&mut self, header: FrameHeader, length: usize) -> Checked<Option<Rc<State>>> {
        let Some(state) = self.streams.get(&header.stream).map(Rc::clone) else {
            if !self.was_reset(header.stream) {
                self.reset_number(header.stream, Reason::STREAM_CLOSED);
                self.inbound.control()?;
            } else if length == 0 {
                self.inbound.late()?;
            }
            return Ok(None);
        };
        if state.error.get().is_some() {
            // What was on its way costs no more than on an open stream. Nothing counts it against a window any more: as much
            // as a peer likes, in turns with everybody else's.
            if length == 0 || state.reset_by_peer.get() {
                self.behind_reset(&state)?;
            }
            return Ok(None);
        }
        let (ended, allowed) = {
            let mut inbox = state.inbox.borrow_mut();
            (inbox.end, inbox.window.receive(header.length))
        };
        if ended {
            self.reset(&state, Reason::STREAM_CLOSED, StreamError::H2);
            return Ok(None);
        }
        if !allowed {
            self.reset(&state, Reason::FLOW_CONTROL_ERROR, StreamError::H2);
            return Ok(None);
        }
        // A client's request comes with its head; an answer needs one too.
        if self.role == Role::Client && !state.answered.get() {
            self.malformed(&state, "data_before_head", StreamError::H2)?;
            return Ok(None);
        }
        Ok(Some(state))
    }

    /// A frame on a stream that was reset: on its way when we did it, a mistake when the peer did (section 5.1).
    pub(super) fn behind_reset(&mut self, state: &State) -> Checked<()> {
        if state.reset_by_peer.get() {
            self.reset_number(state.id.get(), Reason::STREAM_CLOSED);
            return Ok(self.inbound.control()?);
        }
        Ok(self.inbound.late()?)
    }

    /// Whether frames of a stream that is not there any more may have been on their way when it was reset, or left out
    /// by GOAWAY (section 6.8), here.
    pub(super) fn was_reset(&self, id: u32) -> bool {
        id <= self.forgotten
            || self.resets.contains(&id)
            || matches!(self.farewell, Farewell::Final(last) if self.role == Role::Server && id > last)
    }

    fn after_data(&mut self, pad: usize) {
        self.reading = if pad == 0 { Position::Frame } else { Position::Skip(pad) };
    }

    /// The next bytes of a DATA frame.
    fn data_bytes(&mut self, bytes: &[u8]) {
        let n = bytes.len();
        let Position::Data { state, left, pad, end } = &mut self.reading else {
            return;
        };
        *left -= n;
        let (state, pad, last) = (state.clone(), *pad, (*left == 0).then_some(*end));
        let mut kept = false;
        if let Some(state) = &state
            && state.error.get().is_none()
        {
            let mut inbox = state.inbox.borrow_mut();
            let fits = inbox.missing.is_none_or(|missing| n as u64 <= missing);
            if fits {
                if let Some(missing) = &mut inbox.missing {
                    *missing -= n as u64;
                }
                inbox.data.extend_from_slice(bytes);
                drop(inbox);
                kept = true;
                self.kept(n);
                state.wake();
            } else {
                drop(inbox);
                self.stats.rx_messaging_error.inc();
                self.reset(state, Reason::PROTOCOL_ERROR, StreamError::Length);
            }
        }
        if !kept {
            self.credit(n);
        }
        if let Some(end) = last {
            if let Some(state) = &state
                && end
            {
                self.body_ended(state);
            }
            self.after_data(pad);
        }
    }

    /// END_STREAM has come.
    pub(super) fn body_ended(&mut self, state: &Rc<State>) {
        if state.error.get().is_some() {
            return;
        }
        let short = state.inbox.borrow().missing.is_some_and(|missing| missing > 0);
        if short {
            self.stats.rx_messaging_error.inc();
            self.reset(state, Reason::PROTOCOL_ERROR, StreamError::Length);
            return;
        }
        state.inbox.borrow_mut().end = true;
        state.wake();
    }

    /// A message that breaks the rules of section 8: its stream is reset, or the connection ends, as configured.
    pub(super) fn malformed(&mut self, state: &State, cause: &'static str, error: StreamError) -> Checked<()> {
        self.count_malformed(cause)?;
        self.reset(state, Reason::PROTOCOL_ERROR, error);
        Ok(())
    }

    pub(super) fn count_malformed(&mut self, cause: &'static str) -> Checked<()> {
        self.stats.rx_messaging_error.inc();
        if cause == "header_overflow" {
            self.stats.header_overflow.inc();
        }
        self.inbound.control()?;
        if self.options.stream_error_on_invalid_http_messaging {
            Ok(())
        } else {
            Err(Reason::PROTOCOL_ERROR.into())
        }
    }
}

#[cfg(test)]
mod tests;
