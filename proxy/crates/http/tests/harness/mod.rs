//! A proxy on loopback in the test's own thread: one listener, one connection manager, clusters of test servers.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::cell::RefCell;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use heddle_config::filters;
use heddle_config::snapshot::*;
use heddle_http::{Clusters, DrainTrigger, HcmRuntime, HttpWorker, Overload, OverloadCounters, drain_host, serve};
use heddle_net::ConnectionInfo;
use heddle_telemetry::access_log::LogFiles;
use heddle_telemetry::stats::Metric;
use heddle_telemetry::{Stats, StatsReader};
use heddle_tls::Stream;
use heddle_upstream::Upstreams;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Runs a test on a local set, bounded in time.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(60), test)
            .await
            .expect("the test hangs");
    });
}

pub fn route_action(cluster: &str) -> RouteAction {
    RouteAction {
        cluster: ClusterChoice::Single(cluster.into()),
        timeout: Duration::from_secs(15),
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
    }
}

/// Retries almost at once, wherever the balancer points.
pub fn retry_policy(on: RetryOn, num_retries: u32) -> RetryPolicy {
    RetryPolicy {
        on,
        num_retries,
        per_try_timeout: Duration::ZERO,
        status_codes: vec![],
        base_interval: Duration::from_millis(1),
        max_interval: Duration::from_millis(2),
        avoid_previous_hosts: false,
        host_selection_attempts: 1,
    }
}

pub fn route(prefix: &str, action: Action) -> Route {
    Route {
        name: "r".into(),
        matches: RouteMatch {
            path: PathMatch::Prefix(prefix.into()),
            case_sensitive: true,
            headers: vec![],
            query: vec![],
            metadata: Vec::new(),
            grpc: false,
            fraction: 1_000_000,
        },
        action,
        request_headers: HeaderOps::default(),
        response_headers: HeaderOps::default(),
        filters: Arc::default(),
    }
}

pub fn table(routes: Vec<Route>) -> RouteTable {
    RouteTable {
        name: "t".into(),
        virtual_hosts: vec![VirtualHost {
            name: "v".into(),
            routes: routes.into(),
            require_tls: false,
            request_headers: HeaderOps::default(),
            response_headers: HeaderOps::default(),
            retry: None,
            include_attempt_count: false,
            rate_limits: vec![],
        }],
        any: Some(0),
        ..RouteTable::default()
    }
}

pub fn to(cluster: &str) -> RouteTable {
    table(vec![route("/", Action::Route(Box::new(route_action(cluster))))])
}

pub fn manager(routes: RouteTable) -> HttpConnectionManager {
    HttpConnectionManager {
        stat_prefix: "test".into(),
        codec: HttpCodec::Auto,
        routes: RouteSource::Inline(Arc::new(routes)),
        filters: vec![],
        access_logs: vec![],
        use_remote_address: false,
        xff_trusted_hops: 0,
        skip_xff_append: false,
        xfcc_mode: XfccMode::Sanitize,
        xfcc_detail: XfccDetail::default(),
        generate_request_id: true,
        preserve_request_id: false,
        server_header: ServerHeader::Overwrite("heddle".into()),
        via: None,
        idle_timeout: Duration::from_secs(3600),
        max_connection_duration: None,
        stream_idle_timeout: Duration::from_secs(300),
        request_timeout: Duration::ZERO,
        request_headers_timeout: Duration::ZERO,
        drain_timeout: Duration::from_secs(5),
        max_headers_bytes: 60 * 1024,
        max_headers_count: 100,
        http2: Http2Options {
            max_concurrent_streams: 100,
            stream_window: 256 * 1024,
            connection_window: 1024 * 1024,
            ..Http2Options::default()
        },
        accept_http_10: false,
        normalize_path: true,
        merge_slashes: false,
        escaped_slashes: EscapedSlashes::Keep,
        underscores: UnderscoresAction::Allow,
        upgrades: vec!["websocket".into()],
    }
}

/// A filter that routes speak of by this name.
pub fn filter(name: &str, config: FilterConfig) -> HttpFilter {
    HttpFilter {
        name: name.into(),
        disabled: false,
        config,
    }
}

pub fn rbac(policies: heddle_matching::rbac::Policies) -> HttpFilter {
    let policies = Arc::new(policies);
    filter("rbac", FilterConfig::Rbac(Arc::new(filters::rbac::Rbac { policies })))
}

/// The filters of Istio's metrics.
pub fn telemetry() -> Vec<HttpFilter> {
    vec![
        filter("exchange", FilterConfig::PeerMetadata(Arc::default())),
        filter("stats", FilterConfig::IstioStats(Arc::default())),
    ]
}

pub fn cluster(name: &str, http: UpstreamHttp) -> Cluster {
    Cluster {
        name: name.into(),
        stat_name: name.into(),
        discovery: Discovery::Static,
        lb_policy: LbPolicy::RoundRobin,
        connect_timeout: Duration::from_secs(2),
        transport: UpstreamTransport::Plain,
        transport_matches: vec![],
        http,
        idle_timeout: Duration::from_secs(3600),
        max_requests_per_connection: None,
        http2: Http2Options {
            max_concurrent_streams: 100,
            stream_window: 256 * 1024,
            connection_window: 1024 * 1024,
            ..Http2Options::default()
        },
        circuit_breakers: CircuitBreakers {
            max_connections: 1024,
            max_pending_requests: 1024,
            max_requests: 1024,
            max_retries: 3,
        },
        outlier_detection: None,
        health_checks: vec![],
        panic_threshold: 50.0,
        locality_weighted: false,
        keepalive: None,
        dns: Dns::default(),
        bind_source: None,
        buffer_limit: 1024 * 1024,
        service: None,
    }
}

fn endpoints(addresses: &[SocketAddr]) -> Vec<LocalityEndpoints> {
    vec![LocalityEndpoints {
        locality: Locality::default(),
        priority: 0,
        weight: 1,
        endpoints: addresses
            .iter()
            .map(|address| Endpoint {
                address: *address,
                hostname: None,
                weight: 1,
                health: EndpointHealth::Healthy,
                transport_labels: vec![],
                workload: None,
            })
            .collect(),
    }]
}

/// Clusters with their endpoints.
pub fn snapshot(clusters: Vec<(Cluster, Vec<SocketAddr>)>) -> Snapshot {
    let mut snapshot = Snapshot {
        version: 1,
        ..Snapshot::default()
    };
    for (cluster, addresses) in clusters {
        snapshot
            .endpoints
            .insert(Arc::clone(&cluster.name), Arc::new(endpoints(&addresses)));
        snapshot.clusters.insert(Arc::clone(&cluster.name), Arc::new(cluster));
    }
    snapshot
}

pub struct Proxy {
    pub address: SocketAddr,
    pub drain: DrainTrigger,
    pub worker: Rc<HttpWorker>,
    pub overload: Rc<Overload>,
    reader: StatsReader,
}

impl Proxy {
    pub async fn start(manager: HttpConnectionManager, clusters: Vec<(Cluster, Vec<SocketAddr>)>) -> Self {
        Self::start_with(manager, clusters, |_| {}).await
    }

    /// `adorn` may add facts to each connection, such as a peer's identity.
    pub async fn start_with(
        manager: HttpConnectionManager,
        clusters: Vec<(Cluster, Vec<SocketAddr>)>,
        adorn: impl Fn(&mut ConnectionInfo) + 'static,
    ) -> Self {
        Self::start_as(TrafficDirection::Outbound, manager, snapshot(clusters), adorn).await
    }

    /// With a snapshot of the test's own.
    pub async fn start_as(
        direction: TrafficDirection,
        manager: HttpConnectionManager,
        snapshot: Snapshot,
        adorn: impl Fn(&mut ConnectionInfo) + 'static,
    ) -> Self {
        let stats = Stats::new();
        let reader = stats.reader();
        let snapshot = Arc::new(snapshot);
        let clusters: Rc<Clusters> = Rc::new(Clusters::new(Upstreams::new(), stats.clone(), drain_host, 1));
        clusters.update(&snapshot);
        let logs = LogFiles::start().expect("log thread").worker();
        let overload = Overload::new(OverloadLimits::default(), OverloadCounters::new(&stats));
        let worker = HttpWorker::new(0, stats, logs, clusters, snapshot);
        let shared = Rc::clone(&overload);
        let hcm =
            HcmRuntime::new(&worker, Arc::new(manager), direction, &"chain".into(), shared, None).expect("manager");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let drain = DrainTrigger::new();
        let (task_worker, task_drain) = (Rc::clone(&worker), drain.clone());
        tokio::task::spawn_local(async move {
            while let Ok((tcp, remote)) = listener.accept().await {
                let mut info = ConnectionInfo::plain(address, remote);
                adorn(&mut info);
                let (worker, hcm, drain) = (Rc::clone(&task_worker), Rc::clone(&hcm), task_drain.listener());
                tokio::task::spawn_local(async move {
                    tcp.set_nodelay(true).expect("nodelay");
                    serve(
                        &worker,
                        hcm,
                        Stream::plain(tcp),
                        Rc::new(info),
                        BytesMut::new(),
                        1 << 20,
                        drain,
                    )
                    .await;
                });
            }
        });
        Self {
            address,
            drain,
            worker,
            overload,
            reader,
        }
    }

    /// Puts other clusters and endpoints into force.
    pub fn update(&self, clusters: Vec<(Cluster, Vec<SocketAddr>)>) {
        let snapshot = Arc::new(snapshot(clusters));
        self.worker.clusters().update(&snapshot);
        self.worker.set_snapshot(snapshot);
    }

    /// Waits until a metric has a value.
    pub async fn until(&self, name: &str, label: &str, value: i64) {
        while self.metric(name, label) != value {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// A label of the only series of a metric.
    pub fn label(&self, name: &str, label: &str) -> Option<String> {
        let mut found = Vec::new();
        self.reader.visit(|n, labels, _| {
            if n == name {
                found.push(labels.iter().find(|(l, _)| *l == label).map(|(_, v)| v.to_string()));
            }
        });
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found.pop().flatten()
    }

    /// The sum of a counter over all label sets that hold `label` (any when empty).
    pub fn metric(&self, name: &str, label: &str) -> i64 {
        let mut sum = 0;
        self.reader.visit(|n, labels, metric| {
            if n == name && (label.is_empty() || labels.iter().any(|(_, v)| v == label)) {
                sum += match metric {
                    Metric::Counter(c) => c.get() as i64,
                    Metric::Gauge(g) => g.get(),
                    Metric::Histogram(h) => h.snapshot().0.iter().sum::<u64>() as i64,
                };
            }
        });
        sum
    }

    pub async fn connect(&self) -> Client {
        let tcp = TcpStream::connect(self.address).await.expect("connect");
        tcp.set_nodelay(true).expect("nodelay");
        Client {
            tcp,
            buffer: Vec::new(),
        }
    }

    /// Sends raw bytes on a new connection and returns the first answer.
    pub async fn ask(&self, raw: &str) -> Answer {
        let mut client = self.connect().await;
        client.send(raw).await;
        client.answer().await.expect("an answer")
    }
}

/// A response as an HTTP/1.1 client sees it.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A plain HTTP/1.1 client that reads what comes, independent of the code under test.
pub struct Client {
    pub tcp: TcpStream,
    pub buffer: Vec<u8>,
}

impl Client {
    pub async fn send(&mut self, raw: &str) {
        self.tcp.write_all(raw.as_bytes()).await.expect("send");
    }

    async fn more(&mut self) -> usize {
        let mut chunk = [0; 65536];
        let n = self.tcp.read(&mut chunk).await.unwrap_or(0);
        self.buffer.extend_from_slice(&chunk[..n]);
        n
    }

    /// Everything until the end of the stream.
    pub async fn rest(&mut self) -> Vec<u8> {
        while self.more().await > 0 {}
        std::mem::take(&mut self.buffer)
    }

    async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[..end]).into_owned();
                self.buffer.drain(..end + 2);
                return Some(line);
            }
            if self.more().await == 0 {
                return None;
            }
        }
    }

    async fn exactly(&mut self, n: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < n {
            if self.more().await == 0 {
                return None;
            }
        }
        Some(self.buffer.drain(..n).collect())
    }

    async fn fields(&mut self) -> Option<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Some(fields);
            }
            let (name, value) = line.split_once(": ").expect("a field");
            fields.push((name.to_owned(), value.to_owned()));
        }
    }

    pub async fn answer(&mut self) -> Option<Answer> {
        self.answer_to("GET").await
    }

    pub async fn answer_to(&mut self, method: &str) -> Option<Answer> {
        let start = self.line().await?;
        let status: u16 = start.split(' ').nth(1).expect("status").parse().expect("status");
        let headers = self.fields().await?;
        let mut answer = Answer {
            status,
            headers,
            body: vec![],
            trailers: vec![],
        };
        if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            return Some(answer);
        }
        if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&self.line().await?, 16).expect("chunk size");
                if size == 0 {
                    answer.trailers = self.fields().await?;
                    break;
                }
                answer.body.extend(self.exactly(size).await?);
                assert_eq!(self.line().await?, "");
            }
        } else if let Some(length) = answer.header("content-length") {
            let length = length.parse().expect("length");
            answer.body = self.exactly(length).await?;
        } else {
            answer.body = self.rest().await;
        }
        Some(answer)
    }
}

/// What a raw test server got and how it answers: for each connection, `script` is called with the stream.
pub async fn server<F, Fut>(script: F) -> SocketAddr
where
    F: Fn(Client, usize) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    tokio::task::spawn_local(async move {
        let mut count = 0;
        while let Ok((tcp, _)) = listener.accept().await {
            count += 1;
            tokio::task::spawn_local(script(
                Client {
                    tcp,
                    buffer: Vec::new(),
                },
                count,
            ));
        }
    });
    address
}

/// A request as an HTTP/1.1 server sees it.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub line: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub connection: usize,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

impl Client {
    /// Reads one request, as a server.
    pub async fn request(&mut self) -> Option<Seen> {
        let line = self.line().await?;
        let headers = self.fields().await?;
        let mut seen = Seen {
            line,
            headers,
            ..Seen::default()
        };
        if seen.header("transfer-encoding") == Some("chunked") {
            loop {
                let size = usize::from_str_radix(&self.line().await?, 16).expect("chunk size");
                if size == 0 {
                    self.fields().await?;
                    break;
                }
                seen.body.extend(self.exactly(size).await?);
                assert_eq!(self.line().await?, "");
            }
        } else if let Some(length) = seen.header("content-length") {
            let length = length.parse().expect("length");
            seen.body = self.exactly(length).await?;
        }
        Some(seen)
    }
}

pub type Log = Rc<RefCell<Vec<Seen>>>;

/// A server that notes each request and answers 200 with its body, or `ok` without one.
pub async fn echo() -> (SocketAddr, Log) {
    let log: Log = Rc::default();
    let shared = Rc::clone(&log);
    let address = server(move |mut client, connection| {
        let log = Rc::clone(&shared);
        async move {
            while let Some(mut seen) = client.request().await {
                seen.connection = connection;
                let body = if seen.body.is_empty() {
                    b"ok".to_vec()
                } else {
                    seen.body.clone()
                };
                log.borrow_mut().push(seen);
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nX-App: yes\r\n\r\n",
                    body.len()
                );
                if client.tcp.write_all(head.as_bytes()).await.is_err() || client.tcp.write_all(&body).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    (address, log)
}
