use std::cell::{Cell, RefCell};
use std::sync::Arc;

use heddle_config::snapshot::Snapshot;
use heddle_telemetry::Stats;
use heddle_telemetry::access_log::LogFiles;
use heddle_upstream::Upstreams;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::super::state::{AdminCommand, ServerState};
use super::*;
use crate::logging::{Panics, Suppressed};

struct Rig {
    state: Rc<AdminState>,
    server: watch::Sender<ServerState>,
    commands: RefCell<mpsc::Receiver<AdminCommand>>,
    _snapshot: watch::Sender<Arc<Snapshot>>,
}

fn rig() -> Rig {
    let (server, server_rx) = watch::channel(ServerState::Initializing);
    let (snapshot_tx, snapshot) = watch::channel(Arc::<Snapshot>::default());
    let (commands_tx, commands) = mpsc::channel(2);
    let stats = Stats::new();
    stats
        .counter("envoy_cluster_upstream_cx_total", &[("cluster_name", "a")])
        .add(3);
    let state = AdminState {
        version: "heddle/test",
        command_line: serde_json::json!({"concurrency": 2}),
        started: Instant::now(),
        concurrency: 2,
        server: server_rx,
        snapshot,
        upstreams: Upstreams::new(),
        stats: vec![stats.reader()],
        logs: LogFiles::start().expect("log thread"),
        config_dump: Box::new(|endpoints| serde_json::json!({"configs": [], "endpoints": endpoints})),
        set_log_level: Box::new(|level| {
            if level == "x:debug" {
                Err("no module x".into())
            } else {
                Ok(level.into())
            }
        }),
        suppressed_lines: Suppressed::default(),
        panics: Panics::default(),
        commands: commands_tx,
        health_check_failed: Cell::new(false),
    };
    Rig {
        state: Rc::new(state),
        server,
        commands: RefCell::new(commands),
        _snapshot: snapshot_tx,
    }
}

impl Rig {
    fn ask(&self, method: &str, target: &str) -> (u16, String) {
        self.ask_with(method, target, &[])
    }

    fn ask_with(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let mut map = hyper::HeaderMap::new();
        for (name, value) in headers {
            map.insert(
                hyper::header::HeaderName::from_bytes(name.as_bytes()).expect("name"),
                value.parse().expect("value"),
            );
        }
        let method = hyper::Method::from_bytes(method.as_bytes()).expect("method");
        let reply = route::answer(&self.state, &method, target, &map, true);
        (reply.status.as_u16(), reply.body)
    }
}

#[test]
fn ready_follows_the_state() {
    let rig = rig();
    assert_eq!(rig.ask("GET", "/ready"), (503, "INITIALIZING\n".into()));
    rig.server.send_replace(ServerState::Live);
    assert_eq!(rig.ask("GET", "/ready"), (200, "LIVE\n".into()));
    assert_eq!(rig.ask("POST", "/healthcheck/fail").0, 200);
    assert_eq!(rig.ask("GET", "/ready"), (503, "DRAINING\n".into()));
    assert_eq!(rig.ask("POST", "/healthcheck/ok").0, 200);
    assert_eq!(rig.ask("GET", "/ready").0, 200);
}

#[test]
fn changes_need_post() {
    let rig = rig();
    for path in [
        "/drain_listeners",
        "/quitquitquit",
        "/logging?level=debug",
        "/healthcheck/fail",
        "/reopen_logs",
    ] {
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            assert_eq!(rig.ask(method, path).0, 405, "{method} {path}");
        }
    }
    assert!(rig.commands.borrow_mut().try_recv().is_err());
    assert_eq!(rig.ask("POST", "/drain_listeners?graceful&inboundonly").0, 200);
    assert_eq!(
        rig.commands.borrow_mut().try_recv(),
        Ok(AdminCommand::DrainListeners {
            graceful: true,
            inbound_only: true,
            skip_exit: false
        })
    );
    assert_eq!(rig.ask("POST", "/drain_listeners?skip_exit").0, 400);
    assert_eq!(rig.ask("POST", "/drain_listeners?gracefull").0, 400);
    assert_eq!(rig.ask("POST", "/quitquitquit").0, 200);
    assert_eq!(rig.commands.borrow_mut().try_recv(), Ok(AdminCommand::Quit));
    assert_eq!(rig.ask("DELETE", "/stats").0, 405);
    assert_eq!(rig.ask("POST", "/stats").0, 200);
}

#[test]
fn a_full_command_queue_is_said() {
    let rig = rig();
    assert_eq!(rig.ask("POST", "/quitquitquit").0, 200);
    assert_eq!(rig.ask("POST", "/quitquitquit").0, 200);
    assert_eq!(rig.ask("POST", "/quitquitquit").0, 503);
    assert_eq!(rig.ask("POST", "/healthcheck/fail").0, 503);
    assert!(!rig.state.health_check_failed.get());
}

#[test]
fn browsers_are_refused() {
    let rig = rig();
    for (headers, expected) in [
        (vec![("origin", "http://evil.example")], 403),
        (vec![("host", "evil.example:15000")], 403),
        (vec![("host", "127.0.0.1:15000")], 200),
        (vec![("host", "[::1]:15000")], 200),
        (vec![("host", "[::1]")], 200),
        (vec![("host", "localhost:15000")], 200),
        (vec![("host", "localhost")], 200),
        (vec![], 200),
    ] {
        assert_eq!(rig.ask_with("POST", "/stats", &headers).0, expected, "{headers:?}");
    }
}

#[test]
fn metrics() {
    let rig = rig();
    let (status, text) = rig.ask("GET", "/stats/prometheus?usedonly");
    assert_eq!(status, 200);
    assert!(
        text.contains("envoy_cluster_upstream_cx_total{cluster_name=\"a\"} 3\n"),
        "{text}"
    );
    assert!(text.contains("envoy_server_concurrency 2\n"), "{text}");
    assert!(rig.ask("GET", "/stats").1.contains("cluster.a.upstream_cx_total: 3\n"));
    let (_, filtered) = rig.ask("GET", "/stats?filter=server.%2Alive%7Cserver_live");
    assert_eq!(filtered, "server.live: 0\n");
    assert_eq!(rig.ask("GET", "/stats?filter=(").0, 400);
    assert_eq!(rig.ask("GET", "/stats?format=xml").0, 400);
    let (_, json) = rig.ask("GET", "/stats?format=json&filter=upstream_cx_total");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        json,
        serde_json::json!({"stats": [{"name": "cluster.a.upstream_cx_total", "value": 3}]})
    );
}

#[test]
fn dumps_and_lists() {
    let rig = rig();
    assert!(
        rig.ask("GET", "/config_dump?include_eds")
            .1
            .contains("\"endpoints\": true")
    );
    assert_eq!(rig.ask("GET", "/config_dump?mask=x").0, 400);
    assert!(rig.ask("GET", "/server_info").1.contains("heddle/test"));
    assert!(rig.ask("GET", "/clusters?format=json").1.contains("cluster_statuses"));
    assert_eq!(rig.ask("GET", "/clusters?format=yaml").0, 400);
    assert!(rig.ask("GET", "/listeners?format=json").1.contains("listener_statuses"));
    assert!(rig.ask("GET", "/certs").1.contains("certificates"));
    let (status, text) = rig.ask("GET", "/nope");
    assert_eq!(status, 404);
    assert!(text.contains("/quitquitquit (POST)"), "{text}");
    assert_eq!(rig.ask("GET", "/").1, rig.ask("GET", "/help").1);
}

#[test]
fn log_levels() {
    let rig = rig();
    assert_eq!(
        rig.ask("POST", "/logging?level=warning"),
        (200, "active loggers: warn\n".into())
    );
    assert_eq!(rig.ask("POST", "/logging?x=debug"), (400, "no module x\n".into()));
    assert_eq!(rig.ask("POST", "/logging?level=loud").0, 400);
    assert_eq!(rig.ask("POST", "/logging").0, 400);
}

async fn talk(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) -> String {
    stream.write_all(bytes).await.expect("write");
    let mut answer = Vec::new();
    // A refused request may end in a reset after the answer.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime");
    LocalSet::new().block_on(&runtime, test);
}

#[test]
fn over_tcp() {
    run(async {
        let rig = rig();
        let server = AdminServer::bind(&AdminAddress::Tcp(([127, 0, 0, 1], 0).into()))
            .await
            .expect("bind");
        let address = server.local_addr().expect("address");
        let in_use = AdminServer::bind(&AdminAddress::Tcp(address))
            .await
            .err()
            .expect("in use")
            .to_string();
        assert!(in_use.contains("admin.address"), "{in_use}");
        tokio::task::spawn_local(server.run(Rc::clone(&rig.state)));
        let dial = || async { tokio::net::TcpStream::connect(address).await.expect("connect") };
        let get = b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let answer = talk(dial().await, get).await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.ends_with("INITIALIZING\n"),
            "{answer}"
        );
        // Hostile: not HTTP, a head without end, a body that is too long.
        assert!(
            talk(dial().await, b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
                .await
                .starts_with("HTTP/1.1 400")
        );
        let long = [b"GET / HTTP/1.1\r\nx: ".as_slice(), &vec![b'a'; 64 * 1024]].concat();
        assert!(talk(dial().await, &long).await.starts_with("HTTP/1.1 431"));
        let body = [
            format!(
                "POST /quitquitquit HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
                MAX_BODY + 1
            )
            .as_bytes(),
            &vec![b'a'; MAX_BODY + 1],
        ]
        .concat();
        assert!(talk(dial().await, &body).await.starts_with("HTTP/1.1 413"));
        assert!(rig.commands.borrow_mut().try_recv().is_err());
    });
}

#[test]
fn over_a_unix_socket() {
    run(async {
        let rig = rig();
        let path = std::env::temp_dir().join(format!("heddle-admin-{}.sock", std::process::id()));
        let address = AdminAddress::Unix(path.clone());
        // Left by a process that died.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("stale"));
        let server = AdminServer::bind(&address).await.expect("bind");
        assert_eq!(
            std::fs::metadata(&path).expect("socket").permissions().mode() & 0o777,
            0o600
        );
        assert!(AdminServer::bind(&address).await.is_err());
        let task = tokio::task::spawn_local(server.run(Rc::clone(&rig.state)));
        let stream = tokio::net::UnixStream::connect(&path).await.expect("connect");
        let answer = talk(
            stream,
            b"GET /help HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n",
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        task.abort();
        let _ = task.await;
        assert!(!path.exists());
        std::fs::write(&path, "a file").expect("write");
        let error = AdminServer::bind(&address).await.err().expect("a file").to_string();
        assert!(error.contains("not a socket"), "{error}");
        std::fs::remove_file(&path).expect("clean");
    });
}
