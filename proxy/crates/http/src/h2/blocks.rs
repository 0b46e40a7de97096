//! Header blocks: HEADERS and CONTINUATION, and the requests, answers and trailers that they hold (RFC 9113 sections 6.2,
//! 6.10 and 8).

use std::rc::Rc;

use super::control::depends_on_itself;
use super::core::{ConnectionError, Core, Farewell, Role};
use super::frame::{FrameHeader, MAX_PAYLOAD, Reason, flag};
use super::head::{Asked, HeadError, Section, content_length};
use super::receive::Checked;
use super::stream::State;
use crate::body::StreamError;
use crate::failure::Failure;
use crate::head::{Fields, Known, RequestHead, ResponseHead};

/// How often a block may be larger than the largest head before decoding it to answer 431 is not worth it any more.
const BLOCK_FACTOR: usize = 4;

/// A header block that is not complete.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
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
    /// What it asks for, or why it is not served.
    pub(crate) result: Result<Asked, Failure>,
    /// No body follows.
    pub(crate) end: bool,
}

impl Core {
    pub(super) fn headers_frame(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
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
        if state.tunnel.get() {
            // RFC 9113 section 8.5: DATA is all that is left.
            self.malformed(&state, "trailers_in_tunnel", StreamError::H2)?;
            return Ok((Section::Discarded, None));
        }
        if !end {
            self.malformed(&state, "trailers_without_end", StreamError::H2)?;
            return Ok((Section::Discarded, None));
        }
        Ok((Section::Trailers, Some(state)))
    }

    pub(super) fn continuation(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
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
            Ok(asked) => Ok(asked),
            Err(HeadError::Refused(failure)) => Err(failure),
            Err(HeadError::Malformed(cause)) => {
                self.count_malformed(cause)?;
                self.reset_number(id, Reason::PROTOCOL_ERROR);
                return Ok(());
            }
        };
        self.inbound.stream_opened();
        let held = self.heads.request.fields.held();
        if !self.takes_request(held) {
            self.stats.stream_refused_errors.inc();
            self.stats.held_bytes_overflow.inc();
            self.reset_number(id, Reason::REFUSED_STREAM);
            return Ok(());
        }
        let state = State::new(id, i64::from(self.peer_window), self.new_window());
        state.tunnel.set(result.as_ref().is_ok_and(|asked| asked.upgrade));
        {
            let mut inbox = state.inbox.borrow_mut();
            inbox.end = end;
            inbox.missing = content_length(&self.heads.request.fields);
        }
        self.streams.insert(id, Rc::clone(&state));
        self.hold(&state, held);
        self.accepted.push_back(Accepted {
            state,
            head: std::mem::replace(&mut self.heads.request, RequestHead::spare()),
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
            // RFC 8441 section 4 has any 2xx accept; to Envoy, and to the browsers, only 200 does.
            let accepted = self.heads.response.status == 200;
            state.tunnel.set(state.tunnel.get() && accepted);
            if state.tunnel.get() {
                // RFC 9110 section 9.3.6: it means nothing here.
                self.heads.response.fields.remove_known(Known::ContentLength);
            }
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
        let head = std::mem::replace(&mut self.heads.response, ResponseHead::spare());
        let held = head.fields.held();
        state.inbox.borrow_mut().heads.push_back(head);
        self.hold(state, held);
        self.make_room(held);
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
            Ok(trailers) => {
                let held = trailers.as_ref().map_or(0, Fields::held);
                state.inbox.borrow_mut().trailers = trailers;
                self.hold(state, held);
                self.make_room(held);
            }
            Err(cause) => return self.malformed(state, cause, StreamError::H2),
        }
        self.inbound.earn();
        self.body_ended(state);
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

#[cfg(test)]
mod tests;
