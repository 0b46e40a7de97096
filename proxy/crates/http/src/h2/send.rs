//! What is sent: frames into one output, written once per turn, and the lines in which streams wait for room there.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::connection::Connection;
use super::core::Core;
use super::frame::{self, MAX_PAYLOAD};
use super::head::{encode_fields, encode_response};
use super::hpack::Encoder;
use super::stream::{Line, State};
use crate::body::StreamError;
use crate::buffer;
use crate::head::{Fields, ResponseHead};

/// Bytes that wait for the socket above which bodies and heads have to wait.
pub(crate) const OUTPUT_ROOM: usize = 64 * 1024;

/// What a head commonly takes: so many streams are let run at once to send theirs.
const COMMON_HEAD: usize = 1024;

impl Core {
    pub(super) fn pending(&self) -> usize {
        self.out.len() - self.sent
    }

    pub(super) fn room(&self) -> usize {
        OUTPUT_ROOM.saturating_sub(self.pending())
    }

    /// Appends a frame and counts it.
    pub(super) fn append(&mut self, control: bool, write: impl FnOnce(&mut Vec<u8>)) {
        if self.over {
            return;
        }
        if self.out.capacity() == 0 {
            self.out = buffer::take_write();
        }
        let before = self.out.len();
        write(&mut self.out);
        self.written += (self.out.len() - before) as u64;
        if let Err(flood) = self.outbound.queued(self.written, control) {
            self.broken.get_or_insert(flood.into());
        }
        self.wake_driver();
    }

    /// Appends a frame that serves no message.
    pub(super) fn control(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.append(true, write);
    }

    /// Appends a header block as HEADERS and CONTINUATION.
    pub(super) fn headers(&mut self, state: &State, end: bool, encode: impl FnOnce(&mut Encoder<'_>)) {
        let reset_table = std::mem::take(&mut self.reset_table);
        self.append(false, |out| {
            let at = frame::begin_headers(out);
            encode(&mut Encoder::new(out, reset_table));
            frame::end_headers(at, state.id.get(), end, out);
        });
        if end {
            state.local_end.set(true);
        }
    }

    /// Lets as many streams run as there is room for. Heads need no window: a body that its reader leaves alone must not
    /// hold them up.
    pub(super) fn wake_waiting(&mut self) {
        let mut room = self.room();
        while room > 0
            && let Some(state) = self.waiting_heads.pop_front()
        {
            self.unqueue(&state);
            state.wake();
            room = room.saturating_sub(COMMON_HEAD);
        }
        let mut room = self.sendable();
        while room > 0
            && let Some(state) = self.waiting_bodies.pop_front()
        {
            self.unqueue(&state);
            state.wake();
            room = room.saturating_sub(MAX_PAYLOAD);
        }
    }

    /// Whether there is room that streams wait for.
    pub(super) fn has_room_for_waiting(&self) -> bool {
        (!self.waiting_heads.is_empty() && self.room() > 0) || (!self.waiting_bodies.is_empty() && self.sendable() > 0)
    }

    fn waiting(&mut self, line: Line) -> &mut VecDeque<Rc<State>> {
        match line {
            Line::Head => &mut self.waiting_heads,
            Line::Body => &mut self.waiting_bodies,
            Line::Settings => &mut self.waiting_settings,
        }
    }

    /// Puts a stream at the end of a line, unless it stands there.
    pub(super) fn queue(&mut self, state: &Rc<State>, line: Line, holding: usize) {
        if state.queued.get() != Some(line) {
            self.leave(state);
            state.queued.set(Some(line));
            self.waiting(line).push_back(Rc::clone(state));
        }
        self.held = self.held - state.holding.replace(holding) + holding;
        self.share();
    }

    /// Takes a stream out of its line.
    pub(super) fn leave(&mut self, state: &Rc<State>) {
        if let Some(line) = state.queued.get() {
            self.waiting(line).retain(|other| !Rc::ptr_eq(other, state));
            self.unqueue(state);
        }
    }

    /// A stream has left its line.
    pub(super) fn unqueue(&mut self, state: &State) {
        state.queued.set(None);
        self.held -= state.holding.take();
        self.share();
    }

    /// What may be sent on the connection, whatever the stream.
    pub(super) fn sendable(&self) -> usize {
        self.room().min(usize::try_from(self.send_window).unwrap_or(0))
    }
}

impl Connection {
    pub(super) fn poll_send(&self, cx: &mut Context<'_>, core: &mut Core) -> Poll<io::Result<()>> {
        while core.sent < core.out.len() {
            let rest = IoSlice::new(core.out.get(core.sent..).unwrap_or_default());
            let n = match self.transport.poll_write_vectored(cx, &[rest]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break,
            };
            core.sent += n;
        }
        let sent = core.written - core.pending() as u64;
        core.outbound.sent(sent);
        if core.sent < core.out.len() {
            if core.sent >= OUTPUT_ROOM {
                core.out.drain(..core.sent);
                core.sent = 0;
            }
            return Poll::Pending;
        }
        if core.out.capacity() > 0 {
            core.sent = 0;
            buffer::give_write(std::mem::take(&mut core.out));
        }
        self.transport.poll_flush(cx)
    }

    pub(super) fn poll_room(
        &self,
        state: &Rc<State>,
        cx: &mut Context<'_>,
        holding: usize,
    ) -> Poll<Result<usize, StreamError>> {
        if let Some(error) = state.error.get() {
            return Poll::Ready(Err(error));
        }
        let room = self.room(state);
        if room > 0 {
            return Poll::Ready(Ok(room));
        }
        state.register(cx);
        let mut core = self.core.borrow_mut();
        if state.send_window.get() > 0 {
            core.queue(state, Line::Body, holding);
        }
        Poll::Pending
    }

    pub(super) fn room(&self, state: &State) -> usize {
        let of_stream = usize::try_from(state.send_window.get()).unwrap_or(0);
        self.core.borrow().sendable().min(of_stream).min(MAX_PAYLOAD)
    }

    /// Streams that wait for their own windows hold little each and do not count: on a connection that many share, some
    /// that are not read must not hold up the others.
    pub(super) fn poll_ready(&self, state: &Rc<State>, cx: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        if let Some(error) = state.error.get() {
            return Poll::Ready(Err(error));
        }
        let mut core = self.core.borrow_mut();
        let little = core.held < core.max_held && !core.share.is_above();
        if little || core.sendable() > 0 {
            return Poll::Ready(Ok(()));
        }
        state.register(cx);
        // Woken out of its turn, it holds what it held.
        core.queue(state, Line::Body, state.holding.get());
        Poll::Pending
    }

    pub(super) fn poll_head_room(
        &self,
        state: &Rc<State>,
        cx: &mut Context<'_>,
        holding: usize,
    ) -> Poll<Result<(), StreamError>> {
        if let Some(error) = state.error.get() {
            return Poll::Ready(Err(error));
        }
        let mut core = self.core.borrow_mut();
        if core.room() > 0 {
            return Poll::Ready(Ok(()));
        }
        state.register(cx);
        core.queue(state, Line::Head, holding);
        Poll::Pending
    }

    pub(super) fn send_data(&self, state: &State, bytes: &[u8], end: bool) {
        let mut core = self.core.borrow_mut();
        core.send_window -= bytes.len() as i64;
        state.send_window.set(state.send_window.get() - bytes.len() as i64);
        core.inbound.data_sent();
        core.append(false, |out| {
            frame::data_header(state.id.get(), bytes.len(), end, out);
            out.extend_from_slice(bytes);
        });
        if end {
            state.local_end.set(true);
        }
    }

    pub(super) fn send_response(&self, state: &State, head: &ResponseHead, end: bool) {
        let mut core = self.core.borrow_mut();
        core.headers(state, end, |encoder| encode_response(head, encoder));
        if head.status >= 200 || head.status == 101 {
            state.answered.set(true);
            // Logs and metrics read it at the end.
            let held = head.fields.held();
            core.hold(state, held);
            core.make_room(held);
        }
    }

    pub(super) fn send_trailers(&self, state: &State, trailers: &Fields) {
        self.core
            .borrow_mut()
            .headers(state, true, |encoder| encode_fields(trailers, encoder));
    }
}
