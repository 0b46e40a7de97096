//! The program as a process of the test's own.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long something that must happen may take. Only a bug waits for it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A port that nobody has now, below those of which the kernel chooses some for connections: it stays free until it is used.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

pub fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("heddle-proxy-{}-{name}", std::process::id()))
}

/// A running proxy, ended when dropped.
pub struct Proxy {
    child: Child,
    admin: SocketAddr,
}

impl Proxy {
    /// With its admin interface on IPv4 loopback.
    pub fn start(config: &str, admin: u16) -> Self {
        Self::start_at(config, SocketAddr::from(([127, 0, 0, 1], admin)))
    }

    pub fn start_at(config: &str, admin: SocketAddr) -> Self {
        Self::start_with_drain_time(config, admin, 60)
    }

    /// With a drain time of so many seconds.
    pub fn start_with_drain_time(config: &str, admin: SocketAddr, seconds: u32) -> Self {
        let child = command(config, &["--concurrency", "2", "--drain-time-s", &seconds.to_string()])
            .spawn()
            .expect("the program runs");
        Self { child, admin }
    }

    /// With so many workers.
    pub fn start_with_workers(config: &str, admin: u16, workers: usize) -> Self {
        let child = command(config, &["--concurrency", &workers.to_string()])
            .spawn()
            .expect("the program runs");
        Self {
            child,
            admin: SocketAddr::from(([127, 0, 0, 1], admin)),
        }
    }

    /// With so many descriptors, as soft and as hard limit.
    pub fn start_with_files(config: &str, admin: u16, files: u32) -> Self {
        let program = command(config, &["--concurrency", "2", "--drain-time-s", "60"]);
        let child = Command::new("sh")
            .arg("-c")
            .arg(format!("ulimit -n {files} && exec \"$0\" \"$@\""))
            .arg(program.get_program())
            .args(program.get_args())
            .stdin(Stdio::null())
            .spawn()
            .expect("a shell");
        Self {
            child,
            admin: SocketAddr::from(([127, 0, 0, 1], admin)),
        }
    }

    /// Waits until `/ready` answers with this state.
    pub fn wait_for(&mut self, state: &str) {
        let start = Instant::now();
        let mut last = String::new();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("a child") {
                panic!("the proxy ended with {status}");
            }
            last = get_from(self.admin, "/ready").unwrap_or_default();
            if last.ends_with(&format!("{state}\n")) {
                return;
            }
            std::thread::yield_now();
        }
        panic!("never {state}: {last}");
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).expect("a pid")), signal).expect("it runs");
    }

    pub fn exit(&mut self) -> ExitStatus {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            std::thread::yield_now();
        }
        panic!("it does not end");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn command(config: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heddle-proxy"));
    command.args(["--config-yaml", config]).args(more).stdin(Stdio::null());
    command
}

/// Runs to the end.
pub fn output(config: &str, more: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, stdout } = command(config, more).output().expect("the program runs");
    (
        status.code(),
        String::from_utf8_lossy(&stderr).into_owned() + &String::from_utf8_lossy(&stdout),
    )
}

/// A whole answer on loopback, if there is one.
pub fn get(port: u16, path: &str) -> Option<String> {
    get_from(SocketAddr::from(([127, 0, 0, 1], port)), path)
}

/// A whole answer, if there is one.
pub fn get_from(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// A whole answer to a POST on loopback.
pub fn post(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let request = format!("POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// The sum over all samples of a metric, by an admin interface that must answer at once.
pub fn counter(admin: u16, name: &str) -> u64 {
    let metrics = get(admin, "/stats/prometheus").expect("the admin interface answers");
    let samples = metrics.lines().filter(|line| line.starts_with(name));
    samples
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

pub fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happens() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::yield_now();
    }
}

/// A proxy with one listener, which answers hello by itself; `listener` is a further line of it.
pub fn answering(admin: u16, port: u16, listener: &str) -> String {
    format!(
        r#"
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {admin} }} }} }}
static_resources:
  listeners:
  - name: front
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    {listener}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          http_filters: [{{ name: router, typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }} }}]
          route_config: {{ virtual_hosts: [{{ name: a, domains: ["*"], routes: [{{ match: {{ prefix: / }}, direct_response: {{ status: 200, body: {{ inline_string: hello }} }} }}] }}] }}
"#
    )
}
