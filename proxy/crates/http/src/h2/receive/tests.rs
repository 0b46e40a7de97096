use super::*;

use bytes::BytesMut;
use heddle_config::snapshot::Http2Options;
use heddle_telemetry::Stats;

use super::super::budget::{FLOOR, Share, WORKER_BYTES};
use super::super::flow::CONNECTION_START;
use super::super::stats::CodecStats;
use crate::h1::Limits;

const LIMITS: Limits = Limits {
    max_bytes: 60 * 1024,
    max_count: 100,
};

/// A connection with so many open streams, whose peer has said its SETTINGS.
fn core(role: Role, streams: u32) -> (Core, Vec<Rc<State>>) {
    let stats = CodecStats::downstream(&Stats::new(), &[]);
    let mut core = Core::new(
        role,
        BytesMut::new(),
        Http2Options::default(),
        LIMITS,
        usize::MAX,
        stats,
    );
    if role == Role::Server {
        core.input.extend_from_slice(PREFACE);
    }
    frames(&mut core, &[(kind::SETTINGS, 0, 0, &[])]).expect("settings");
    let first = u32::from(role == Role::Server);
    let states: Vec<_> = (0..streams)
        .map(|n| {
            let state = State::new(2 * n + 1, 0, core.new_window());
            state.answered.set(true);
            core.streams.insert(2 * n + 1, Rc::clone(&state));
            state
        })
        .collect();
    core.last_peer = first * (2 * streams + 1);
    core.next_local = 2 * streams + 3;
    (core, states)
}

fn frames(core: &mut Core, frames: &[(u8, u8, u32, &[u8])]) -> Checked<()> {
    for (kind, flags, stream, payload) in frames {
        let mut header = Vec::new();
        FrameHeader {
            length: payload.len(),
            kind: *kind,
            flags: *flags,
            stream: *stream,
        }
        .write(&mut header);
        core.input.extend_from_slice(&header);
        core.input.extend_from_slice(payload);
    }
    core.handle_input(&mut u32::MAX.clone())
}

fn data(core: &mut Core, stream: u32, bytes: usize) -> Checked<()> {
    frames(core, &[(kind::DATA, 0, stream, &vec![b'x'; bytes])])
}

#[test]
fn answers_left_unread_do_not_use_up_an_upstreams_connection() {
    let (mut core, states) = core(Role::Client, 600);
    for state in &states {
        for _ in 0..4 {
            data(&mut core, state.id.get(), 16 * 1024).expect("within both windows");
        }
    }
    assert_eq!(core.unread, 600 * 64 * 1024, "more than the connection's window");
    assert_eq!(core.recv_window.held(), 0);
    data(&mut core, states[0].id.get(), 1).expect("its own window is used up");
    assert_eq!(states[0].error.get(), Some(StreamError::H2));
}

#[test]
fn a_client_may_not_send_more_than_its_connections_window() {
    let (mut core, states) = core(Role::Server, 600);
    let mut came = 0;
    let error = states
        .iter()
        .flat_map(|state| std::iter::repeat_n(state.id.get(), 4))
        .find_map(|id| {
            came += 16 * 1024;
            data(&mut core, id, 16 * 1024).err()
        });
    assert_eq!(error, Some(Reason::FLOW_CONTROL_ERROR.into()));
    assert_eq!(came, CONNECTION_START as usize + 16 * 1024);
}

#[test]
fn above_the_workers_bound_the_stream_that_holds_most_gives_way() {
    let (mut core, states) = core(Role::Client, 8);
    let others: Vec<_> = (0..2000).map(|_| Share::new()).collect();
    let mut hoarder = Share::new();
    for state in &states[1..] {
        data(&mut core, state.id.get(), 16 * 1024).expect("little");
    }
    for _ in 0..3 {
        data(&mut core, states[0].id.get(), 16 * 1024).expect("most");
    }
    assert!(core.unread > FLOOR);
    // Part of it waits with the stream's request.
    let taken = std::mem::take(&mut states[0].inbox.borrow_mut().data);
    data(&mut core, states[0].id.get(), 1000).expect("more");
    hoarder.set(WORKER_BYTES);
    for _ in 0..2 {
        data(&mut core, states[1].id.get(), 1).expect("the connection goes on");
    }
    let failed: Vec<_> = states.iter().filter(|state| state.error.get().is_some()).collect();
    assert_eq!(
        failed.len(),
        1,
        "what came was less than it held: that its request has some yet costs no other"
    );
    assert_eq!(states[0].error.get(), Some(StreamError::Overload));
    assert!(states[0].inbox.borrow().data.is_empty());
    assert_eq!(core.unread, 7 * 16 * 1024 + taken.len() + 2);
    drop(others);
}

#[test]
fn below_its_part_nothing_of_a_connection_gives_way() {
    let (mut core, states) = core(Role::Client, 1);
    let mut hoarder = Share::new();
    hoarder.set(2 * WORKER_BYTES);
    data(&mut core, 1, 16 * 1024).expect("little");
    data(&mut core, 1, 16 * 1024).expect("little");
    assert_eq!(states[0].error.get(), None);
    assert!(!core.share.is_above() && hoarder.is_above());
}

#[test]
fn what_is_held_is_counted_and_given_back() {
    let worker = Share::held_by_worker();
    let (mut core, states) = core(Role::Server, 2);
    data(&mut core, 1, 1000).expect("data");
    data(&mut core, 3, 500).expect("data");
    let taken = std::mem::take(&mut states[0].inbox.borrow_mut().data);
    core.gone(taken.len());
    core.credit_stream(&states[0], taken.len());
    assert_eq!((core.unread, core.recv_window.held()), (500, 500));
    assert!(Share::held_by_worker() >= worker + 500);
    drop(core);
    assert_eq!(Share::held_by_worker(), worker);
}
