//! Opening a connection to a host: TCP, then TLS when its transport says so, within `connect_timeout`.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use heddle_config::snapshot::{Cluster, Snapshot, UpstreamTransport};
use heddle_net::PeerIdentity;
use heddle_telemetry::ResponseFlag;
use heddle_tls::{HandshakeErrorKind, Stream};
use tokio::time::{Instant, timeout};

use crate::breaker::{ConnectionGuard, Overflow};
use crate::host::Host;
use crate::outlier::Outcome;

/// What a connection may ask of its TLS handshake.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectOptions<'a> {
    /// Server name to send instead of the configured one (`auto_sni`).
    pub sni: Option<&'a str>,
    /// ALPN protocols to offer instead of the configured ones.
    pub alpn: Option<&'a [&'a [u8]]>,
}

/// An open connection to a host.
#[derive(Debug)]
pub struct Connection {
    /// The bytes.
    pub stream: Stream,
    /// ALPN value agreed on; none without TLS.
    pub alpn: Option<Box<[u8]>>,
    /// The host's verified identity.
    pub peer: Option<Arc<PeerIdentity>>,
    /// The identity that this side presented, or would have if it was asked: the first URI name of its certificate. This
    /// connection's own copy, so that counting references to it touches no other core's memory.
    pub local_identity: Option<Arc<str>>,
    /// Negotiated TLS version.
    pub tls_version: Option<&'static str>,
    /// This side's address (`%UPSTREAM_LOCAL_ADDRESS%`).
    pub local: Option<SocketAddr>,
    /// Counts the connection; keep it as long as `stream`.
    pub guard: ConnectionGuard,
}

/// Why a connection could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectErrorKind {
    /// `connect_timeout` passed.
    Timeout,
    /// The kernel refused: nobody listens, no route, no port left.
    Tcp,
    /// The TLS handshake failed.
    Tls,
    /// The host's certificate was not accepted.
    Verify,
    /// `max_connections` is reached.
    Overflow,
    /// The TLS context that the cluster names is not in the snapshot.
    NoTlsContext,
}

/// A connection could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    /// Kind.
    pub kind: ConnectErrorKind,
    /// What happened, in one line, for `%UPSTREAM_TRANSPORT_FAILURE_REASON%`.
    pub reason: String,
}

impl ConnectError {
    fn new(kind: ConnectErrorKind, reason: impl fmt::Display) -> Self {
        Self {
            kind,
            reason: reason.to_string(),
        }
    }

    /// The response flag that stands for it.
    pub fn flag(&self) -> ResponseFlag {
        match self.kind {
            ConnectErrorKind::Overflow => ResponseFlag::UpstreamOverflow,
            _ => ResponseFlag::UpstreamConnectionFailure,
        }
    }

    /// Whether another host, or the same one later, may do better. A circuit breaker and a missing context will not.
    pub fn is_retriable(&self) -> bool {
        !matches!(self.kind, ConnectErrorKind::Overflow | ConnectErrorKind::NoTlsContext)
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for ConnectError {}

impl From<Overflow> for ConnectError {
    fn from(overflow: Overflow) -> Self {
        Self::new(ConnectErrorKind::Overflow, overflow)
    }
}

/// The parts of a connection before it is counted.
pub(crate) struct Opened {
    pub(crate) stream: Stream,
    pub(crate) alpn: Option<Box<[u8]>>,
    pub(crate) peer: Option<Arc<PeerIdentity>>,
    pub(crate) local_identity: Option<Arc<str>>,
    pub(crate) tls_version: Option<&'static str>,
}

impl<P> Host<P> {
    /// Opens a connection to this host. The TLS context is that of the snapshot in force now, so a rotated certificate
    /// is used from the next connection on. Failures are counted and reported to outlier detection.
    ///
    /// # Errors
    /// [`ConnectError`] with kind and reason.
    pub async fn connect(&self, options: ConnectOptions<'_>) -> Result<Connection, ConnectError> {
        let guard = ConnectionGuard::take(&self.context, &self.counters)?;
        let config = self.context.config();
        let snapshot = self.context.snapshot();
        let started = Instant::now();
        let result = open(
            self.address(),
            &self.transport,
            &snapshot,
            &config,
            config.connect_timeout,
            options,
        )
        .await;
        let stats = &self.context.stats;
        match result {
            Ok(opened) => {
                stats
                    .upstream_cx_connect_ms
                    .record(started.elapsed().as_secs_f64() * 1000.0);
                if opened.stream.is_tls() {
                    stats.ssl_handshake.inc();
                }
                Ok(Connection {
                    local: opened.stream.tcp().local_addr().ok(),
                    stream: opened.stream,
                    alpn: opened.alpn,
                    peer: opened.peer,
                    local_identity: opened.local_identity,
                    tls_version: opened.tls_version,
                    guard,
                })
            }
            Err(error) => {
                stats.upstream_cx_connect_fail.inc();
                match error.kind {
                    ConnectErrorKind::Timeout => stats.upstream_cx_connect_timeout.inc(),
                    ConnectErrorKind::Verify => stats.ssl_fail_verify.inc(),
                    ConnectErrorKind::Tls => stats.ssl_connection_error.inc(),
                    ConnectErrorKind::Tcp | ConnectErrorKind::Overflow | ConnectErrorKind::NoTlsContext => {}
                }
                match error.kind {
                    ConnectErrorKind::Timeout => self.report(Outcome::ConnectTimeout),
                    // Our own configuration is not the host's fault.
                    ConnectErrorKind::NoTlsContext => {}
                    _ => self.report(Outcome::ConnectFailed),
                }
                Err(error)
            }
        }
    }
}

/// Opens TCP and TLS within `limit`.
pub(crate) async fn open(
    address: SocketAddr,
    transport: &UpstreamTransport,
    snapshot: &Snapshot,
    cluster: &Cluster,
    limit: Duration,
    options: ConnectOptions<'_>,
) -> Result<Opened, ConnectError> {
    let attempt = async {
        let socket = heddle_net::ConnectOptions {
            source: cluster.bind_source,
            keepalive: cluster.keepalive,
        };
        let tcp = heddle_net::connect(address, &socket)
            .await
            .map_err(|e| ConnectError::new(ConnectErrorKind::Tcp, e))?;
        let UpstreamTransport::Tls(key) = transport else {
            return Ok(Opened {
                stream: Stream::plain(tcp),
                alpn: None,
                peer: None,
                local_identity: None,
                tls_version: None,
            });
        };
        let context = snapshot.client_tls.get(key).ok_or_else(|| {
            ConnectError::new(
                ConnectErrorKind::NoTlsContext,
                format_args!("TLS context {key} is not in snapshot {}", snapshot.version),
            )
        })?;
        let (stream, connected) = context.connect(tcp, options.sni, options.alpn).await.map_err(|e| {
            let kind = match &e.kind {
                HandshakeErrorKind::Verify(_) => ConnectErrorKind::Verify,
                _ => ConnectErrorKind::Tls,
            };
            ConnectError::new(kind, e)
        })?;
        Ok(Opened {
            stream,
            alpn: connected.alpn,
            peer: connected.peer,
            local_identity: context.local_identity().map(|identity| Arc::from(&**identity)),
            tls_version: Some(connected.tls_version),
        })
    };
    timeout(limit, attempt).await.unwrap_or_else(|_| {
        Err(ConnectError::new(
            ConnectErrorKind::Timeout,
            format_args!("no connection to {address} within {} ms", limit.as_millis()),
        ))
    })
}
