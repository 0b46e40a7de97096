//! A peer that vanishes without a word, in a network namespace of the test's own where packets can be dropped.

use heddle_config::snapshot::{
    Action, EscapedSlashes, HeaderOps, Http2Options, HttpCodec, HttpConnectionManager, PathMatch, Route, RouteAction,
    RouteMatch, RouteSource, RouteTable, ServerHeader, UnderscoresAction, VirtualHost, XfccDetail, XfccMode,
};
use heddle_net::Keepalive;

use super::*;

const RULES: &str = "
ip link set lo up
nft add table inet link
nft 'add set inet link cut { type inet_service ; }'
nft 'add chain inet link output { type filter hook output priority 0 ; }'
nft add rule inet link output tcp dport @cut drop
nft add rule inet link output tcp sport @cut drop
";

/// Drops every packet to and from a port, or lets them through again.
fn link(port: u16, up: bool) {
    let action = if up { "delete" } else { "add" };
    let command = format!("{action} element inet link cut {{ {port} }}");
    let done = std::process::Command::new("nft")
        .arg(command)
        .status()
        .expect("nft runs");
    assert!(done.success());
}

/// Gives up after about two seconds.
fn quick() -> Option<Keepalive> {
    Some(Keepalive {
        time: Some(Duration::from_secs(1)),
        interval: Some(Duration::from_secs(1)),
        probes: Some(1),
    })
}

/// A proxy to the echo server whose cluster, or listener, has keep-alive.
async fn proxy(address: SocketAddr, echo: SocketAddr, cluster_has: bool, listener_has: bool) -> Proxy {
    let mut front = proxying("l", address);
    front.keepalive = quick().filter(|_| listener_has);
    let mut base = snapshot(1, vec![Arc::new(front)], &[("echo", &[echo])]);
    let mut config = Arc::into_inner(cluster("echo")).expect("unshared");
    config.keepalive = quick().filter(|_| cluster_has);
    base.clusters.insert(Arc::from("echo"), Arc::new(config));
    Proxy::start(base).await
}

#[test]
fn a_dead_upstream_is_noticed_at_rest_and_at_work() {
    if !namespace::inside("dead_link::a_dead_upstream_is_noticed_at_rest_and_at_work", RULES) {
        return;
    }
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let proxy = proxy(address, echo, true, false).await;
        let mut resting = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut resting, "one").await, "ONE");
        let mut working = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut working, "two").await, "TWO");
        link(echo.port(), false);
        working.write_all(b"is anybody there?").await.expect("writes");
        let begun = std::time::Instant::now();
        let (rest, work) = tokio::join!(resting.read_u8(), working.read_u8());
        rest.expect_err("closed");
        work.expect_err("closed");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        // The one at rest was ended by the kernel's probes, the other one by ours.
        assert_eq!(proxy.metric("heddle_cluster_upstream_cx_unresponsive"), Some(1.0));
        proxy.until("envoy_listener_downstream_cx_active", 0.0).await;
    });
}

/// A connection manager that sends everything to the cluster `echo`.
pub(super) fn http() -> NetworkFilter {
    let route = Route {
        name: "r".into(),
        matches: RouteMatch {
            path: PathMatch::Prefix("/".into()),
            case_sensitive: true,
            headers: vec![],
            query: vec![],
            metadata: Vec::new(),
            grpc: false,
            fraction: 1_000_000,
        },
        action: Action::Route(Box::new(RouteAction {
            cluster: ClusterChoice::Single("echo".into()),
            timeout: Duration::ZERO,
            idle_timeout: None,
            grpc_timeout_max: None,
            path_rewrite: None,
            host_rewrite: None,
            retry: None,
            not_found_status: 503,
            weighted_filters: vec![],
            rate_limits: vec![],
            include_host_rate_limits: false,
            mirrors: Arc::default(),
        })),
        request_headers: HeaderOps::default(),
        response_headers: HeaderOps::default(),
        filters: Arc::default(),
    };
    let host = VirtualHost {
        name: "v".into(),
        routes: vec![route].into(),
        require_tls: false,
        request_headers: HeaderOps::default(),
        response_headers: HeaderOps::default(),
        retry: None,
        include_attempt_count: false,
        rate_limits: vec![],
    };
    let table = RouteTable {
        virtual_hosts: vec![host],
        any: Some(0),
        ..RouteTable::default()
    };
    NetworkFilter::Http(Arc::new(HttpConnectionManager {
        stat_prefix: "test".into(),
        codec: HttpCodec::Auto,
        routes: RouteSource::Inline(Arc::new(table)),
        filters: vec![],
        access_logs: vec![],
        use_remote_address: false,
        xff_trusted_hops: 0,
        skip_xff_append: false,
        xfcc_mode: XfccMode::Sanitize,
        xfcc_detail: XfccDetail::default(),
        generate_request_id: true,
        preserve_request_id: false,
        server_header: ServerHeader::PassThrough,
        via: None,
        idle_timeout: Duration::from_secs(60),
        max_connection_duration: None,
        stream_idle_timeout: Duration::ZERO,
        request_timeout: Duration::ZERO,
        request_headers_timeout: Duration::ZERO,
        drain_timeout: Duration::from_secs(5),
        max_headers_bytes: 60 * 1024,
        max_headers_count: 100,
        http2: Http2Options {
            max_concurrent_streams: 100,
            stream_window: 1 << 20,
            connection_window: 1 << 20,
            ..Http2Options::default()
        },
        accept_http_10: false,
        normalize_path: true,
        merge_slashes: false,
        escaped_slashes: EscapedSlashes::Keep,
        underscores: UnderscoresAction::Allow,
        upgrades: vec![],
    }))
}

/// A request under way, without any timeout, and over either version of HTTP.
#[test]
fn a_request_to_a_dead_upstream_is_answered() {
    if !namespace::inside("dead_link::a_request_to_a_dead_upstream_is_answered", RULES) {
        return;
    }
    local(async {
        for version in [UpstreamHttp::Http1, UpstreamHttp::Http2] {
            // Takes requests and never answers.
            let silent = TcpListener::bind("127.0.0.1:0").await.expect("binds");
            let (address, upstream) = (free_address(), silent.local_addr().expect("address"));
            let mut base = snapshot(
                1,
                vec![Arc::new(listener("l", address, vec![chain(vec![http()])]))],
                &[("echo", &[upstream])],
            );
            let mut config = Arc::into_inner(cluster("echo")).expect("unshared");
            config.keepalive = quick();
            config.http = version;
            base.clusters.insert(Arc::from("echo"), Arc::new(config));
            let proxy = Proxy::start(base).await;
            let mut client = TcpStream::connect(address).await.expect("connects");
            let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
            client.write_all(request("/").as_bytes()).await.expect("writes");
            let (mut server, _) = silent.accept().await.expect("accepts");
            let mut head = [0; 16];
            server.read_exact(&mut head).await.expect("the request arrives");
            link(upstream.port(), false);
            // What is under way now gets no acknowledgement: HTTP/2 answers our SETTINGS late, HTTP/1.1 sends nothing
            // more, so only the kernel's probes can tell. Either way an answer comes.
            let begun = std::time::Instant::now();
            let mut answer = [0; 12];
            client.read_exact(&mut answer).await.expect("answers");
            assert_eq!(&answer, b"HTTP/1.1 503", "{version:?}");
            assert!(
                begun.elapsed() < Duration::from_secs(6),
                "{version:?}: {:?}",
                begun.elapsed()
            );
            // A request that is sent into the dead link, on a connection that was good before.
            proxy.until("envoy_cluster_upstream_cx_active", 0.0).await;
            link(upstream.port(), true);
        }
    });
}

#[test]
fn a_request_into_a_dead_link_is_answered() {
    if !namespace::inside("dead_link::a_request_into_a_dead_link_is_answered", RULES) {
        return;
    }
    local(async {
        let upstream = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let (address, to) = (free_address(), upstream.local_addr().expect("address"));
        spawn_local(async move {
            let (mut server, _) = upstream.accept().await.expect("accepts");
            let mut request = [0; 1024];
            while let Ok(1..) = server.read(&mut request).await {
                let _ = server.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            }
        });
        let front = listener("l", address, vec![chain(vec![http()])]);
        let mut base = snapshot(1, vec![Arc::new(front)], &[("echo", &[to])]);
        let mut config = Arc::into_inner(cluster("echo")).expect("unshared");
        config.keepalive = quick();
        base.clusters.insert(Arc::from("echo"), Arc::new(config));
        let proxy = Proxy::start(base).await;
        let mut client = TcpStream::connect(address).await.expect("connects");
        let mut ask = async || {
            client
                .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .await
                .expect("writes");
            let mut answer = vec![0; 4096];
            let n = client.read(&mut answer).await.expect("answers");
            String::from_utf8_lossy(&answer[..n.min(12)]).into_owned()
        };
        assert_eq!(ask().await, "HTTP/1.1 200");
        link(to.port(), false);
        let begun = std::time::Instant::now();
        assert_eq!(ask().await, "HTTP/1.1 503");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert_eq!(proxy.metric("heddle_cluster_upstream_cx_unresponsive"), Some(1.0));
    });
}

#[test]
fn a_slow_upstream_is_not_a_dead_one() {
    if !namespace::inside("dead_link::a_slow_upstream_is_not_a_dead_one", RULES) {
        return;
    }
    local(async {
        // Takes nothing for longer than the patience, then everything.
        let slow = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let (address, echo) = (free_address(), slow.local_addr().expect("address"));
        let proxy = proxy(address, echo, true, false).await;
        let mut client = TcpStream::connect(address).await.expect("connects");
        let (mut server, _) = slow.accept().await.expect("accepts");
        const MUCH: usize = 24 << 20;
        let send = async {
            client.write_all(&vec![b'x'; MUCH]).await.expect("writes");
            client.shutdown().await.expect("shuts down");
        };
        let receive = async {
            // Longer than the patience: that nothing happens shows only when time has passed.
            tokio::time::sleep(Duration::from_secs(4)).await;
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.expect("reads");
            all.len()
        };
        let ((), received) = tokio::join!(send, receive);
        assert_eq!(received, MUCH);
        assert_eq!(proxy.metric("heddle_cluster_upstream_cx_unresponsive"), Some(0.0));
    });
}

#[test]
fn a_dead_client_is_noticed() {
    if !namespace::inside("dead_link::a_dead_client_is_noticed", RULES) {
        return;
    }
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let proxy = proxy(address, echo, false, true).await;
        let mut client = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut client, "one").await, "ONE");
        link(address.port(), false);
        proxy.until("envoy_listener_downstream_cx_active", 0.0).await;
        proxy
            .until("envoy_cluster_upstream_cx_active{cluster_name=\"echo\"}", 0.0)
            .await;
    });
}

#[test]
fn a_cut_that_heals_in_time_costs_nothing() {
    if !namespace::inside("dead_link::a_cut_that_heals_in_time_costs_nothing", RULES) {
        return;
    }
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let _proxy = proxy(address, echo, true, true).await;
        let mut client = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut client, "one").await, "ONE");
        link(echo.port(), false);
        client.write_all(b"two").await.expect("writes");
        // Long enough for a few repetitions, shorter than the patience.
        tokio::time::sleep(Duration::from_millis(700)).await;
        link(echo.port(), true);
        let mut answer = [0; 3];
        client.read_exact(&mut answer).await.expect("answers");
        assert_eq!(&answer, b"TWO");
    });
}
