//! A connection between two event loops.

use std::io;

use tokio::net::TcpStream;

use crate::second_look::Left;
use crate::stream::{Kind, Stream};

/// A [`Stream`] that no event loop watches: it may go to another thread, with the engine's state. What comes meanwhile waits in
/// the socket. Dropping it closes the connection.
pub struct Detached {
    tcp: std::net::TcpStream,
    kind: Kind,
}

impl std::fmt::Debug for Detached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detached")
            .field("tcp", &self.tcp)
            .finish_non_exhaustive()
    }
}

impl Stream {
    /// Whether nothing that came waits to be read, nothing waits to be sent, and neither side has ended, as far as this stream
    /// knows without asking the kernel.
    pub fn is_at_rest(&self) -> bool {
        match &self.kind {
            Kind::Plain(already_read, _) => already_read.borrow().is_empty(),
            Kind::Tls(session) => session.borrow().is_at_rest(),
        }
    }

    /// Takes it out of this thread's event loop.
    ///
    /// # Errors
    /// The kernel's; the connection is closed then.
    pub fn detach(self) -> io::Result<Detached> {
        let Self { tcp, kind } = self;
        Ok(Detached {
            tcp: tcp.into_std()?,
            kind,
        })
    }
}

impl Detached {
    /// Puts it into this thread's event loop, which must be running.
    ///
    /// # Errors
    /// The kernel's; the connection is closed then.
    pub fn attach(self) -> io::Result<Stream> {
        let Self { tcp, kind } = self;
        // What is there raises an event.
        match &kind {
            Kind::Plain(_, left) => left.set(Left::Nothing),
            Kind::Tls(session) => session.borrow().left_nothing(),
        }
        Ok(Stream {
            tcp: TcpStream::from_std(tcp)?,
            kind,
        })
    }
}
