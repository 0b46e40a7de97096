mod failover;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use heddle_config::snapshot::{
    CircuitBreakers, Cluster, Discovery, Dns, Endpoint, EndpointHealth, Http2Options, LbPolicy, LocalityEndpoints,
    OutlierDetection, TransportSocketMatch, UpstreamHttp, UpstreamTransport,
};
use heddle_telemetry::prometheus::Gathered;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::*;
use crate::{ConnectErrorKind, ConnectOptions, Limit, Outcome, PickContext, PickError};

thread_local! {
    static DRAINED: RefCell<Vec<SocketAddr>> = const { RefCell::new(Vec::new()) };
}

fn on_drain(host: &Rc<Host<()>>) {
    DRAINED.with_borrow_mut(|all| all.push(host.address()));
}

fn drained() -> Vec<SocketAddr> {
    let mut all = DRAINED.take();
    all.sort();
    all
}

pub(crate) fn cluster(name: &str) -> Cluster {
    Cluster {
        name: name.into(),
        stat_name: name.into(),
        discovery: Discovery::Eds(name.into()),
        lb_policy: LbPolicy::RoundRobin,
        connect_timeout: Duration::from_secs(1),
        transport: UpstreamTransport::Plain,
        transport_matches: Vec::new(),
        http: UpstreamHttp::Http1,
        idle_timeout: Duration::from_secs(3600),
        max_requests_per_connection: None,
        http2: Http2Options::default(),
        circuit_breakers: CircuitBreakers {
            max_connections: 2,
            max_pending_requests: 1,
            max_requests: 2,
            max_retries: 1,
        },
        outlier_detection: None,
        health_checks: Vec::new(),
        panic_threshold: 50.0,
        locality_weighted: false,
        keepalive: None,
        dns: Dns::default(),
        bind_source: None,
        buffer_limit: 1 << 20,
        service: None,
    }
}

pub(crate) fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint {
        address,
        hostname: None,
        weight: 1,
        health: EndpointHealth::Healthy,
        transport_labels: Vec::new(),
        workload: None,
    }
}

pub(crate) fn addr(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 80))
}

pub(crate) fn locality(endpoints: Vec<Endpoint>) -> Arc<Vec<LocalityEndpoints>> {
    Arc::new(vec![LocalityEndpoints {
        locality: Default::default(),
        priority: 0,
        weight: 1,
        endpoints,
    }])
}

pub(crate) fn snapshot(clusters: Vec<(Arc<Cluster>, Arc<Vec<LocalityEndpoints>>)>) -> Arc<Snapshot> {
    let mut snapshot = Snapshot::default();
    for (cluster, endpoints) in clusters {
        snapshot.endpoints.insert(Arc::clone(&cluster.name), endpoints);
        snapshot.clusters.insert(Arc::clone(&cluster.name), cluster);
    }
    Arc::new(snapshot)
}

fn manager() -> ClusterManager<()> {
    ClusterManager::new(Upstreams::new(), Stats::new(), on_drain, 1)
}

fn addresses(handle: &ClusterHandle<()>) -> HashSet<SocketAddr> {
    handle.hosts().iter().map(|h| h.address()).collect()
}

#[test]
fn hosts_stay_while_their_address_and_transport_do() {
    let manager = manager();
    let config = Arc::new(cluster("a"));
    manager.update(&snapshot(vec![(
        Arc::clone(&config),
        locality(vec![endpoint(addr(1)), endpoint(addr(2))]),
    )]));
    let handle = manager.get("a").expect("cluster");
    let kept = handle
        .hosts()
        .into_iter()
        .find(|h| h.address() == addr(1))
        .expect("host");
    let mut changed = endpoint(addr(1));
    changed.weight = 7;
    changed.workload = Some("w;n;c;r;k".into());
    manager.update(&snapshot(vec![(
        Arc::clone(&config),
        locality(vec![changed, endpoint(addr(3))]),
    )]));
    let after = manager.get("a").expect("cluster");
    assert!(Rc::ptr_eq(&handle, &after));
    assert_eq!(addresses(&after), HashSet::from([addr(1), addr(3)]));
    assert!(after.hosts().iter().any(|h| Rc::ptr_eq(h, &kept)));
    assert_eq!(kept.workload().as_deref(), Some("w;n;c;r;k"));
    assert!(!kept.is_draining());
    assert_eq!(drained(), [addr(2)]);
    // Another transport is another host.
    let mut tls = cluster("a");
    tls.transport = UpstreamTransport::Tls("ctx".into());
    manager.update(&snapshot(vec![(Arc::new(tls), locality(vec![endpoint(addr(1))]))]));
    assert!(kept.is_draining());
    assert_eq!(drained(), [addr(1), addr(3)]);
    // The cluster goes.
    manager.update(&snapshot(vec![]));
    assert!(manager.get("a").is_none());
    assert_eq!(drained(), [addr(1)]);
    assert_eq!(
        handle.pick(&PickContext::default()).err(),
        Some(PickError::NoHealthyHost)
    );
}

#[test]
fn labels_choose_the_transport() {
    let mut config = cluster("a");
    config.transport_matches = vec![
        TransportSocketMatch {
            name: "tls".into(),
            labels: vec![("tlsMode".into(), "istio".into())],
            transport: UpstreamTransport::Tls("mesh".into()),
        },
        TransportSocketMatch {
            name: "plain".into(),
            labels: vec![],
            transport: UpstreamTransport::Plain,
        },
    ];
    let mut labelled = endpoint(addr(1));
    labelled.transport_labels = vec![("x".into(), "y".into()), ("tlsMode".into(), "istio".into())];
    let manager = manager();
    manager.update(&snapshot(vec![(
        Arc::new(config),
        locality(vec![labelled, endpoint(addr(2))]),
    )]));
    for host in manager.get("a").expect("cluster").hosts() {
        assert_eq!(host.is_tls(), host.address() == addr(1));
    }
}

#[test]
fn metrics_go_with_their_cluster() {
    let stats = Stats::new();
    let manager: ClusterManager<()> = ClusterManager::new(Upstreams::new(), stats.clone(), on_drain, 1);
    manager.update(&snapshot(vec![(
        Arc::new(cluster("a")),
        locality(vec![endpoint(addr(1))]),
    )]));
    let text = || Gathered::read(&[stats.reader()], |_| true).prometheus(false);
    manager.get("a").expect("cluster").stats().answered(503);
    assert!(text().contains("envoy_cluster_upstream_rq_xx{response_code_class=\"5\",cluster_name=\"a\"} 1\n"));
    manager.update(&snapshot(vec![]));
    assert_eq!(text(), "");
}

#[test]
fn retries_avoid_hosts_already_tried() {
    let manager = manager();
    let hosts = locality(vec![endpoint(addr(1)), endpoint(addr(2))]);
    manager.update(&snapshot(vec![(Arc::new(cluster("a")), hosts)]));
    let handle = manager.get("a").expect("cluster");
    for _ in 0..10 {
        let tried = [addr(1)];
        let wanted = PickContext {
            tried: &tried,
            max_attempts: 3,
            ..PickContext::default()
        };
        assert_eq!(handle.pick(&wanted).expect("host").address(), addr(2));
    }
    // When all were tried, one is used again.
    let tried = [addr(1), addr(2)];
    assert!(
        handle
            .pick(&PickContext {
                tried: &tried,
                max_attempts: 3,
                ..PickContext::default()
            })
            .is_ok()
    );
}

#[test]
fn circuit_breakers_hold_over_workers() {
    let upstreams = Upstreams::new();
    let config = Arc::new(cluster("a"));
    let snapshot = snapshot(vec![(config, locality(vec![endpoint(addr(1))]))]);
    let workers: Vec<ClusterManager<()>> = (0..2)
        .map(|seed| ClusterManager::new(upstreams.clone(), Stats::new(), on_drain, seed))
        .collect();
    for worker in &workers {
        worker.update(&snapshot);
    }
    let handles: Vec<_> = workers.iter().map(|w| w.get("a").expect("cluster")).collect();
    let hosts: Vec<_> = handles
        .iter()
        .map(|h| h.pick(&PickContext::default()).expect("host"))
        .collect();
    let first = hosts[0].begin_request(Instant::now()).expect("first");
    let second = hosts[1].begin_request(Instant::now()).expect("second");
    assert_eq!(
        hosts[0].begin_request(Instant::now()).err().map(|e| e.0),
        Some(Limit::Requests)
    );
    assert_eq!(handles[0].stats().upstream_rq_pending_overflow.get(), 1);
    assert_eq!((hosts[0].active(), hosts[1].active()), (1, 1));
    drop(second);
    let third = hosts[0].begin_request(Instant::now()).expect("third");
    drop((first, third));
    assert_eq!(hosts[0].active(), 0);
    let pending = handles[0].begin_pending().expect("pending");
    assert_eq!(handles[1].begin_pending().err().map(|e| e.0), Some(Limit::Pending));
    drop(pending);
    let _retry = handles[1].begin_retry().expect("retry");
    assert_eq!(handles[0].begin_retry().err().map(|e| e.0), Some(Limit::Retries));
    let status = upstreams.status();
    assert_eq!((status[0].hosts[0].rq_total, status[0].hosts[0].rq_active), (3, 0));
    assert_eq!(status[0].hosts[0].health_flags(), "healthy");
}

fn detection() -> OutlierDetection {
    OutlierDetection {
        consecutive_5xx: 3,
        consecutive_gateway_failure: 0,
        consecutive_local_origin_failure: 0,
        interval: Duration::from_secs(10),
        base_ejection_time: Duration::from_secs(30),
        max_ejection_time: Duration::from_secs(50),
        max_ejection_percent: 10,
        always_eject_one: true,
    }
}

#[tokio::test(start_paused = true)]
async fn outliers_are_ejected_everywhere_and_come_back() {
    let upstreams = Upstreams::new();
    let mut config = cluster("a");
    config.outlier_detection = Some(detection());
    let snapshot = snapshot(vec![(
        Arc::new(config),
        locality((1..=4).map(|n| endpoint(addr(n))).collect()),
    )]);
    let workers: Vec<ClusterManager<()>> = (0..2)
        .map(|seed| ClusterManager::new(upstreams.clone(), Stats::new(), on_drain, seed))
        .collect();
    for worker in &workers {
        worker.update(&snapshot);
    }
    let handles: Vec<_> = workers.iter().map(|w| w.get("a").expect("cluster")).collect();
    let find = |n: u8| {
        handles[0]
            .hosts()
            .into_iter()
            .find(|h| h.address() == addr(n))
            .expect("host")
    };
    let picked = |handle: &ClusterHandle<()>| -> HashSet<SocketAddr> {
        (0..40)
            .map(|_| handle.pick(&PickContext::default()).expect("host").address())
            .collect()
    };
    let shared = upstreams.cluster(&"a".into());
    shared.members.store(4, std::sync::atomic::Ordering::Relaxed);
    let bad = find(1);
    bad.report(Outcome::Status(500));
    bad.report(Outcome::Status(200));
    for _ in 0..2 {
        bad.report(Outcome::Status(500));
    }
    assert_eq!(
        picked(&handles[1]).len(),
        4,
        "a success in between starts the count anew"
    );
    bad.report(Outcome::ConnectFailed);
    for handle in &handles {
        assert!(!picked(handle).contains(&addr(1)));
    }
    // 10 % of four hosts is less than one, but one may always go; a second may not.
    for _ in 0..3 {
        find(2).report(Outcome::Reset);
    }
    assert!(picked(&handles[0]).contains(&addr(2)));
    assert_eq!(upstreams.status()[0].hosts[0].health_flags(), "/failed_outlier_check");
    let settings = detection();
    let sweep_after = |seconds: u64| {
        let (upstreams, shared) = (upstreams.clone(), Arc::clone(&shared));
        async move {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            crate::outlier::sweep(&settings, &shared, upstreams.now_ms());
        }
    };
    sweep_after(29).await;
    assert!(!picked(&handles[1]).contains(&addr(1)));
    sweep_after(1).await;
    assert!(picked(&handles[1]).contains(&addr(1)));
    // The second time lasts twice as long, but no longer than the maximum.
    for _ in 0..3 {
        bad.report(Outcome::RequestTimeout);
    }
    sweep_after(49).await;
    assert!(!picked(&handles[1]).contains(&addr(1)));
    sweep_after(1).await;
    assert!(picked(&handles[1]).contains(&addr(1)));
}

#[test]
fn local_faults_can_be_counted_apart() {
    let mut config = cluster("a");
    config.outlier_detection = Some(OutlierDetection {
        consecutive_local_origin_failure: 2,
        ..detection()
    });
    let manager = manager();
    manager.update(&snapshot(vec![(Arc::new(config), locality(vec![endpoint(addr(1))]))]));
    let handle = manager.get("a").expect("cluster");
    let host = handle.pick(&PickContext::default()).expect("host");
    for outcome in [
        Outcome::Status(500),
        Outcome::Status(500),
        Outcome::ConnectFailed,
        Outcome::Connected,
    ] {
        host.report(outcome);
    }
    host.report(Outcome::Reset);
    assert_eq!(manager.upstreams.status()[0].hosts[0].health_flags(), "healthy");
    host.report(Outcome::ConnectTimeout);
    assert_eq!(
        manager.upstreams.status()[0].hosts[0].health_flags(),
        "/failed_outlier_check"
    );
}

#[tokio::test(start_paused = true)]
async fn original_destinations_come_and_go() {
    let mut config = cluster("passthrough");
    config.discovery = Discovery::OriginalDst;
    config.lb_policy = LbPolicy::ClusterProvided;
    config.circuit_breakers.max_requests = u32::MAX;
    let manager = manager();
    manager.update(&snapshot(vec![(Arc::new(config), Arc::default())]));
    let handle = manager.get("passthrough").expect("cluster");
    assert_eq!(
        handle.pick(&PickContext::default()).err(),
        Some(PickError::NoOriginalDst)
    );
    let to = |n: u8| PickContext {
        original_dst: Some(addr(n)),
        ..PickContext::default()
    };
    let one = handle.pick(&to(1)).expect("host");
    assert!(Rc::ptr_eq(&one, &handle.pick(&to(1)).expect("host")));
    let busy = handle.pick(&to(2)).expect("host");
    let request = busy.begin_request(Instant::now()).expect("request");
    tokio::time::advance(Duration::from_secs(6)).await;
    manager.maintain();
    assert_eq!(drained(), [addr(1)]);
    assert!(Rc::ptr_eq(&busy, &handle.pick(&to(2)).expect("host")));
    drop(request);
    tokio::time::advance(Duration::from_secs(6)).await;
    manager.maintain();
    assert_eq!(drained(), [addr(2)]);
}

#[tokio::test]
async fn connecting() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let open = listener.local_addr().expect("address");
    let closed = {
        let gone = TcpListener::bind("127.0.0.1:0").await.expect("listen");
        gone.local_addr().expect("address")
    };
    let mut config = cluster("a");
    config.bind_source = Some([127, 0, 0, 6].into());
    let mut secret = cluster("tls");
    secret.transport = UpstreamTransport::Tls("missing".into());
    let manager = manager();
    manager.update(&snapshot(vec![
        (Arc::new(config), locality(vec![endpoint(open), endpoint(closed)])),
        (Arc::new(secret), locality(vec![endpoint(open)])),
    ]));
    let handle = manager.get("a").expect("cluster");
    let host = |at| handle.hosts().into_iter().find(|h| h.address() == at).expect("host");
    let connection = host(open).connect(ConnectOptions::default()).await.expect("connect");
    assert_eq!(
        connection.local.map(|a| a.ip().to_string()).as_deref(),
        Some("127.0.0.6")
    );
    assert_eq!(listener.accept().await.expect("accept").1.ip().to_string(), "127.0.0.6");
    assert_eq!(handle.stats().upstream_cx_active.get(), 1);
    let error = host(closed)
        .connect(ConnectOptions::default())
        .await
        .expect_err("closed");
    assert_eq!(error.kind, ConnectErrorKind::Tcp);
    assert!(error.reason.contains("refused") && error.is_retriable(), "{error}");
    let _second = host(open).connect(ConnectOptions::default()).await.expect("connect");
    let error = host(open)
        .connect(ConnectOptions::default())
        .await
        .expect_err("overflow");
    assert_eq!(error.kind, ConnectErrorKind::Overflow);
    assert_eq!(error.flag(), heddle_telemetry::ResponseFlag::UpstreamOverflow);
    drop(connection);
    assert_eq!(handle.stats().upstream_cx_active.get(), 1);
    assert_eq!(handle.stats().upstream_cx_connect_fail.get(), 1);
    let tls = manager
        .get("tls")
        .expect("cluster")
        .pick(&PickContext::default())
        .expect("host");
    let error = tls.connect(ConnectOptions::default()).await.expect_err("no context");
    assert_eq!(error.kind, ConnectErrorKind::NoTlsContext);
    assert!(!error.is_retriable());
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_never_ends_is_a_timeout() {
    // TLS to a listener that accepts and says nothing: the kernel connects, the handshake hangs.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let mut config = cluster("tls");
    config.transport = UpstreamTransport::Tls("ctx".into());
    let mut snapshot = Arc::into_inner(snapshot(vec![(
        Arc::new(config),
        locality(vec![endpoint(listener.local_addr().expect("address"))]),
    )]))
    .expect("only reference");
    let context = heddle_tls::ClientContext::new(&heddle_tls::ClientParams::default()).expect("context");
    snapshot.client_tls.insert("ctx".into(), Arc::new(context));
    let manager = manager();
    manager.update(&Arc::new(snapshot));
    let host = manager
        .get("tls")
        .expect("cluster")
        .pick(&PickContext::default())
        .expect("host");
    let error = host.connect(ConnectOptions::default()).await.expect_err("timeout");
    assert_eq!(error.kind, ConnectErrorKind::Timeout);
    assert!(error.reason.contains("within 1000 ms"), "{error}");
}
