//! The program on IPv6, on both families, and towards names.

mod harness;

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Instant;

use harness::*;

/// A server that answers each request with its head, until the test ends.
fn mirror(address: &str) -> SocketAddr {
    let listener = TcpListener::bind(address).expect("binds");
    let bound = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while let Ok(1) = stream.read(&mut byte) {
                    head.push(byte[0]);
                    if head.ends_with(b"\r\n\r\n") {
                        let length = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", head.len());
                        let _ = stream.write_all(&[length.as_bytes(), &head].concat());
                        head.clear();
                    }
                }
            });
        }
    });
    bound
}

fn http_listener(address: &str, port: u16, log: &Path) -> String {
    format!(
        r#"
  listeners:
  - name: front
    address: {{ socket_address: {{ address: "{address}", port_value: {port}, ipv4_compat: true }} }}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          use_remote_address: true
          access_log:
          - name: file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: {}
              log_format: {{ text_format_source: {{ inline_string: "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% %DOWNSTREAM_LOCAL_ADDRESS% %UPSTREAM_HOST% %UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT%\n" }} }}
          http_filters: [{{ name: router, typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }} }}]
          route_config: {{ virtual_hosts: [{{ name: a, domains: ["*"], routes: [{{ match: {{ prefix: / }}, route: {{ cluster: up }} }}] }}] }}
"#,
        log.display()
    )
}

/// The lines of a log once there are so many, sorted: the workers' order is their own.
fn lines(path: &Path, count: usize) -> Vec<String> {
    let start = Instant::now();
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        if lines.len() >= count {
            return lines;
        }
        assert!(start.elapsed() < PATIENCE, "{text}");
        std::thread::yield_now();
    }
}

#[test]
fn ipv6_everywhere_and_ipv4_beside_it() {
    if TcpListener::bind("[::1]:0").is_err() {
        let off = std::fs::read_to_string("/proc/sys/net/ipv6/conf/lo/disable_ipv6").unwrap_or_default();
        assert_ne!(off.trim(), "0", "there is IPv6, and yet loopback cannot be bound");
        eprintln!("skipped: no IPv6 on this host");
        return;
    }
    let (admin, port) = (free_port(), free_port());
    let up = mirror("[::1]:0");
    let log = temporary("ipv6.log");
    let config = format!(
        r#"
admin: {{ address: {{ socket_address: {{ address: "::", port_value: {admin} }} }} }}
static_resources:{}
  clusters:
  - name: up
    connect_timeout: 1s
    upstream_bind_config: {{ source_address: {{ address: "::1", port_value: 0 }} }}
    health_checks: [{{ timeout: 1s, interval: 5s, unhealthy_threshold: 1, healthy_threshold: 1, tcp_health_check: {{}} }}]
    load_assignment:
      cluster_name: up
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: "::1", port_value: {} }} }} }} }}] }}]
"#,
        http_listener("::", port, &log),
        up.port()
    );
    let six = |port| SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let mut proxy = Proxy::start_at(&config, six(admin));
    proxy.wait_for("LIVE");
    // `::` alone is IPv6 alone, whatever the system's default for sockets.
    assert!(get(admin, "/ready").is_none());
    let healthy = format!("up::{up}::health_flags::healthy");
    let start = Instant::now();
    while !get_from(six(admin), "/clusters").unwrap_or_default().contains(&healthy) {
        assert!(start.elapsed() < PATIENCE, "{:?}", get_from(six(admin), "/clusters"));
        std::thread::yield_now();
    }
    let over_six = get_from(six(port), "/six").expect("an answer");
    assert!(over_six.contains("\r\nx-forwarded-for: ::1\r\n"), "{over_six}");
    let over_four = get(port, "/four").expect("an answer");
    assert!(over_four.contains("\r\nx-forwarded-for: 127.0.0.1\r\n"), "{over_four}");
    assert_eq!(
        lines(&log, 2),
        [
            format!("127.0.0.1 127.0.0.1:{port} {up} ::1"),
            format!("::1 [::1]:{port} {up} ::1")
        ]
    );
    let listeners = get_from(six(admin), "/listeners").expect("an answer");
    assert!(listeners.contains(&format!("front::[::]:{port}")), "{listeners}");
    std::fs::remove_file(&log).expect("removes the log");
}

#[test]
fn a_name_is_resolved_before_the_first_request() {
    let (admin, port) = (free_port(), free_port());
    let up = mirror("127.0.0.1:0");
    let log = temporary("names.log");
    let config = format!(
        r#"
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {admin} }} }} }}
static_resources:{}
  clusters:
  - name: up
    type: STRICT_DNS
    dns_lookup_family: V4_ONLY
    respect_dns_ttl: true
    load_assignment:
      cluster_name: up
      endpoints: [{{ lb_endpoints: [{{ endpoint: {{ address: {{ socket_address: {{ address: localhost, port_value: {} }} }} }} }}] }}]
"#,
        http_listener("::ffff:127.0.0.1", port, &log),
        up.port()
    );
    let mut proxy = Proxy::start(&config, admin);
    proxy.wait_for("LIVE");
    let answer = get(port, "/").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(lines(&log, 1), [format!("127.0.0.1 127.0.0.1:{port} {up} 127.0.0.1")]);
    std::fs::remove_file(&log).expect("removes the log");
}
