//! Between two clusters: a sidecar's TLS through the other cluster's east-west gateway, which reads the server name and
//! nothing else.

use bytes::BytesMut;
use heddle_config::snapshot::{Node, TlsKey};
use heddle_matching::{StringMatcher, StringTest, rbac};
use heddle_net::TransportProtocol;
use heddle_tls::testing::{Authority, Leaf};
use heddle_tls::{ClientContext, ClientParams, SanKind, SanMatcher, ServerContext, ServerParams, Trust};

use super::*;

const SERVER: &str = "spiffe://acme.demo/ns/shop/sa/redis";
const CLIENT: &str = "spiffe://acme.demo/ns/shop/sa/cart";
const SNI: &str = "outbound_.6379_._.redis.shop.svc.cluster.local";

/// The mesh's authorities: a root and two clusters'.
struct Mesh {
    root: Authority,
    one: Authority,
    two: Authority,
}

impl Mesh {
    fn new() -> Self {
        let root = Authority::root("root");
        let one = root.constrained("c1", "c1.clusters.acme.demo");
        let two = root.constrained("c2", "c2.clusters.acme.demo");
        Self { root, one, two }
    }

    fn leaf(authority: &Authority, uri: &str, cluster: &str) -> heddle_tls::KeyPair {
        let name = format!("{cluster}.clusters.acme.demo");
        authority.issue(&Leaf {
            uris: &[uri],
            dns: &[&name],
            ..Leaf::default()
        })
    }

    /// The server's context, in the first cluster; it accepts clients of these.
    fn server(&self, clusters: &[&str]) -> Arc<ServerContext> {
        let name = |c: &&str| SanMatcher::exact(SanKind::Dns, &format!("{c}.clusters.acme.demo"));
        let params = ServerParams {
            certificates: vec![Self::leaf(&self.one, SERVER, "c1")],
            trust: Some(Trust {
                roots_pem: self.root.pem(),
                sans: clusters.iter().map(name).collect(),
                trust_domains: Vec::new(),
            }),
            require_client_certificate: true,
            alpn: vec![b"istio".as_slice().into()],
            ..ServerParams::default()
        };
        Arc::new(ServerContext::new(&params).expect("context"))
    }

    /// The client's context, in the second cluster.
    fn client(&self, sni: &str) -> Arc<ClientContext> {
        let params = ClientParams {
            certificate: Some(Self::leaf(&self.two, CLIENT, "c2")),
            trust: Some(Trust {
                roots_pem: self.root.pem(),
                sans: vec![SanMatcher::exact(SanKind::Uri, SERVER)],
                trust_domains: Vec::new(),
            }),
            alpn: vec![b"istio".as_slice().into()],
            sni: Some(sni.to_owned()),
            ..ClientParams::default()
        };
        Arc::new(ClientContext::new(&params).expect("context"))
    }

    /// The server's sidecar: mutual TLS in, the application behind it.
    async fn server_sidecar(&self, application: SocketAddr, clusters: &[&str]) -> (Proxy, SocketAddr) {
        let address = free_address();
        let mut mutual = chain(vec![
            NetworkFilter::IstioStats,
            NetworkFilter::TcpProxy(Arc::new(tcp_proxy("echo"))),
        ]);
        mutual.matches.transport_protocol = Some(TransportProtocol::Tls);
        mutual.tls = Some(TlsKey::from("inbound"));
        let mut inbound = listener("virtualInbound", address, vec![mutual]);
        inbound.direction = TrafficDirection::Inbound;
        inbound.listener_filters = vec![ListenerFilter::TlsInspector];
        let mut base = snapshot(1, vec![Arc::new(inbound)], &[("echo", &[application])]);
        base.server_tls.insert(TlsKey::from("inbound"), self.server(clusters));
        base.node = node("c1", "redis");
        (Proxy::start(base).await, address)
    }

    /// The client's sidecar, whose only endpoint is the gateway.
    async fn client_sidecar(&self, gateway: SocketAddr) -> (Proxy, SocketAddr) {
        let address = free_address();
        let filters = vec![
            NetworkFilter::IstioStats,
            NetworkFilter::TcpProxy(Arc::new(tcp_proxy("redis"))),
        ];
        let mut outbound = listener("outbound", address, vec![chain(filters)]);
        outbound.direction = TrafficDirection::Outbound;
        let mut base = snapshot(1, vec![Arc::new(outbound)], &[]);
        let mut remote = Arc::into_inner(cluster("redis")).expect("unshared");
        remote.transport = UpstreamTransport::Tls(TlsKey::from("outbound"));
        base.clusters.insert(Arc::from("redis"), Arc::new(remote));
        let mut behind = Arc::into_inner(endpoints(&[gateway])).expect("unshared");
        behind[0].priority = 1;
        behind[0].endpoints[0].workload = Some(";;;;c1".into());
        base.endpoints.insert(Arc::from("redis"), Arc::new(behind));
        base.client_tls.insert(TlsKey::from("outbound"), self.client(SNI));
        base.node = node("c2", "cart");
        (Proxy::start(base).await, address)
    }
}

fn node(cluster: &str, workload: &str) -> Arc<Node> {
    Arc::new(Node {
        metadata: serde_json::json!({ "CLUSTER_ID": cluster, "WORKLOAD_NAME": workload, "NAMESPACE": "shop" }),
        ..Node::default()
    })
}

/// A gateway that serves these names, and the federation's name to `controller`.
async fn gateway(served: &[(&str, &[SocketAddr])], controller: SocketAddr) -> (Proxy, SocketAddr) {
    let address = free_address();
    let mut federation = chain(vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy("federation")))]);
    federation.matches.server_names = vec!["federation.clusters.acme.demo".to_owned()];
    let mut proxy = tcp_proxy("BlackHoleCluster");
    proxy.max_connect_attempts = 2;
    let services = chain(vec![
        NetworkFilter::SniCluster,
        NetworkFilter::TcpProxy(Arc::new(proxy)),
    ]);
    let mut front = listener("eastwest", address, vec![federation, services]);
    front.listener_filters = vec![ListenerFilter::TlsInspector];
    front.listener_filters_timeout = Duration::from_millis(200);
    let mut clusters: Vec<(&str, &[SocketAddr])> = served.to_vec();
    let controllers = [controller];
    clusters.push(("federation", &controllers));
    (
        Proxy::start(snapshot(1, vec![Arc::new(front)], &clusters)).await,
        address,
    )
}

fn lines(proxy: &Proxy, name: &str) -> Vec<String> {
    let text = Gathered::read(std::slice::from_ref(&proxy.metrics), |_| true).prometheus(true);
    text.lines()
        .filter(|l| l.starts_with(name))
        .map(str::to_owned)
        .collect()
}

fn has(line: &str, labels: &[(&str, &str)]) {
    for (name, value) in labels {
        let label = format!("{name}=\"{value}\"");
        assert!(line.contains(&label), "{label} is not in {line}");
    }
}

#[test]
fn sidecar_to_sidecar_through_the_gateway() {
    local(async {
        let mesh = Mesh::new();
        let (server, behind) = mesh.server_sidecar(echo().await, &["c1", "c2"]).await;
        let (gateway, front) = gateway(&[(SNI, &[behind])], free_address()).await;
        let (client, near) = mesh.client_sidecar(front).await;
        let mut tcp = TcpStream::connect(near).await.expect("connects");
        assert_eq!(ask(&mut tcp, "from the other cluster").await, "FROM THE OTHER CLUSTER");
        // Half-close: the end of the client's side goes all the way, and the server's comes back.
        tcp.shutdown().await.expect("shuts down");
        assert_eq!(tcp.read(&mut [0; 8]).await.expect("end"), 0);
        client.until("istio_tcp_connections_closed_total", 1.0).await;
        server.until("istio_tcp_connections_closed_total", 1.0).await;
        let opened = "istio_tcp_connections_opened_total";
        let parties = [
            ("source_principal", CLIENT),
            ("destination_principal", SERVER),
            ("source_cluster", "c2"),
            ("destination_cluster", "c1"),
        ];
        has(&lines(&client, opened)[0], &parties);
        has(
            &lines(&client, opened)[0],
            &[("destination_workload_namespace", "shop")],
        );
        has(&lines(&server, opened)[0], &parties);
        has(
            &lines(&server, opened)[0],
            &[("connection_security_policy", "mutual_tls")],
        );
        // The gateway counts by cluster, and had no handshake of its own.
        let by_cluster = |name: &str| gateway.metric(&format!("envoy_cluster_{name}{{cluster_name=\"{SNI}\"}}"));
        assert_eq!(by_cluster("upstream_cx_total"), Some(1.0));
        gateway
            .until(
                &format!("envoy_cluster_upstream_cx_active{{cluster_name=\"{SNI}\"}}"),
                0.0,
            )
            .await;
        assert!(
            by_cluster("upstream_cx_rx_bytes_total").is_some_and(|n| n > 500.0),
            "certificates and all"
        );
        assert!(by_cluster("upstream_cx_tx_bytes_total").is_some_and(|n| n > 500.0));
        assert_eq!(gateway.metric("envoy_listener_ssl_handshake"), Some(0.0));
        assert_eq!(gateway.metric("envoy_tls_inspector_tls_found"), Some(1.0));
    });
}

#[test]
fn a_removed_cluster_gets_through_the_gateway_and_no_further() {
    local(async {
        let mesh = Mesh::new();
        let (server, behind) = mesh.server_sidecar(echo().await, &["c1"]).await;
        let (_gateway, front) = gateway(&[(SNI, &[behind])], free_address()).await;
        let (_client, near) = mesh.client_sidecar(front).await;
        assert!(is_closed(&mut TcpStream::connect(near).await.expect("connects")).await);
        server.until("envoy_listener_ssl_fail_verify_san", 1.0).await;
    });
}

/// Removal of a cluster is a new version of the listener that does not accept its name.
#[test]
fn open_connections_of_a_removed_cluster_are_closed_at_once() {
    local(async {
        let mesh = Mesh::new();
        let (address, echo) = (free_address(), echo().await);
        let with = |version, clusters: &[&str]| {
            let mut mutual = chain(vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy("echo")))]);
            mutual.tls = Some(TlsKey::from("inbound"));
            let inbound = listener("virtualInbound", address, vec![mutual]);
            let mut base = snapshot(version, vec![Arc::new(inbound)], &[("echo", &[echo])]);
            base.server_tls.insert(TlsKey::from("inbound"), mesh.server(clusters));
            base
        };
        let dial = async |authority: &Authority, cluster: &str| {
            let params = ClientParams {
                certificate: Some(Mesh::leaf(authority, CLIENT, cluster)),
                trust: Some(Trust {
                    roots_pem: mesh.root.pem(),
                    sans: vec![SanMatcher::exact(SanKind::Uri, SERVER)],
                    trust_domains: Vec::new(),
                }),
                ..ClientParams::default()
            };
            let tcp = TcpStream::connect(address).await.expect("connects");
            let context = ClientContext::new(&params).expect("context");
            context.connect(tcp, None, None).await.expect("shakes hands").0
        };
        let mut proxy = Proxy::start(with(1, &["c1", "c2"])).await;
        let (own, foreign) = (dial(&mesh.one, "c1").await, dial(&mesh.two, "c2").await);
        talk(&own).await.expect("serves");
        talk(&foreign).await.expect("serves");
        proxy.apply(with(2, &["c1"])).await;
        // Long before the drain is over, which is ten minutes.
        talk(&foreign).await.expect_err("closed");
        talk(&own).await.expect("finishes in peace");
        proxy.until("envoy_listener_downstream_cx_active", 1.0).await;
    });
}

/// `source.cluster` of an authorization policy, on a TCP port.
#[test]
fn policies_know_the_clients_cluster() {
    local(async {
        let mesh = Mesh::new();
        for (cluster, welcome) in [("c2", true), ("c3", false)] {
            let name = StringTest::Exact(format!("{cluster}.clusters.acme.demo").into());
            let allow = rbac::Policy {
                name: "by-cluster".into(),
                permissions: vec![rbac::Permission::Any].into(),
                principals: vec![rbac::Principal::Authenticated(Some(StringMatcher::new(name, false)))].into(),
            };
            let policies = rbac::Policies {
                rules: Some(rbac::Rules::new(rbac::Action::Allow, vec![allow])),
                stat_prefix: "tcp.".into(),
                ..rbac::Policies::default()
            };
            let (address, echo) = (free_address(), echo().await);
            let mut mutual = chain(vec![
                NetworkFilter::Rbac(Arc::new(policies)),
                NetworkFilter::TcpProxy(Arc::new(tcp_proxy("echo"))),
            ]);
            mutual.tls = Some(TlsKey::from("inbound"));
            let inbound = listener("virtualInbound", address, vec![mutual]);
            let mut base = snapshot(1, vec![Arc::new(inbound)], &[("echo", &[echo])]);
            base.server_tls
                .insert(TlsKey::from("inbound"), mesh.server(&["c1", "c2"]));
            let proxy = Proxy::start(base).await;
            let tcp = TcpStream::connect(address).await.expect("connects");
            let (stream, _) = mesh.client(SNI).connect(tcp, None, None).await.expect("shakes hands");
            assert_eq!(talk(&stream).await.is_ok(), welcome, "{cluster}");
            assert_eq!(proxy.metric("envoy_rbac_denied"), Some(if welcome { 0.0 } else { 1.0 }));
        }
    });
}

#[test]
fn names_that_are_not_served_are_closed_and_counted() {
    local(async {
        let mesh = Mesh::new();
        let (_server, behind) = mesh.server_sidecar(echo().await, &["c1", "c2"]).await;
        let (gateway, front) = gateway(&[(SNI, &[behind])], free_address()).await;
        let dial = async |sni: &str| {
            let tcp = TcpStream::connect(front).await.expect("connects");
            mesh.client(sni).connect(tcp, None, None).await
        };
        dial("outbound_.6379_._.secrets.vault.svc.cluster.local")
            .await
            .expect_err("nobody there");
        assert_eq!(gateway.metric("envoy_tcp_downstream_cx_no_route"), Some(1.0));
        // Names are not case-sensitive (RFC 6066 §3), clusters are lower case.
        dial(&SNI.to_ascii_uppercase()).await.expect("the same name");
        // Neither TLS without a name nor anything else has somewhere to go.
        dial("").await.expect_err("no name");
        let mut plain = TcpStream::connect(front).await.expect("connects");
        plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("writes");
        assert_eq!(plain.read(&mut [0; 8]).await.unwrap_or(0), 0);
        gateway.until("envoy_tcp_downstream_cx_no_route", 3.0).await;
        // A hello that does not come to its end is waited for so long, and no longer.
        let mut slow = TcpStream::connect(front).await.expect("connects");
        slow.write_all(&[22, 3, 1, 2, 0, 1, 0]).await.expect("writes");
        assert_eq!(slow.read(&mut [0; 8]).await.expect("closed"), 0);
        gateway.until("envoy_listener_downstream_pre_cx_timeout", 1.0).await;
        gateway.until("envoy_listener_downstream_cx_active", 0.0).await;
    });
}

#[test]
fn the_federations_name_goes_to_the_controller() {
    local(async {
        let controller = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let mesh = Mesh::new();
        let (_gateway, front) = gateway(&[], controller.local_addr().expect("address")).await;
        let name = "federation.clusters.acme.demo";
        let context = mesh.server(&["c2"]);
        let serve = async {
            let (tcp, peer) = controller.accept().await.expect("accepts");
            let mut info = heddle_net::ConnectionInfo::plain(peer, peer);
            let stream = context
                .accept(tcp, BytesMut::new(), &mut info)
                .await
                .expect("shakes hands");
            stream.write_all(b"welcome").await.expect("writes");
            info
        };
        let dial = async {
            let tcp = TcpStream::connect(front).await.expect("connects");
            let (stream, _) = mesh.client(name).connect(tcp, None, None).await.expect("shakes hands");
            let mut got = BytesMut::new();
            stream.read(&mut got).await.expect("reads");
            got
        };
        let (info, got) = tokio::join!(serve, dial);
        assert_eq!(&got[..], b"welcome");
        // The client's own certificate, untouched.
        assert_eq!(info.principal(), Some(CLIENT));
        assert_eq!(info.sni.as_deref(), Some(name));
    });
}

#[test]
fn a_dead_replica_is_passed_over_and_many_connections_pass() {
    local(async {
        let mesh = Mesh::new();
        let (_server, behind) = mesh.server_sidecar(echo().await, &["c1", "c2"]).await;
        let dead = free_address();
        let (gateway, front) = gateway(&[(SNI, &[dead, behind])], free_address()).await;
        let context = mesh.client(SNI);
        const MANY: usize = 150;
        let one = async |n: usize| {
            let tcp = TcpStream::connect(front).await.expect("connects");
            let (stream, _) = context.connect(tcp, None, None).await.expect("shakes hands");
            let question = format!("number {n}");
            stream.write_all(question.as_bytes()).await.expect("writes");
            let mut answer = BytesMut::new();
            while answer.len() < question.len() {
                assert!(stream.read(&mut answer).await.expect("reads") > 0);
            }
            assert_eq!(&answer[..], question.to_ascii_uppercase().as_bytes());
            stream
        };
        let held = futures_util::future::join_all((0..MANY).map(one)).await;
        assert_eq!(gateway.metric("envoy_tcp_downstream_cx_active"), Some(MANY as f64));
        let failed = gateway.metric(&format!(
            "envoy_cluster_upstream_cx_connect_fail{{cluster_name=\"{SNI}\"}}"
        ));
        assert!(failed.is_some_and(|n| n > 0.0), "{failed:?}");
        drop(held);
        gateway.until("envoy_tcp_downstream_cx_active", 0.0).await;
    });
}

/// Trust that grows and shrinks by SDS: what is open stays open, what comes is judged by what is in force.
#[test]
fn a_bundle_changes_under_open_connections() {
    local(async {
        let (old, new) = (Mesh::new(), Mesh::new());
        let listen = free_address();
        let mut mutual = chain(vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy("echo")))]);
        mutual.tls = Some(TlsKey::from("inbound"));
        let listeners = vec![Arc::new(listener("virtualInbound", listen, vec![mutual]))];
        let echo = echo().await;
        let with = |version, roots: &[&Mesh], by: &Mesh| {
            let mut base = snapshot(version, listeners.clone(), &[("echo", &[echo])]);
            let params = ServerParams {
                certificates: vec![Mesh::leaf(&by.one, SERVER, "c1")],
                trust: Some(Trust {
                    roots_pem: roots.iter().flat_map(|m| m.root.pem()).collect(),
                    sans: vec![SanMatcher::exact(SanKind::Dns, "c2.clusters.acme.demo")],
                    trust_domains: Vec::new(),
                }),
                require_client_certificate: true,
                ..ServerParams::default()
            };
            let context = Arc::new(ServerContext::new(&params).expect("context"));
            base.server_tls.insert(TlsKey::from("inbound"), context);
            base
        };
        // Clients trust both roots from the beginning: their bundle came first.
        let client = |by: &Mesh| {
            let params = ClientParams {
                certificate: Some(Mesh::leaf(&by.two, CLIENT, "c2")),
                trust: Some(Trust {
                    roots_pem: [old.root.pem(), new.root.pem()].concat(),
                    sans: vec![SanMatcher::exact(SanKind::Uri, SERVER)],
                    trust_domains: Vec::new(),
                }),
                ..ClientParams::default()
            };
            ClientContext::new(&params).expect("context")
        };
        let dial = async |by: &Mesh| -> std::io::Result<heddle_tls::Stream> {
            let tcp = TcpStream::connect(listen).await?;
            let (stream, _) = client(by)
                .connect(tcp, None, None)
                .await
                .map_err(std::io::Error::other)?;
            talk(&stream).await.map(|()| stream)
        };
        let mut proxy = Proxy::start(with(1, &[&old], &old)).await;
        let first = dial(&old).await.expect("the old root");
        dial(&new).await.expect_err("not trusted yet");
        proxy.apply(with(2, &[&old, &new], &old)).await;
        talk(&first).await.expect("still open");
        let second = dial(&new).await.expect("the new root too");
        proxy.apply(with(3, &[&old, &new], &new)).await;
        let third = dial(&old).await.expect("a server that has changed already");
        proxy.apply(with(4, &[&new], &new)).await;
        for open in [&first, &second, &third] {
            talk(open).await.expect("still open");
        }
        dial(&old).await.expect_err("the old root is gone");
        dial(&new).await.expect("the new root");
    });
}

async fn talk(stream: &heddle_tls::Stream) -> std::io::Result<()> {
    stream.write_all(b"hello").await?;
    let mut answer = BytesMut::new();
    while answer.len() < 5 {
        if stream.read(&mut answer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    assert_eq!(&answer[..], b"HELLO");
    Ok(())
}
