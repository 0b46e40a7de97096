//! What a peer may make us do with frames that are legal one by one.
//!
//! The first bounds and their defaults are Envoy's (`Http2ProtocolOptions`). The budget for control frames is ours: PING,
//! SETTINGS and frames on closed streams cost a peer nothing either.

use std::collections::VecDeque;
use std::time::Duration;

use heddle_config::snapshot::Http2Options;
use tokio::time::Instant;

/// Control frames that may come at once, and how many more each second. A gRPC client that measures its path sends a PING
/// per round trip, but with data, and each frame of a message pays for one.
const CONTROL_BURST: u32 = 1000;
const CONTROL_PER_SECOND: u32 = 100;

/// Milliseconds that earn one.
const CONTROL_INTERVAL: u64 = 1000 / CONTROL_PER_SECOND as u64;

/// Frames that each stream pays for which come after its end here: a head, an end or trailers, RST_STREAM.
const LATE_FRAMES: u64 = 3;

/// A bound that was crossed; the connection ends with ENHANCE_YOUR_CALM. Each has a counter in [`super::stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flood {
    /// HEADERS, CONTINUATION or DATA without payload, one after the other.
    EmptyFrames,
    /// PRIORITY.
    Priority,
    /// WINDOW_UPDATE.
    WindowUpdate,
    /// PING, SETTINGS, GOAWAY, unknown frames, frames of streams that are closed, refused streams, malformed messages.
    Control,
    /// Frames of any kind that wait because the peer does not read.
    Outbound,
    /// The same of PING, SETTINGS, RST_STREAM and WINDOW_UPDATE.
    OutboundControl,
}

/// Frames received.
#[derive(Debug)]
pub(super) struct Inbound {
    max_empty: u32,
    max_priority: u64,
    max_window_updates: u64,
    empty: u32,
    priority: u64,
    window_updates: u64,
    streams: u64,
    data_sent: u64,
    control: u32,
    refilled: Option<Instant>,
    late: u64,
}

impl Inbound {
    pub(super) fn new(options: &Http2Options) -> Self {
        Self {
            max_empty: options.max_consecutive_inbound_frames_with_empty_payload,
            max_priority: u64::from(options.max_inbound_priority_frames_per_stream),
            max_window_updates: u64::from(options.max_inbound_window_update_frames_per_data_frame_sent),
            empty: 0,
            priority: 0,
            window_updates: 0,
            streams: 0,
            data_sent: 0,
            control: CONTROL_BURST,
            refilled: None,
            late: 0,
        }
    }

    /// A stream was opened, by either side.
    pub(super) fn stream_opened(&mut self) {
        self.streams += 1;
        self.late += LATE_FRAMES;
        self.earn();
    }

    /// A DATA frame was sent.
    pub(super) fn data_sent(&mut self) {
        self.data_sent += 1;
        self.earn();
    }

    /// A frame that carries a message, or its end, on an open stream.
    pub(super) fn earn(&mut self) {
        self.control = (self.control + 1).min(CONTROL_BURST);
    }

    /// HEADERS, CONTINUATION or DATA has come.
    pub(super) fn message_frame(&mut self, length: usize, end_stream: bool) -> Result<(), Flood> {
        if length > 0 || end_stream {
            self.empty = 0;
            return Ok(());
        }
        self.empty += 1;
        if self.empty > self.max_empty {
            return Err(Flood::EmptyFrames);
        }
        Ok(())
    }

    /// PRIORITY has come.
    pub(super) fn priority(&mut self) -> Result<(), Flood> {
        self.priority += 1;
        if self.priority > self.max_priority.saturating_mul(1 + self.streams) {
            return Err(Flood::Priority);
        }
        Ok(())
    }

    /// WINDOW_UPDATE has come.
    pub(super) fn window_update(&mut self) -> Result<(), Flood> {
        self.window_updates += 1;
        let per_data = self.max_window_updates.saturating_mul(self.data_sent);
        if self.window_updates > 5 + 2 * (self.streams + per_data) {
            return Err(Flood::WindowUpdate);
        }
        Ok(())
    }

    /// A frame has come that may have been on its way when its stream was closed here: one side of a connection that
    /// many share cannot keep a client from leaving with all that it has asked for.
    pub(super) fn late(&mut self) -> Result<(), Flood> {
        match self.late.checked_sub(1) {
            Some(left) => {
                self.late = left;
                Ok(())
            }
            None => self.control(),
        }
    }

    /// A frame has come that serves no message.
    pub(super) fn control(&mut self) -> Result<(), Flood> {
        self.refill(Instant::now());
        self.control = self.control.checked_sub(1).ok_or(Flood::Control)?;
        Ok(())
    }

    /// Adds what time has earned: each frame's time once, also while there is nothing to add to.
    fn refill(&mut self, now: Instant) {
        let refilled = self.refilled.get_or_insert(now);
        let whole = now.duration_since(*refilled).as_millis() as u64 / CONTROL_INTERVAL;
        *refilled += Duration::from_millis(whole * CONTROL_INTERVAL);
        let earned = u32::try_from(whole).unwrap_or(u32::MAX);
        self.control = self.control.saturating_add(earned).min(CONTROL_BURST);
    }
}

/// Frames that wait to be sent, by where they end in all that was ever written.
#[derive(Debug)]
pub(super) struct Outbound {
    max: usize,
    max_control: usize,
    waiting: VecDeque<(u64, bool)>,
    control: usize,
}

impl Outbound {
    pub(super) fn new(options: &Http2Options) -> Self {
        Self {
            max: options.max_outbound_frames as usize,
            max_control: options.max_outbound_control_frames as usize,
            waiting: VecDeque::new(),
            control: 0,
        }
    }

    /// A frame was written that ends at `end`.
    pub(super) fn queued(&mut self, end: u64, control: bool) -> Result<(), Flood> {
        self.waiting.push_back((end, control));
        self.control += usize::from(control);
        if self.control > self.max_control {
            return Err(Flood::OutboundControl);
        }
        if self.waiting.len() > self.max {
            return Err(Flood::Outbound);
        }
        Ok(())
    }

    /// Everything before `sent` is with the kernel.
    pub(super) fn sent(&mut self, sent: u64) {
        while let Some((end, control)) = self.waiting.front().copied() {
            if end > sent {
                return;
            }
            self.control -= usize::from(control);
            self.waiting.pop_front();
        }
        // What a burst has made large is not kept for the connection's life.
        if self.waiting.capacity() > 256 {
            self.waiting = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envoys_bounds() {
        let mut inbound = Inbound::new(&Http2Options::default());
        assert_eq!(inbound.message_frame(0, false), Ok(()));
        assert_eq!(inbound.message_frame(0, true), Ok(()));
        assert_eq!(inbound.message_frame(0, false), Ok(()));
        assert_eq!(inbound.message_frame(0, false), Err(Flood::EmptyFrames));

        for _ in 0..100 {
            assert_eq!(inbound.priority(), Ok(()));
        }
        assert_eq!(inbound.priority(), Err(Flood::Priority));
        inbound.stream_opened();
        assert_eq!(inbound.priority(), Ok(()), "a hundred more for each stream");

        inbound.data_sent();
        for _ in 0..5 + 2 * (1 + 10) {
            assert_eq!(inbound.window_update(), Ok(()));
        }
        assert_eq!(inbound.window_update(), Err(Flood::WindowUpdate));
    }

    #[tokio::test(start_paused = true)]
    async fn control_frames_come_back_with_time_and_with_data() {
        let mut inbound = Inbound::new(&Http2Options::default());
        for _ in 0..CONTROL_BURST {
            assert_eq!(inbound.control(), Ok(()));
        }
        assert_eq!(inbound.control(), Err(Flood::Control));
        inbound.earn();
        assert_eq!(inbound.control(), Ok(()));
        tokio::time::advance(Duration::from_secs(1)).await;
        for _ in 0..CONTROL_PER_SECOND {
            assert_eq!(inbound.control(), Ok(()));
        }
        assert_eq!(inbound.control(), Err(Flood::Control));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_a_burst_comes_at_once() {
        let mut inbound = Inbound::new(&Http2Options::default());
        assert_eq!(inbound.control(), Ok(()));
        for seconds in [1, 60] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(inbound.control(), Ok(()));
        }
        for _ in 1..CONTROL_BURST {
            assert_eq!(inbound.control(), Ok(()));
        }
        assert_eq!(
            inbound.control(),
            Err(Flood::Control),
            "the minute has earned no second burst"
        );
    }

    #[test]
    fn a_stream_pays_for_what_is_late_of_it() {
        let mut inbound = Inbound::new(&Http2Options::default());
        for _ in 0..2000 {
            inbound.stream_opened();
        }
        for _ in 0..2000 * LATE_FRAMES + u64::from(CONTROL_BURST) {
            assert_eq!(inbound.late(), Ok(()));
        }
        assert_eq!(inbound.late(), Err(Flood::Control));
    }

    #[test]
    fn frames_that_wait_are_counted_until_they_are_sent() {
        let options = Http2Options {
            max_outbound_frames: 4,
            max_outbound_control_frames: 2,
            ..Http2Options::default()
        };
        let mut outbound = Outbound::new(&options);
        assert_eq!(outbound.queued(10, true), Ok(()));
        assert_eq!(outbound.queued(20, true), Ok(()));
        assert_eq!(outbound.queued(30, true), Err(Flood::OutboundControl));
        outbound.sent(25);
        assert_eq!(outbound.queued(40, false), Ok(()));
        assert_eq!(outbound.queued(50, false), Ok(()));
        assert_eq!(outbound.queued(60, false), Ok(()));
        assert_eq!(outbound.queued(70, false), Err(Flood::Outbound));
    }
}
