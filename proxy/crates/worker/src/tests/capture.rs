//! Redirected connections, in a network namespace of the test's own. Needs root, nft and unshare.

use std::process::Command;

use super::*;

/// Set in the process that runs inside the namespace.
const INSIDE: &str = "HEDDLE_TEST_INSIDE_NAMESPACE";

const RULES: &str = "
ip link set lo up
ip address add 10.96.0.10/32 dev lo
ip address add 10.96.0.11/32 dev lo
nft add table ip capture
nft 'add chain ip capture output { type nat hook output priority -100 ; }'
nft add rule ip capture output ip saddr 127.0.0.6 return
nft add rule ip capture output ip daddr 10.96.0.0/16 meta l4proto tcp redirect to :15001
";

/// Whether namespaces and nat rules can be made here; the reason when not.
fn probe() -> Result<(), String> {
    let run = |script: &str| Command::new("unshare").args(["-n", "sh", "-ec", script]).output();
    match run(RULES) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(e) => Err(format!("unshare: {e}")),
    }
}

/// Runs `test`, one of the functions below, again inside a namespace with the rules.
fn inside_namespace(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if let Err(reason) = probe() {
        // /proc/self belongs to our effective user.
        let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
        assert!(
            !root || reason.contains("not permitted") || reason.contains("not found"),
            "root, and yet: {reason}"
        );
        eprintln!("skipped: cannot capture traffic here: {reason}");
        return false;
    }
    let me = std::env::current_exe().expect("path of the test");
    let script = format!("{RULES}\nexec \"$0\" --exact tests::capture::{test} --nocapture");
    let output = Command::new("unshare")
        .args(["-n", "sh", "-ec", &script])
        .arg(me)
        .env(INSIDE, "1")
        .output()
        .expect("runs");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("address")
}

fn capture() -> Listener {
    let mut capture = listener(
        "virtualOutbound",
        at("127.0.0.1:15001"),
        vec![chain(vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy(
            "PassthroughCluster",
        )))])],
    );
    capture.use_original_dst = true;
    capture.listener_filters = vec![ListenerFilter::OriginalDst];
    capture
}

fn unbound(name: &str, address: SocketAddr, cluster: &str) -> Listener {
    let filters = vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy(cluster)))];
    Listener {
        bind: false,
        ..listener(name, address, vec![chain(filters)])
    }
}

/// A server that says its name.
async fn named(address: &str, name: &'static str) {
    let listener = TcpListener::bind(address).await.expect("binds");
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let _ = tcp.write_all(name.as_bytes()).await;
        }
    });
}

async fn who_answers(address: &str) -> String {
    let mut text = String::new();
    let mut tcp = TcpStream::connect(address).await.expect("connects");
    tcp.read_to_string(&mut text)
        .await
        .map_or_else(|e| e.to_string(), |_| text)
}

#[test]
fn redirected_connections_reach_the_listener_of_their_destination() {
    if !inside_namespace("redirected_connections_reach_the_listener_of_their_destination") {
        return;
    }
    local(async {
        named("127.0.0.1:7001", "exact").await;
        named("127.0.0.1:7002", "wildcard").await;
        named("10.96.0.11:81", "passthrough").await;
        let mut listeners = vec![Arc::new(capture())];
        listeners.push(Arc::new(unbound("10.96.0.10_80", at("10.96.0.10:80"), "exact")));
        listeners.push(Arc::new(unbound("0.0.0.0_80", at("0.0.0.0:80"), "wildcard")));
        let clusters: &[(&str, &[SocketAddr])] = &[
            ("exact", &[at("127.0.0.1:7001")]),
            ("wildcard", &[at("127.0.0.1:7002")]),
        ];
        let mut first = snapshot(1, listeners, clusters);
        let mut passthrough = Arc::into_inner(cluster("PassthroughCluster")).expect("unshared");
        passthrough.discovery = Discovery::OriginalDst;
        passthrough.lb_policy = LbPolicy::ClusterProvided;
        // The rules spare this source address; else the proxy would capture itself.
        passthrough.bind_source = Some(at("127.0.0.6:0").ip());
        first
            .clusters
            .insert(Arc::from("PassthroughCluster"), Arc::new(passthrough));
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
