//! What is received: frames out of the input, one after the other, and what each of them means (RFC 9113 sections 5
//! and 6).

use std::rc::Rc;

use bytes::Buf;
use tokio::time::Instant;

use super::connection::{ConnectionError, Core, FAREWELL_PING, Farewell, KEEPALIVE_PING, PREFACE, Role};
use super::frame::{self, FrameHeader, HEADER, LARGEST_WINDOW, MAX_PAYLOAD, Reason, Setting, flag, kind};
use super::head::{HeadError, Section, content_length};
use super::stream::State;
use crate::body::StreamError;
use crate::buffer;
use crate::failure::Failure;
use crate::head::RequestHead;

/// How often a block may be larger than the largest head before decoding it to answer 431 is not worth it any more.
const BLOCK_FACTOR: usize = 4;

/// Where in the input the next byte stands.
#[derive(Debug)]
pub(super) enum Reading {
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

/// A header block that is not complete.
#[derive(Debug)]
pub(super) struct Block {
    stream: u32,
    section: Section,
    state: Option<Rc<State>>,
    end: bool,
    /// The beginning of a field whose rest has not come.
    rest: Vec<u8>,
    total: usize,
}

impl Block {
    /// Bytes kept of it.
    pub(super) fn held(&self) -> usize {
        self.rest.len()
    }
}

/// A request that has come whole, up to its body.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(super) state: Rc<State>,
    /// The head; unusable when it is refused.
    pub(crate) head: RequestHead,
    /// Whether the client waits for `100 Continue`, or why the request is not served.
    pub(crate) result: Result<bool, Failure>,
    /// No body follows.
    pub(crate) end: bool,
}

enum Step {
    /// So many bytes are done with, at this cost.
    Took(usize, u32),
    /// More bytes are needed.
    More,
}

type Checked<T> = Result<T, ConnectionError>;

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
                    let inside = at < input.len() && !matches!(self.reading, Reading::Data { .. } | Reading::Skip(_));
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
            Reading::Preface => {
                let n = rest.len().min(PREFACE.len());
                if rest.get(..n) != PREFACE.get(..n) {
                    return Err(Reason::PROTOCOL_ERROR.into());
                }
                if n < PREFACE.len() {
                    return Ok(Step::More);
                }
                self.reading = Reading::Frame;
                Ok(Step::Took(n, 1))
            }
            Reading::Skip(left) => {
                let n = rest.len().min(*left);
                *left -= n;
                if *left == 0 {
                    self.reading = Reading::Frame;
                }
                Ok(if n == 0 { Step::More } else { Step::Took(n, 0) })
            }
            Reading::Data { left, .. } => {
                let n = rest.len().min(*left);
                if n == 0 {
                    return Ok(Step::More);
                }
                self.data_bytes(rest.get(..n).unwrap_or_default());
                Ok(Step::Took(n, (n / 8192) as u32))
            }
            Reading::Frame => self.frame(rest),
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
    fn is_idle(&self, id: u32) -> bool {
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
        self.credit(state.as_deref(), overhead);
        if state.is_some() {
            self.inbound.earn();
        }
        if length == 0 {
            if let Some(state) = &state
                && end
            {
                self.body_ended(state);
            }
            self.after_data(pad);
        } else {
            self.reading = Reading::Data {
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
            // What was on its way is a window full at most, and costs no more than on an open stream.
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
    fn behind_reset(&mut self, state: &State) -> Checked<()> {
        if state.reset_by_peer.get() {
            self.reset_number(state.id.get(), Reason::STREAM_CLOSED);
            return Ok(self.inbound.control()?);
        }
        Ok(self.inbound.late()?)
    }

    /// Whether frames of a stream that is not there any more may have been on their way when it was reset, or left out
    /// by GOAWAY (section 6.8), here.
    fn was_reset(&self, id: u32) -> bool {
        id <= self.forgotten
            || self.resets.contains(&id)
            || matches!(self.farewell, Farewell::Final(last) if self.role == Role::Server && id > last)
    }

    fn after_data(&mut self, pad: usize) {
        self.reading = if pad == 0 { Reading::Frame } else { Reading::Skip(pad) };
    }

    /// The next bytes of a DATA frame.
    fn data_bytes(&mut self, bytes: &[u8]) {
        let n = bytes.len();
        let Reading::Data { state, left, pad, end } = &mut self.reading else {
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
                kept = true;
                drop(inbox);
                state.wake();
            } else {
                drop(inbox);
                self.stats.rx_messaging_error.inc();
                self.reset(state, Reason::PROTOCOL_ERROR, StreamError::Length);
            }
        }
        if !kept {
            self.credit(None, n);
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
    fn body_ended(&mut self, state: &Rc<State>) {
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
    fn malformed(&mut self, state: &State, cause: &'static str, error: StreamError) -> Checked<()> {
        self.count_malformed(cause)?;
        self.reset(state, Reason::PROTOCOL_ERROR, error);
        Ok(())
    }

    fn count_malformed(&mut self, cause: &'static str) -> Checked<()> {
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

    fn headers_frame(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
        let id = header.stream;
        if id == 0 {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        let mut fragment = unpad(header, payload)?;
        if header.has(flag::PRIORITY) {
            let Some((priority, rest)) = fragment.split_first_chunk::<5>() else {
                return Err(Reason::FRAME_SIZE_ERROR.into());
            };
            depends_on_itself(id, *priority)?;
            fragment = rest;
        }
        let end = header.has(flag::END_STREAM);
        self.inbound.message_frame(fragment.len(), end)?;
        let (section, state) = match self.role {
            Role::Server => self.of_client(id, end)?,
            Role::Client => self.of_server(id, end)?,
        };
        self.heads.begin(section, self.limits);
        self.decoder.begin();
        self.block = Some(Block {
            stream: id,
            section,
            state,
            end,
            rest: Vec::new(),
            total: 0,
        });
        self.fragment(fragment, header.has(flag::END_HEADERS))
    }

    /// What HEADERS from a client are.
    fn of_client(&mut self, id: u32, end: bool) -> Checked<(Section, Option<Rc<State>>)> {
        if id.is_multiple_of(2) {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        if let Some(state) = self.streams.get(&id).map(Rc::clone) {
            return self.trailers_of(state, end);
        }
        if id <= self.last_peer {
            if !self.was_reset(id) {
                return Err(Reason::STREAM_CLOSED.into());
            }
            self.inbound.late()?;
            return Ok((Section::Discarded, None));
        }
        self.last_peer = id;
        if matches!(self.farewell, Farewell::Final(_)) {
            self.inbound.late()?;
            return Ok((Section::Discarded, None));
        }
        if self.streams.len() >= self.options.max_concurrent_streams as usize {
            self.inbound.control()?;
            self.stats.stream_refused_errors.inc();
            self.reset_number(id, Reason::REFUSED_STREAM);
            return Ok((Section::Discarded, None));
        }
        Ok((Section::Request, None))
    }

    /// What HEADERS from a server are.
    fn of_server(&mut self, id: u32, end: bool) -> Checked<(Section, Option<Rc<State>>)> {
        if self.is_idle(id) {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        match self.streams.get(&id).map(Rc::clone) {
            None => {
                self.inbound.late()?;
                Ok((Section::Discarded, None))
            }
            Some(state) if state.answered.get() => self.trailers_of(state, end),
            Some(state) if state.error.get().is_some() => {
                self.inbound.late()?;
                Ok((Section::Discarded, None))
            }
            Some(state) => Ok((Section::Response, Some(state))),
        }
    }

    fn trailers_of(&mut self, state: Rc<State>, end: bool) -> Checked<(Section, Option<Rc<State>>)> {
        if state.error.get().is_some() {
            self.behind_reset(&state)?;
            return Ok((Section::Discarded, None));
        }
        if state.inbox.borrow().end {
            self.reset(&state, Reason::STREAM_CLOSED, StreamError::H2);
            return Ok((Section::Discarded, None));
        }
        if !end {
            self.malformed(&state, "trailers_without_end", StreamError::H2)?;
            return Ok((Section::Discarded, None));
        }
        Ok((Section::Trailers, Some(state)))
    }

    fn continuation(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
        if self.block.is_none() {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        self.inbound.message_frame(payload.len(), false)?;
        self.fragment(payload, header.has(flag::END_HEADERS))
    }

    /// Decodes the next piece of a block.
    fn fragment(&mut self, fragment: &[u8], last: bool) -> Checked<()> {
        let Some(mut block) = self.block.take() else {
            return Err(Reason::PROTOCOL_ERROR.into());
        };
        block.total += fragment.len();
        if block.total > BLOCK_FACTOR * self.limits.max_bytes.max(MAX_PAYLOAD) {
            self.stats.header_overflow.inc();
            return Err(Reason::ENHANCE_YOUR_CALM.into());
        }
        let heads = &mut self.heads;
        let mut decode = |bytes: &[u8]| {
            self.decoder
                .decode(bytes, |field| heads.field(field))
                .map_err(|_| Reason::COMPRESSION_ERROR)
        };
        if block.rest.is_empty() {
            let taken = decode(fragment)?;
            block.rest.extend_from_slice(fragment.get(taken..).unwrap_or_default());
        } else {
            // In place: a long field may come in many small pieces.
            block.rest.extend_from_slice(fragment);
            let taken = decode(&block.rest)?;
            block.rest.drain(..taken);
        }
        if last {
            if !block.rest.is_empty() {
                return Err(Reason::COMPRESSION_ERROR.into());
            }
            return self.block_ended(block);
        }
        self.block = Some(block);
        Ok(())
    }

    fn block_ended(&mut self, block: Block) -> Checked<()> {
        match (block.section, block.state) {
            (Section::Request, _) => self.request(block.stream, block.end),
            (Section::Response, Some(state)) => self.response(&state, block.end),
            (Section::Trailers, Some(state)) => self.trailers(&state),
            _ => Ok(()),
        }
    }

    fn request(&mut self, id: u32, end: bool) -> Checked<()> {
        let result = match self.heads.finish_request(end) {
            Ok(expect_continue) => Ok(expect_continue),
            Err(HeadError::Refused(failure)) => Err(failure),
            Err(HeadError::Malformed(cause)) => {
                self.count_malformed(cause)?;
                self.reset_number(id, Reason::PROTOCOL_ERROR);
                return Ok(());
            }
        };
        let state = State::new(id, i64::from(self.peer_window), self.new_window());
        {
            let mut inbox = state.inbox.borrow_mut();
            inbox.end = end;
            inbox.missing = content_length(&self.heads.request.fields);
        }
        self.streams.insert(id, Rc::clone(&state));
        self.inbound.stream_opened();
        let spare = std::mem::take(&mut self.spare_request);
        self.accepted.push_back(Accepted {
            state,
            head: std::mem::replace(&mut self.heads.request, spare),
            result,
            end,
        });
        Ok(())
    }

    fn response(&mut self, state: &Rc<State>, end: bool) -> Checked<()> {
        if state.error.get().is_some() {
            return Ok(());
        }
        if let Err(cause) = self.heads.finish_response() {
            return self.malformed(state, cause, StreamError::H2);
        }
        let interim = self.heads.response.status < 200;
        if interim
            && (end
                || !state
                    .inbox
                    .borrow()
                    .has_room_for(&self.heads.response, self.limits.max_bytes))
        {
            return self.malformed(state, "interim", StreamError::H2);
        }
        if !interim {
            let bodyless = state.head_request.get() || matches!(self.heads.response.status, 204 | 304);
            let missing = match (bodyless, content_length(&self.heads.response.fields)) {
                (true, _) => None,
                (false, length) => length,
            };
            if end && missing.is_some_and(|n| n > 0) {
                // Towards HTTP/1.1 the announced length would frame whatever comes next.
                return self.malformed(state, "content_length", StreamError::Length);
            }
            state.answered.set(true);
            let mut inbox = state.inbox.borrow_mut();
            inbox.missing = missing;
            inbox.end = end;
        }
        let spare = std::mem::take(&mut self.spare_response);
        let head = std::mem::replace(&mut self.heads.response, spare);
        state.inbox.borrow_mut().heads.push_back(head);
        self.inbound.earn();
        state.wake();
        Ok(())
    }

    fn trailers(&mut self, state: &Rc<State>) -> Checked<()> {
        if state.error.get().is_some() {
            return Ok(());
        }
        self.stats.trailers.inc();
        match self.heads.finish_trailers() {
            Ok(trailers) => state.inbox.borrow_mut().trailers = trailers,
            Err(cause) => return self.malformed(state, cause, StreamError::H2),
        }
        self.inbound.earn();
        self.body_ended(state);
        Ok(())
    }

    fn priority(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
        if header.stream == 0 {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        let Ok(payload) = <[u8; 5]>::try_from(payload) else {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        };
        depends_on_itself(header.stream, payload)?;
        self.inbound.priority()?;
        Ok(())
    }

    fn rst_stream(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
        let Ok(code) = <[u8; 4]>::try_from(payload) else {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        };
        if header.stream == 0 || self.is_idle(header.stream) {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        let state = match self.streams.get(&header.stream) {
            Some(state) if state.error.get().is_none() => state,
            _ => {
                self.inbound.late()?;
                return Ok(());
            }
        };
        self.stats.rx_reset.inc();
        state.reset_by_peer.set(true);
        state.fail(match Reason(u32::from_be_bytes(code)) {
            Reason::REFUSED_STREAM => StreamError::Refused,
            _ => StreamError::Reset,
        });
        Ok(())
    }

    /// Returns what it cost more than an ordinary frame.
    fn settings(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<u32> {
        if header.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        if header.has(flag::ACK) {
            if !payload.is_empty() {
                return Err(Reason::FRAME_SIZE_ERROR.into());
            }
            if std::mem::replace(&mut self.settings_acknowledged, true) {
                // We send SETTINGS once.
                self.inbound.control()?;
            }
            return Ok(0);
        }
        let (values, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        }
        self.inbound.control()?;
        let mut window = None;
        for [i0, i1, v0, v1, v2, v3] in values {
            let value = u32::from_be_bytes([*v0, *v1, *v2, *v3]);
            match Setting::of(u16::from_be_bytes([*i0, *i1])) {
                // Our encoder uses no table; a change has to be acknowledged all the same.
                Some(Setting::HeaderTableSize) => self.reset_table = true,
                Some(Setting::EnablePush) if value > 1 || (self.role == Role::Client && value != 0) => {
                    return Err(Reason::PROTOCOL_ERROR.into());
                }
                Some(Setting::MaxConcurrentStreams) => self.peer_max_streams = Some(value),
                Some(Setting::InitialWindowSize) => {
                    if i64::from(value) > LARGEST_WINDOW {
                        return Err(Reason::FLOW_CONTROL_ERROR.into());
                    }
                    window = Some(value);
                }
                Some(Setting::MaxFrameSize) if !(16_384..1 << 24).contains(&value) => {
                    return Err(Reason::PROTOCOL_ERROR.into());
                }
                _ => {}
            }
        }
        let mut cost = 0;
        // The last value counts: many of them in one frame are one pass over the streams.
        if let Some(window) = window {
            let change = i64::from(window) - i64::from(self.peer_window);
            self.peer_window = window;
            cost = (self.streams.len() / 16) as u32;
            for state in self.streams.values() {
                let after = state.send_window.get() + change;
                if after > LARGEST_WINDOW {
                    return Err(Reason::FLOW_CONTROL_ERROR.into());
                }
                state.send_window.set(after);
                if after > 0 && change > 0 {
                    state.wake();
                }
            }
        }
        self.settings_received = true;
        self.control(frame::settings_ack);
        Ok(cost)
    }

    fn ping(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
        if header.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        let Ok(payload) = <[u8; 8]>::try_from(payload) else {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        };
        self.inbound.control()?;
        if !header.has(flag::ACK) {
            self.control(|out| frame::ping(payload, true, out));
        } else if payload == FAREWELL_PING && self.farewell == Farewell::Announced {
            self.send_goaway(Reason::NO_ERROR);
        } else if payload == KEEPALIVE_PING {
            self.pong = true;
        }
        Ok(())
    }

    fn peer_goaway(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
        if header.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        let Some(([l0, l1, l2, l3], rest)) = payload.split_first_chunk::<4>() else {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        };
        if rest.len() < 4 {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        }
        self.inbound.control()?;
        let last = u32::from_be_bytes([*l0, *l1, *l2, *l3]) & 0x7fff_ffff;
        let last = self.goaway.map_or(last, |before| before.min(last));
        self.goaway = Some(last);
        if self.role == Role::Client {
            self.fail_streams(|id| (id > last).then_some(StreamError::GoneAway));
        }
        Ok(())
    }

    fn window_update(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
        let Ok(payload) = <[u8; 4]>::try_from(payload) else {
            return Err(Reason::FRAME_SIZE_ERROR.into());
        };
        let increment = i64::from(u32::from_be_bytes(payload) & 0x7fff_ffff);
        self.inbound.window_update()?;
        if header.stream == 0 {
            if increment == 0 {
                return Err(Reason::PROTOCOL_ERROR.into());
            }
            self.send_window += increment;
            if self.send_window > LARGEST_WINDOW {
                return Err(Reason::FLOW_CONTROL_ERROR.into());
            }
            return Ok(());
        }
        if self.is_idle(header.stream) {
            return Err(Reason::PROTOCOL_ERROR.into());
        }
        let Some(state) = self.streams.get(&header.stream).map(Rc::clone) else {
            return Ok(());
        };
        if increment == 0 {
            self.reset(&state, Reason::PROTOCOL_ERROR, StreamError::H2);
            return Ok(());
        }
        let after = state.send_window.get() + increment;
        if after > LARGEST_WINDOW {
            self.reset(&state, Reason::FLOW_CONTROL_ERROR, StreamError::H2);
            return Ok(());
        }
        let blocked = state.send_window.get() <= 0;
        state.send_window.set(after);
        if blocked {
            state.wake();
        }
        Ok(())
    }
}

/// A payload without its padding.
fn unpad(header: FrameHeader, payload: &[u8]) -> Checked<&[u8]> {
    if !header.has(flag::PADDED) {
        return Ok(payload);
    }
    let (pad, rest) = payload.split_first().ok_or(Reason::FRAME_SIZE_ERROR)?;
    rest.len()
        .checked_sub(usize::from(*pad))
        .and_then(|n| rest.get(..n))
        .ok_or(ConnectionError::from(Reason::PROTOCOL_ERROR))
}

/// Priorities are ignored (section 5.3.2), nonsense in them is not.
fn depends_on_itself(id: u32, priority: [u8; 5]) -> Checked<()> {
    let [a, b, c, d, _] = priority;
    if u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff == id {
        return Err(Reason::PROTOCOL_ERROR.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
