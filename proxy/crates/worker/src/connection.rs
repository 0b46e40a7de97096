//! One connection from accept to its end.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::BytesMut;
use heddle_config::snapshot::{FilterChain, Listener, ScaledTimer};
use heddle_http::{DrainStage, Resting};
use heddle_matching::Metadata;
use heddle_net::{ConnectionInfo, Keepalive};
use heddle_telemetry::access_log::LogContext;
use heddle_telemetry::istio::TcpMetrics;
use heddle_telemetry::{ResponseFlag, ResponseFlags};
use heddle_tls::Stream;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::accept;
use crate::begun::Begun;
use crate::chains::Chosen;
use crate::exchange::{Passage, Stay};
use crate::inspect::{self, Arriving, Refused};
use crate::listener::{ChainRuntime, FilterRuntime, ListenerPlace, ListenerRuntime, same_chain};
use crate::state::{Arrival, ConnectionPlace, Moved, WorkerState};
use crate::tcp_proxy::TcpConnection;

/// Serves an accepted connection. `place` and `seat` count it until it ends.
pub(crate) async fn serve(
    state: Rc<WorkerState>,
    listener: Rc<ListenerRuntime>,
    tcp: TcpStream,
    info: ConnectionInfo,
    place: ConnectionPlace,
    seat: ListenerPlace,
) {
    let begun = Begun::now();
    // Boxed: what listener filters and the handshake need is gone once a connection is served, and most are at rest.
    let begin = Box::pin(begin(&state, listener, tcp, info, seat, begun));
    let Some(Ready {
        listener,
        chosen,
        stream,
        first,
        info,
        original_dst,
        seat,
    }) = begin.await
    else {
        return;
    };
    let Some((chain, config)) = listener.chain(chosen) else {
        return;
    };
    let served = Served {
        state: &state,
        listener: &listener,
        chain,
        config,
        begun,
        original_dst,
    };
    let resting = served.run(stream, first, info).await;
    if let Some(resting) = resting
        && let Some((resting, places)) = depart(&state, chosen, resting, (place, seat))
    {
        // Rare, and not in every connection's task.
        Box::pin(go_on(state, chosen, resting, places)).await;
    }
}

/// A connection of which the filter chain is known, and whose handshake is over.
struct Ready {
    /// The one that serves it, which may be another than the one that accepted it.
    listener: Rc<ListenerRuntime>,
    chosen: Chosen,
    stream: Stream,
    /// What was read already.
    first: BytesMut,
    info: ConnectionInfo,
    original_dst: Option<SocketAddr>,
    seat: ListenerPlace,
}

/// Listener filters, the listener and its filter chain, TLS. None when that was all: why is counted and logged.
async fn begin(
    state: &Rc<WorkerState>,
    listener: Rc<ListenerRuntime>,
    tcp: TcpStream,
    info: ConnectionInfo,
    seat: ListenerPlace,
    begun: Begun,
) -> Option<Ready> {
    let mut arriving = Arriving {
        stream: Stream::plain(tcp),
        read: BytesMut::new(),
        info,
        original_dst: None,
    };
    if let Err(refused) = inspect::run(&listener.config, &listener.stats, &mut arriving).await {
        turn_away(&listener, refused);
        return None;
    }
    let mut listener = listener;
    let mut seat = seat;
    if listener.config.use_original_dst {
        match arriving.original_dst {
            None => {
                // Dialled directly. Passing it on to its destination would mean this listener again.
                listener.stats.original_dst_loop.inc();
                log_refused(&listener, &arriving.info, begun, ResponseFlag::NoRouteFound);
                return None;
            }
            Some(destination) => {
                if let Some(limit) = listener.config.on_demand
                    && !state.on_demand.knows(destination)
                {
                    Box::pin(state.on_demand.discover(destination, limit)).await;
                }
                if let Some(other) = state
                    .listener_for(destination)
                    .filter(|other| !Rc::ptr_eq(other, &listener))
                {
                    let Some(new_seat) = other.admit() else {
                        other.stats.cx_overflow.inc();
                        return None;
                    };
                    seat = new_seat;
                    listener = other;
                    if let Err(refused) = inspect::run(&listener.config, &listener.stats, &mut arriving).await {
                        turn_away(&listener, refused);
                        return None;
                    }
                }
            }
        }
    }
    let chosen = listener.choose(arriving.info.destination, &arriving.info);
    let Some((chosen, (chain, config))) = chosen.and_then(|chosen| Some((chosen, listener.chain(chosen)?))) else {
        listener.stats.no_filter_chain_match.inc();
        log_refused(&listener, &arriving.info, begun, ResponseFlag::NoRouteFound);
        return None;
    };
    let Arriving {
        stream,
        read,
        mut info,
        original_dst,
    } = arriving;
    let (stream, first) = match &config.tls {
        None => (stream, read),
        Some(key) => {
            let Some(context) = state.server_tls(key) else {
                // Configuration hands out warm listeners only, so this is a snapshot between two states.
                listener.stats.tls_context_missing.inc();
                return None;
            };
            let Some(handshake) = state.begin_handshake() else {
                listener.stats.handshake_overflow.inc();
                return None;
            };
            let overload = state.overload_of(&listener.config);
            let accepted = tokio::select! {
                biased;
                accepted = context.accept(stream.into_tcp(), read, &mut info) => Some(accepted),
                () = overload.elapsed(ScaledTimer::TransportSocketConnect, config.handshake_timeout) => None,
            };
            drop(handshake);
            match accepted {
                None => {
                    listener.stats.handshake_timeout.inc();
                    return None;
                }
                Some(Err(error)) => {
                    listener.stats.handshake_failed(&error);
                    tracing::debug!(%error, peer = %info.remote, listener = %listener.config.name, "handshake failed");
                    log_handshake(&listener, &info, begun, &error.to_string());
                    return None;
                }
                Some(Ok(stream)) => {
                    listener.stats.handshake(stream.is_resumed());
                    if chain.keeps_certificate && info.peer.is_some() {
                        info.peer_certificate = stream.peer_certificate_pem().map(String::into_boxed_str);
                    }
                    // The chain may have been replaced meanwhile, by one that does not know this client's cluster.
                    if chain.knows_no_more(state, config, &info) {
                        log_handshake(&listener, &info, begun, "the client's cluster was removed");
                        return None;
                    }
                    (stream, BytesMut::new())
                }
            }
        }
    };
    Some(Ready {
        listener,
        chosen,
        stream,
        first,
        info,
        original_dst,
        seat,
    })
}

/// What counts a connection on its worker, and on its listener.
type Places = (ConnectionPlace, ListenerPlace);

/// Serves a connection that was at rest, until it ends or leaves for another worker: one that has come from another, or was to
/// leave.
pub(crate) async fn go_on(state: Rc<WorkerState>, chosen: Chosen, resting: Box<Resting>, places: Places) {
    let listener = Rc::clone(places.1.listener());
    let Some((chain, config)) = listener.chain(chosen) else {
        return;
    };
    let Some(hcm) = chain.http() else { return };
    if chain.knows_no_more(&state, config, resting.info()) {
        return log_handshake(
            &listener,
            resting.info(),
            Begun::now(),
            "the client's cluster was removed",
        );
    }
    let (mut resting, mut places) = (resting, places);
    loop {
        let drain = chain.drain_for(resting.info());
        let Some(next) = heddle_http::resume(&state.http, Rc::clone(hcm), resting, drain).await else {
            return;
        };
        match depart(&state, chosen, next, places) {
            None => return,
            Some(stays) => (resting, places) = stays,
        }
    }
}

/// Sends a connection to the worker to which it is to go. Returns it when that one has no place for it.
fn depart(
    state: &Rc<WorkerState>,
    chosen: Chosen,
    mut resting: Box<Resting>,
    (place, seat): Places,
) -> Option<(Box<Resting>, Places)> {
    let listener = Rc::clone(seat.listener());
    let own = place.seat().filter(|own| own.is_of(listener.occupancy(state)));
    let (Some(stats), Some(own)) = (&listener.hand_over, own) else {
        // Accepted by another listener, which redirected it to this one.
        resting.settle();
        return Some((resting, (place, seat)));
    };
    let to = resting.to();
    let fits = |theirs: &Arc<Listener>| same_chain(&listener.config, chosen, theirs).is_some();
    let Passage {
        seat: there,
        on_the_way,
        permit,
    } = match state.shared.exchange.passage(own, to, fits) {
        Ok(passage) => passage,
        Err(reason) => {
            match reason {
                Stay::Full => stats.move_overflow.inc(),
                Stay::Configuration => stats.move_configuration.inc(),
            }
            return Some((resting, (place, seat)));
        }
    };
    let (door, peer) = (there.door(), resting.info().remote);
    match resting.depart() {
        Ok(connection) => {
            stats.moved_to(to);
            permit.send(Arrival::Moved(Box::new(Moved {
                listener: Arc::clone(&listener.config),
                chain: chosen,
                door,
                connection,
                place: seat.leave(),
                admission: place.leave(there),
                on_the_way,
            })));
        }
        Err(error) => accept::lost(state, peer, &error),
    }
    None
}

/// A connection on its filter chain.
struct Served<'a> {
    state: &'a Rc<WorkerState>,
    listener: &'a Rc<ListenerRuntime>,
    chain: &'a ChainRuntime,
    config: &'a FilterChain,
    begun: Begun,
    original_dst: Option<SocketAddr>,
}

impl Served<'_> {
    /// Returns the connection when it is to go to another worker.
    async fn run(&self, stream: Stream, first: BytesMut, info: ConnectionInfo) -> Option<Box<Resting>> {
        let info = Rc::new(info);
        let mut metadata: Option<Box<Metadata>> = None;
        let mut metrics: Option<&TcpMetrics> = None;
        let mut cluster: Option<Arc<str>> = None;
        for filter in &self.chain.filters {
            match filter {
                FilterRuntime::Rbac(rbac) => {
                    if !rbac.allows(&info, &mut metadata) {
                        self.refuse(&info);
                        return None;
                    }
                }
                FilterRuntime::ExtAuthz(authz) => {
                    // Boxed: a connection should not be larger for a question that is over.
                    let asked = Box::pin(authz.allows(&self.state.http, &info, metadata.get_or_insert_default()));
                    let passes = self.unless_gone(&stream, &info, asked).await?;
                    if !passes {
                        self.refuse(&info);
                        return None;
                    }
                }
                FilterRuntime::IstioStats(m) => metrics = Some(m),
                FilterRuntime::SniCluster => cluster = info.sni.as_deref().map(Arc::from),
                FilterRuntime::TcpProxy(proxy) => {
                    let stream = if first.is_empty() {
                        stream
                    } else {
                        Stream::plain_with(stream.into_tcp(), first)
                    };
                    let drain = self.chain.drain_for(&info);
                    let connection = TcpConnection {
                        info: &info,
                        begun: self.begun,
                        id: self.state.next_connection_id(),
                        filter_chain: &self.config.name,
                        cluster,
                        original_dst: self.original_dst,
                        metadata: metadata.as_deref(),
                        metrics,
                        direction: self.listener.config.direction,
                        buffer_limit: self.listener.config.buffer_limit,
                        patience: self.listener.config.keepalive.map(Keepalive::patience),
                        drain: &drain,
                    };
                    // Boxed: it needs more than a connection of HTTP at rest.
                    Box::pin(proxy.serve(self.state, stream, connection)).await;
                    return None;
                }
                FilterRuntime::Http(hcm) => {
                    let drain = self.chain.drain_for(&info);
                    let limit = self.listener.config.buffer_limit;
                    return heddle_http::serve(&self.state.http, Rc::clone(hcm), stream, info, first, limit, drain)
                        .await;
                }
            }
        }
        None
    }

    fn refuse(&self, info: &ConnectionInfo) {
        log_refused(
            self.listener,
            info,
            self.begun,
            ResponseFlag::UnauthorizedExternalService,
        );
    }

    /// Waits for what a filter asks of others; none when the client has reset the connection meanwhile, or the time to drain
    /// is over. A client that only sends no more may still be waiting for an answer.
    async fn unless_gone<T>(
        &self,
        stream: &Stream,
        info: &ConnectionInfo,
        asked: impl Future<Output = T>,
    ) -> Option<T> {
        let drain = self.chain.drain_for(info);
        let closing = poll_fn(|cx| {
            drain.register(cx);
            match drain.stage() {
                DrainStage::Closing => Poll::Ready(()),
                _ => Poll::Pending,
            }
        });
        tokio::select! {
            biased;
            answer = asked => Some(answer),
            () = closing => None,
            _ = stream.tcp().ready(Interest::ERROR) => None,
        }
    }
}

fn turn_away(listener: &ListenerRuntime, refused: Refused) {
    match refused {
        Refused::Timeout => listener.stats.pre_cx_timeout.inc(),
        Refused::Closed => listener.stats.inspect_closed.inc(),
        Refused::TooLarge => listener.stats.client_hello_too_large.inc(),
    }
}

/// The listener's own access log tells of connections that reached no filter chain.
fn log_refused(listener: &ListenerRuntime, info: &ConnectionInfo, begun: Begun, flag: ResponseFlag) {
    let mut flags = ResponseFlags::NONE;
    flags.set(flag);
    write_log(listener, info, begun, flags, None);
}

fn log_handshake(listener: &ListenerRuntime, info: &ConnectionInfo, begun: Begun, reason: &str) {
    write_log(listener, info, begun, ResponseFlags::NONE, Some(reason));
}

fn write_log(
    listener: &ListenerRuntime,
    info: &ConnectionInfo,
    begun: Begun,
    flags: ResponseFlags,
    termination: Option<&str>,
) {
    if listener.config.access_logs.is_empty() {
        return;
    }
    let context = LogContext {
        start: Some(begun.wall),
        duration: Some(begun.at.elapsed()),
        connection: Some(info),
        flags,
        termination_details: termination,
        ..LogContext::default()
    };
    listener
        .logs
        .write(&listener.config.access_logs, &context, &listener.stats.log_dropped);
}
