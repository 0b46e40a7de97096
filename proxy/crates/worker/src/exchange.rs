//! Connections between workers: how many of a listener each has, how loaded each is, and the way from one to the other.
//!
//! Used by listeners with a `connection_balance_config` alone. Whoever places a connection, a new one or one that moves, holds
//! the lock of its listener's [`Occupancy`] from the decision until the connection is counted to the worker named and has a
//! place in its queue. So a worker that stops taking connections, which takes the same lock, has all that it will ever get
//! counted by then.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_balance::{Candidate, Load, fewest, least_loaded};
use heddle_config::snapshot::{ConnectionBalance, Listener};
use tokio::sync::{Notify, mpsc};

use crate::measure::LATEST;
use crate::state::Arrival;

/// Connections on their way to one worker. It takes them within a turn of its event loop; when so many wait it is far
/// behind, and connections stay where they were accepted.
pub(crate) const HAND_OVER_QUEUE: usize = 256;

/// What the workers of a process know of each other. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    workers: Arc<[Desk]>,
    started: Instant,
}

/// One worker's side, alone on its cache lines: it writes its load, others read it.
#[derive(Debug)]
#[repr(align(128))]
struct Desk {
    queue: mpsc::Sender<Arrival>,
    busy: AtomicU64,
    wait_us: AtomicU64,
    /// Connections of all listeners, when the load was measured.
    open: AtomicU64,
    /// When the next measurement is overdue: after twice the time to it; in µs since `started`.
    due_us: AtomicU64,
    /// Connections placed on it since then.
    arrived: AtomicU64,
    /// The worker to which all connections are to go, and one more; zero for none.
    #[cfg(test)]
    forced: std::sync::atomic::AtomicUsize,
    /// Its busy share as tests would have it, and one more; zero where it is measured.
    #[cfg(test)]
    pretended: AtomicU64,
    /// Connections handed to it that it has not opened yet.
    on_the_way: AtomicU64,
    landed: Notify,
}

/// Where a worker's connections from the others come in.
#[derive(Debug)]
pub struct Inbox(pub(crate) mpsc::Receiver<Arrival>);

/// Connections of one listener by worker.
#[derive(Debug)]
pub(crate) struct Occupancy(Mutex<Vec<Share>>);

#[derive(Clone, Debug, Default)]
struct Share {
    /// The listener as the worker has it, whose addresses' connections it takes: twice for a moment while configurations change.
    taking: Vec<Arc<Listener>>,
    connections: u64,
}

/// A place for a connection on another worker.
pub(crate) struct Passage<'a> {
    pub(crate) seat: Seat,
    pub(crate) on_the_way: OnTheWay,
    pub(crate) permit: mpsc::Permit<'a, Arrival>,
}

/// Why a connection that is open does not go to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    /// That one's queue is full.
    Full,
    /// It does not have the connection's filter chain, or takes no more connections of the listener.
    Configuration,
}

/// Where a connection goes.
pub(crate) enum Placement<'a> {
    /// It stays.
    Here(Seat),
    /// To another worker.
    There(Seat, OnTheWay, mpsc::Permit<'a, Arrival>),
    /// It should have gone to another worker, whose queue is full, and stays.
    Full(Seat),
}

impl Exchange {
    /// For so many workers.
    pub(crate) fn new(workers: usize) -> (Self, Vec<Inbox>) {
        let (desks, inboxes): (Vec<_>, Vec<_>) = (0..workers)
            .map(|_| {
                let (queue, inbox) = mpsc::channel(HAND_OVER_QUEUE);
                let desk = Desk {
                    queue,
                    busy: AtomicU64::default(),
                    wait_us: AtomicU64::default(),
                    open: AtomicU64::default(),
                    due_us: AtomicU64::default(),
                    arrived: AtomicU64::default(),
                    #[cfg(test)]
                    forced: std::sync::atomic::AtomicUsize::default(),
                    #[cfg(test)]
                    pretended: AtomicU64::default(),
                    on_the_way: AtomicU64::default(),
                    landed: Notify::new(),
                };
                (desk, Inbox(inbox))
            })
            .unzip();
        let exchange = Self {
            workers: desks.into(),
            started: Instant::now(),
        };
        (exchange, inboxes)
    }

    /// Shares for a listener on which nobody takes connections yet.
    pub(crate) fn occupancy(&self) -> Occupancy {
        Occupancy(Mutex::new(vec![Share::default(); self.workers.len()]))
    }

    /// Places a connection that worker `here` has accepted at the address `door`, and counts it to the worker that gets it:
    /// one whose configuration of the listener has that address too. Configurations come to one worker before the other, and
    /// what another address is for, such as the chains without TLS of a loopback one, is not for this connection.
    pub(crate) fn place(
        &self,
        balance: ConnectionBalance,
        of: &Arc<Occupancy>,
        here: usize,
        door: SocketAddr,
    ) -> Placement<'_> {
        let mut shares = of.lock();
        let at = match balance {
            ConnectionBalance::Kernel => here,
            ConnectionBalance::Exact => {
                let counts: Vec<_> = shares.iter().map(|share| share.counted(door)).collect();
                fewest(&counts, here)
            }
            ConnectionBalance::LoadAware => {
                let now = self.started.elapsed().as_micros() as u64;
                let workers = self.workers.iter().zip(shares.iter());
                let candidates: Vec<_> = workers
                    .map(|(desk, share)| Some(desk.candidate(share.counted(door)?, now)))
                    .collect();
                least_loaded(&candidates, here)
            }
        };
        let there = self.workers.get(at).filter(|_| at != here);
        let permit = there.map(|desk| (desk, desk.queue.try_reserve()));
        let at = if matches!(permit, Some((_, Ok(_)))) { at } else { here };
        let seat = Seat::take(of, &mut shares, at, door);
        if let Some(desk) = self.workers.get(at) {
            desk.arrived.fetch_add(1, Ordering::Relaxed);
            self.due_within(at, LATEST);
        }
        match permit {
            None => Placement::Here(seat),
            Some((_, Err(_))) => Placement::Full(seat),
            Some((desk, Ok(permit))) => Placement::There(seat, self.on_the_way(at, desk), permit),
        }
    }

    /// Takes a place on worker `to` for an open connection, whose seat this is, if that one's version of the listener is one that
    /// `fits`.
    pub(crate) fn passage(
        &self,
        seat: &Seat,
        to: usize,
        fits: impl Fn(&Arc<Listener>) -> bool,
    ) -> Result<Passage<'_>, Stay> {
        let mut shares = seat.of.lock();
        let (Some(desk), Some(share)) = (self.workers.get(to), shares.get(to)) else {
            return Err(Stay::Configuration);
        };
        // The newest: the one that it replaces is there for a moment only.
        let takes = share
            .taking
            .last()
            .is_some_and(|it| it.addresses.contains(&seat.door) && fits(it));
        if !takes {
            return Err(Stay::Configuration);
        }
        let permit = desk.queue.try_reserve().map_err(|_| Stay::Full)?;
        desk.arrived.fetch_add(1, Ordering::Relaxed);
        self.due_within(to, LATEST);
        Ok(Passage {
            seat: Seat::take(&seat.of, &mut shares, to, seat.door),
            on_the_way: self.on_the_way(to, desk),
            permit,
        })
    }

    /// A worker measures within this period, also if it meant to rest for longer: a connection comes to it.
    pub(crate) fn due_within(&self, worker: usize, period: Duration) {
        if let Some(desk) = self.workers.get(worker) {
            desk.due_us.fetch_min(self.due_us(period), Ordering::Relaxed);
        }
    }

    /// When a measurement is overdue that is to be made after this period: twice that from now.
    fn due_us(&self, period: Duration) -> u64 {
        (self.started.elapsed() + 2 * period).as_micros() as u64
    }

    fn on_the_way(&self, to: usize, desk: &Desk) -> OnTheWay {
        desk.on_the_way.fetch_add(1, Ordering::Relaxed);
        OnTheWay {
            workers: Arc::clone(&self.workers),
            to,
        }
    }

    /// When the process's workers were made.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// The workers' loads, into `loads`; none for those that should have measured theirs by now, which are stuck.
    pub(crate) fn loads(&self, loads: &mut Vec<Option<Load>>) {
        let now = self.started.elapsed().as_micros() as u64;
        loads.clear();
        loads.extend(self.workers.iter().map(|desk| {
            let candidate = desk.candidate(0, now);
            (candidate.overdue_us == 0).then_some(candidate.load)
        }));
    }

    /// Publishes a worker's load, with the number of connections that it comes from. It is measured again after this period, or
    /// is overdue.
    pub(crate) fn measured(&self, worker: usize, load: Load, open: u64, period: Duration) {
        #[cfg(test)]
        let load = self.pretended(worker).unwrap_or(load);
        if let Some(desk) = self.workers.get(worker) {
            desk.busy.store(load.busy, Ordering::Relaxed);
            desk.wait_us.store(load.wait_us, Ordering::Relaxed);
            desk.open.store(open, Ordering::Relaxed);
            desk.arrived.store(0, Ordering::Relaxed);
            desk.due_us.store(self.due_us(period), Ordering::Relaxed);
        }
    }

    /// How much busier the busiest worker is than the least busy one, in thousandths of a worker.
    pub(crate) fn skew(&self) -> u64 {
        let busy = || self.workers.iter().map(|desk| desk.busy.load(Ordering::Relaxed));
        busy().max().unwrap_or(0) - busy().min().unwrap_or(0)
    }

    /// Returns when nothing is on its way to this worker.
    pub(crate) async fn until_landed(&self, worker: usize) {
        let Some(desk) = self.workers.get(worker) else { return };
        loop {
            let landed = desk.landed.notified();
            tokio::pin!(landed);
            // Before the look: the last one may land on another thread right after it.
            landed.as_mut().enable();
            if desk.on_the_way.load(Ordering::Acquire) == 0 {
                return;
            }
            landed.await;
        }
    }
}

impl Desk {
    fn candidate(&self, connections: u64, now_us: u64) -> Candidate {
        Candidate {
            load: Load {
                busy: self.busy.load(Ordering::Relaxed),
                wait_us: self.wait_us.load(Ordering::Relaxed),
            },
            overdue_us: now_us.saturating_sub(self.due_us.load(Ordering::Relaxed)),
            connections,
            open: self.open.load(Ordering::Relaxed),
            arrived: self.arrived.load(Ordering::Relaxed),
        }
    }
}

impl Share {
    /// Its connections, if it takes those of this address.
    fn counted(&self, door: SocketAddr) -> Option<u64> {
        let takes = self.taking.iter().any(|listener| listener.addresses.contains(&door));
        takes.then_some(self.connections)
    }
}

impl Occupancy {
    fn lock(&self) -> MutexGuard<'_, Vec<Share>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This worker takes connections of this version of the listener for as long as the value lives.
    pub(crate) fn take_part(self: &Arc<Self>, worker: usize, listener: &Arc<Listener>) -> Taking {
        if let Some(share) = self.lock().get_mut(worker) {
            share.taking.push(Arc::clone(listener));
        }
        Taking {
            of: Arc::clone(self),
            worker,
            listener: Arc::clone(listener),
        }
    }
}

/// A worker takes connections of a listener.
pub(crate) struct Taking {
    of: Arc<Occupancy>,
    worker: usize,
    listener: Arc<Listener>,
}

impl Drop for Taking {
    fn drop(&mut self) {
        if let Some(share) = self.of.lock().get_mut(self.worker) {
            let same = share
                .taking
                .iter()
                .position(|listener| Arc::ptr_eq(listener, &self.listener));
            same.map(|at| share.taking.remove(at));
        }
    }
}

/// A connection counted to a worker. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    of: Arc<Occupancy>,
    worker: usize,
    /// Where it was accepted.
    door: SocketAddr,
}

impl Seat {
    /// The listener's address at which the connection was accepted.
    pub(crate) fn door(&self) -> SocketAddr {
        self.door
    }

    /// Whether it is one of this listener.
    pub(crate) fn is_of(&self, occupancy: &Arc<Occupancy>) -> bool {
        Arc::ptr_eq(&self.of, occupancy)
    }

    fn take(of: &Arc<Occupancy>, shares: &mut [Share], worker: usize, door: SocketAddr) -> Self {
        if let Some(share) = shares.get_mut(worker) {
            share.connections += 1;
        }
        Self {
            of: Arc::clone(of),
            worker,
            door,
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(share) = self.of.lock().get_mut(self.worker) {
            share.connections -= 1;
        }
    }
}

/// A connection on its way to a worker. Dropped when that one has opened it, or when it is lost.
#[derive(Debug)]
pub(crate) struct OnTheWay {
    workers: Arc<[Desk]>,
    to: usize,
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        if let Some(desk) = self.workers.get(self.to) {
            desk.on_the_way.fetch_sub(1, Ordering::Release);
            desk.landed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
