//! Reads and writes of a nonblocking socket through `&TcpStream`, without zeroing buffers.
//!
//! tokio's own `poll_read` clears readiness when a read comes back short, which saves the read that would only return
//! `EAGAIN`; its `try_read` does not. These functions do both: shared access and one system call per batch. A socket that is
//! known to be ready is used at once: to be woken costs a lock and a waker, which only those need that wait. The calls are
//! made without the C library, which looks at each whether the thread is being cancelled.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::task::{Context, Poll, ready};

use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::coop;

use crate::second_look::Left;

/// Receives what is there into `room`. `Ok(0)` is the end of the stream (`room` must not be empty). `left` is the socket's
/// own.
pub(crate) fn poll_receive(
    tcp: &TcpStream,
    cx: &mut Context<'_>,
    room: &mut [MaybeUninit<u8>],
    left: &Cell<Left>,
) -> Poll<io::Result<usize>> {
    // Polling for readiness would count this against the task's turn.
    let turn = ready!(coop::poll_proceed(cx));
    loop {
        let wanted = room.len();
        let (mut asked, mut got) = (false, None);
        let mut receive = || {
            asked = true;
            let (_, n) = recv(tcp, &mut *room, RecvFlags::empty())?;
            got = Some(n);
            // Edge-triggered: a short read means the socket is empty, the next byte raises a new event. Not so after a
            // full one, or where a socket has two queues.
            let emptied = match n > 0 && n < wanted && left.get() != Left::More {
                true => Left::after_short_read(),
                false => None,
            };
            left.set(emptied.unwrap_or(if n == wanted { Left::More } else { Left::Nothing }));
            match emptied {
                Some(_) => Err(io::ErrorKind::WouldBlock.into()),
                None => Ok(()),
            }
        };
        let outcome = match left.get().is_due() {
            true => receive(),
            false => tcp.try_io(Interest::READABLE, receive),
        };
        match (got, outcome) {
            (Some(n), _) => {
                turn.made_progress();
                return Poll::Ready(Ok(n));
            }
            (None, Err(e)) if e.kind() == io::ErrorKind::WouldBlock => {
                if asked {
                    left.set(Left::Nothing);
                }
                Left::wait(left, cx);
                ready!(tcp.poll_read_ready(cx))?;
            }
            (None, Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
            (None, Err(e)) => return Poll::Ready(Err(e)),
            (None, Ok(())) => {}
        }
    }
}

/// Ready when a read may bring something.
pub(crate) fn poll_readable(tcp: &TcpStream, cx: &mut Context<'_>, left: &Cell<Left>) -> Poll<()> {
    if left.get().is_due() {
        match recv(tcp, &mut [0], RecvFlags::PEEK) {
            Err(rustix::io::Errno::WOULDBLOCK) => left.set(Left::Nothing),
            // What is wrong with it, the read will say.
            _ => return Poll::Ready(()),
        }
    }
    if tcp.try_io(Interest::READABLE, || Ok(())).is_ok() {
        return Poll::Ready(());
    }
    Left::wait(left, cx);
    tcp.poll_read_ready(cx).map(|_| ())
}

/// Whether the socket has nothing to say: no byte, no end, no error. Leaves no waker behind.
pub(crate) fn is_quiet(tcp: &TcpStream) -> bool {
    let looked = tcp.try_io(Interest::READABLE, || {
        recv(tcp, &mut [0], RecvFlags::PEEK)?;
        Ok(())
    });
    matches!(looked, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
}

/// What comes after bytes that are sent.
#[derive(Clone, Copy)]
pub(crate) enum Then {
    /// Nothing that is known of: they leave at once.
    Nothing,
    /// The end of the sending side, at once: they leave in the packet with FIN, which saves a packet and a wake-up of the
    /// peer.
    Fin,
}

/// Sends what the socket takes.
pub(crate) fn poll_send(
    tcp: &TcpStream,
    cx: &mut Context<'_>,
    bufs: &[IoSlice<'_>],
    then: Then,
) -> Poll<io::Result<usize>> {
    let turn = ready!(coop::poll_proceed(cx));
    loop {
        match try_send(tcp, bufs, then) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready!(tcp.poll_write_ready(cx))?,
            other => {
                turn.made_progress();
                return Poll::Ready(other);
            }
        }
    }
}

/// Sends what the socket takes now, without registering interest.
pub(crate) fn try_send(tcp: &TcpStream, bufs: &[IoSlice<'_>], then: Then) -> io::Result<usize> {
    let flags = match then {
        Then::Nothing => SendFlags::NOSIGNAL,
        Then::Fin => SendFlags::NOSIGNAL | SendFlags::MORE,
    };
    let wanted: usize = bufs.iter().map(|b| b.len()).sum();
    let mut sent = None;
    let outcome = tcp.try_io(Interest::WRITABLE, || {
        let n = retry_on_intr(|| match bufs {
            [one] => send(tcp, one, flags),
            many => sendmsg(tcp, many, &mut SendAncillaryBuffer::default(), flags),
        })?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    fn is_ready(tcp: &TcpStream) -> bool {
        tcp.try_io(Interest::READABLE, || Ok(())).is_ok()
    }

    /// Both ends of one.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let at = listener.local_addr().expect("has an address");
        let (peer, accepted) = tokio::join!(TcpStream::connect(at), listener.accept());
        (peer.expect("connects"), accepted.expect("accepts").0)
    }

    #[tokio::test]
    async fn only_a_short_read_after_a_full_one_is_followed_by_another() {
        let (mut peer, tcp) = connection().await;
        let left = Cell::default();
        let mut room = [MaybeUninit::uninit(); 4];

        peer.write_all(b"one").await.expect("writes");
        let n = poll_fn(|cx| poll_receive(&tcp, cx, &mut room, &left)).await;
        assert_eq!(n.expect("reads"), 3);
        assert!(!is_ready(&tcp), "a short read empties the socket");

        peer.write_all(b"sixsix").await.expect("writes");
        let n = poll_fn(|cx| poll_receive(&tcp, cx, &mut room, &left)).await;
        assert_eq!(n.expect("reads"), 4);
        assert!(is_ready(&tcp), "after a full read there may be more");
        let n = poll_fn(|cx| poll_receive(&tcp, cx, &mut room, &left)).await;
        assert_eq!(n.expect("reads"), 2);
        assert!(is_ready(&tcp), "and a second queue behind the first");

        let waits = poll_fn(|cx| Poll::Ready(poll_receive(&tcp, cx, &mut room, &left).is_pending())).await;
        assert!(waits && !is_ready(&tcp));
    }

    /// A second queue is stood in for by what nobody was told of: the event of these bytes is taken by hand.
    #[tokio::test]
    async fn what_a_short_read_left_is_looked_for_a_little_later() {
        let (mut peer, tcp) = connection().await;
        for readable in [false, true] {
            // As after a short read on a thread with second looks; this test's own process has one queue.
            let left = Cell::new(Left::Unsure(u32::MAX, true));
            peer.write_all(b"left").await.expect("writes");
            tcp.readable().await.expect("is told");
            let taken = tcp.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
            assert!(taken.is_err() && !is_ready(&tcp));
            if readable {
                assert!(poll_fn(|cx| Poll::Ready(poll_readable(&tcp, cx, &left).is_ready())).await);
            }
            let mut room = [MaybeUninit::uninit(); 16];
            let n = poll_fn(|cx| poll_receive(&tcp, cx, &mut room, &left)).await;
            assert_eq!(n.expect("reads"), 4);
            // And one that finds nothing is sure of it.
            left.set(Left::Unsure(u32::MAX, true));
            assert!(poll_fn(|cx| Poll::Ready(poll_receive(&tcp, cx, &mut room, &left).is_pending())).await);
            assert_eq!(left.get(), Left::Nothing);
        }
    }
}
