//! Listener filters: what can be learned about a connection before its filter chain is chosen.

use std::net::SocketAddr;

use bytes::BytesMut;
use heddle_config::snapshot::{Listener, ListenerFilter};
use heddle_net::{ClientHelloInspector, ConnectionInfo, Inspection, TransportProtocol, original_destination};
use heddle_tls::Stream;
use tokio::time::timeout;

use crate::stats::ListenerStats;

/// A connection between accept and its filter chain.
pub(crate) struct Arriving {
    /// Always plain here: TLS has not begun.
    pub(crate) stream: Stream,
    /// Bytes that filters have read; whoever serves the connection starts with them.
    pub(crate) read: BytesMut,
    pub(crate) info: ConnectionInfo,
    /// Where the peer wanted to go, when a redirect brought it here.
    pub(crate) original_dst: Option<SocketAddr>,
}

/// Why a connection ended in the listener filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// `listener_filters_timeout` passed.
    Timeout,
    /// The peer closed, or its socket failed.
    Closed,
    /// The ClientHello does not end.
    TooLarge,
}

/// Runs a listener's filters in their order.
pub(crate) async fn run(listener: &Listener, stats: &ListenerStats, arriving: &mut Arriving) -> Result<(), Refused> {
    for filter in &listener.listener_filters {
        match filter {
            ListenerFilter::OriginalDst => restore_destination(arriving),
            ListenerFilter::TlsInspector => {
                let inspected = inspect_tls(arriving);
                let outcome = if listener.listener_filters_timeout.is_zero() {
                    inspected.await
                } else {
                    match timeout(listener.listener_filters_timeout, inspected).await {
                        Ok(outcome) => outcome,
                        // The client waits for the server to speak first, or is slow on purpose.
                        Err(_) if listener.continue_on_timeout => Ok(()),
                        Err(_) => Err(Refused::Timeout),
                    }
                };
                outcome?;
                stats.inspected(arriving.info.transport);
            }
        }
    }
    Ok(())
}

/// As Envoy's filter: a destination that equals the socket's own address means that nothing was redirected.
fn restore_destination(arriving: &mut Arriving) {
    if let Some(destination) = original_destination(arriving.stream.tcp()).filter(|d| *d != arriving.info.local) {
        arriving.info.destination = destination;
        arriving.original_dst = Some(destination);
    }
}

async fn inspect_tls(arriving: &mut Arriving) -> Result<(), Refused> {
    let mut inspector = ClientHelloInspector::new();
    loop {
        match inspector.inspect(&arriving.read) {
            Inspection::NeedMore => {}
            Inspection::NotTls => {
                arriving.info.transport = TransportProtocol::RawBuffer;
                return Ok(());
            }
            Inspection::TooLarge => return Err(Refused::TooLarge),
            Inspection::Tls(hello) => {
                arriving.info.transport = TransportProtocol::Tls;
                arriving.info.sni = hello.server_name;
                arriving.info.offered_alpn = hello.alpn;
                return Ok(());
            }
        }
        match arriving.stream.read(&mut arriving.read).await {
            Ok(0) | Err(_) => return Err(Refused::Closed),
            Ok(_) => {}
        }
    }
}
