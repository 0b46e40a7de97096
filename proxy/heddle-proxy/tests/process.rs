//! The program as a process: exit codes, readiness, drain, and configuration over a discovery stream.

mod harness;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::pin::Pin;
use std::sync::Mutex;
use std::time::Instant;

use harness::*;

use heddle_api::envoy::config::cluster::v3 as cluster;
use heddle_api::envoy::config::core::v3 as core;
use heddle_api::envoy::config::listener::v3 as listener;
use heddle_api::envoy::config::route::v3 as route;
use heddle_api::envoy::extensions::filters::http::router::v3::Router;
use heddle_api::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use heddle_api::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use heddle_api::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use nix::sys::signal::Signal;
use prost::Message;
use prost_types::Any;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

fn static_config(admin: u16, port: u16) -> String {
    format!(
        r#"
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {admin} }} }} }}
static_resources:
  listeners:
  - name: front
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          http_filters: [{{ name: router, typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }} }}]
          route_config: {{ virtual_hosts: [{{ name: a, domains: ["*"], routes: [{{ match: {{ prefix: / }}, direct_response: {{ status: 200, body: {{ inline_string: hello }} }} }}] }}] }}
"#
    )
}

#[test]
fn a_static_configuration_is_served_until_the_signal() {
    let (admin, port) = (free_port(), free_port());
    let mut proxy = Proxy::start(&static_config(admin, port), admin);
    proxy.wait_for("LIVE");
    assert!(get(port, "/").expect("an answer").ends_with("hello"));
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.exit().code(), Some(0));
}

#[test]
fn an_open_connection_holds_the_end_back_until_the_second_signal() {
    let (admin, port) = (free_port(), free_port());
    let mut proxy = Proxy::start(&static_config(admin, port), admin);
    proxy.wait_for("LIVE");
    // Half of a request: the connection is not idle.
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n").expect("written");
    let start = Instant::now();
    while !get(admin, "/listeners").unwrap_or_default().contains("front") && start.elapsed() < PATIENCE {}
    proxy.signal(Signal::SIGTERM);
    proxy.wait_for("DRAINING");
    proxy.signal(Signal::SIGINT);
    assert_eq!(proxy.exit().code(), Some(0));
}

#[test]
fn wrong_configurations_end_with_1_and_say_where() {
    let (code, said) = output("static_resources: { listener: [] }", &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("static_resources.listener: unknown field"), "{said}");

    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = taken.local_addr().expect("bound").port();
    let (code, said) = output(&static_config(free_port(), port), &[]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains(&format!("listeners[front].address: cannot bind 127.0.0.1:{port}: ")),
        "{said}"
    );

    let (code, said) = output(&static_config(port, free_port()), &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains(&format!("admin address 127.0.0.1:{port}")), "{said}");
}

#[test]
fn validate_checks_and_binds_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = taken.local_addr().expect("bound").port();
    assert_eq!(
        output(&static_config(free_port(), port), &["--mode", "validate"]).0,
        Some(0)
    );
    assert_eq!(
        output(
            "static_resources: { clusters: [{ name: '' }] }",
            &["--mode", "validate"]
        )
        .0,
        Some(1)
    );
}

#[test]
fn a_graceful_drain_takes_new_connections_and_closes_listeners_when_its_time_is_over() {
    let (admin, port) = (free_port(), free_port());
    let address = SocketAddr::from(([127, 0, 0, 1], admin));
    let mut proxy = Proxy::start_with_drain_time(&static_config(admin, port), address, 1);
    proxy.wait_for("LIVE");
    assert!(post(admin, "/drain_listeners?graceful").ends_with("OK\n"));
    proxy.wait_for("DRAINING");
    wait_until("it does not listen any more", || {
        TcpStream::connect(("127.0.0.1", port)).is_err()
    });
    proxy.wait_for("DRAINING");
    // What drained already ends at once.
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.exit().code(), Some(0));
}

#[test]
fn skip_exit_leaves_listeners_open() {
    let (admin, port) = (free_port(), free_port());
    let address = SocketAddr::from(([127, 0, 0, 1], admin));
    // Without a drain time listeners would close at once.
    let mut proxy = Proxy::start_with_drain_time(&static_config(admin, port), address, 0);
    proxy.wait_for("LIVE");
    assert!(post(admin, "/drain_listeners?graceful&skip_exit").ends_with("OK\n"));
    proxy.wait_for("DRAINING");
    for _ in 0..20 {
        let answer = get(port, "/").expect("an answer");
        assert!(answer.ends_with("hello"), "{answer}");
    }
    assert!(post(admin, "/drain_listeners").ends_with("OK\n"));
    wait_until("it does not listen any more", || {
        TcpStream::connect(("127.0.0.1", port)).is_err()
    });
}

type Reply<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The server's end of one stream.
struct Peer {
    requests: Streaming<DeltaDiscoveryRequest>,
    responses: mpsc::Sender<Result<DeltaDiscoveryResponse, Status>>,
}

impl Peer {
    async fn request(&mut self) -> DeltaDiscoveryRequest {
        let next = tokio::time::timeout(PATIENCE, self.requests.next())
            .await
            .expect("in time");
        next.expect("the stream is open").expect("a request")
    }

    async fn respond(&self, kind: &str, nonce: &str, resources: Vec<(&str, Vec<u8>)>) {
        let type_url = format!("type.googleapis.com/{kind}");
        let resources = resources.into_iter().map(|(name, value)| Resource {
            name: name.to_owned(),
            version: nonce.to_owned(),
            resource: Some(Any {
                type_url: type_url.clone(),
                value,
            }),
            ..Resource::default()
        });
        let resources = resources.collect();
        let nonce = nonce.to_owned();
        let response = DeltaDiscoveryResponse {
            type_url,
            nonce,
            resources,
            ..DeltaDiscoveryResponse::default()
        };
        self.responses.send(Ok(response)).await.expect("the stream is open");
    }
}

struct Server(Mutex<mpsc::Sender<Peer>>);

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
        let peers = self.0.lock().expect("not poisoned").clone();
        let peer = Peer {
            requests: request.into_inner(),
            responses,
        };
        peers
            .send(peer)
            .await
            .map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
    }
}

fn serve(socket: &Path) -> mpsc::Receiver<Peer> {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).expect("the socket is free");
    let (sender, peers) = mpsc::channel(4);
    let service = AggregatedDiscoveryServiceServer::new(Server(Mutex::new(sender)));
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    peers
}

fn pack(name: &str, message: &impl Message) -> Any {
    Any {
        type_url: format!("type.googleapis.com/{name}"),
        value: message.encode_to_vec(),
    }
}

/// A listener whose routes come from RDS.
fn front(port: u16) -> Vec<u8> {
    let ads = core::ConfigSource {
        resource_api_version: core::ApiVersion::V3.into(),
        config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::Ads(Default::default())),
        ..core::ConfigSource::default()
    };
    let manager = hcm::HttpConnectionManager {
        stat_prefix: "front".into(),
        http_filters: vec![hcm::HttpFilter {
            name: "router".into(),
            config_type: Some(hcm::http_filter::ConfigType::TypedConfig(pack(
                "envoy.extensions.filters.http.router.v3.Router",
                &Router::default(),
            ))),
            ..hcm::HttpFilter::default()
        }],
        route_specifier: Some(hcm::http_connection_manager::RouteSpecifier::Rds(hcm::Rds {
            config_source: Some(ads),
            route_config_name: "routes".into(),
        })),
        ..hcm::HttpConnectionManager::default()
    };
    let config = pack(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        &manager,
    );
    let filter = listener::Filter {
        name: "http".into(),
        config_type: Some(listener::filter::ConfigType::TypedConfig(config)),
    };
    let socket = core::SocketAddress {
        address: "127.0.0.1".into(),
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(port.into())),
        ..core::SocketAddress::default()
    };
    listener::Listener {
        name: "front".into(),
        address: Some(core::Address {
            address: Some(core::address::Address::SocketAddress(socket)),
        }),
        filter_chains: vec![listener::FilterChain {
            filters: vec![filter],
            ..listener::FilterChain::default()
        }],
        ..listener::Listener::default()
    }
    .encode_to_vec()
}

fn routes(body: &str) -> Vec<u8> {
    let direct = route::DirectResponseAction {
        status: 200,
        body: Some(core::DataSource {
            specifier: Some(core::data_source::Specifier::InlineString(body.into())),
            ..core::DataSource::default()
        }),
        ..route::DirectResponseAction::default()
    };
    let all = route::Route {
        r#match: Some(route::RouteMatch {
            path_specifier: Some(route::route_match::PathSpecifier::Prefix("/".into())),
            ..route::RouteMatch::default()
        }),
        action: Some(route::route::Action::DirectResponse(direct)),
        ..route::Route::default()
    };
    let host = route::VirtualHost {
        name: "a".into(),
        domains: vec!["*".into()],
        routes: vec![all],
        ..Default::default()
    };
    route::RouteConfiguration {
        name: "routes".into(),
        virtual_hosts: vec![host],
        ..Default::default()
    }
    .encode_to_vec()
}

/// A cluster whose endpoints come from EDS.
fn eds_cluster(name: &str) -> Vec<u8> {
    let ads = core::ConfigSource {
        resource_api_version: core::ApiVersion::V3.into(),
        config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::Ads(Default::default())),
        ..core::ConfigSource::default()
    };
    cluster::Cluster {
        name: name.into(),
        cluster_discovery_type: Some(cluster::cluster::ClusterDiscoveryType::Type(
            cluster::cluster::DiscoveryType::Eds.into(),
        )),
        eds_cluster_config: Some(cluster::cluster::EdsClusterConfig {
            eds_config: Some(ads),
            ..Default::default()
        }),
        ..cluster::Cluster::default()
    }
    .encode_to_vec()
}

/// The routes of [`routes`], and `/late` to a cluster.
fn routes_with(body: &str, cluster: &str) -> Vec<u8> {
    let mut table = route::RouteConfiguration::decode(routes(body).as_slice()).expect("just encoded");
    let to = route::RouteAction {
        cluster_specifier: Some(route::route_action::ClusterSpecifier::Cluster(cluster.into())),
        ..route::RouteAction::default()
    };
    let late = route::Route {
        r#match: Some(route::RouteMatch {
            path_specifier: Some(route::route_match::PathSpecifier::Prefix("/late".into())),
            ..route::RouteMatch::default()
        }),
        action: Some(route::route::Action::Route(to)),
        ..route::Route::default()
    };
    table.virtual_hosts[0].routes.insert(0, late);
    table.encode_to_vec()
}

const CDS: &str = "envoy.config.cluster.v3.Cluster";
const LDS: &str = "envoy.config.listener.v3.Listener";
const RDS: &str = "envoy.config.route.v3.RouteConfiguration";

/// A bootstrap whose configuration comes from the server at this socket.
fn discovering(admin: u16, socket: &Path) -> String {
    format!(
        r#"
node: {{ id: proxy-1, cluster: test }}
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {admin} }} }} }}
dynamic_resources:
  ads_config: {{ api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{{ envoy_grpc: {{ cluster_name: xds }} }}] }}
  cds_config: {{ ads: {{}}, resource_api_version: V3 }}
  lds_config: {{ ads: {{}}, resource_api_version: V3 }}
static_resources:
  clusters:
  - name: xds
    http2_protocol_options: {{}}
    load_assignment: {{ cluster_name: xds, endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ pipe: {{ path: {} }} }} }} }}] }}] }}
"#,
        socket.display()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_update_holds_up_no_probe() {
    let socket = temporary("large.sock");
    let admin = free_port();
    let mut peers = serve(&socket);
    let mut proxy = Proxy::start(&discovering(admin, &socket), admin);
    let mut peer = peers.recv().await.expect("a stream");
    assert!(peer.request().await.type_url.ends_with(CDS));
    tokio::task::block_in_place(|| proxy.wait_for("PRE_INITIALIZING"));
    let names: Vec<String> = (0..10_000).map(|n| format!("cluster-{n}")).collect();
    let clusters = names.iter().map(|name| (name.as_str(), eds_cluster(name))).collect();
    peer.respond(CDS, "c1", clusters).await;
    let begun = Instant::now();
    let mut longest = std::time::Duration::ZERO;
    let mut probes = 0;
    let acknowledged = peer.request();
    tokio::pin!(acknowledged);
    let request = loop {
        tokio::select! {
            biased;
            request = &mut acknowledged => break request,
            () = std::future::ready(()) => {}
        }
        let asked = Instant::now();
        tokio::task::block_in_place(|| get(admin, "/ready")).expect("an answer");
        longest = longest.max(asked.elapsed());
        probes += 1;
        tokio::task::yield_now().await;
    };
    let took = begun.elapsed();
    assert_eq!(request.response_nonce, "c1");
    assert!(request.error_detail.is_none(), "{:?}", request.error_detail);
    assert!(
        longest < took / 2,
        "of {probes} probes one took {longest:?}, the update {took:?}"
    );
    let _ = std::fs::remove_file(&socket);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configuration_comes_over_the_stream_and_bad_ones_are_refused() {
    let socket = temporary("ads.sock");
    let (admin, port) = (free_port(), free_port());
    let mut peers = serve(&socket);
    let config = discovering(admin, &socket);
    let mut proxy = Proxy::start(&config, admin);
    let mut peer = tokio::time::timeout(PATIENCE, peers.recv())
        .await
        .expect("in time")
        .expect("a stream");

    let first = peer.request().await;
    assert!(first.type_url.ends_with(CDS));
    assert_eq!(first.node.expect("the first request has the node").id, "proxy-1");
    tokio::task::block_in_place(|| proxy.wait_for("PRE_INITIALIZING"));

    // No clusters at all: then listeners are asked for.
    peer.respond(CDS, "c1", Vec::new()).await;
    let mut seen = [peer.request().await, peer.request().await];
    seen.sort_by(|a, b| a.type_url.cmp(&b.type_url));
    assert_eq!(seen[0].response_nonce, "c1");
    assert!(seen[1].type_url.ends_with(LDS));

    // The listener is accepted and warms; its routes are asked for.
    peer.respond(LDS, "l1", vec![("front", front(port))]).await;
    let mut seen = [peer.request().await, peer.request().await];
    seen.sort_by(|a, b| a.type_url.cmp(&b.type_url));
    assert_eq!(
        (seen[0].response_nonce.as_str(), seen[0].error_detail.is_none()),
        ("l1", true)
    );
    assert_eq!(seen[1].resource_names_subscribe, ["routes"]);
    tokio::task::block_in_place(|| proxy.wait_for("INITIALIZING"));
    assert!(
        TcpStream::connect(("127.0.0.1", port)).is_err(),
        "it does not listen yet"
    );

    peer.respond(RDS, "r1", vec![("routes", routes("one"))]).await;
    assert_eq!(peer.request().await.response_nonce, "r1");
    tokio::task::block_in_place(|| proxy.wait_for("LIVE"));
    assert!(get(port, "/").expect("an answer").ends_with("one"));

    // The ACK comes when every worker has it.
    peer.respond(RDS, "r2", vec![("routes", routes("two"))]).await;
    assert_eq!(peer.request().await.response_nonce, "r2");
    assert!(get(port, "/").expect("an answer").ends_with("two"));

    // Routes to a cluster whose endpoints do not come are accepted, wait for them, and not for ever.
    peer.respond(CDS, "c2", vec![("late", eds_cluster("late"))]).await;
    let mut seen = [peer.request().await, peer.request().await];
    seen.sort_by(|a, b| a.type_url.cmp(&b.type_url));
    assert_eq!(seen[0].response_nonce, "c2");
    assert_eq!(seen[1].resource_names_subscribe, ["late"]);
    peer.respond(RDS, "r3", vec![("routes", routes_with("three", "late"))])
        .await;
    assert_eq!(peer.request().await.response_nonce, "r3");
    assert!(get(port, "/").expect("an answer").ends_with("two"));
    let start = Instant::now();
    while !get(port, "/").expect("an answer").ends_with("three") {
        assert!(start.elapsed() < PATIENCE, "the routes wait for ever");
        tokio::task::yield_now().await;
    }
    assert!(get(port, "/late").expect("an answer").starts_with("HTTP/1.1 503"));

    // A taken port is a NACK, and what was there serves on.
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let other = taken.local_addr().expect("bound").port();
    peer.respond(LDS, "l2", vec![("front", front(other))]).await;
    let nack = peer.request().await;
    let reason = nack.error_detail.expect("a reason").message;
    assert_eq!(nack.response_nonce, "l2");
    assert!(
        reason.contains(&format!("listeners[front].address: cannot bind 127.0.0.1:{other}")),
        "{reason}"
    );
    assert!(get(port, "/").expect("an answer").ends_with("three"));
    let metrics = get(admin, "/stats/prometheus").expect("metrics");
    assert!(
        metrics.contains("envoy_listener_manager_lds_update_rejected 1"),
        "{metrics}"
    );

    // The server goes; the proxy stays, and comes back with what it has.
    peer.responses
        .send(Err(Status::unavailable("restart")))
        .await
        .expect("the stream is open");
    let mut peer = tokio::time::timeout(PATIENCE, peers.recv())
        .await
        .expect("in time")
        .expect("another stream");
    assert!(get(port, "/").expect("an answer").ends_with("three"));
    let again = peer.request().await;
    assert!(again.type_url.ends_with(CDS));
    let known = |request: &DeltaDiscoveryRequest, name: &str| request.initial_resource_versions.get(name).cloned();
    assert_eq!(known(&again, "late").as_deref(), Some("c2"));
    let mut rest = [peer.request().await, peer.request().await];
    rest.sort_by_key(|request| request.type_url.ends_with(LDS));
    let refused = known(&rest[1], "front");
    assert_eq!(refused.as_deref(), Some(""), "to be sent again, or removed");

    proxy.signal(Signal::SIGTERM);
    assert_eq!(tokio::task::block_in_place(|| proxy.exit()).code(), Some(0));
    let _ = std::fs::remove_file(&socket);
}
