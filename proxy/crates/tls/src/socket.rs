//! Reads and writes of a nonblocking socket through `&TcpStream`, without zeroing buffers.
//!
//! tokio's own `poll_read` clears readiness when a read comes back short, which saves the read that would only return
//! `EAGAIN`; its `try_read` does not. These functions do both: shared access and one system call per batch. A socket that is
//! known to be ready is used at once: to be woken costs a lock and a waker, which only those need that wait.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::coop;

/// Receives what is there into `room`. `Ok(0)` is the end of the stream (`room` must not be empty).
pub(crate) fn poll_receive(
    tcp: &TcpStream,
    cx: &mut Context<'_>,
    room: &mut [MaybeUninit<u8>],
) -> Poll<io::Result<usize>> {
    // Polling for readiness would count this against the task's turn.
    let turn = ready!(coop::poll_proceed(cx));
    loop {
        let wanted = room.len();
        let mut got = None;
        let outcome = tcp.try_io(Interest::READABLE, || {
            let n = SockRef::from(tcp).recv(room)?;
            got = Some(n);
            // Edge-triggered: a short read means the socket is empty, the next byte raises a new event.
            if n > 0 && n < wanted {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                Ok(())
            }
        });
        match (got, outcome) {
            (Some(n), _) => {
                turn.made_progress();
                return Poll::Ready(Ok(n));
            }
            (None, Err(e)) if e.kind() == io::ErrorKind::WouldBlock => ready!(tcp.poll_read_ready(cx))?,
            (None, Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
            (None, Err(e)) => return Poll::Ready(Err(e)),
            (None, Ok(())) => {}
        }
    }
}

/// Ready when a read may bring something.
pub(crate) fn poll_readable(tcp: &TcpStream, cx: &mut Context<'_>) -> Poll<()> {
    if tcp.try_io(Interest::READABLE, || Ok(())).is_ok() {
        return Poll::Ready(());
    }
    // What is wrong with it, the read will say.
    tcp.poll_read_ready(cx).map(|_| ())
}

/// Whether the socket has nothing to say: no byte, no end, no error. Leaves no waker behind.
pub(crate) fn is_quiet(tcp: &TcpStream) -> bool {
    let looked = tcp.try_io(Interest::READABLE, || {
        SockRef::from(tcp).peek(&mut [MaybeUninit::uninit()])
    });
    matches!(looked, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
}

/// Sends what the socket takes.
pub(crate) fn poll_send(tcp: &TcpStream, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
    let turn = ready!(coop::poll_proceed(cx));
    loop {
        match try_send(tcp, bufs) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready!(tcp.poll_write_ready(cx))?,
            other => {
                turn.made_progress();
                return Poll::Ready(other);
            }
        }
    }
}

/// Sends what the socket takes now, without registering interest.
pub(crate) fn try_send(tcp: &TcpStream, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
    let wanted: usize = bufs.iter().map(|b| b.len()).sum();
    let mut sent = None;
    let outcome = tcp.try_io(Interest::WRITABLE, || {
        let socket = SockRef::from(tcp);
        let n = loop {
            let result = match bufs {
                [one] => socket.send_with_flags(one, libc::MSG_NOSIGNAL),
                many => socket.send_vectored_with_flags(many, libc::MSG_NOSIGNAL),
            };
            match result {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        sent = Some(n);
        if n < wanted {
            Err(io::ErrorKind::WouldBlock.into())
        } else {
            Ok(())
        }
    });
    match (sent, outcome) {
        (Some(n), _) => Ok(n),
        (None, Err(e)) => Err(e),
        (None, Ok(())) => Ok(0),
    }
}
