use heddle_matching::rbac;

use super::*;

#[test]
fn bytes_go_both_ways_and_are_counted() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let mut filters = vec![NetworkFilter::IstioStats];
        filters.push(NetworkFilter::TcpProxy(Arc::new(tcp_proxy("echo"))));
        let listener = listener("l", address, vec![chain(filters)]);
        let proxy = Proxy::start(snapshot(1, vec![Arc::new(listener)], &[("echo", &[echo])])).await;
        let mut tcp = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut tcp, "hello").await, "HELLO");
        proxy.until("envoy_listener_downstream_cx_active", 1.0).await;
        // Half-close: the echo server answers the end with its own.
        tcp.shutdown().await.expect("shuts down");
        assert_eq!(tcp.read(&mut [0; 8]).await.expect("end"), 0);
        proxy.until("envoy_listener_downstream_cx_active", 0.0).await;
        for (name, value) in [
            ("envoy_listener_downstream_cx_total", 1.0),
            ("envoy_tcp_downstream_cx_rx_bytes_total", 5.0),
            ("envoy_tcp_downstream_cx_tx_bytes_total", 5.0),
            ("envoy_cluster_upstream_cx_total{", 1.0),
            ("istio_tcp_connections_opened_total", 1.0),
            ("istio_tcp_connections_closed_total", 1.0),
            ("istio_tcp_received_bytes_total", 5.0),
        ] {
            assert_eq!(proxy.metric(name), Some(value), "{name}");
        }
    });
}

#[test]
fn a_large_transfer_survives() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let _proxy = Proxy::start(snapshot(
            1,
            vec![Arc::new(proxying("l", address))],
            &[("echo", &[echo])],
        ))
        .await;
        let tcp = TcpStream::connect(address).await.expect("connects");
        let (mut read, mut write) = tcp.into_split();
        let payload = vec![b'a'; 5_000_000];
        let send = async {
            write.write_all(&payload).await.expect("writes");
            write.shutdown().await.expect("shuts down");
        };
        let mut got = Vec::new();
        let receive = read.read_to_end(&mut got);
        let ((), received) = tokio::join!(send, receive);
        assert_eq!(received.expect("reads"), 5_000_000);
        assert!(got.iter().all(|b| *b == b'A'));
    });
}

#[test]
fn a_dead_endpoint_is_retried_elsewhere() {
    local(async {
        let (address, echo, dead) = (free_address(), echo().await, free_address());
        let mut tcp_proxy = tcp_proxy("echo");
        tcp_proxy.max_connect_attempts = 3;
        let listener = listener(
            "l",
            address,
            vec![chain(vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy))])],
        );
        let proxy = Proxy::start(snapshot(1, vec![Arc::new(listener)], &[("echo", &[dead, echo])])).await;
        for _ in 0..6 {
            let mut tcp = TcpStream::connect(address).await.expect("connects");
            assert_eq!(ask(&mut tcp, "hello").await, "HELLO");
        }
        assert!(
            proxy
                .metric("envoy_cluster_upstream_cx_connect_fail")
                .is_some_and(|n| n >= 1.0)
        );
    });
}

#[test]
fn without_an_upstream_the_connection_is_closed() {
    local(async {
        let (a, b) = (free_address(), free_address());
        let nowhere = listener(
            "nowhere",
            b,
            vec![chain(vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy("gone")))])],
        );
        let clusters: &[(&str, &[SocketAddr])] = &[("echo", &[])];
        let proxy = Proxy::start(snapshot(
            1,
            vec![Arc::new(proxying("l", a)), Arc::new(nowhere)],
            clusters,
        ))
        .await;
        assert!(is_closed(&mut TcpStream::connect(a).await.expect("connects")).await);
        assert!(is_closed(&mut TcpStream::connect(b).await.expect("connects")).await);
        assert_eq!(proxy.metric("envoy_tcp_downstream_cx_no_route"), Some(1.0));
    });
}

#[test]
fn idle_connections_are_closed() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let mut tcp_proxy = tcp_proxy("echo");
        tcp_proxy.idle_timeout = Duration::from_millis(30);
        let listener = listener(
            "l",
            address,
            vec![chain(vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy))])],
        );
        let proxy = Proxy::start(snapshot(1, vec![Arc::new(listener)], &[("echo", &[echo])])).await;
        let mut tcp = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut tcp, "hello").await, "HELLO");
        assert_eq!(tcp.read(&mut [0; 8]).await.expect("closed"), 0);
        proxy.until("envoy_tcp_idle_timeout", 1.0).await;
    });
}

#[test]
fn rbac_closes_what_it_refuses() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let deny = rbac::Rules::new(
            rbac::Action::Deny,
            vec![rbac::Policy {
                name: Arc::from("nobody"),
                permissions: vec![rbac::Permission::Any].into(),
                principals: vec![rbac::Principal::Any].into(),
            }],
        );
        let policies = rbac::Policies {
            rules: Some(deny),
            stat_prefix: Arc::from("tcp."),
            ..Default::default()
        };
        let filters = vec![
            NetworkFilter::Rbac(Arc::new(policies)),
            NetworkFilter::TcpProxy(Arc::new(tcp_proxy("echo"))),
        ];
        let listener = listener("l", address, vec![chain(filters)]);
        let proxy = Proxy::start(snapshot(1, vec![Arc::new(listener)], &[("echo", &[echo])])).await;
        assert!(is_closed(&mut TcpStream::connect(address).await.expect("connects")).await);
        assert_eq!(proxy.metric("envoy_rbac_denied"), Some(1.0));
        assert_eq!(proxy.metric("envoy_tcp_downstream_cx_total"), Some(0.0));
    });
}

#[test]
fn limits_refuse_and_count() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let mut one = proxying("l", address);
        one.max_connections = Some(1);
        let proxy = Proxy::start(snapshot(1, vec![Arc::new(one)], &[("echo", &[echo])])).await;
        let mut first = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut first, "one").await, "ONE");
        assert!(is_closed(&mut TcpStream::connect(address).await.expect("connects")).await);
        assert_eq!(proxy.metric("envoy_listener_downstream_cx_overflow"), Some(1.0));
        drop(first);
        proxy.until("envoy_listener_downstream_cx_active", 0.0).await;
        let mut third = TcpStream::connect(address).await.expect("connects");
        assert_eq!(ask(&mut third, "three").await, "THREE");
    });
}

#[test]
fn the_limit_over_all_listeners() {
    local(async {
        let (address, other, exempt) = (free_address(), free_address(), free_address());
        let echo = echo().await;
        let settings = WorkerSettings {
            max_connections: 1,
            ..WorkerSettings::default()
        };
        let mut ignores = proxying("exempt", exempt);
        ignores.ignore_global_connection_limit = true;
        let listeners = vec![
            Arc::new(proxying("one", address)),
            Arc::new(proxying("other", other)),
            Arc::new(ignores),
        ];
        let proxy = Proxy::start_with(snapshot(1, listeners, &[("echo", &[echo])]), settings).await;
        let connect = |to| async move { TcpStream::connect(to).await.expect("connects") };
        // Does not count, and is not held back.
        let mut free = connect(exempt).await;
        assert_eq!(ask(&mut free, "free").await, "FREE");
        let mut first = connect(address).await;
        assert_eq!(ask(&mut first, "one").await, "ONE");
        assert!(is_closed(&mut connect(address).await).await);
        assert!(is_closed(&mut connect(other).await).await);
        let label = other.to_string().replace(':', "_");
        let overflow = format!("envoy_listener_downstream_global_cx_overflow{{listener_address=\"{label}\"}}");
        assert_eq!(proxy.metric(&overflow), Some(1.0));
        let mut freer = connect(exempt).await;
        assert_eq!(ask(&mut freer, "too").await, "TOO");
        // A place that is given back is there for any listener.
        drop(first);
        let label = address.to_string().replace(':', "_");
        let active = format!("envoy_listener_downstream_cx_active{{listener_address=\"{label}\"}}");
        proxy.until(&active, 0.0).await;
        let mut second = connect(other).await;
        assert_eq!(ask(&mut second, "two").await, "TWO");
    });
}

#[test]
fn direct_dials_to_a_capture_listener_are_refused() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let mut capture = proxying("virtualOutbound", address);
        capture.use_original_dst = true;
        capture.listener_filters = vec![ListenerFilter::OriginalDst];
        let proxy = Proxy::start(snapshot(1, vec![Arc::new(capture)], &[("echo", &[echo])])).await;
        assert!(is_closed(&mut TcpStream::connect(address).await.expect("connects")).await);
        assert_eq!(proxy.metric("envoy_listener_original_dst_loop"), Some(1.0));
    });
}

#[test]
fn no_chain_no_service() {
    local(async {
        let (address, echo) = (free_address(), echo().await);
        let mut strict = proxying("l", address);
        strict.filter_chains[0].matches.destination_port = Some(1);
        let proxy = Proxy::start(snapshot(1, vec![Arc::new(strict)], &[("echo", &[echo])])).await;
        assert!(is_closed(&mut TcpStream::connect(address).await.expect("connects")).await);
        assert_eq!(proxy.metric("envoy_listener_no_filter_chain_match"), Some(1.0));
    });
}

/// Without a redirect there is no original destination: the listener's own address would lead here again.
#[test]
fn an_original_destination_that_is_none_is_refused() {
    local(async {
        let (a, b) = (free_address(), free_address());
        let listeners = vec![
            Arc::new(proxying("tcp", a)),
            Arc::new(listener("http", b, vec![chain(vec![super::dead_link::http()])])),
        ];
        let mut base = snapshot(1, listeners, &[("echo", &[])]);
        let mut config = Arc::into_inner(cluster("echo")).expect("unshared");
        config.discovery = Discovery::OriginalDst;
        base.clusters.insert(Arc::from("echo"), Arc::new(config));
        let proxy = Proxy::start(base).await;
        assert!(is_closed(&mut TcpStream::connect(a).await.expect("connects")).await);
        let mut tcp = TcpStream::connect(b).await.expect("connects");
        tcp.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await
            .expect("writes");
        let mut answer = String::new();
        tcp.read_to_string(&mut answer).await.expect("reads");
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.ends_with("no healthy upstream"), "{answer}");
        assert_eq!(proxy.metric("envoy_cluster_upstream_cx_total{").unwrap_or(0.0), 0.0);
    });
}
