//! Accepting connections on one socket, and from other workers.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::FutureExt;
use heddle_config::snapshot::{LoadShedPoint, OverloadActionKind};
use heddle_net::{AcceptFailure, ConnectionInfo, is_spare, tune_accepted};
use heddle_telemetry::Counter;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::connection;
use crate::exchange::{Inbox, Placement};
use crate::listener::ListenerRuntime;
use crate::manager::Door;
use crate::state::{Accepted, Admission, Arrival, Moved, WorkerState};

/// Connections taken from one socket before other tasks of the worker run.
const BATCH: usize = 32;

/// Accepts until the door closes. Connections that wait in the socket then are still served: closing it would reset
/// them.
pub(crate) async fn run(state: Rc<WorkerState>, socket: TcpListener, door: Rc<Door>) {
    let failures = |kind| state.stats.counter("envoy_listener_accept_failure", &[("kind", kind)]);
    let (exhausted, vanished) = (failures("exhausted"), failures("vanished"));
    let mut taken = 0;
    // One line per shortage, not one per attempt.
    let mut starved = false;
    loop {
        // Who waits in the socket meanwhile is served later.
        let overload = state.overload_of(&door.owner().config);
        let stopped = overload.is_saturated(OverloadActionKind::StopAcceptingConnections);
        let accepted = tokio::select! {
            biased;
            accepted = socket.accept(), if !stopped => accepted,
            () = door.closing() => break,
            () = state.overload.changed() => continue,
        };
        match accepted {
            Ok((tcp, _)) if is_spare(&tcp) => {
                exhausted.inc();
                door.owner().stats.global_cx_overflow.inc();
            }
            Ok((tcp, peer)) => {
                starved = false;
                admit(&state, &door, tcp, peer);
            }
            Err(e) => match AcceptFailure::of(&e) {
                AcceptFailure::Connection => vanished.inc(),
                AcceptFailure::Exhausted(pause) => {
                    exhausted.inc();
                    if !std::mem::replace(&mut starved, true) {
                        tracing::warn!(error = %e, address = %door.address, "cannot accept; raise the limit on open files");
                    }
                    if state.turn_away(&socket) {
                        door.owner().stats.global_cx_overflow.inc();
                    } else {
                        sleep(pause).await;
                    }
                }
                AcceptFailure::Listener => {
                    tracing::error!(error = %e, address = %door.address, "the listening socket failed");
                    return;
                }
            },
        }
        taken += 1;
        if taken % BATCH == 0 {
            tokio::task::yield_now().await;
        }
    }
    // This worker takes no connections of the address any more, so nobody is asked to serve them in its place.
    // The kernel is asked itself: the event loop does not know yet of those that have just come. As many as may have waited are
    // taken; clients that go on connecting would hold the worker here.
    let Ok(socket) = socket.into_std() else { return };
    for _ in 0..door.owner().config.backlog {
        let Ok((tcp, peer)) = socket.accept() else { break };
        match tcp.set_nonblocking(true).and_then(|()| TcpStream::from_std(tcp)) {
            Ok(tcp) => admit(&state, &door, tcp, peer),
            Err(error) => tracing::debug!(%error, %peer, "a connection that waited in a closing socket was closed"),
        }
    }
}

/// Takes in an accepted connection, and gives it to the worker that is to serve it.
fn admit(state: &Rc<WorkerState>, door: &Door, tcp: TcpStream, peer: SocketAddr) {
    let listener = door.owner();
    let overload = state.overload_of(&listener.config);
    if overload.hits(OverloadActionKind::RejectIncomingConnections, || state.dice())
        || overload.sheds(LoadShedPoint::TcpListenerAccept, || state.dice())
    {
        listener.stats.overload_reject.inc();
        return;
    }
    let Some(mut admission) = state.admit(!listener.config.ignore_global_connection_limit) else {
        listener.stats.global_cx_overflow.inc();
        return;
    };
    // The address of a socket bound to a wildcard is only known per connection.
    let local = match tcp.local_addr() {
        Ok(local) => local,
        Err(_) => door.address,
    };
    if let Some(stats) = &listener.hand_over {
        match listener.place(state, door.address) {
            Placement::Here(seat) => admission.seat = Some(seat),
            Placement::Full(seat) => {
                stats.overflow.inc();
                admission.seat = Some(seat);
            }
            Placement::There(seat, on_the_way, permit) => {
                let tcp = match tcp.into_std() {
                    Ok(tcp) => tcp,
                    Err(error) => return lost(state, peer, &error),
                };
                admission.seat = Some(seat);
                stats.handed_over.inc();
                permit.send(Arrival::Accepted(Accepted {
                    listener: Arc::clone(&listener.config.name),
                    door: door.address,
                    tcp,
                    local,
                    peer,
                    admission,
                    on_the_way,
                }));
                return;
            }
        }
    }
    open(state, listener, tcp, local, peer, admission);
}

/// Serves the connections that other workers have accepted for this one, or served until now.
pub(crate) async fn take_arrivals(state: Rc<WorkerState>, mut inbox: Inbox) {
    while let Some(arrival) = inbox.0.recv().await {
        let accepted = match arrival {
            Arrival::Accepted(accepted) => accepted,
            Arrival::Moved(moved) => {
                go_on(&state, *moved);
                continue;
            }
        };
        let Accepted {
            listener,
            door,
            tcp,
            local,
            peer,
            admission,
            on_the_way,
        } = accepted;
        // A worker tells the others when it gives a listener up, and keeps it while it drains.
        match (state.balanced(listener, door), TcpStream::from_std(tcp)) {
            (Some(listener), Ok(tcp)) => open(&state, listener, tcp, local, peer, admission),
            (Some(_), Err(error)) => lost(&state, peer, &error),
            // Its drain time was over before the connection came.
            (None, _) => state.hand_over_failures.drained.inc(),
        }
        drop(on_the_way);
    }
}

/// Serves a connection that another worker has served until now.
fn go_on(state: &Rc<WorkerState>, moved: Moved) {
    let Moved {
        listener,
        chain,
        door,
        connection,
        place,
        admission,
        on_the_way,
    } = moved;
    let peer = connection.info().remote;
    match (state.chain_of(&listener, chain, door), connection.arrive()) {
        (Some((listener, chain)), Ok(connection)) => {
            let panics = listener.stats.panics.clone();
            let places = (state.place(admission), listener.take_over(place));
            let served = connection::go_on(Rc::clone(state), chain, connection, places);
            spawn_local(guarded(served, panics, peer));
        }
        (Some(_), Err(error)) => lost(state, peer, &error),
        // As those that stay: its drain time was over.
        (None, _) => state.hand_over_failures.drained.inc(),
    }
    drop(on_the_way);
}

/// The kernel would not have a connection move between two event loops.
pub(crate) fn lost(state: &WorkerState, peer: SocketAddr, error: &std::io::Error) {
    state.hand_over_failures.registration.inc();
    tracing::debug!(%error, %peer, "a connection could not be handed to another worker and was closed");
}

/// Serves a connection on this worker.
fn open(
    state: &Rc<WorkerState>,
    listener: Rc<ListenerRuntime>,
    tcp: TcpStream,
    local: SocketAddr,
    peer: SocketAddr,
    admission: Admission,
) {
    // Also of one that is refused at once: a worker at rest is expected to look after what came to it.
    let place = state.place(admission);
    let Some(seat) = listener.admit() else {
        listener.stats.cx_overflow.inc();
        return;
    };
    // A peer that is gone already may cause an error here; serving it will find that out.
    let _ = tune_accepted(&tcp, listener.config.keepalive);
    let info = ConnectionInfo::plain(local, peer);
    let panics = listener.stats.panics.clone();
    let served = connection::serve(Rc::clone(state), listener, tcp, info, place, seat);
    spawn_local(guarded(served, panics, peer));
}

/// Counts a panic instead of letting it pass for a normal end. State shared with other connections is in cells that
/// hold whole values at every await and every call out, so they can go on.
///
/// Made by combinators: an `async` block around the connection's future would hold it twice, before and while it runs.
pub(crate) fn guarded(served: impl Future<Output = ()>, panics: Counter, peer: SocketAddr) -> impl Future<Output = ()> {
    AssertUnwindSafe(served).catch_unwind().map(move |outcome| {
        if outcome.is_err() {
            panics.inc();
            tracing::error!(%peer, "a connection's task panicked; the connection was closed, please report this");
        }
    })
}
