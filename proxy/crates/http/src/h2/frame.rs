//! Frames of HTTP/2 as they stand on the wire (RFC 9113 sections 4 and 6): headers, flags, error codes, and the frames
//! that are written whole.

/// Length of a frame header.
pub(crate) const HEADER: usize = 9;

/// The largest payload that is sent and, since no larger one is offered in SETTINGS, received.
pub(crate) const MAX_PAYLOAD: usize = 16_384;

/// The largest flow control window.
pub(crate) const LARGEST_WINDOW: i64 = (1 << 31) - 1;

/// Window of connections, and of streams before SETTINGS change it.
pub(crate) const DEFAULT_WINDOW: u32 = 65_535;

/// Frame types.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0x0;
    pub(crate) const HEADERS: u8 = 0x1;
    pub(crate) const PRIORITY: u8 = 0x2;
    pub(crate) const RST_STREAM: u8 = 0x3;
    pub(crate) const SETTINGS: u8 = 0x4;
    pub(crate) const PUSH_PROMISE: u8 = 0x5;
    pub(crate) const PING: u8 = 0x6;
    pub(crate) const GOAWAY: u8 = 0x7;
    pub(crate) const WINDOW_UPDATE: u8 = 0x8;
    pub(crate) const CONTINUATION: u8 = 0x9;
}

/// Frame flags.
pub(crate) mod flag {
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// A SETTINGS parameter (section 6.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    HeaderTableSize = 0x1,
    EnablePush = 0x2,
    MaxConcurrentStreams = 0x3,
    InitialWindowSize = 0x4,
    MaxFrameSize = 0x5,
    MaxHeaderListSize = 0x6,
    /// RFC 8441 section 3.
    EnableConnectProtocol = 0x8,
}

impl Setting {
    /// The parameter of a number; none for those that mean nothing here.
    pub(crate) fn of(number: u16) -> Option<Self> {
        Some(match number {
            0x1 => Self::HeaderTableSize,
            0x2 => Self::EnablePush,
            0x3 => Self::MaxConcurrentStreams,
            0x4 => Self::InitialWindowSize,
            0x5 => Self::MaxFrameSize,
            0x6 => Self::MaxHeaderListSize,
            0x8 => Self::EnableConnectProtocol,
            _ => return None,
        })
    }
}

/// An error code (section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reason(pub(crate) u32);

impl Reason {
    pub(crate) const NO_ERROR: Self = Self(0x0);
    pub(crate) const PROTOCOL_ERROR: Self = Self(0x1);
    pub(crate) const INTERNAL_ERROR: Self = Self(0x2);
    pub(crate) const FLOW_CONTROL_ERROR: Self = Self(0x3);
    pub(crate) const STREAM_CLOSED: Self = Self(0x5);
    pub(crate) const FRAME_SIZE_ERROR: Self = Self(0x6);
    pub(crate) const REFUSED_STREAM: Self = Self(0x7);
    pub(crate) const CANCEL: Self = Self(0x8);
    pub(crate) const COMPRESSION_ERROR: Self = Self(0x9);
    pub(crate) const ENHANCE_YOUR_CALM: Self = Self(0xb);

    /// A word of a fixed set for counters.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::NO_ERROR => "no_error",
            Self::PROTOCOL_ERROR => "protocol_error",
            Self::INTERNAL_ERROR => "internal_error",
            Self::FLOW_CONTROL_ERROR => "flow_control_error",
            Self::STREAM_CLOSED => "stream_closed",
            Self::FRAME_SIZE_ERROR => "frame_size_error",
            Self::COMPRESSION_ERROR => "compression_error",
            Self::ENHANCE_YOUR_CALM => "flood",
            _ => "other",
        }
    }
}

/// A frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl FrameHeader {
    /// Reads the first nine bytes; the reserved bit is ignored.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, s0, s1, s2, s3] = *bytes.first_chunk::<HEADER>()?;
        Some(Self {
            length: usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c),
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
        })
    }

    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Appends the header. The length must be below 2^24.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes());
    }

    /// The header's bytes.
    pub(crate) fn bytes(self) -> [u8; HEADER] {
        let [_, a, b, c] = (self.length as u32).to_be_bytes();
        let [s0, s1, s2, s3] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, s0, s1, s2, s3]
    }
}

fn head(kind: u8, flags: u8, stream: u32, length: usize, out: &mut Vec<u8>) {
    FrameHeader {
        length,
        kind,
        flags,
        stream,
    }
    .write(out);
}

/// Appends SETTINGS.
pub(crate) fn settings(values: &[(Setting, u32)], out: &mut Vec<u8>) {
    head(kind::SETTINGS, 0, 0, values.len() * 6, out);
    for (setting, value) in values {
        out.extend_from_slice(&(*setting as u16).to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of SETTINGS.
pub(crate) fn settings_ack(out: &mut Vec<u8>) {
    head(kind::SETTINGS, flag::ACK, 0, 0, out);
}

/// Appends PING.
pub(crate) fn ping(payload: [u8; 8], ack: bool, out: &mut Vec<u8>) {
    head(kind::PING, if ack { flag::ACK } else { 0 }, 0, 8, out);
    out.extend_from_slice(&payload);
}

/// Appends RST_STREAM.
pub(crate) fn rst_stream(stream: u32, reason: Reason, out: &mut Vec<u8>) {
    head(kind::RST_STREAM, 0, stream, 4, out);
    out.extend_from_slice(&reason.0.to_be_bytes());
}

/// Appends WINDOW_UPDATE; stream 0 is the connection.
pub(crate) fn window_update(stream: u32, increment: u32, out: &mut Vec<u8>) {
    head(kind::WINDOW_UPDATE, 0, stream, 4, out);
    out.extend_from_slice(&increment.to_be_bytes());
}

/// Appends GOAWAY.
pub(crate) fn goaway(last: u32, reason: Reason, out: &mut Vec<u8>) {
    head(kind::GOAWAY, 0, 0, 8, out);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&reason.0.to_be_bytes());
}

/// Appends the header of a DATA frame.
pub(crate) fn data_header(stream: u32, length: usize, end: bool, out: &mut Vec<u8>) {
    head(kind::DATA, if end { flag::END_STREAM } else { 0 }, stream, length, out);
}

/// Begins HEADERS at the end of `out`; give the returned position to [`end_headers`] after the block was appended.
pub(crate) fn begin_headers(out: &mut Vec<u8>) -> usize {
    let at = out.len();
    out.extend_from_slice(&[0; HEADER]);
    at
}

/// Ends HEADERS begun at `at`; a block that is too long for one frame goes on in CONTINUATION frames.
pub(crate) fn end_headers(at: usize, stream: u32, end_stream: bool, out: &mut Vec<u8>) {
    let block = out.len().saturating_sub(at + HEADER);
    let end = if end_stream { flag::END_STREAM } else { 0 };
    if block <= MAX_PAYLOAD {
        let header = FrameHeader {
            length: block,
            kind: kind::HEADERS,
            flags: end | flag::END_HEADERS,
            stream,
        };
        if let Some(place) = out.get_mut(at..at + HEADER) {
            place.copy_from_slice(&header.bytes());
        }
        return;
    }
    let whole = out.split_off(at);
    let mut rest = whole.get(HEADER..).unwrap_or_default();
    let mut first = true;
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(rest.len().min(MAX_PAYLOAD));
        let last = if later.is_empty() { flag::END_HEADERS } else { 0 };
        let (kind, flags) = match std::mem::take(&mut first) {
            true => (kind::HEADERS, end | last),
            false => (kind::CONTINUATION, last),
        };
        head(kind, flags, stream, piece.len(), out);
        out.extend_from_slice(piece);
        rest = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_both_ways() {
        let header = FrameHeader {
            length: 70_000,
            kind: kind::PING,
            flags: flag::ACK,
            stream: 0x7fff_fffe,
        };
        let mut out = Vec::new();
        header.write(&mut out);
        assert_eq!(FrameHeader::read(&out), Some(header));
        out[5] |= 0x80;
        assert_eq!(FrameHeader::read(&out), Some(header), "the reserved bit is ignored");
        assert_eq!(FrameHeader::read(&out[..8]), None);
    }

    #[test]
    fn long_blocks_are_continued() {
        for (block, frames) in [(0, 1), (MAX_PAYLOAD, 1), (MAX_PAYLOAD + 1, 2), (3 * MAX_PAYLOAD, 3)] {
            let mut out = b"before".to_vec();
            let at = begin_headers(&mut out);
            out.extend(std::iter::repeat_n(7, block));
            end_headers(at, 3, true, &mut out);
            let mut rest = &out[6..];
            let (mut seen, mut total) = (0, 0);
            while let Some(header) = FrameHeader::read(rest) {
                assert_eq!(header.stream, 3);
                let first = seen == 0;
                assert_eq!(header.kind, if first { kind::HEADERS } else { kind::CONTINUATION });
                assert_eq!(header.has(flag::END_STREAM), first);
                seen += 1;
                assert_eq!(header.has(flag::END_HEADERS), seen == frames);
                total += header.length;
                rest = &rest[HEADER + header.length..];
            }
            assert_eq!((seen, total, rest.len()), (frames, block, 0));
        }
    }
}
