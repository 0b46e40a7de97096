//! File descriptors: how many this process may have, and which of them traffic may not have.
//!
//! The kernel gives out the lowest number that is free. So a socket whose number is near the limit says that nearly all
//! descriptors are in use, whoever has them: the last ones, [`is_spare`], are not for connections of clients and to
//! upstreams, so that the admin interface, discovery, logs and DNS always find some.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

/// How many are not for traffic; no more than an eighth of all.
const SPARE: u64 = 64;

/// The first number that is not for traffic. The limit belongs to the process, and so does this.
static FIRST_SPARE: AtomicU64 = AtomicU64::new(u64::MAX);

/// Raises the soft limit on open files to the hard one, as Envoy does at its start, and returns what is in force: most
/// systems start programs with 1024 for the sake of `select`, which nothing here uses. From now on the last ones are spare.
///
/// # Errors
/// The kernel's, when the limit cannot be read. That it cannot be raised is none: what there was stays in force.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let limit = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    };
    FIRST_SPARE.store(first_spare(limit), Ordering::Relaxed);
    Ok(limit)
}

fn first_spare(limit: u64) -> u64 {
    limit - SPARE.min(limit / 8)
}

/// Whether a socket for traffic must be closed because it has one of the last descriptors.
pub fn is_spare(socket: &impl AsFd) -> bool {
    let number = socket.as_fd().as_raw_fd();
    u64::try_from(number).is_ok_and(|number| number >= FIRST_SPARE.load(Ordering::Relaxed))
}

/// A descriptor held for nothing but to be given up: with none left, `accept` fails and the connection stays in the
/// queue, so that nobody is told anything. Giving it up makes room to take the connection, and to close it.
#[derive(Debug)]
pub struct Reserve(Option<Socket>);

impl Reserve {
    /// Holds a descriptor, if there is one.
    pub fn new() -> Self {
        let mut reserve = Self(None);
        reserve.restore();
        reserve
    }

    /// Gives it up; false when there was none.
    pub fn release(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Takes one back, if there is one.
    pub fn restore(&mut self) {
        if self.0.is_none() {
            self.0 = Socket::new(Domain::UNIX, Type::STREAM.cloexec(), None).ok();
        }
    }
}

impl Default for Reserve {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_gives_up_what_it_holds_and_takes_one_back() {
        let mut reserve = Reserve::new();
        assert!(reserve.release());
        assert!(!reserve.release());
        reserve.restore();
        assert!(reserve.release());
    }

    #[test]
    fn the_last_ones_are_spare() {
        assert_eq!(first_spare(65_536), 65_536 - 64);
        assert_eq!(first_spare(64), 56);
        assert_eq!(first_spare(0), 0);
        raise_descriptor_limit().expect("it can be read");
        assert!(!is_spare(&io::stdin()));
    }

    #[test]
    fn the_limit_is_the_hard_one() {
        let limit = raise_descriptor_limit().expect("it can be read");
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).expect("it can be read").0, limit);
    }
}
