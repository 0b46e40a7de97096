//! Watches the frames that a peer sends for what the `h2` crate does not tell: the last stream of a GOAWAY.

/// Length of a frame header (RFC 9113 section 4.1).
const FRAME_HEADER: usize = 9;
const TYPE_GOAWAY: u8 = 0x7;

#[derive(Clone, Copy, Debug)]
enum State {
    Header {
        have: usize,
    },
    /// The first four payload bytes of a GOAWAY (section 6.8), and how much payload follows them.
    LastStream {
        have: usize,
        rest: usize,
    },
    Skip(usize),
}

/// Follows frame boundaries in a byte stream that starts at a frame header.
#[derive(Debug)]
pub struct FrameScan {
    held: [u8; FRAME_HEADER],
    state: State,
    last_stream: Option<u32>,
}

impl Default for FrameScan {
    fn default() -> Self {
        Self {
            held: [0; FRAME_HEADER],
            state: State::Header { have: 0 },
            last_stream: None,
        }
    }
}

impl FrameScan {
    /// The lowest last-stream number of all GOAWAY frames seen.
    pub fn last_stream(&self) -> Option<u32> {
        self.last_stream
    }

    fn hold(&mut self, have: usize, wanted: usize, bytes: &mut &[u8]) -> usize {
        let n = (wanted - have).min(bytes.len());
        let (now, later) = bytes.split_at(n);
        if let Some(room) = self.held.get_mut(have..have + n) {
            room.copy_from_slice(now);
        }
        *bytes = later;
        have + n
    }

    /// Looks at the next bytes of the stream.
    pub fn advance(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.state {
                State::Skip(n) => {
                    let now = n.min(bytes.len());
                    bytes = bytes.get(now..).unwrap_or_default();
                    self.state = if now == n {
                        State::Header { have: 0 }
                    } else {
                        State::Skip(n - now)
                    };
                }
                State::Header { have } => {
                    let have = self.hold(have, FRAME_HEADER, &mut bytes);
                    let [a, b, c, kind, ..] = self.held;
                    let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                    self.state = if have < FRAME_HEADER {
                        State::Header { have }
                    } else if kind == TYPE_GOAWAY && length >= 8 {
                        State::LastStream {
                            have: 0,
                            rest: length - 4,
                        }
                    } else if length == 0 {
                        State::Header { have: 0 }
                    } else {
                        State::Skip(length)
                    };
                }
                State::LastStream { have, rest } => {
                    let have = self.hold(have, 4, &mut bytes);
                    if have < 4 {
                        self.state = State::LastStream { have, rest };
                        continue;
                    }
                    let [a, b, c, d, ..] = self.held;
                    let id = u32::from_be_bytes([a, b, c, d]) & 0x7fff_ffff;
                    self.last_stream = Some(self.last_stream.map_or(id, |before| before.min(id)));
                    self.state = State::Skip(rest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let n = payload.len();
        let mut frame = vec![(n >> 16) as u8, (n >> 8) as u8, n as u8, kind, 0, 0, 0, 0, 0];
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn goaway_is_found_however_the_bytes_are_split() {
        let mut bytes = frame(0x4, &[]);
        bytes.extend(frame(0x0, &[7; 300]));
        bytes.extend(frame(TYPE_GOAWAY, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]));
        bytes.extend(frame(0x6, &[7; 8]));
        bytes.extend(frame(TYPE_GOAWAY, &[0x80, 0, 0, 5, 0, 0, 0, 0, b'b', b'y', b'e']));
        bytes.extend(frame(0x0, &[7; 3]));
        for piece in 1..64 {
            let mut scan = FrameScan::default();
            bytes.chunks(piece).for_each(|chunk| scan.advance(chunk));
            assert_eq!(scan.last_stream(), Some(5), "pieces of {piece}");
        }
        let mut scan = FrameScan::default();
        scan.advance(&frame(TYPE_GOAWAY, &[0; 3]));
        assert_eq!(scan.last_stream(), None);
    }
}
