use bytes::BytesMut;
use heddle_config::snapshot::TlsKey;
use heddle_tls::testing::Authority;
use heddle_tls::{ClientContext, ClientParams, SanKind, SanMatcher, ServerContext, ServerParams, Trust};

use super::*;

const SERVER: &str = "spiffe://cluster.local/ns/shop/sa/redis";
const CLIENT: &str = "spiffe://cluster.local/ns/shop/sa/cart";

fn trust(root: &Authority, san: &str) -> Option<Trust> {
    Some(Trust {
        roots_pem: root.pem(),
        sans: vec![SanMatcher::exact(SanKind::Uri, san)],
        trust_domains: Vec::new(),
    })
}

fn server(root: &Authority) -> Arc<ServerContext> {
    let params = ServerParams {
        certificates: vec![root.spiffe(SERVER)],
        trust: trust(root, CLIENT),
        require_client_certificate: true,
        alpn: vec![b"istio".as_slice().into()],
        ..ServerParams::default()
    };
    Arc::new(ServerContext::new(&params).expect("context"))
}

fn client(root: &Authority) -> Arc<ClientContext> {
    let params = ClientParams {
        certificate: Some(root.spiffe(CLIENT)),
        trust: trust(root, SERVER),
        alpn: vec![b"istio".as_slice().into()],
        sni: Some("redis.shop".to_owned()),
        ..ClientParams::default()
    };
    Arc::new(ClientContext::new(&params).expect("context"))
}

/// An inbound listener as in a sidecar: mutual TLS, plaintext, by what the inspector finds.
fn inbound(address: SocketAddr) -> Listener {
    let proxy = || {
        vec![
            NetworkFilter::IstioStats,
            NetworkFilter::TcpProxy(Arc::new(tcp_proxy("echo"))),
        ]
    };
    let mut mutual = chain(proxy());
    mutual.matches.transport_protocol = Some(heddle_net::TransportProtocol::Tls);
    mutual.tls = Some(Arc::from("inbound"));
    let mut listener = listener("virtualInbound", address, vec![mutual]);
    listener.direction = TrafficDirection::Inbound;
    listener.listener_filters = vec![ListenerFilter::TlsInspector];
    listener
}

fn with_contexts(mut base: Snapshot, root: &Authority) -> Snapshot {
    base.server_tls.insert(TlsKey::from("inbound"), server(root));
    base.client_tls.insert(TlsKey::from("outbound"), client(root));
    base
}

async fn dial(address: SocketAddr, client: &ClientContext) -> heddle_tls::Stream {
    let tcp = TcpStream::connect(address).await.expect("connects");
    client.connect(tcp, None, None).await.expect("shakes hands").0
}

async fn ask_tls(stream: &heddle_tls::Stream, question: &str) -> std::io::Result<String> {
    stream.write_all(question.as_bytes()).await?;
    let mut answer = BytesMut::new();
    while answer.len() < question.len() {
        if stream.read(&mut answer).await? == 0 {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn mutual_tls_ends_here_and_plaintext_is_refused() {
    local(async {
        let root = Authority::root("root");
        let (address, echo) = (free_address(), echo().await);
        let base = snapshot(1, vec![Arc::new(inbound(address))], &[("echo", &[echo])]);
        let proxy = Proxy::start(with_contexts(base, &root)).await;
        let stream = dial(address, &client(&root)).await;
        assert_eq!(ask_tls(&stream, "hello").await.expect("asks"), "HELLO");
        assert_eq!(proxy.metric("envoy_listener_ssl_handshake"), Some(1.0));
        let text = Gathered::read(std::slice::from_ref(&proxy.metrics), |_| true).prometheus(true);
        let line = text
            .lines()
            .find(|l| l.starts_with("istio_tcp_connections_opened_total{"))
            .expect("metric");
        assert!(line.contains("connection_security_policy=\"mutual_tls\""), "{line}");
        assert!(line.contains(&format!("source_principal=\"{CLIENT}\"")), "{line}");

        assert!(is_closed(&mut TcpStream::connect(address).await.expect("connects")).await);
        assert_eq!(proxy.metric("envoy_listener_no_filter_chain_match"), Some(1.0));
    });
}

#[test]
fn wrong_clients_are_counted_by_reason() {
    local(async {
        let root = Authority::root("root");
        let (address, echo) = (free_address(), echo().await);
        let base = snapshot(1, vec![Arc::new(inbound(address))], &[("echo", &[echo])]);
        let proxy = Proxy::start(with_contexts(base, &root)).await;
        let thief = ClientParams {
            certificate: Some(root.spiffe("spiffe://cluster.local/ns/shop/sa/thief")),
            trust: trust(&root, SERVER),
            ..ClientParams::default()
        };
        let thief = ClientContext::new(&thief).expect("context");
        let stream = dial(address, &thief).await;
        ask_tls(&stream, "hello").await.expect_err("an alert comes");
        proxy.until("envoy_listener_ssl_fail_verify_san", 1.0).await;
        assert_eq!(proxy.metric("envoy_listener_ssl_connection_error"), Some(0.0));
    });
}

#[test]
fn through_two_proxies_with_mutual_tls_between() {
    local(async {
        let root = Authority::root("root");
        let (near, far, echo) = (free_address(), free_address(), echo().await);
        let inner = snapshot(1, vec![Arc::new(inbound(far))], &[("echo", &[echo])]);
        let _server = Proxy::start(with_contexts(inner, &root)).await;
        let mut outer = with_contexts(
            snapshot(1, vec![Arc::new(proxying("out", near))], &[("echo", &[far])]),
            &root,
        );
        let mut over_tls = Arc::into_inner(cluster("echo")).expect("unshared");
        over_tls.transport = UpstreamTransport::Tls(TlsKey::from("outbound"));
        outer.clusters.insert(Arc::from("echo"), Arc::new(over_tls));
        let _client = Proxy::start(outer).await;
        let mut tcp = TcpStream::connect(near).await.expect("connects");
        assert_eq!(ask(&mut tcp, "through the mesh").await, "THROUGH THE MESH");
        tcp.shutdown().await.expect("shuts down");
        assert_eq!(tcp.read(&mut [0; 8]).await.expect("the end comes back"), 0);
    });
}

#[test]
fn a_rotated_certificate_serves_new_connections_and_keeps_old_ones() {
    local(async {
        let (old, new) = (Authority::root("old"), Authority::root("new"));
        let (address, echo) = (free_address(), echo().await);
        let listeners = vec![Arc::new(inbound(address))];
        let base = |version| snapshot(version, listeners.clone(), &[("echo", &[echo])]);
        let mut proxy = Proxy::start(with_contexts(base(1), &old)).await;
        let before = dial(address, &client(&old)).await;
        assert_eq!(ask_tls(&before, "one").await.expect("asks"), "ONE");
        let report = proxy.apply(with_contexts(base(2), &new)).await;
        assert_eq!(report, WorkerReport::Applied { worker: 0, version: 2 });
        assert_eq!(ask_tls(&before, "two").await.expect("still there"), "TWO");
        let after = dial(address, &client(&new)).await;
        assert_eq!(ask_tls(&after, "three").await.expect("asks"), "THREE");
        let tcp = TcpStream::connect(address).await.expect("connects");
        client(&old)
            .connect(tcp, None, None)
            .await
            .expect_err("the old root no longer counts");
    });
}

#[test]
fn passthrough_by_server_name() {
    local(async {
        let root = Authority::root("root");
        let (front, far, echo) = (free_address(), free_address(), echo().await);
        let inner = snapshot(1, vec![Arc::new(inbound(far))], &[("echo", &[echo])]);
        let _server = Proxy::start(with_contexts(inner, &root)).await;
        // As an east-west gateway: the server name is the cluster's name, TLS passes through.
        let filters = vec![
            NetworkFilter::SniCluster,
            NetworkFilter::TcpProxy(Arc::new(tcp_proxy("BlackHole"))),
        ];
        let mut gateway = listener("eastwest", front, vec![chain(filters)]);
        gateway.listener_filters = vec![ListenerFilter::TlsInspector];
        let proxy = Proxy::start(snapshot(1, vec![Arc::new(gateway)], &[("redis.shop", &[far])])).await;
        let stream = dial(front, &client(&root)).await;
        assert_eq!(ask_tls(&stream, "hello").await.expect("asks"), "HELLO");
        assert_eq!(proxy.metric("envoy_tls_inspector_tls_found"), Some(1.0));
        // Without server name there is no cluster to go to.
        assert!(is_closed(&mut TcpStream::connect(front).await.expect("connects")).await);
    });
}

#[test]
fn silence_and_endless_hellos_are_bounded() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let mut quick = inbound(address);
        quick.listener_filters_timeout = Duration::from_millis(30);
        let proxy = Proxy::start(snapshot(1, vec![Arc::new(quick)], &[("echo", &[echo])])).await;
        let mut silent = TcpStream::connect(address).await.expect("connects");
        assert_eq!(silent.read(&mut [0; 8]).await.expect("closed"), 0);
        proxy.until("envoy_listener_downstream_pre_cx_timeout", 1.0).await;

        let mut endless = TcpStream::connect(address).await.expect("connects");
        let mut record = vec![22, 3, 1, 0x40, 0x00, 1, 0, 0xff, 0xff];
        record.resize(5 + 0x4000, 0);
        for _ in 0..8 {
            if endless.write_all(&record).await.is_err() {
                break;
            }
            record[5] = 0;
        }
        proxy.until("envoy_tls_inspector_client_hello_too_large", 1.0).await;
    });
}

#[test]
fn a_slow_handshake_is_cut_off() {
    local(async {
        let root = Authority::root("root");
        let (address, echo) = (free_address(), echo().await);
        let mut slow = inbound(address);
        slow.listener_filters.clear();
        slow.filter_chains[0].matches = FilterChainMatch::default();
        slow.filter_chains[0].handshake_timeout = Duration::from_millis(30);
        let base = snapshot(1, vec![Arc::new(slow)], &[("echo", &[echo])]);
        let settings = WorkerSettings {
            max_pending_handshakes: 1,
            ..WorkerSettings::default()
        };
        let proxy = Proxy::start_with(with_contexts(base, &root), settings).await;
        let mut one = TcpStream::connect(address).await.expect("connects");
        one.write_all(&[22, 3]).await.expect("writes");
        let mut two = TcpStream::connect(address).await.expect("connects");
        assert_eq!(two.read(&mut [0; 8]).await.unwrap_or(0), 0);
        assert_eq!(
            proxy.metric("envoy_listener_downstream_cx_pending_handshake_overflow"),
            Some(1.0)
        );
        assert_eq!(one.read(&mut [0; 8]).await.unwrap_or(0), 0);
        assert_eq!(
            proxy.metric("envoy_listener_downstream_cx_transport_socket_connect_timeout"),
            Some(1.0)
        );
    });
}

#[test]
fn hostile_bytes_hurt_nobody_else() {
    local(async {
        let root = Authority::root("root");
        let (address, echo) = (free_address(), echo().await);
        let base = snapshot(1, vec![Arc::new(inbound(address))], &[("echo", &[echo])]);
        let proxy = Proxy::start(with_contexts(base, &root)).await;
        let good = dial(address, &client(&root)).await;
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..300 {
            let mut bytes: Vec<u8> = (0..random.usize(1..700)).map(|_| random.u8(..)).collect();
            if round % 2 == 0 {
                // Looks like a handshake at first.
                let length = u16::try_from(bytes.len()).expect("short").to_be_bytes();
                bytes.splice(0..0, [22, 3, 1, length[0], length[1], 1, 0, length[0], length[1]]);
            }
            let mut tcp = TcpStream::connect(address).await.expect("connects");
            let _ = tcp.write_all(&bytes).await;
            let _ = tcp.shutdown().await;
            let _ = tcp.read_to_end(&mut Vec::new()).await;
        }
        assert_eq!(proxy.metric("envoy_listener_downstream_cx_panic"), Some(0.0));
        assert_eq!(ask_tls(&good, "still there").await.expect("asks"), "STILL THERE");
        drop(good);
        proxy.until("envoy_listener_downstream_cx_active", 0.0).await;
    });
}
