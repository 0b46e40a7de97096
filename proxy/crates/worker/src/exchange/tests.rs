use std::net::{SocketAddr, TcpListener, TcpStream};

use futures_util::FutureExt as _;

use super::*;
use crate::state::{Accepted, Admission};
use crate::tests::listener;

impl Occupancy {
    /// Connections by worker.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.lock().iter().map(|share| share.connections).collect()
    }

    /// Whether this worker takes connections.
    pub(crate) fn takes(&self, worker: usize) -> bool {
        !self.lock()[worker].taking.is_empty()
    }

    /// A connection of this worker.
    pub(crate) fn seat(self: &Arc<Self>, worker: usize) -> Seat {
        Seat::take(self, &mut self.lock(), worker, door())
    }
}

impl Exchange {
    /// Has all connections of one worker that may move go to another, or, with none, those alone that load asks for.
    pub(crate) fn force(&self, from: usize, to: Option<usize>) {
        self.workers[from]
            .forced
            .store(to.map_or(0, |to| to + 1), Ordering::Relaxed);
    }

    /// Has a worker look so busy, in thousandths.
    pub(crate) fn pretend(&self, worker: usize, busy: u64) {
        self.workers[worker].pretended.store(busy + 1, Ordering::Relaxed);
    }

    /// The load that it is to have.
    pub(super) fn pretended(&self, worker: usize) -> Option<Load> {
        let busy = self
            .workers
            .get(worker)?
            .pretended
            .load(Ordering::Relaxed)
            .checked_sub(1)?;
        Some(Load { busy, wait_us: 0 })
    }

    /// What was asked for last.
    pub(crate) fn forced(&self, worker: usize) -> Option<usize> {
        self.workers[worker].forced.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// The address of the listener.
fn door() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8443))
}

/// An accepted connection, with its other end.
fn accepted() -> (TcpStream, TcpStream, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connects");
    let (tcp, peer) = listener.accept().expect("accepts");
    (tcp, client, peer)
}

/// Workers that all take connections of one listener.
fn workers(count: usize) -> (Exchange, Vec<Inbox>, Arc<Occupancy>, Vec<Taking>) {
    let (exchange, inboxes) = Exchange::new(count);
    let occupancy = Arc::new(exchange.occupancy());
    let taking = (0..count)
        .map(|worker| occupancy.take_part(worker, &Arc::new(listener("l", door(), Vec::new()))))
        .collect();
    (exchange, inboxes, occupancy, taking)
}

#[test]
fn a_full_queue_leaves_connections_where_they_were_accepted() {
    let (exchange, mut inboxes, occupancy, _taking) = workers(2);
    let mut here = Vec::new();
    let mut sent = 0;
    // The other worker takes nothing out.
    let full = loop {
        match exchange.place(ConnectionBalance::Exact, &occupancy, 0, door()) {
            Placement::Here(seat) => here.push(seat),
            Placement::Full(seat) => break seat,
            Placement::There(seat, on_the_way, permit) => {
                let (tcp, _client, peer) = accepted();
                let admission = Admission::seated(seat);
                permit.send(Arrival::Accepted(Accepted {
                    listener: Arc::from("l"),
                    door: door(),
                    local: peer,
                    peer,
                    tcp,
                    admission,
                    on_the_way,
                }));
                sent += 1;
            }
        }
    };
    assert_eq!((sent, here.len()), (HAND_OVER_QUEUE, HAND_OVER_QUEUE + 1));
    assert_eq!(occupancy.counts(), [HAND_OVER_QUEUE as u64 + 2, HAND_OVER_QUEUE as u64]);
    assert!(exchange.until_landed(1).now_or_never().is_none());
    while inboxes[1].0.try_recv().is_ok() {}
    assert!(exchange.until_landed(1).now_or_never().is_some());
    drop((full, here));
    assert_eq!(occupancy.counts(), [0, 0]);
}

/// A worker asks whether something is on its way before the other thread says that it has landed.
#[test]
fn what_lands_on_another_thread_is_heard_of() {
    let (exchange, _inboxes, occupancy, _taking) = workers(2);
    let _first = exchange.place(ConnectionBalance::Exact, &occupancy, 0, door());
    let Placement::There(_, on_the_way, _) = exchange.place(ConnectionBalance::Exact, &occupancy, 0, door()) else {
        panic!("the other worker has fewer");
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    let waiting = exchange.until_landed(1);
    std::thread::scope(|scope| {
        scope.spawn(move || drop(on_the_way));
        runtime.block_on(waiting);
    });
}

#[test]
fn load_decides_between_workers_that_measure() {
    let (exchange, _inboxes, occupancy, mut taking) = workers(2);
    exchange.measured(0, Load { busy: 900, wait_us: 0 }, 10, LATEST);
    exchange.measured(1, Load { busy: 100, wait_us: 0 }, 10, LATEST);
    assert_eq!(exchange.skew(), 800);
    let there = exchange.place(ConnectionBalance::LoadAware, &occupancy, 0, door());
    assert!(matches!(there, Placement::There(..)));
    // But not when that one has given the listener up.
    taking.pop();
    let here = exchange.place(ConnectionBalance::LoadAware, &occupancy, 0, door());
    assert!(matches!(here, Placement::Here(..)));
    let here = exchange.place(ConnectionBalance::LoadAware, &occupancy, 1, door());
    assert!(matches!(here, Placement::Here(..)));
}

/// A worker that said that it will not measure for long is not taken for stuck meanwhile, but is when a connection came to it
/// and it still does not.
#[test]
fn a_worker_at_rest_is_due_when_a_connection_comes() {
    let (exchange, _inboxes, _occupancy, _taking) = workers(2);
    let overdue_at_once = Duration::ZERO;
    let long = Duration::from_secs(60);
    let known = |exchange: &Exchange| {
        let mut loads = Vec::new();
        exchange.loads(&mut loads);
        loads.iter().map(Option::is_some).collect::<Vec<_>>()
    };
    exchange.measured(0, Load::default(), 0, long);
    exchange.measured(1, Load::default(), 0, long);
    assert_eq!(known(&exchange), [true, true]);
    exchange.due_within(1, overdue_at_once);
    while known(&exchange)[1] {}
    assert_eq!(known(&exchange), [true, false]);
    // A longer time does not take that back; a measurement does.
    exchange.due_within(1, long);
    assert_eq!(known(&exchange), [true, false]);
    exchange.measured(1, Load::default(), 0, long);
    assert_eq!(known(&exchange), [true, true]);
}
