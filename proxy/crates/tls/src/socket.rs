//! Reads and writes of a nonblocking socket through `&TcpStream`, without zeroing buffers.
//!
//! tokio's own `poll_read` clears readiness when a read comes back short, which saves the read that would only return
//! `EAGAIN`; its `try_read` does not. These functions do both: shared access and one system call per batch.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Receives what is there into `room`. `Ok(0)` is the end of the stream (`room` must not be empty).
pub(crate) fn poll_receive(
    tcp: &TcpStream,
    cx: &mut Context<'_>,
    room: &mut [MaybeUninit<u8>],
) -> Poll<io::Result<usize>> {
    loop {
        ready!(tcp.poll_read_ready(cx))?;
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
            (Some(n), _) => return Poll::Ready(Ok(n)),
            (None, Err(e)) if e.kind() == io::ErrorKind::WouldBlock => {}
            (None, Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
            (None, Err(e)) => return Poll::Ready(Err(e)),
            (None, Ok(())) => {}
        }
    }
}

/// Sends what the socket takes.
pub(crate) fn poll_send(tcp: &TcpStream, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
    loop {
        ready!(tcp.poll_write_ready(cx))?;
        match try_send(tcp, bufs) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            other => return Poll::Ready(other),
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
