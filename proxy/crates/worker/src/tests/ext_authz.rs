//! Connections that an authorization server is asked about.

use heddle_config::snapshot::{GrpcTarget, NetworkExtAuthz};

use super::*;

const ASKED: &str = "envoy_ext_authz_active";
const OPEN: &str = "envoy_listener_downstream_cx_active";
const PROXIED: &str = "envoy_tcp_downstream_cx_total";

/// A server that takes questions and never answers.
async fn silent() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("address");
    spawn_local(async move {
        let mut kept = Vec::new();
        while let Ok((tcp, _)) = listener.accept().await {
            kept.push(tcp);
        }
    });
    address
}

/// A proxy that asks a silent server, without a limit of time, and a client whose connection is asked about.
async fn asking() -> (Proxy, TcpStream) {
    let (address, echo, silent) = (free_address(), echo().await, silent().await);
    let authz = NetworkExtAuthz {
        stat_prefix: Arc::from("authz"),
        service: GrpcTarget {
            cluster: Arc::from("silent"),
            authority: Arc::from("silent"),
            timeout: Duration::ZERO,
            metadata: Vec::new(),
            retry: None,
        },
        failure_mode_allow: true,
        peer_certificate: false,
        tls_session: false,
        enabled_metadata: None,
        labels_key: None,
        metadata_namespaces: Vec::new(),
    };
    let filters = vec![
        NetworkFilter::ExtAuthz(Arc::new(authz)),
        NetworkFilter::TcpProxy(Arc::new(tcp_proxy("echo"))),
    ];
    let listeners = vec![Arc::new(listener("l", address, vec![chain(filters)]))];
    let clusters: &[(&str, &[SocketAddr])] = &[("echo", &[echo]), ("silent", &[silent])];
    let proxy = Proxy::start(snapshot(1, listeners, clusters)).await;
    let mut client = TcpStream::connect(address).await.expect("connects");
    client.write_all(b"hello").await.expect("writes");
    proxy.until(ASKED, 1.0).await;
    (proxy, client)
}

#[test]
fn a_client_that_resets_its_connection_ends_the_question() {
    local(async {
        let (proxy, client) = asking().await;
        assert_eq!(proxy.metric(PROXIED), Some(0.0), "nothing passes before the answer");
        client.set_zero_linger().expect("sets");
        drop(client);
        proxy.until(ASKED, 0.0).await;
        proxy.until(OPEN, 0.0).await;
        assert_eq!(proxy.metric(PROXIED), Some(0.0));
    });
}

#[test]
fn a_client_that_only_sends_no_more_waits_for_its_answer() {
    local(async {
        let (proxy, mut client) = asking().await;
        client.shutdown().await.expect("shuts down");
        let mut other = TcpStream::connect(client.peer_addr().expect("address"))
            .await
            .expect("connects");
        other.write_all(b"hello").await.expect("writes");
        proxy.until(ASKED, 2.0).await;
    });
}

#[test]
fn the_end_of_a_drain_ends_the_question() {
    local(async {
        let (proxy, mut client) = asking().await;
        proxy.phase.send_replace(Phase::STOPPING);
        assert!(matches!(client.read(&mut [0; 8]).await, Ok(0) | Err(_)));
    });
}
