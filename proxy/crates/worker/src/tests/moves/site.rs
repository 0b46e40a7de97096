//! Workers with an HTTP listener that places by load, an application that answers with the path, and clients that check it.

use bytes::{Buf, BytesMut};
use heddle_config::snapshot::{
    Action, EscapedSlashes, FilterChain, HeaderOps, Http2Options, HttpCodec, HttpConnectionManager, PathMatch, Route,
    RouteAction, RouteMatch, RouteSource, RouteTable, ServerHeader, TlsKey, UnderscoresAction, VirtualHost, XfccDetail,
    XfccMode,
};
use heddle_tls::testing::Authority;
use heddle_tls::{ClientContext, ClientParams, ServerContext, ServerParams, SessionTickets, Stream, TlsVersion};

use super::super::*;

/// What carries the clients' requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Plain,
    Tls12,
    Tls13,
}

/// Workers and their listener.
pub(super) struct Site {
    pub(super) process: Process,
    pub(super) workers: Vec<Proxy>,
    pub(super) address: SocketAddr,
    pub(super) application: SocketAddr,
    transport: Transport,
    server: Arc<ServerContext>,
}

pub(super) fn manager(change: impl FnOnce(&mut HttpConnectionManager)) -> NetworkFilter {
    let routes = RouteTable {
        name: "t".into(),
        virtual_hosts: vec![VirtualHost {
            name: "v".into(),
            routes: vec![Route {
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
                })),
                request_headers: HeaderOps::default(),
                response_headers: HeaderOps::default(),
                filters: Arc::default(),
            }]
            .into(),
            require_tls: false,
            request_headers: HeaderOps::default(),
            response_headers: HeaderOps::default(),
            retry: None,
            include_attempt_count: false,
            rate_limits: vec![],
        }],
        any: Some(0),
        ..RouteTable::default()
    };
    let mut manager = HttpConnectionManager {
        stat_prefix: "test".into(),
        codec: HttpCodec::Http1,
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
        http2: Http2Options::default(),
        accept_http_10: false,
        normalize_path: true,
        merge_slashes: false,
        escaped_slashes: EscapedSlashes::Keep,
        underscores: UnderscoresAction::Allow,
        upgrades: vec![],
    };
    change(&mut manager);
    NetworkFilter::Http(Arc::new(manager))
}

/// An application that takes a body and answers with the path, also where requests come before it has answered those before.
pub(super) async fn application() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("address");
    spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            spawn_local(answer(tcp));
        }
    });
    address
}

async fn answer(mut tcp: TcpStream) {
    let mut read = BytesMut::new();
    while let Ok(1..) = tcp.read_buf(&mut read).await {
        while let Some(end) = head(&read) {
            let text = String::from_utf8(read.split_to(end).to_vec()).expect("text");
            let path = text.split(' ').nth(1).expect("a path");
            let body = text.split_once("content-length: ").map_or(0, |(_, rest)| {
                let length = rest.split("\r\n").next().expect("a line");
                length.parse().expect("a number")
            });
            while read.len() < body {
                if !matches!(tcp.read_buf(&mut read).await, Ok(1..)) {
                    return;
                }
            }
            read.advance(body);
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}", path.len());
            if tcp.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

fn head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4)
}

/// A client's connection.
pub(super) struct Client {
    pub(super) stream: Stream,
    read: BytesMut,
    /// The last answer said that the connection ends.
    pub(super) ends: bool,
}

impl Client {
    pub(super) fn request(path: &str) -> Vec<u8> {
        format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").into_bytes()
    }

    /// The body of the next answer; none when the connection ended before it.
    pub(super) async fn answer(&mut self) -> Option<String> {
        loop {
            if let Some(end) = head(&self.read) {
                let text = String::from_utf8(self.read[..end].to_vec())
                    .expect("text")
                    .to_ascii_lowercase();
                assert!(text.starts_with("http/1.1 200 "), "{text}");
                self.ends = text.contains("connection: close");
                let (_, length) = text.split_once("content-length: ").expect("a length");
                let length: usize = length.split("\r\n").next().expect("a line").parse().expect("a number");
                if self.read.len() >= end + length {
                    self.read.advance(end);
                    return Some(String::from_utf8(self.read.split_to(length).to_vec()).expect("text"));
                }
            }
            if !matches!(self.stream.read(&mut self.read).await, Ok(1..)) {
                assert!(self.read.is_empty(), "an answer was cut off: {:?}", self.read);
                return None;
            }
        }
    }

    pub(super) async fn ask(&mut self, path: &str) {
        self.stream.write_all(&Self::request(path)).await.expect("writes");
        assert_eq!(self.answer().await.as_deref(), Some(path));
    }
}

/// The listener `l` at that address.
pub(super) fn http(address: SocketAddr, transport: Transport, filter: NetworkFilter) -> Listener {
    let chain = FilterChain {
        tls: (transport != Transport::Plain).then(|| TlsKey::from("inbound")),
        ..chain(vec![filter])
    };
    let mut listener = listener("l", address, vec![chain]);
    listener.balance = ConnectionBalance::LoadAware;
    listener
}

impl Site {
    pub(super) async fn start(workers: usize, transport: Transport) -> Self {
        Self::start_with(workers, transport, |_| {}, |_| {}).await
    }

    pub(super) async fn start_with(
        workers: usize,
        transport: Transport,
        adapt: impl FnOnce(&mut HttpConnectionManager),
        change: impl FnOnce(&mut Listener),
    ) -> Self {
        let (mut site, inboxes) = Self::prepare(workers, transport, adapt, change).await;
        for (index, inbox) in inboxes.into_iter().enumerate() {
            site.launch(index, inbox).await;
        }
        site
    }

    /// With no worker yet.
    pub(super) async fn prepare(
        workers: usize,
        transport: Transport,
        adapt: impl FnOnce(&mut HttpConnectionManager),
        change: impl FnOnce(&mut Listener),
    ) -> (Self, Vec<Inbox>) {
        let root = Authority::root("root");
        let params = ServerParams {
            certificates: vec![root.spiffe("spiffe://td/ns/a/sa/b")],
            session_tickets: SessionTickets::OwnKeys,
            ..ServerParams::default()
        };
        let (address, application) = (free_address(), application().await);
        let mut listener = http(address, transport, manager(adapt));
        change(&mut listener);
        let server = Arc::new(ServerContext::new(&params).expect("context"));
        let config = Self::with_context(
            snapshot(1, vec![Arc::new(listener)], &[("echo", &[application])]),
            &server,
        );
        let (process, inboxes) = Process::new(workers, config, WorkerSettings::default());
        let site = Self {
            process,
            workers: Vec::new(),
            address,
            application,
            transport,
            server,
        };
        (site, inboxes)
    }

    fn with_context(mut config: Snapshot, server: &Arc<ServerContext>) -> Snapshot {
        config.server_tls.insert(TlsKey::from("inbound"), Arc::clone(server));
        config
    }

    pub(super) async fn launch(&mut self, index: usize, inbox: Inbox) {
        let mut worker = self.process.start(index, inbox);
        let report = worker.report().await;
        assert!(matches!(report, WorkerReport::Applied { .. }), "{report:?}");
        self.workers.push(worker);
    }

    /// A snapshot with this listener.
    pub(super) fn snapshot(&self, listener: &Arc<Listener>) -> Snapshot {
        let clusters: &[(&str, &[SocketAddr])] = &[("echo", &[self.application])];
        Self::with_context(snapshot(2, vec![Arc::clone(listener)], clusters), &self.server)
    }

    pub(super) async fn apply(&mut self, worker: usize, listener: &Arc<Listener>) {
        let config = self.snapshot(listener);
        let report = self.workers[worker].apply(config).await;
        assert!(matches!(report, WorkerReport::Applied { .. }), "{report:?}");
    }

    /// Has every connection go on to the next worker after each exchange.
    pub(super) fn force(&self, workers: usize) {
        for from in 0..workers {
            self.process.shared.exchange.force(from, Some((from + 1) % workers));
        }
    }

    pub(super) async fn connect(&self) -> Client {
        connect(self.address, self.transport).await
    }

    pub(super) fn sum(&self, name: &str) -> f64 {
        self.workers.iter().map(|worker| worker.total(name)).sum()
    }

    pub(super) async fn until(&self, name: &str, value: f64) {
        while self.sum(name) != value {
            tokio::task::yield_now().await;
        }
    }
}

pub(super) async fn connect(address: SocketAddr, transport: Transport) -> Client {
    let tcp = TcpStream::connect(address).await.expect("connects");
    let version = match transport {
        Transport::Plain => None,
        Transport::Tls12 => Some(TlsVersion::V1_2),
        Transport::Tls13 => Some(TlsVersion::V1_3),
    };
    let stream = match version {
        None => Stream::plain(tcp),
        Some(_) => {
            let params = ClientParams {
                min_version: version,
                max_version: version,
                ..ClientParams::default()
            };
            let context = ClientContext::new(&params).expect("context");
            context.connect(tcp, None, None).await.expect("shakes hands").0
        }
    };
    Client {
        stream,
        read: BytesMut::new(),
        ends: false,
    }
}

impl Proxy {
    /// Sum of a metric's samples.
    pub(super) fn total(&self, name: &str) -> f64 {
        total(&self.metrics, name)
    }
}

pub(super) fn total(metrics: &StatsReader, name: &str) -> f64 {
    let text = Gathered::read(std::slice::from_ref(metrics), |_| true).prometheus(false);
    let samples = text
        .lines()
        .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
    samples
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}
