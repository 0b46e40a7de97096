//! Outgoing connections.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};

use crate::descriptors::is_spare;

/// `tcp_keepalive` (`envoy.config.core.v3.TcpKeepalive`) of a cluster, or of a listener's accepted sockets. What is none
/// is as the kernel has it (`net.ipv4.tcp_keepalive_*`: 7200 s, 75 s, 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keepalive {
    /// `keepalive_time`: idle time before the first probe, in whole seconds.
    pub time: Option<Duration>,
    /// `keepalive_interval`: time between probes, in whole seconds.
    pub interval: Option<Duration>,
    /// `keepalive_probes`: unanswered probes before the connection is given up.
    pub probes: Option<u32>,
}

impl Keepalive {
    pub(crate) fn apply(self, socket: &SockRef<'_>) -> io::Result<()> {
        let mut options = TcpKeepalive::new();
        if let Some(time) = self.time {
            options = options.with_time(time);
        }
        if let Some(interval) = self.interval {
            options = options.with_interval(interval);
        }
        if let Some(probes) = self.probes {
            options = options.with_retries(probes);
        }
        socket.set_keepalive(true)?;
        socket.set_tcp_keepalive(&options)
    }

    /// How long a peer may be silent before the kernel gives an idle connection up: the time, and an interval per
    /// probe. [`crate::Liveness`] takes the same patience with a connection that has bytes under way, which the kernel
    /// does not probe.
    pub fn patience(self) -> Duration {
        let time = self.time.unwrap_or(Duration::from_secs(7200));
        let interval = self.interval.unwrap_or(Duration::from_secs(75));
        time.saturating_add(interval.saturating_mul(self.probes.unwrap_or(9)))
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
/// The kernel's: refused, unreachable, source address not of this host, no port left; `EMFILE` when only spare descriptors
/// are left.
pub async fn connect(address: SocketAddr, options: &ConnectOptions) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    if is_spare(&socket) {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
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
    async fn ipv6_with_a_source_and_keepalive() {
        let listener = tokio::net::TcpListener::bind("[::1]:0").await.expect("binds");
        let address = listener.local_addr().expect("address");
        let keepalive = Keepalive {
            time: Some(Duration::from_secs(1)),
            interval: Some(Duration::from_secs(2)),
            probes: Some(3),
        };
        let options = ConnectOptions {
            source: Some("::1".parse().expect("address")),
            keepalive: Some(keepalive),
        };
        let client = connect(address, &options).await.expect("connects");
        let socket = SockRef::from(&client);
        assert!(socket.keepalive().expect("option"));
        assert_eq!(socket.tcp_keepalive_time().expect("option"), Duration::from_secs(1));
        assert_eq!(socket.tcp_keepalive_interval().expect("option"), Duration::from_secs(2));
        assert_eq!(socket.tcp_keepalive_retries().expect("option"), 3);
        assert_eq!(keepalive.patience(), Duration::from_secs(7));
        assert_eq!(Keepalive::default().patience(), Duration::from_secs(7200 + 9 * 75));
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
