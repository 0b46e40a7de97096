//! What happens around `accept`: failures, options of accepted sockets, and where a redirected peer meant to go.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::connect::Keepalive;

/// What a failed `accept` calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptFailure {
    /// The connection went away before it was accepted: accept the next one at once (accept(2), "Error handling").
    Connection,
    /// Descriptors or memory are exhausted. Trying again at once would spin, since the connection stays in the queue:
    /// wait this long first.
    Exhausted(Duration),
    /// The socket itself is unusable.
    Listener,
}

impl AcceptFailure {
    /// Sorts an error of `accept`.
    pub fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                Self::Exhausted(Duration::from_millis(50))
            }
            Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP | libc::EFAULT) => Self::Listener,
            _ => Self::Connection,
        }
    }
}

/// Sets options of an accepted socket.
///
/// # Errors
/// The kernel's; a peer that is gone already may cause one.
pub fn tune_accepted(tcp: &TcpStream, keepalive: Option<Keepalive>) -> io::Result<()> {
    match keepalive {
        Some(keepalive) => keepalive.apply(&SockRef::from(tcp)),
        None => Ok(()),
    }
}

/// The address that the peer dialled before a `REDIRECT` rule sent it here (`SO_ORIGINAL_DST`). None when the kernel
/// did not redirect it, which includes a kernel without connection tracking.
pub fn original_destination(tcp: &TcpStream) -> Option<SocketAddr> {
    let socket = SockRef::from(tcp);
    let v6 = matches!(tcp.local_addr(), Ok(SocketAddr::V6(a)) if a.ip().to_ipv4_mapped().is_none());
    let address = if v6 {
        socket.original_dst_v6()
    } else {
        socket.original_dst_v4()
    };
    address.ok().and_then(|a| a.as_socket())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_sorted() {
        let of = |code| AcceptFailure::of(&io::Error::from_raw_os_error(code));
        assert!(matches!(of(libc::EMFILE), AcceptFailure::Exhausted(_)));
        assert!(matches!(of(libc::ENFILE), AcceptFailure::Exhausted(_)));
        assert_eq!(of(libc::ECONNABORTED), AcceptFailure::Connection);
        assert_eq!(of(libc::EPROTO), AcceptFailure::Connection);
        assert_eq!(of(libc::EINVAL), AcceptFailure::Listener);
    }

    #[tokio::test]
    async fn a_direct_connection_has_no_original_destination() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (tcp, _) = accepted.expect("accepts");
        drop(client);
        let original = original_destination(&tcp);
        assert!(original.is_none() || original == Some(address), "{original:?}");
    }
}
