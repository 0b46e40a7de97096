//! Listening sockets: one per worker and address, spread by the kernel.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// How to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenOptions {
    /// Address and port; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// Connections that may wait to be accepted (`tcp_backlog_size`); the kernel caps it at `net.core.somaxconn`.
    pub backlog: u32,
    /// `SO_REUSEPORT`: several workers listen on the same address and the kernel spreads connections by hash.
    pub reuse_port: bool,
    /// `freebind`: bind an address that this host does not have yet (a VIP that is announced later).
    pub freebind: bool,
}

impl ListenOptions {
    /// Options for a worker's socket with Envoy's default backlog.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            backlog: 1024,
            reuse_port: true,
            freebind: false,
        }
    }
}

/// Binds and listens. Must be called inside the runtime that will accept.
///
/// An IPv6 socket accepts IPv6 only (`ipv4_compat` off, Envoy's default), so that `0.0.0.0:p` and `[::]:p` can both be
/// bound. `TCP_NODELAY` is set here because accepted sockets inherit it.
///
/// # Errors
/// The kernel's: address in use by a process that does not share it, not permitted, not an address of this host.
pub fn listen(options: &ListenOptions) -> io::Result<TcpListener> {
    let socket = bind(options)?;
    socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
    TcpListener::from_std(socket.into())
}

/// Binds, and does not listen: whether an address can be had is found out with this, since a socket that listens for a
/// moment resets whoever connects in it.
///
/// # Errors
/// As [`listen`].
pub fn bind(options: &ListenOptions) -> io::Result<Socket> {
    let domain = Domain::for_address(options.address);
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(true)?;
    }
    // Lets a restarted proxy bind while connections of the old one are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if options.reuse_port {
        socket.set_reuse_port(true)?;
    }
    if options.freebind {
        match domain {
            Domain::IPV6 => socket.set_freebind_v6(true)?,
            _ => socket.set_freebind_v4(true)?,
        }
    }
    socket.set_tcp_nodelay(true)?;
    socket.bind(&options.address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[tokio::test]
    async fn workers_share_an_address() {
        let first = listen(&ListenOptions::new(loopback())).expect("binds");
        let address = first.local_addr().expect("address");
        listen(&ListenOptions::new(address)).expect("a second worker binds the same address");
    }

    #[tokio::test]
    async fn an_address_held_by_another_is_an_error() {
        let other = std::net::TcpListener::bind(loopback()).expect("binds");
        let options = ListenOptions::new(other.local_addr().expect("address"));
        let taken = listen(&options);
        assert_eq!(taken.expect_err("must fail").kind(), io::ErrorKind::AddrInUse);
        let taken = bind(&options);
        assert_eq!(taken.expect_err("must fail").kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn what_is_only_bound_takes_no_connection() {
        let bound = bind(&ListenOptions::new(loopback())).expect("binds");
        let address = bound.local_addr().expect("address").as_socket().expect("of IP");
        let refused = std::net::TcpStream::connect(address);
        assert_eq!(refused.expect_err("must fail").kind(), io::ErrorKind::ConnectionRefused);
        // Nor does it take a share of the connections of the one that listens.
        let listener = listen(&ListenOptions::new(address)).expect("binds beside it");
        for _ in 0..32 {
            let client = std::net::TcpStream::connect(address).expect("connects");
            let (_, from) = listener.accept().await.expect("accepts");
            assert_eq!(from, client.local_addr().expect("address"));
        }
    }

    #[tokio::test]
    async fn foreign_addresses_need_freebind() {
        let mut options = ListenOptions::new(SocketAddr::from(([192, 0, 2, 7], 0)));
        assert_eq!(
            listen(&options).expect_err("must fail").kind(),
            io::ErrorKind::AddrNotAvailable
        );
        options.freebind = true;
        listen(&options).expect("binds");
    }

    #[tokio::test]
    async fn both_families_on_one_port() {
        let v6 = listen(&ListenOptions::new("[::]:0".parse().expect("address"))).expect("binds");
        let port = v6.local_addr().expect("address").port();
        listen(&ListenOptions::new(SocketAddr::from(([0, 0, 0, 0], port)))).expect("binds beside it");
    }
}
