//! What a log line can tell about a request or a TCP connection.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use heddle_matching::{Metadata, RequestView};
use heddle_net::{ConnectionInfo, PeerIdentity};

use crate::ResponseFlags;

/// Response headers or trailers, by lower-case name.
pub trait HeaderView {
    /// The value of a header; several fields of one name are joined with `,`.
    fn header(&self, name: &str) -> Option<Cow<'_, str>>;
}

/// Facts about one finished (or, for header formats, still running) request or TCP connection. HTTP fills it per
/// request, TCP per connection; what is not known stays at its default and is printed as `-`.
#[derive(Clone, Copy, Default)]
pub struct LogContext<'a> {
    /// When it began; none prints as `-`.
    pub start: Option<SystemTime>,
    /// From the beginning to the end (`%DURATION%`).
    pub duration: Option<Duration>,
    /// From the beginning to the last byte of the request (`%REQUEST_DURATION%`).
    pub request_duration: Option<Duration>,
    /// From the beginning to the first byte of the upstream's answer (`%RESPONSE_DURATION%`).
    pub response_duration: Option<Duration>,
    /// The downstream connection.
    pub connection: Option<&'a ConnectionInfo>,
    /// The client's address where it differs from the connection's (`X-Forwarded-For`).
    pub remote_ip: Option<IpAddr>,
    /// A number for the downstream connection, unique in the process.
    pub connection_id: u64,
    /// The request head, as it is after this proxy's changes. None for TCP.
    pub request: Option<&'a dyn RequestView>,
    /// What network filters learned of a TCP connection; that of a request is in its view.
    pub metadata: Option<&'a Metadata>,
    /// The response head.
    pub response: Option<&'a dyn HeaderView>,
    /// The response trailers.
    pub trailers: Option<&'a dyn HeaderView>,
    /// `HTTP/1.0`, `HTTP/1.1` or `HTTP/2`. None for TCP.
    pub protocol: Option<&'static str>,
    /// Status sent to the client; none (printed `0`) when nothing was sent, and for TCP.
    pub response_code: Option<u16>,
    /// Why that status was sent, such as `via_upstream`.
    pub response_code_details: Option<&'a str>,
    /// Flags.
    pub flags: ResponseFlags,
    /// Body bytes (TCP: all bytes) from the client.
    pub bytes_received: u64,
    /// Body bytes (TCP: all bytes) to the client.
    pub bytes_sent: u64,
    /// The endpoint used.
    pub upstream_host: Option<SocketAddr>,
    /// This side's address of the upstream connection.
    pub upstream_local: Option<SocketAddr>,
    /// Name of the cluster.
    pub upstream_cluster: Option<&'a str>,
    /// `alt_stat_name` of the cluster, when it differs from its name.
    pub upstream_cluster_stat_name: Option<&'a str>,
    /// The upstream's verified identity.
    pub upstream_peer: Option<&'a PeerIdentity>,
    /// Why TCP or TLS to the upstream failed.
    pub upstream_failure: Option<&'a str>,
    /// How often the request was tried upstream.
    pub attempts: u32,
    /// Why the downstream connection was ended by this proxy.
    pub termination_details: Option<&'a str>,
    /// Name of the route.
    pub route_name: Option<&'a str>,
    /// Name of the virtual host.
    pub virtual_host: Option<&'a str>,
    /// Name of the filter chain.
    pub filter_chain: Option<&'a str>,
    /// Value of the `grpc-status` header or trailer.
    pub grpc_status: Option<u16>,
}

impl<'a> LogContext<'a> {
    /// What filters learned of the request, or of a TCP connection.
    pub(crate) fn dynamic_metadata(&self) -> Option<&'a Metadata> {
        match self.request {
            Some(request) => request.metadata(),
            None => self.metadata,
        }
    }
}
