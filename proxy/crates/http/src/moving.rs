//! Connections that go to another worker between two requests.
//!
//! A connection asks when an exchange has ended and nothing of the next request has come; one of HTTP/2, when its last stream
//! has. Where it is to go, [`crate::serve`] returns it at rest: what is left of it then is its stream, who the peer is, a few numbers,
//! and what [`crate::h2`]'s next streams depend on. It goes on with [`crate::resume`], on the other worker or, when that has no
//! place for it, on this one.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use heddle_balance::{EXCHANGE, Giver, Guest, Load};
use heddle_net::ConnectionInfo;
use heddle_tls::{Detached, Stream};
use tokio::time::Instant;

use crate::h2::AtRest;
use crate::hcm::HcmRuntime;
use crate::timer::far_future;
use crate::worker::HttpWorker;

/// What one worker gives to others, for the connections of its listeners that place by load.
#[derive(Debug)]
pub struct Moves {
    /// The same in all workers.
    epoch: Instant,
    giver: RefCell<Giver>,
}

impl Moves {
    /// `epoch` is a moment of the past, the same for all workers.
    pub fn new(epoch: std::time::Instant) -> Rc<Self> {
        Rc::new(Self {
            epoch: Instant::from_std(epoch),
            giver: RefCell::default(),
        })
    }

    /// [`Giver::look`].
    pub fn look(&self, here: usize, workers: &[Option<Load>]) {
        self.giver.borrow_mut().look(here, workers);
    }

    /// [`Giver::send_all`].
    pub fn send_all(&self, to: Option<usize>) {
        self.giver.borrow_mut().send_all(to);
    }

    /// A connection has ended an exchange, with so many bytes of bodies.
    pub(crate) fn ended(&self, guest: &mut Guest, bytes: u64, now: Instant) {
        let now = now.saturating_duration_since(self.epoch);
        self.giver
            .borrow_mut()
            .worked(guest, EXCHANGE.saturating_add(bytes), now);
    }

    /// Where a connection is to go, if anywhere.
    pub(crate) fn destination(&self, guest: &Guest, now: Instant) -> Option<usize> {
        let now = now.saturating_duration_since(self.epoch);
        self.giver.borrow_mut().send(guest, now)
    }

    /// A connection is here that was to go, or has come.
    pub(crate) fn received(&self, guest: &mut Guest, now: Instant) {
        let now = now.saturating_duration_since(self.epoch);
        self.giver.borrow_mut().receive(guest, now);
    }
}

/// What goes along with a connection, besides its stream.
#[derive(Debug)]
pub(crate) struct Luggage {
    /// Number of the connection.
    pub(crate) id: u64,
    /// When `max_connection_duration` ends.
    pub(crate) last: Instant,
    /// When the last exchange ended.
    pub(crate) idle_since: Instant,
    /// Only of those that may move: the others are as small as before.
    pub(crate) guest: Option<Box<Guest>>,
    /// Of a connection of HTTP/2.
    pub(crate) http2: Option<Box<AtRest>>,
}

impl Luggage {
    /// Of a connection that begins.
    pub(crate) fn new(worker: &HttpWorker, hcm: &HcmRuntime) -> Self {
        let opened = Instant::now();
        let longest = hcm.config.max_connection_duration;
        Self {
            id: worker.next_connection_id(),
            last: longest.map_or_else(|| far_future(opened), |max| opened + max),
            idle_since: opened,
            guest: hcm.moves.is_some().then(Box::default),
            http2: None,
        }
    }
}

/// A connection between two requests that is to go to another worker. Boxed where it is handed on: tasks of connections have room
/// for what they return, and most never return one.
#[derive(Debug)]
pub struct Resting {
    pub(crate) stream: Stream,
    pub(crate) info: Rc<ConnectionInfo>,
    pub(crate) luggage: Luggage,
    pub(crate) to: usize,
}

impl Resting {
    /// The number of that worker.
    pub fn to(&self) -> usize {
        self.to
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.luggage.http2.is_some()
    }

    /// It goes on, here.
    pub(crate) fn received(&mut self, hcm: &HcmRuntime) {
        if let (Some(moves), Some(guest)) = (&hcm.moves, &mut self.luggage.guest) {
            moves.received(guest, Instant::now());
        }
    }

    /// Facts about the connection.
    pub fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// It is not to go after all, nor ever.
    pub fn settle(&mut self) {
        if let Some(guest) = &mut self.luggage.guest {
            guest.settle();
        }
    }

    /// Takes it out of this thread's event loop.
    ///
    /// # Errors
    /// The kernel's; the connection is closed then.
    pub fn depart(self) -> io::Result<Travelling> {
        Ok(Travelling {
            stream: self.stream.detach()?,
            info: Rc::unwrap_or_clone(self.info),
            luggage: self.luggage,
            to: self.to,
        })
    }
}

/// A connection between two workers, on no event loop.
#[derive(Debug)]
pub struct Travelling {
    stream: Detached,
    info: ConnectionInfo,
    luggage: Luggage,
    to: usize,
}

impl Travelling {
    /// Facts about the connection.
    pub fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Puts it into this thread's event loop.
    ///
    /// # Errors
    /// The kernel's; the connection is closed then.
    pub fn arrive(self) -> io::Result<Box<Resting>> {
        Ok(Box::new(Resting {
            stream: self.stream.attach()?,
            info: Rc::new(self.info),
            luggage: self.luggage,
            to: self.to,
        }))
    }
}
