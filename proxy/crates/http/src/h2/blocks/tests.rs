use std::collections::HashSet;

use bytes::BytesMut;
use heddle_config::snapshot::Http2Options;
use heddle_telemetry::Stats;

use super::*;
use crate::h1::Limits;
use crate::h2::budget::{FLOOR, Share, WORKER_BYTES};
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
    let mut core = core(Role::Server, usize::MAX);
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
    let mut core = core(Role::Client, usize::MAX);
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

/// A GET whose head has a field of 3000 bytes in the compression table, ten times; the table has it after `FIRST`.
const GET: [u8; 6] = [0x82, 0x86, 0x84, 0x01, 0x01, b'a'];

fn first_head() -> Vec<u8> {
    [&GET[..], &[0x40, 0x01, b'x', 0x7f, 0xb9, 0x16], &[b'v'; 3000]].concat()
}

fn large_head() -> Vec<u8> {
    [&GET[..], &[0xbe; 10]].concat()
}

/// A server whose client has said its SETTINGS and sent one request, which has put the field into the table.
fn core(role: Role, max_held: usize) -> Core {
    let stats = CodecStats::downstream(&Stats::new(), &[]);
    Core::new(role, BytesMut::new(), Http2Options::default(), LIMITS, max_held, stats)
}

/// One that has taken a request, stream 1.
fn server(max_held: usize) -> Core {
    let mut core = core(Role::Server, max_held);
    core.input.extend_from_slice(PREFACE);
    core.input.extend_from_slice(&framed(kind::SETTINGS, 0, 0, &[]));
    assert!(is_taken(&mut core, 1, &first_head()));
    core
}

/// Whether a request becomes a stream.
fn is_taken(core: &mut Core, id: u32, head: &[u8]) -> bool {
    let flags = flag::END_HEADERS | flag::END_STREAM;
    core.input.extend_from_slice(&framed(kind::HEADERS, flags, id, head));
    core.handle_input(&mut u32::MAX.clone())
        .expect("the connection goes on");
    core.streams.contains_key(&id)
}

#[test]
fn large_heads_are_refused_above_the_connections_bound_and_ordinary_ones_are_not() {
    let mut core = server(100_000);
    let taken: Vec<_> = (1..200u32)
        .map(|n| 2 * n + 1)
        .filter(|id| is_taken(&mut core, *id, &large_head()))
        .collect();
    assert_eq!(taken, [3, 5, 7, 9], "the bound and one more");
    assert_eq!(core.stats.stream_refused_errors.get(), 195);
    assert_eq!(core.stats.held_bytes_overflow.get(), 195);
    assert!(
        is_taken(&mut core, 401, &first_head()),
        "others' large heads are not its"
    );
    // The first has ended.
    let state = core.streams.remove(&3).expect("open");
    core.let_go(&state, state.heads.get());
    assert!(is_taken(&mut core, 403, &large_head()));
    assert!(!is_taken(&mut core, 405, &large_head()));
}

#[test]
fn heads_are_counted_for_stream_connection_and_worker() {
    let worker = Share::held_by_worker();
    let mut core = server(usize::MAX);
    let before = Share::held_by_worker();
    for id in [3, 5] {
        assert!(is_taken(&mut core, id, &large_head()));
        assert!(
            (30_000..31_000).contains(&core.streams[&id].held()),
            "{}",
            core.streams[&id].held()
        );
    }
    let held: usize = core.streams.values().map(|state| state.held()).sum();
    assert_eq!(Share::held_by_worker() - before, 2 * core.streams[&3].held());
    assert!(Share::held_by_worker() - worker >= held);
    for id in [1, 3, 5] {
        let state = core.streams.remove(&id).expect("open");
        core.let_go(&state, state.heads.get());
    }
    core.out.clear();
    core.share();
    assert_eq!(Share::held_by_worker(), worker);
}

#[test]
fn above_the_workers_bound_who_holds_more_than_its_part_takes_no_request() {
    let mut core = server(usize::MAX);
    let others: Vec<_> = (0..2000).map(|_| Share::new()).collect();
    let mut hoarder = Share::new();
    hoarder.set(WORKER_BYTES);
    let taken: Vec<_> = (1..100u32)
        .map(|n| 2 * n + 1)
        .filter(|id| is_taken(&mut core, *id, &large_head()))
        .collect();
    assert!(
        (FLOOR / 31_000..=FLOOR / 30_000 + 1).contains(&taken.len()),
        "{taken:?}"
    );
    assert!(!is_taken(&mut core, 301, &GET), "nor a small one");
    hoarder.set(0);
    assert!(is_taken(&mut core, 303, &GET));
    drop(others);
}

#[test]
fn above_the_workers_bound_answers_whose_heads_wait_give_way() {
    let mut core = core(Role::Client, usize::MAX);
    core.input.extend_from_slice(&framed(kind::SETTINGS, 0, 0, &[]));
    let states: Vec<_> = (0..100).map(|n| State::new(2 * n + 1, 0, core.new_window())).collect();
    for state in &states {
        core.streams.insert(state.id.get(), Rc::clone(state));
    }
    core.next_local = 201;
    let others: Vec<_> = (0..2000).map(|_| Share::new()).collect();
    let mut hoarder = Share::new();
    hoarder.set(WORKER_BYTES);
    let first = [&[0x88, 0x40, 0x01, b'x', 0x7f, 0xb9, 0x16][..], &[b'v'; 3000]].concat();
    let later = [&[0x88][..], &[0xbe; 10]].concat();
    for (n, state) in states.iter().enumerate() {
        let head = if n == 0 { &first } else { &later };
        let frame = framed(kind::HEADERS, flag::END_HEADERS, state.id.get(), head);
        core.input.extend_from_slice(&frame);
        core.handle_input(&mut u32::MAX.clone())
            .expect("the connection goes on");
    }
    let held: usize = states.iter().map(|state| state.held()).sum();
    assert!(held < FLOOR + 2 * LIMITS.max_bytes, "{held}");
    let failed = states.iter().filter(|state| state.error.get().is_some());
    let failed: Vec<_> = failed.map(|state| state.inbox.borrow().heads.len()).collect();
    assert!(failed.len() > 90, "{}", failed.len());
    assert!(failed.iter().all(|heads| *heads == 0), "and leave nothing behind");
    assert_eq!(core.stats.held_bytes_overflow.get(), failed.len() as u64);
    drop(others);
}

#[test]
fn a_request_earns_its_control_frames_once() {
    let mut core = server(usize::MAX);
    let priority = framed(kind::PRIORITY, 0, 3, &[0, 0, 0, 0, 16]);
    // max_inbound_priority_frames_per_stream * (1 + streams opened), as in Envoy.
    let allowed = 100 * (1 + 1);
    for _ in 0..allowed {
        core.input.extend_from_slice(&priority);
    }
    core.handle_input(&mut u32::MAX.clone())
        .expect("as many as are allowed");
    core.input.extend_from_slice(&priority);
    assert!(core.handle_input(&mut u32::MAX.clone()).is_err(), "one more");
}
