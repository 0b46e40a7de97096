//! A worker on real loopback sockets.

mod balance;
mod capture;
mod dead_link;
mod drain;
mod ext_authz;
mod gateway;
mod moves;
mod namespace;
mod on_demand;
mod overload;
mod sizes;
mod snapshots;
mod spares;
mod tcp;
mod tls;

use std::collections::HashMap;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use heddle_config::snapshot::{
    CircuitBreakers, Cluster, ClusterChoice, ConnectionBalance, Discovery, Dns, Endpoint, EndpointHealth, FilterChain,
    FilterChainMatch, Http2Options, LbPolicy, Listener, ListenerFilter, Locality, LocalityEndpoints, NetworkFilter,
    Snapshot, TcpProxy, TrafficDirection, UpstreamHttp, UpstreamTransport,
};
use heddle_http::OverloadStates;
use heddle_telemetry::access_log::LogFiles;
use heddle_telemetry::prometheus::Gathered;
use heddle_telemetry::{Stats, StatsReader};
use heddle_upstream::Upstreams;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use crate::*;

/// A worker under test, in the test's own `LocalSet`.
struct Proxy {
    snapshots: watch::Sender<Arc<Snapshot>>,
    phase: watch::Sender<Phase>,
    overload: watch::Sender<OverloadStates>,
    reports: mpsc::Receiver<WorkerReport>,
    metrics: StatsReader,
    asks: mpsc::Receiver<Ask>,
    epoch: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

fn local<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(20), test)
            .await
            .expect("the test hangs");
    });
}

/// The main thread's ends of a worker.
struct Ends {
    snapshots: watch::Sender<Arc<Snapshot>>,
    phase: watch::Sender<Phase>,
    overload: watch::Sender<OverloadStates>,
    reports: mpsc::Receiver<WorkerReport>,
    metrics: StatsReader,
}

/// What the workers of one process have in common.
struct Process {
    snapshot: Arc<Snapshot>,
    settings: WorkerSettings,
    shared: Shared,
    upstreams: Upstreams,
    /// Listeners are asked for through the worker that starts first.
    asks: Option<mpsc::Receiver<Ask>>,
    epoch: Arc<AtomicU64>,
}

impl Process {
    /// With the inbox of each worker.
    fn new(workers: usize, snapshot: Snapshot, settings: WorkerSettings) -> (Self, Vec<Inbox>) {
        let (queue, asks) = mpsc::channel(4);
        let epoch = Arc::new(AtomicU64::new(0));
        let asked = Asks {
            queue,
            epoch: Arc::clone(&epoch),
        };
        let (shared, inboxes) = Shared::new(asked, workers);
        let process = Self {
            snapshot: Arc::new(snapshot),
            settings,
            shared,
            upstreams: Upstreams::new(),
            asks: Some(asks),
            epoch,
        };
        (process, inboxes)
    }

    /// What a worker needs, and the other ends.
    fn params(&mut self, index: usize, inbox: Inbox) -> (WorkerParams, Ends) {
        let (snapshots, snapshot) = watch::channel(Arc::clone(&self.snapshot));
        let (phase, phases) = watch::channel(Phase::SERVING);
        let (overload, states) = watch::channel(OverloadStates::default());
        let (report_to, reports) = mpsc::channel(4);
        let stats = Stats::new();
        let metrics = stats.reader();
        let params = WorkerParams {
            index,
            snapshot,
            stats,
            logs: LogFiles::start().expect("log thread"),
            upstreams: self.upstreams.clone(),
            shared: self.shared.clone(),
            inbox,
            overload: states,
            phase: phases,
            reports: report_to,
            settings: self.settings,
        };
        let ends = Ends {
            snapshots,
            phase,
            overload,
            reports,
            metrics,
        };
        (params, ends)
    }

    /// Starts a worker.
    fn start(&mut self, index: usize, inbox: Inbox) -> Proxy {
        let (params, ends) = self.params(index, inbox);
        let Ends {
            snapshots,
            phase,
            overload,
            reports,
            metrics,
        } = ends;
        Proxy {
            asks: self.asks.take().unwrap_or_else(|| mpsc::channel(1).1),
            epoch: Arc::clone(&self.epoch),
            snapshots,
            phase,
            overload,
            reports,
            metrics,
            task: spawn_local(crate::run::serve(params)),
        }
    }
}

impl Proxy {
    /// Starts a worker and waits until the snapshot is in force.
    async fn start(snapshot: Snapshot) -> Self {
        Self::start_with(snapshot, WorkerSettings::default()).await
    }

    async fn start_with(snapshot: Snapshot, settings: WorkerSettings) -> Self {
        let mut proxy = Self::launch(snapshot, settings);
        let report = proxy.report().await;
        assert!(matches!(report, WorkerReport::Applied { .. }), "{report:?}");
        proxy
    }

    fn launch(snapshot: Snapshot, settings: WorkerSettings) -> Self {
        let (mut process, mut inboxes) = Process::new(1, snapshot, settings);
        process.start(0, inboxes.remove(0))
    }

    async fn report(&mut self) -> WorkerReport {
        self.reports.recv().await.expect("the worker lives")
    }

    async fn apply(&mut self, snapshot: Snapshot) -> WorkerReport {
        self.snapshots.send_replace(Arc::new(snapshot));
        self.report().await
    }

    /// Value of the first sample that begins with `name`.
    fn metric(&self, name: &str) -> Option<f64> {
        let text = Gathered::read(std::slice::from_ref(&self.metrics), |_| true).prometheus(false);
        let line = text.lines().find(|l| l.starts_with(name))?.to_owned();
        line.rsplit(' ').next()?.parse().ok()
    }

    /// Waits until a metric has a value.
    async fn until(&self, name: &str, value: f64) {
        for _ in 0..20_000 {
            if self.metric(name) == Some(value) {
                return;
            }
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        panic!("{name} is {:?}, not {value}", self.metric(name));
    }
}

/// An address that nobody listens on, and that the kernel gives to nobody: ports that it chooses are of 127.0.0.1, and one that
/// is free now would be another test's a moment later.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(10_000);
    // A process has four addresses of its own (Linux has at most 2^22 of them); of these the third, which is never 127.0.0.1.
    let ip = Ipv4Addr::from_bits(Ipv4Addr::new(127, 0, 0, 2).to_bits() | (std::process::id() << 2));
    SocketAddr::from((ip, NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// A server that sends back what it gets, in upper case, and closes when the client has.
async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("address");
    spawn_local(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            spawn_local(async move {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(n) = tcp.read(&mut buffer).await {
                    if n == 0 || tcp.write_all(&buffer[..n].to_ascii_uppercase()).await.is_err() {
                        break;
                    }
                }
                let _ = tcp.shutdown().await;
            });
        }
    });
    address
}

fn cluster(name: &str) -> Arc<Cluster> {
    Arc::new(Cluster {
        name: Arc::from(name),
        stat_name: Arc::from(name),
        discovery: Discovery::Static,
        lb_policy: LbPolicy::RoundRobin,
        connect_timeout: Duration::from_secs(2),
        transport: UpstreamTransport::Plain,
        transport_matches: Vec::new(),
        http: UpstreamHttp::Http1,
        idle_timeout: Duration::from_secs(60),
        max_requests_per_connection: None,
        http2: Http2Options {
            max_concurrent_streams: 100,
            stream_window: 1 << 20,
            connection_window: 1 << 20,
            ..Http2Options::default()
        },
        circuit_breakers: CircuitBreakers {
            max_connections: 1024,
            max_pending_requests: 1024,
            max_requests: 1024,
            max_retries: 3,
        },
        outlier_detection: None,
        health_checks: Vec::new(),
        panic_threshold: 50.0,
        locality_weighted: false,
        keepalive: None,
        dns: Dns::default(),
        bind_source: None,
        buffer_limit: 1 << 20,
        service: Some((Arc::from("redis.shop.svc"), Arc::from("redis"), Arc::from("shop"))),
    })
}

fn endpoints(addresses: &[SocketAddr]) -> Arc<Vec<LocalityEndpoints>> {
    let endpoint = |address: &SocketAddr| Endpoint {
        address: *address,
        hostname: None,
        weight: 1,
        health: EndpointHealth::Healthy,
        transport_labels: Vec::new(),
        workload: Some(Arc::from("redis;shop;redis;v1;c1")),
    };
    Arc::new(vec![LocalityEndpoints {
        locality: Locality::default(),
        priority: 0,
        weight: 1,
        endpoints: addresses.iter().map(endpoint).collect(),
    }])
}

fn tcp_proxy(cluster: &str) -> TcpProxy {
    TcpProxy {
        stat_prefix: Arc::from("tcp"),
        cluster: ClusterChoice::Single(Arc::from(cluster)),
        idle_timeout: Duration::from_secs(60),
        max_connect_attempts: 1,
        access_logs: Vec::new(),
    }
}

fn chain(filters: Vec<NetworkFilter>) -> FilterChain {
    FilterChain {
        name: Arc::from(""),
        matches: FilterChainMatch::default(),
        tls: None,
        handshake_timeout: Duration::from_secs(5),
        filters,
        identity: None,
    }
}

pub(crate) fn listener(name: &str, address: SocketAddr, chains: Vec<FilterChain>) -> Listener {
    Listener {
        name: Arc::from(name),
        addresses: vec![address],
        bind: true,
        use_original_dst: false,
        direction: TrafficDirection::Unspecified,
        listener_filters: Vec::new(),
        listener_filters_timeout: Duration::from_secs(5),
        continue_on_timeout: false,
        filter_chains: chains,
        default_filter_chain: None,
        buffer_limit: 1 << 20,
        backlog: 128,
        keepalive: None,
        balance: ConnectionBalance::Kernel,
        max_connections: None,
        ignore_global_connection_limit: false,
        bypass_overload_manager: false,
        on_demand: None,
        access_logs: Vec::new(),
        frame: None,
    }
}

/// A snapshot of these listeners and of clusters with their endpoints.
fn snapshot(version: u64, listeners: Vec<Arc<Listener>>, clusters: &[(&str, &[SocketAddr])]) -> Snapshot {
    Snapshot {
        version,
        listeners: listeners.into_iter().map(|l| (Arc::clone(&l.name), l)).collect(),
        clusters: clusters
            .iter()
            .map(|(name, _)| (Arc::from(*name), cluster(name)))
            .collect(),
        endpoints: clusters
            .iter()
            .map(|(name, at)| (Arc::from(*name), endpoints(at)))
            .collect::<HashMap<_, _>>(),
        ..Snapshot::default()
    }
}

/// A listener that proxies to the cluster `echo`.
fn proxying(name: &str, address: SocketAddr) -> Listener {
    listener(
        name,
        address,
        vec![chain(vec![NetworkFilter::TcpProxy(Arc::new(tcp_proxy("echo")))])],
    )
}

async fn ask(tcp: &mut TcpStream, question: &str) -> String {
    tcp.write_all(question.as_bytes()).await.expect("writes");
    let mut answer = vec![0; question.len()];
    tcp.read_exact(&mut answer).await.expect("reads");
    String::from_utf8(answer).expect("text")
}

/// Whether the proxy closes the connection without an answer.
async fn is_closed(tcp: &mut TcpStream) -> bool {
    let _ = tcp.write_all(b"anybody there?").await;
    matches!(tcp.read(&mut [0; 16]).await, Ok(0) | Err(_))
}
