//! The network under a [`Session`].

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use heddle_api::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use heddle_api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use heddle_api::envoy::service::secret::v3::secret_discovery_service_client::SecretDiscoveryServiceClient;
use heddle_config::{GrpcTarget, TargetAddress, Update};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Status, Streaming};

use crate::backoff::Backoff;
use crate::session::{Session, Verdict, Wanted};
use crate::stats::StreamStats;

/// Largest response that is read. A mesh of ten thousand services stays below it; a broken server cannot claim more.
const MAX_MESSAGE: usize = 128 << 20;

/// Requests that may wait for the server. More are written only as it reads.
const QUEUED_REQUESTS: usize = 32;

/// How often the connection is probed, and how long an answer may take: a server that is gone without a word (a pulled
/// cable, a paused machine) is noticed within both.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Which method is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `AggregatedDiscoveryService.DeltaAggregatedResources`.
    Aggregated,
    /// `SecretDiscoveryService.DeltaSecrets`.
    Secrets,
}

/// An update on its way to whoever applies it.
#[derive(Debug)]
pub struct Delivery {
    /// What changes.
    pub update: Update,
    /// What became of it.
    pub verdict: oneshot::Sender<Verdict>,
}

/// What a stream needs.
#[derive(Debug)]
pub struct ClientParams {
    /// Where to.
    pub target: GrpcTarget,
    /// What to call there.
    pub service: Service,
    /// The protocol's state.
    pub session: Session,
    /// Where updates go. Bounded by its one outstanding delivery per stream.
    pub updates: mpsc::Sender<Delivery>,
    /// What to ask for.
    pub wanted: watch::Receiver<Wanted>,
    /// Counts.
    pub stats: StreamStats,
    /// When to try again.
    pub backoff: Backoff,
}

/// Why a stream ended.
#[derive(Debug, Error)]
enum StreamError {
    #[error("cannot connect to {0}: {1}")]
    Connect(String, String),
    #[error("{0} ended the stream: {1}")]
    Broken(String, String),
    #[error("nobody takes updates any more")]
    Done,
}

/// Keeps a stream open until nobody wants its updates any more.
pub async fn run(mut params: ClientParams) {
    loop {
        let place = describe(&params.target);
        let end = stream(&mut params).await;
        params.session.disconnected();
        params.stats.connected.set(0);
        match end {
            Err(StreamError::Done) => return,
            Err(e) => {
                params.stats.failures.inc();
                let wait = params.backoff.wait(fastrand::f64());
                tracing::warn!(target: "xds", "{e}; trying again in {} ms", wait.as_millis());
                tokio::time::sleep(wait).await;
            }
            Ok(()) => {
                // An orderly end, such as a server that restarts.
                let wait = params.backoff.wait(fastrand::f64());
                tracing::info!(target: "xds", "{place} closed the stream; opening another in {} ms", wait.as_millis());
                tokio::time::sleep(wait).await;
            }
        }
        if params.updates.is_closed() {
            return;
        }
    }
}

/// One stream, from connecting to its end.
async fn stream(params: &mut ClientParams) -> Result<(), StreamError> {
    let place = describe(&params.target);
    let broken = |status: Status| StreamError::Broken(place.clone(), explain(&status));
    let channel = connect(&params.target)
        .await
        .map_err(|e| StreamError::Connect(place.clone(), e))?;
    let (requests, outgoing) = mpsc::channel(QUEUED_REQUESTS);
    let wanted = params.wanted.borrow_and_update().clone();
    params.session.want(&wanted);
    // The first request goes out with the call: servers may wait for it before they answer the headers.
    for request in params.session.connected() {
        send(&requests, request, &place).await?;
    }
    let mut responses = Responses::Opening(Box::pin(open(params.service, channel, outgoing)));
    params.stats.connected.set(1);
    tracing::info!(target: "xds", "connected to {place}");
    loop {
        tokio::select! {
            response = responses.next() => match response.map_err(broken)? {
                None => return Ok(()),
                Some(response) => {
                    let answer = handle(params, response).await?;
                    send(&requests, answer, &place).await?;
                    params.backoff.reset();
                }
            },
            changed = params.wanted.changed() => {
                if changed.is_err() {
                    return Err(StreamError::Done);
                }
                let wanted = params.wanted.borrow_and_update().clone();
                for request in params.session.want(&wanted) {
                    send(&requests, request, &place).await?;
                }
            }
        }
    }
}

/// The server's side of a stream. Many servers send their headers with the first response only, and that may have to
/// wait for a request of ours: so opening goes on beside everything else.
enum Responses {
    Opening(Pin<Box<dyn Future<Output = Result<Streaming<DeltaDiscoveryResponse>, Status>> + Send>>),
    Open(Box<Streaming<DeltaDiscoveryResponse>>),
}

impl Responses {
    /// The next response, `None` at an orderly end. Dropping the future loses nothing.
    async fn next(&mut self) -> Result<Option<DeltaDiscoveryResponse>, Status> {
        if let Self::Opening(opening) = self {
            let open = opening.await?;
            *self = Self::Open(Box::new(open));
        }
        match self {
            Self::Open(open) => open.message().await,
            Self::Opening(_) => Ok(None),
        }
    }
}

/// Hands one response on and waits for the verdict.
async fn handle(
    params: &mut ClientParams,
    response: DeltaDiscoveryResponse,
) -> Result<DeltaDiscoveryRequest, StreamError> {
    let incoming = match params.session.response(response) {
        Ok(incoming) => incoming,
        Err(nack) => {
            tracing::warn!(target: "xds", "refused a response of type {:?} that was not asked for", nack.type_url);
            return Ok(*nack);
        }
    };
    let kind = incoming.update.kind;
    let (verdict, answer) = oneshot::channel();
    let delivery = Delivery {
        update: incoming.update.clone(),
        verdict,
    };
    params.updates.send(delivery).await.map_err(|_| StreamError::Done)?;
    let verdict = answer.await.map_err(|_| StreamError::Done)?;
    params.stats.update(kind, verdict == Verdict::Taken);
    let (changed, removed) = (incoming.update.resources.len(), incoming.update.removed.len());
    match &verdict {
        Verdict::Taken => tracing::debug!(target: "xds", "{kind}: accepted {changed} resources, removed {removed}"),
        Verdict::TakenBut(refusal) => {
            let refused = refusal.names().len();
            tracing::warn!(target: "xds", "{kind}: took an update of {changed} resources but for {refused}: {refusal}");
        }
        Verdict::Refused(problem) => {
            tracing::warn!(target: "xds", "{kind}: refused an update, what was in force stays: {problem}");
        }
    }
    Ok(params.session.answer(incoming, &verdict))
}

async fn send(
    requests: &mpsc::Sender<DeltaDiscoveryRequest>,
    request: DeltaDiscoveryRequest,
    place: &str,
) -> Result<(), StreamError> {
    let closed = |_| StreamError::Broken(place.to_owned(), "it takes no more requests".to_owned());
    requests.send(request).await.map_err(closed)
}

async fn open(
    service: Service,
    channel: Channel,
    outgoing: mpsc::Receiver<DeltaDiscoveryRequest>,
) -> Result<Streaming<DeltaDiscoveryResponse>, Status> {
    let outgoing = ReceiverStream::new(outgoing);
    let response = match service {
        Service::Aggregated => {
            let client = AggregatedDiscoveryServiceClient::new(channel);
            client
                .max_decoding_message_size(MAX_MESSAGE)
                .delta_aggregated_resources(outgoing)
                .await
        }
        Service::Secrets => {
            let client = SecretDiscoveryServiceClient::new(channel);
            client
                .max_decoding_message_size(MAX_MESSAGE)
                .delta_secrets(outgoing)
                .await
        }
    };
    Ok(response?.into_inner())
}

/// Connects; the text says what failed.
async fn connect(target: &GrpcTarget) -> Result<Channel, String> {
    let authority = target.authority.as_deref().unwrap_or(&target.cluster);
    // A name that cannot stand in a URI (`outbound|80||x`) is of no use to the server either.
    let origin: Uri = format!("http://{authority}")
        .parse()
        .unwrap_or(Uri::from_static("http://xds"));
    let endpoint = Endpoint::from(origin)
        .connect_timeout(target.connect_timeout)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let connection = match target.address.clone() {
        TargetAddress::Unix(path) => {
            let path = Arc::new(path);
            let connector = tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(&*path).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connector).await
        }
        TargetAddress::Tcp(address) => {
            let connector = tower::service_fn(move |_: Uri| async move {
                let tcp = TcpStream::connect(address).await?;
                tcp.set_nodelay(true)?;
                Ok::<_, std::io::Error>(TokioIo::new(tcp))
            });
            endpoint.connect_with_connector(connector).await
        }
    };
    connection.map_err(|e| chain(&e))
}

fn describe(target: &GrpcTarget) -> String {
    match &target.address {
        TargetAddress::Unix(path) => format!("{} ({})", target.cluster, path.display()),
        TargetAddress::Tcp(address) => format!("{} ({address})", target.cluster),
    }
}

fn explain(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// An error with its causes: transport errors hide the kernel's word at the end.
fn chain(error: &dyn std::error::Error) -> String {
    let mut out = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        out.push_str(": ");
        out.push_str(&inner.to_string());
        cause = inner.source();
    }
    out
}
