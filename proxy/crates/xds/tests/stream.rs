//! The client against a real gRPC server on a unix socket.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use heddle_api::envoy::config::core::v3::Node;
use heddle_api::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use heddle_api::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use heddle_config::{GrpcTarget, ResourceKind, SecretSource, TargetAddress};
use heddle_telemetry::Stats;
use heddle_xds::{Backoff, ClientParams, Delivery, Service, Session, StreamStats, Verdict, Wanted, run};
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

type Reply<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// One stream as the test sees it.
struct ServerStream {
    requests: Streaming<DeltaDiscoveryRequest>,
    responses: mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>,
}

impl ServerStream {
    async fn request(&mut self) -> DeltaDiscoveryRequest {
        within(self.requests.next())
            .await
            .expect("the stream is open")
            .expect("a request")
    }

    async fn respond(&self, kind: ResourceKind, nonce: &str, names: &[&str]) {
        let resources = names.iter().map(|name| Resource {
            name: (*name).to_owned(),
            version: format!("v{nonce}"),
            resource: Some(prost_types::Any {
                type_url: kind.type_url(),
                value: Vec::new(),
            }),
            ..Resource::default()
        });
        let response = DeltaDiscoveryResponse {
            type_url: kind.type_url(),
            nonce: nonce.to_owned(),
            resources: resources.collect(),
            ..DeltaDiscoveryResponse::default()
        };
        self.responses.send(Ok(response)).await.expect("the stream is open");
    }
}

struct Server(Mutex<mpsc::Sender<ServerStream>>);

#[tonic::async_trait]
impl AggregatedDiscoveryService for Server {
    type StreamAggregatedResourcesStream = Reply<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Reply<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        _: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("only the incremental variant is served"))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (responses, outgoing) = mpsc::channel(8);
        let streams = self.0.lock().expect("not poisoned").clone();
        let stream = ServerStream {
            requests: request.into_inner(),
            responses,
        };
        streams
            .send(stream)
            .await
            .map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
    }
}

/// A server on `socket`; aborting the handle closes its connections.
fn serve(socket: &Path) -> (JoinHandle<()>, mpsc::Receiver<ServerStream>) {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).expect("the socket is free");
    let (sender, streams) = mpsc::channel(4);
    let service = AggregatedDiscoveryServiceServer::new(Server(Mutex::new(sender)));
    let serving = tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(UnixListenerStream::new(listener));
    (tokio::spawn(async move { serving.await.expect("serves") }), streams)
}

/// Waits for something that must come; the bound only turns a hang into a failure.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future)
        .await
        .expect("it came in time")
}

struct Client {
    updates: mpsc::Receiver<Delivery>,
    wanted: watch::Sender<Wanted>,
    stats: Stats,
}

fn client(socket: &Path, wanted: Wanted) -> Client {
    let (updates_sender, updates) = mpsc::channel(1);
    let (wanted, wanted_receiver) = watch::channel(wanted);
    let stats = Stats::new();
    let node = Node {
        id: "node-1".into(),
        ..Node::default()
    };
    tokio::spawn(run(ClientParams {
        target: GrpcTarget {
            cluster: "xds-grpc".into(),
            address: TargetAddress::Unix(socket.to_owned()),
            connect_timeout: Duration::from_secs(5),
            authority: None,
        },
        service: Service::Aggregated,
        session: Session::new(SecretSource::Ads, node),
        updates: updates_sender,
        wanted: wanted_receiver,
        stats: StreamStats::new(&stats, "xds-grpc", true),
        backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(1)),
    }));
    Client { updates, wanted, stats }
}

fn clusters() -> Wanted {
    Wanted {
        wildcard: BTreeSet::from([ResourceKind::Cluster]),
        names: BTreeMap::new(),
        on_demand: false,
    }
}

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("heddle-xds-{}-{name}", std::process::id()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_nacks_subscribes_and_comes_back() {
    let path = socket("round-trip");
    let (server, mut streams) = serve(&path);
    let mut client = client(&path, clusters());
    let mut stream = within(streams.recv()).await.expect("a stream");

    let first = stream.request().await;
    assert_eq!(first.type_url, ResourceKind::Cluster.type_url());
    assert_eq!(first.node.expect("the first request has the node").id, "node-1");

    stream.respond(ResourceKind::Cluster, "1", &["a"]).await;
    let delivery = within(client.updates.recv()).await.expect("an update");
    assert_eq!(delivery.update.resources[0].name, "a");
    delivery.verdict.send(Verdict::Taken).expect("the client waits");
    let ack = stream.request().await;
    assert_eq!(
        (ack.response_nonce.as_str(), ack.error_detail, ack.node),
        ("1", None, None)
    );

    stream.respond(ResourceKind::Cluster, "2", &["a", "b"]).await;
    let delivery = within(client.updates.recv()).await.expect("an update");
    delivery
        .verdict
        .send(Verdict::Refused("clusters[b].name: wrong".into()))
        .expect("the client waits");
    let nack = stream.request().await;
    assert_eq!(nack.response_nonce, "2");
    assert_eq!(nack.error_detail.expect("a reason").message, "clusters[b].name: wrong");

    client.wanted.send_modify(|w| {
        w.names
            .insert(ResourceKind::Endpoints, BTreeSet::from(["a".to_owned()]));
    });
    let subscribe = stream.request().await;
    assert_eq!(subscribe.type_url, ResourceKind::Endpoints.type_url());
    assert_eq!(subscribe.resource_names_subscribe, ["a"]);

    // The server dies; another takes its place and hears what is known.
    stream
        .responses
        .send(Err(Status::unavailable("going away")))
        .await
        .expect("the stream is open");
    drop(stream);
    server.abort();
    drop(streams);
    let (server, mut streams) = serve(&path);
    let mut stream = within(streams.recv()).await.expect("another stream");
    let first = stream.request().await;
    assert!(first.node.is_some());
    assert_eq!(
        first.initial_resource_versions,
        [("a".to_owned(), "v1".to_owned())].into()
    );
    let second = stream.request().await;
    assert_eq!(second.resource_names_subscribe, ["a"]);

    assert_eq!(
        client
            .stats
            .counter("heddle_xds_update_success", &[("service", "CDS")])
            .get(),
        1
    );
    assert_eq!(
        client
            .stats
            .counter("heddle_xds_update_rejected", &[("service", "CDS")])
            .get(),
        1
    );
    assert_eq!(
        client
            .stats
            .counter("heddle_xds_connect_failures", &[("target", "xds-grpc")])
            .get(),
        1
    );
    assert_eq!(client.stats.gauge("envoy_control_plane_connected_state", &[]).get(), 1);
    server.abort();
    let _ = std::fs::remove_file(&path);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keeps_trying_until_the_server_is_there() {
    let path = socket("late");
    let _ = std::fs::remove_file(&path);
    let client = client(&path, clusters());
    let failures = client
        .stats
        .counter("heddle_xds_connect_failures", &[("target", "xds-grpc")]);
    within(async {
        while failures.get() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let (server, mut streams) = serve(&path);
    let mut stream = within(streams.recv()).await.expect("a stream");
    assert_eq!(stream.request().await.type_url, ResourceKind::Cluster.type_url());
    server.abort();
    let _ = std::fs::remove_file(&path);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_comes_before_the_first_response_is_sent() {
    let path = socket("early");
    let (server, mut streams) = serve(&path);
    let client = client(&path, Wanted::default());
    // Nothing is wanted yet, so the server has nothing to answer to.
    let mut stream = within(streams.recv()).await.expect("a stream");
    client.wanted.send_modify(|w| *w = clusters());
    assert_eq!(stream.request().await.type_url, ResourceKind::Cluster.type_url());
    server.abort();
    let _ = std::fs::remove_file(&path);
}
