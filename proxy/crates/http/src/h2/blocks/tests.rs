use std::collections::HashSet;

use bytes::BytesMut;
use heddle_config::snapshot::Http2Options;
use heddle_telemetry::Stats;

use super::*;
use crate::h1::Limits;
use crate::h2::core::PREFACE;
use crate::h2::frame::kind;
use crate::h2::stats::CodecStats;

const LIMITS: Limits = Limits {
    max_bytes: 60 * 1024,
    max_count: 100,
};

fn framed(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    FrameHeader {
        length: payload.len(),
        kind,
        flags,
        stream,
    }
    .write(&mut out);
    out.extend_from_slice(payload);
    out
}

#[test]
fn a_long_field_in_small_pieces_is_kept_in_place() {
    let stats = CodecStats::downstream(&Stats::new(), &[]);
    let mut core = Core::new(
        Role::Server,
        BytesMut::new(),
        Http2Options::default(),
        LIMITS,
        usize::MAX,
        stats,
    );
    let mut receive = |bytes: &[u8]| {
        core.input.extend_from_slice(bytes);
        core.handle_input(&mut u32::MAX.clone()).expect("valid so far");
        core.block
            .as_ref()
            .map_or((0, 0), |block| (block.held(), block.rest.capacity()))
    };
    receive(PREFACE);
    receive(&framed(kind::SETTINGS, 0, 0, &[]));
    // A name of one byte, and a value of some 100 KiB.
    receive(&framed(
        kind::HEADERS,
        0,
        1,
        &[0x00, 0x01, b'a', 0x7f, 0x81, 0x9f, 0x06],
    ));
    let mut sizes = HashSet::new();
    for _ in 0..50_000 {
        sizes.insert(receive(&framed(kind::CONTINUATION, 0, 1, b"v")).1);
    }
    assert_eq!(receive(&[]).0, 50_007);
    assert!(
        sizes.len() < 20,
        "copied as it doubles, not with each piece: {}",
        sizes.len()
    );
}

#[test]
fn interim_heads_that_nobody_takes_are_held_up_to_one_heads_size() {
    let stats = CodecStats::downstream(&Stats::new(), &[]);
    let mut core = Core::new(
        Role::Client,
        BytesMut::new(),
        Http2Options::default(),
        LIMITS,
        usize::MAX,
        stats,
    );
    let state = State::new(1, 0, core.new_window());
    core.next_local = 3;
    core.streams.insert(1, Rc::clone(&state));
    let mut receive = |bytes: &[u8]| {
        core.input.extend_from_slice(bytes);
        core.handle_input(&mut u32::MAX.clone())
            .expect("the connection goes on");
        let inbox = state.inbox.borrow();
        inbox.heads.iter().map(|head| head.fields.byte_size()).sum::<usize>()
    };
    receive(&framed(kind::SETTINGS, 0, 0, &[]));
    // A field of 3000 bytes, into the table and out of it again.
    let status = [&[0x08, 0x03][..], b"103"].concat();
    let first = [&status[..], &[0x40, 0x01, b'x', 0x7f, 0xb9, 0x16], &[b'v'; 3000]].concat();
    let later = [&status[..], &[0xbe; 10]].concat();
    assert!(receive(&framed(kind::HEADERS, flag::END_HEADERS, 1, &first)) > 3000);
    for _ in 0..33 {
        assert!(receive(&framed(kind::HEADERS, flag::END_HEADERS, 1, &later)) <= LIMITS.max_bytes);
    }
    assert_eq!(state.error.get(), Some(StreamError::H2));
}
