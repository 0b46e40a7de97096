//! Reads and writes of a nonblocking socket through `&TcpStream`, without zeroing buffers.
//!
//! tokio's own `poll_read` clears readiness when a read comes back short, which saves the read that would only return
//! `EAGAIN`; its `try_read` does not. These functions do both: shared access and one system call per batch. A socket that is
//! known to be ready is used at once: to be woken costs a lock and a waker, which only those need that wait. The calls are
//! made without the C library, which looks at each whether the thread is being cancelled.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::coop;

/// Set once, by [`expect_two_queues`].
static PEERS_BYPASS_TCP: AtomicBool = AtomicBool::new(false);

/// Has this process read each socket until it has nothing left, which is one more system call for most of what comes. Needed
/// where peers on this machine bypass TCP (`docs/design/0032-tcp-bypass.md`): their bytes have a queue of their own beside TCP's.
pub fn expect_two_queues() {
    PEERS_BYPASS_TCP.store(true, Ordering::Relaxed);
}

/// Receives what is there into `room`. `Ok(0)` is the end of the stream (`room` must not be empty). `filled` is the socket's
/// own: whether the read before filled its room.
pub(crate) fn poll_receive(
    tcp: &TcpStream,
    cx: &mut Context<'_>,
    room: &mut [MaybeUninit<u8>],
    filled: &Cell<bool>,
) -> Poll<io::Result<usize>> {
    // Polling for readiness would count this against the task's turn.
    let turn = ready!(coop::poll_proceed(cx));
    loop {
        let wanted = room.len();
        let mut got = None;
        let outcome = tcp.try_io(Interest::READABLE, || {
            let (_, n) = recv(tcp, &mut *room, RecvFlags::empty())?;
            got = Some(n);
            // Edge-triggered: a short read means the socket is empty, the next byte raises a new event. Not so where peers
            // bypass TCP: there a socket has two queues, a read ends with the first, and the second's event may be over.
            let full = n == wanted || PEERS_BYPASS_TCP.load(Ordering::Relaxed);
            if !filled.replace(full) && n > 0 && !full {
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

    #[tokio::test]
    async fn only_a_short_read_after_a_full_one_is_followed_by_another() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let at = listener.local_addr().expect("has an address");
        let (mut peer, accepted) = tokio::join!(
            async { TcpStream::connect(at).await.expect("connects") },
            listener.accept()
        );
        let (tcp, _) = accepted.expect("accepts");
        let filled = Cell::new(false);
        let mut room = [MaybeUninit::uninit(); 4];

        peer.write_all(b"one").await.expect("writes");
        let n = poll_fn(|cx| poll_receive(&tcp, cx, &mut room, &filled)).await;
        assert_eq!(n.expect("reads"), 3);
        assert!(!is_ready(&tcp), "a short read empties the socket");

        peer.write_all(b"sixsix").await.expect("writes");
        let n = poll_fn(|cx| poll_receive(&tcp, cx, &mut room, &filled)).await;
        assert_eq!(n.expect("reads"), 4);
        assert!(is_ready(&tcp), "after a full read there may be more");
        let n = poll_fn(|cx| poll_receive(&tcp, cx, &mut room, &filled)).await;
        assert_eq!(n.expect("reads"), 2);
        assert!(is_ready(&tcp), "and a second queue behind the first");

        let waits = poll_fn(|cx| Poll::Ready(poll_receive(&tcp, cx, &mut room, &filled).is_pending())).await;
        assert!(waits && !is_ready(&tcp));
    }
}
