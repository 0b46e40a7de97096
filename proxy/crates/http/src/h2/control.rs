//! Frames that serve no message: PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY and WINDOW_UPDATE (RFC 9113 section 6).

use std::rc::Rc;

use super::core::{Core, FAREWELL_PING, Farewell, KEEPALIVE_PING, Role};
use super::frame::{self, FrameHeader, LARGEST_WINDOW, Reason, Setting, flag};
use super::receive::Checked;
use crate::body::StreamError;

impl Core {
    pub(super) fn priority(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
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

    pub(super) fn rst_stream(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
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
    pub(super) fn settings(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<u32> {
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
                // RFC 8441 section 3: what a server offers it does not take back.
                Some(Setting::EnableConnectProtocol) => {
                    if value > 1 || (self.peer_connect && value == 0) {
                        return Err(Reason::PROTOCOL_ERROR.into());
                    }
                    self.peer_connect = value == 1;
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
        while let Some(state) = self.waiting_settings.pop_front() {
            self.unqueue(&state);
            state.wake();
        }
        self.control(frame::settings_ack);
        Ok(cost)
    }

    pub(super) fn ping(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
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

    pub(super) fn peer_goaway(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
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

    pub(super) fn window_update(&mut self, header: FrameHeader, payload: &[u8]) -> Checked<()> {
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

/// Priorities are ignored (section 5.3.2), nonsense in them is not.
pub(super) fn depends_on_itself(id: u32, priority: [u8; 5]) -> Checked<()> {
    let [a, b, c, d, _] = priority;
    if u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff == id {
        return Err(Reason::PROTOCOL_ERROR.into());
    }
    Ok(())
}
