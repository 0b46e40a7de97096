//! Outgoing connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};

/// `tcp_keepalive` of a cluster, or of a listener's accepted sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// `keepalive_time`: idle time before the first probe.
    pub time: Duration,
    /// `keepalive_interval`: time between probes.
    pub interval: Duration,
    /// `keepalive_probes`: unanswered probes before the connection is given up.
    pub probes: u32,
}

impl Keepalive {
    pub(crate) fn apply(self, socket: &SockRef<'_>) -> io::Result<()> {
        socket.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(self.time)
                .with_interval(self.interval)
                .with_retries(self.probes),
        )
    }
}

/// Options of an outgoing connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    /// Source address to bind (`upstream_bind_config.source_address`). Ignored when it is of the other family than the
    /// destination, as one cluster may have endpoints of both.
    pub source: Option<IpAddr>,
    /// Keep-alive probes; none leaves them off.
    pub keepalive: Option<Keepalive>,
}

/// Connects with `TCP_NODELAY`. The caller bounds the time by dropping the future.
///
/// # Errors
/// The kernel's: refused, unreachable, source address not of this host, no port left.
pub async fn connect(address: SocketAddr, options: &ConnectOptions) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_nodelay(true)?;
    if let Some(keepalive) = options.keepalive {
        keepalive.apply(&SockRef::from(&socket))?;
    }
    if let Some(source) = options.source.filter(|s| s.is_ipv4() == address.is_ipv4()) {
        // Choose the port at connect, by the whole four-tuple: without it one source address runs out of ports after
        // 28 000 connections, whatever their destinations (ip(7), Linux 4.2). An old kernel only loses that.
        let _ = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::IpBindAddressNoPort, &true);
        socket.bind(SocketAddr::new(source, 0))?;
    }
    socket.connect(address).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn binds_the_source_address() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("address");
        let options = ConnectOptions {
            source: Some("127.0.0.6".parse().expect("address")),
            ..Default::default()
        };
        let (client, accepted) = tokio::join!(connect(address, &options), listener.accept());
        let client = client.expect("connects");
        assert!(client.nodelay().expect("option"));
        assert_eq!(accepted.expect("accepts").1.ip().to_string(), "127.0.0.6");
    }

    #[tokio::test]
    async fn a_source_of_the_other_family_is_not_used() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("address");
        let options = ConnectOptions {
            source: Some("::1".parse().expect("address")),
            ..Default::default()
        };
        connect(address, &options).await.expect("connects");
    }

    #[tokio::test]
    async fn refused() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("address");
        drop(listener);
        let refused = connect(address, &ConnectOptions::default())
            .await
            .expect_err("nobody listens");
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
