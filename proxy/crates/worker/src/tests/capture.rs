//! Redirected connections, in a network namespace of the test's own. Needs root, nft and unshare.

use super::*;

pub(super) const RULES: &str = "
ip link set lo up
ip address add 10.96.0.10/32 dev lo
ip address add 10.96.0.11/32 dev lo
nft add table ip capture
nft 'add chain ip capture output { type nat hook output priority -100 ; }'
nft add rule ip capture output ip saddr 127.0.0.6 return
nft add rule ip capture output ip daddr 10.96.0.0/16 meta l4proto tcp redirect to :15001
";

pub(super) fn at(text: &str) -> SocketAddr {
    text.parse().expect("address")
}

pub(super) fn capture(address: &str) -> Listener {
    let mut capture = listener(
        "virtualOutbound",
        at(address),
        vec![chain(vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy(
            "PassthroughCluster",
        )))])],
    );
    capture.use_original_dst = true;
    capture.listener_filters = vec![ListenerFilter::OriginalDst];
    capture
}

pub(super) fn unbound(name: &str, address: SocketAddr, cluster: &str) -> Listener {
    let filters = vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy(cluster)))];
    Listener {
        bind: false,
        ..listener(name, address, vec![chain(filters)])
    }
}

/// Adds a passthrough cluster. The rules spare this source address; else the proxy would capture itself.
pub(super) fn add_passthrough(to: &mut Snapshot, source: &str) {
    let mut passthrough = Arc::into_inner(cluster("PassthroughCluster")).expect("unshared");
    passthrough.discovery = Discovery::OriginalDst;
    passthrough.lb_policy = LbPolicy::ClusterProvided;
    passthrough.bind_source = Some(source.parse().expect("address"));
    to.clusters
        .insert(Arc::from("PassthroughCluster"), Arc::new(passthrough));
}

/// A server that says its name.
pub(super) async fn named(address: &str, name: &'static str) {
    let listener = TcpListener::bind(address).await.expect("binds");
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let _ = tcp.write_all(name.as_bytes()).await;
        }
    });
}

pub(super) async fn who_answers(address: &str) -> String {
    let mut text = String::new();
    let mut tcp = TcpStream::connect(address).await.expect("connects");
    tcp.read_to_string(&mut text)
        .await
        .map_or_else(|e| e.to_string(), |_| text)
}

#[test]
fn redirected_connections_reach_the_listener_of_their_destination() {
    if !namespace::inside(
        "capture::redirected_connections_reach_the_listener_of_their_destination",
        RULES,
    ) {
        return;
    }
    local(async {
        named("127.0.0.1:7001", "exact").await;
        named("127.0.0.1:7002", "wildcard").await;
        named("10.96.0.11:81", "passthrough").await;
        let mut listeners = vec![Arc::new(capture("127.0.0.1:15001"))];
        listeners.push(Arc::new(unbound("10.96.0.10_80", at("10.96.0.10:80"), "exact")));
        listeners.push(Arc::new(unbound("0.0.0.0_80", at("0.0.0.0:80"), "wildcard")));
        let clusters: &[(&str, &[SocketAddr])] = &[
            ("exact", &[at("127.0.0.1:7001")]),
            ("wildcard", &[at("127.0.0.1:7002")]),
        ];
        let mut first = snapshot(1, listeners, clusters);
        add_passthrough(&mut first, "127.0.0.6");
        let proxy = Proxy::start(first).await;
        assert_eq!(who_answers("10.96.0.10:80").await, "exact");
        assert_eq!(who_answers("10.96.0.11:80").await, "wildcard");
        assert_eq!(
            proxy.metric("envoy_cluster_upstream_cx_total{cluster_name=\"exact\"}"),
            Some(1.0)
        );
        // No listener for this one: passthrough to where the client meant to go.
        assert_eq!(who_answers("10.96.0.11:81").await, "passthrough");
        // Dialled without a redirect: passing it on would come back here.
        let mut direct = TcpStream::connect("127.0.0.1:15001").await.expect("connects");
        assert!(is_closed(&mut direct).await);
        proxy
            .until(
                "envoy_listener_original_dst_loop{listener_address=\"127.0.0.1_15001\"}",
                1.0,
            )
            .await;
    });
}

const RULES_V6: &str = "
ip link set lo up
ip -6 address add fd00:10:96::10/128 dev lo nodad
ip -6 address add fd00:10:96::11/128 dev lo nodad
ip -6 address add ::6/128 dev lo nodad
nft add table ip6 capture
nft 'add chain ip6 capture output { type nat hook output priority -100 ; }'
nft add rule ip6 capture output ip6 saddr ::6 return
nft add rule ip6 capture output ip6 daddr fd00:10:96::/112 tcp dport 15006 return
nft add rule ip6 capture output ip6 daddr fd00:10:96::11 tcp dport 8080 redirect to :15006
nft add rule ip6 capture output ip6 daddr fd00:10:96::/112 meta l4proto tcp redirect to :15001
";

/// The same as over IPv4, and inbound capture with the source address by which the application's side is told apart.
#[test]
fn redirected_ipv6_connections_too() {
    if !namespace::inside("capture::redirected_ipv6_connections_too", RULES_V6) {
        return;
    }
    local(async {
        named("[::1]:7001", "exact").await;
        named("[::1]:7002", "wildcard").await;
        named("[fd00:10:96::11]:81", "passthrough").await;
        let application = TcpListener::bind("[fd00:10:96::11]:8080").await.expect("binds");
        spawn_local(async move {
            while let Ok((mut tcp, peer)) = application.accept().await {
                let _ = tcp.write_all(format!("application for {}", peer.ip()).as_bytes()).await;
            }
        });
        let mut inbound = capture("[::]:15006");
        inbound.name = "virtualInbound".into();
        inbound.use_original_dst = false;
        inbound.direction = TrafficDirection::Inbound;
        inbound.filter_chains[0].matches.destination = vec![heddle_config::snapshot::Cidr {
            address: "fd00:10:96::".parse().expect("address"),
            prefix: 112,
        }];
        let listeners = vec![
            Arc::new(capture("[::1]:15001")),
            Arc::new(inbound),
            Arc::new(unbound("[fd00:10:96::10]_80", at("[fd00:10:96::10]:80"), "exact")),
            Arc::new(unbound("[::]_80", at("[::]:80"), "wildcard")),
            // Another family's wildcard must not take IPv6 connections.
            Arc::new(unbound("0.0.0.0_81", at("0.0.0.0:81"), "wildcard")),
        ];
        let clusters: &[(&str, &[SocketAddr])] = &[("exact", &[at("[::1]:7001")]), ("wildcard", &[at("[::1]:7002")])];
        let mut first = snapshot(1, listeners, clusters);
        add_passthrough(&mut first, "::6");
        let proxy = Proxy::start(first).await;
        assert_eq!(who_answers("[fd00:10:96::10]:80").await, "exact");
        assert_eq!(who_answers("[fd00:10:96::11]:80").await, "wildcard");
        assert_eq!(who_answers("[fd00:10:96::11]:81").await, "passthrough");
        assert_eq!(who_answers("[fd00:10:96::11]:8080").await, "application for ::6");
        let mut direct = TcpStream::connect("[::1]:15001").await.expect("connects");
        assert!(is_closed(&mut direct).await);
        proxy
            .until(
                "envoy_listener_original_dst_loop{listener_address=\"[__1]_15001\"}",
                1.0,
            )
            .await;
    });
}

/// `ipv4_compat` on the wildcard becomes a socket of each family: connections of both are restored and known by their
/// own addresses.
#[test]
fn one_listener_captures_both_families() {
    let rules = format!(
        "{RULES}\nip address add ::6/128 dev lo\nip -6 address add fd00:10:96::11/128 dev lo\n{}",
        "
nft add table ip6 capture
nft 'add chain ip6 capture output { type nat hook output priority -100 ; }'
nft add rule ip6 capture output ip6 daddr fd00:10:96::/112 meta l4proto tcp redirect to :15001
"
    );
    if !namespace::inside("capture::one_listener_captures_both_families", &rules) {
        return;
    }
    local(async {
        named("127.0.0.1:7001", "four").await;
        named("[::1]:7001", "six").await;
        let mut both = capture("[::]:15001");
        both.addresses.push(at("0.0.0.0:15001"));
        let listeners = vec![
            Arc::new(both),
            Arc::new(unbound("v4", at("0.0.0.0:80"), "four")),
            Arc::new(unbound("v6", at("[::]:80"), "six")),
        ];
        let clusters: &[(&str, &[SocketAddr])] = &[("four", &[at("127.0.0.1:7001")]), ("six", &[at("[::1]:7001")])];
        let _proxy = Proxy::start(snapshot(1, listeners, clusters)).await;
        assert_eq!(who_answers("10.96.0.11:80").await, "four");
        assert_eq!(who_answers("[fd00:10:96::11]:80").await, "six");
    });
}
