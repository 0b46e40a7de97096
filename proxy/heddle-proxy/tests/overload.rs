//! A process whose resources run short: what the overload manager does, and that it stops doing it.

mod harness;

use std::io::Write;
use std::net::TcpStream;

use harness::*;

const CONNECTIONS: &str = r#"{ name: envoy.resource_monitors.global_downstream_max_connections, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig,
    max_active_downstream_connections: 20 } }"#;

const HEAP: &str = r#"{ name: envoy.resource_monitors.fixed_heap, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig,
    max_heap_size_bytes: 104857600 } }"#;

const REFUSES: &str = "envoy_overload_envoy_overload_actions_stop_accepting_requests_active";

/// `front` is for clients; `probes` is left alone.
fn config(admin: u16, ports: [u16; 2], monitor: &str, actions: &str) -> String {
    let listener = |name: &str, port: u16, more: &str| {
        format!(
            r#"
  - name: {name}
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    {more}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: {name}
          http_filters: [{{ name: router, typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }} }}]
          route_config: {{ virtual_hosts: [{{ name: a, domains: ["*"], routes: [{{ match: {{ prefix: / }}, direct_response: {{ status: 200, body: {{ inline_string: hello }} }} }}] }}] }}
"#
        )
    };
    let (front, probes) = (
        listener("front", ports[0], ""),
        listener("probes", ports[1], "bypass_overload_manager: true"),
    );
    format!(
        r#"
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {admin} }} }} }}
overload_manager:
  refresh_interval: 0.05s
  resource_monitors: [{monitor}]
  actions: [{actions}]
static_resources:
  listeners:
{front}
{probes}
"#
    )
}

/// Refuses requests from that pressure on.
fn refusing(monitor: &str, from: f64) -> String {
    format!(
        "{{ name: envoy.overload_actions.stop_accepting_requests, triggers: [{{ name: envoy.resource_monitors.{monitor}, \
         threshold: {{ value: {from} }} }}] }}"
    )
}

fn answers(port: u16, end: &str) -> bool {
    get(port, "/").is_some_and(|answer| answer.ends_with(end))
}

#[test]
fn requests_are_refused_while_there_are_many_connections() {
    let (admin, front, probes) = (free_port(), free_port(), free_port());
    let refuse = refusing("global_downstream_max_connections", 0.5);
    let mut proxy = Proxy::start(&config(admin, [front, probes], CONNECTIONS, &refuse), admin);
    proxy.wait_for("LIVE");
    assert!(answers(front, "hello"));
    let clients: Vec<_> = (0..10)
        .map(|_| TcpStream::connect(("127.0.0.1", front)).expect("it listens"))
        .collect();
    wait_until("the action is on", || counter(admin, REFUSES) == 1);
    // Workers hear of it a moment later, each for itself.
    let mut answer = String::new();
    wait_until("a request is refused", || {
        answer = get(front, "/").expect("an answer");
        !answer.ends_with("hello")
    });
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("envoy overloaded"), "{answer}");
    assert!(counter(admin, "envoy_http_downstream_rq_overload_close{") >= 1);
    assert!(answers(probes, "hello"), "the listener that bypasses it");
    let pressure = "envoy_overload_envoy_resource_monitors_global_downstream_max_connections_pressure";
    assert!(counter(admin, pressure) >= 50);
    drop(clients);
    wait_until("the action is off", || counter(admin, REFUSES) == 0);
    // A worker hears of it a moment later.
    wait_until("requests are taken again", || answers(front, "hello"));
}

#[test]
fn requests_are_refused_while_the_heap_is_large() {
    let (admin, front, probes) = (free_port(), free_port(), free_port());
    let pressure = "envoy_overload_envoy_resource_monitors_fixed_heap_pressure";
    let mut idle = Proxy::start(&config(admin, [front, probes], HEAP, ""), admin);
    idle.wait_for("LIVE");
    wait_until("it is measured", || counter(admin, pressure) > 0);
    let at_rest = counter(admin, pressure);
    assert!(at_rest < 50, "{at_rest} MiB at rest");
    drop(idle);
    // A percent is a MiB.
    let from = (at_rest + 10) as f64 / 100.0;
    let refuse = refusing("fixed_heap", from);
    let mut proxy = Proxy::start(&config(admin, [front, probes], HEAP, &refuse), admin);
    proxy.wait_for("LIVE");
    assert!(answers(front, "hello"));
    // Heads that do not end, of 50 KiB each.
    let mut head = b"GET / HTTP/1.1\r\nhost: x\r\nfill: ".to_vec();
    head.resize(50 * 1024, b'x');
    let client = |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", front)).expect("it listens");
        stream.write_all(&head).expect("written");
        stream
    };
    let clients: Vec<_> = (0..400).map(client).collect();
    wait_until("requests are refused", || counter(admin, REFUSES) == 1);
    // What was measured may fall once more while the heads arrive.
    wait_until("a request is refused", || answers(front, "envoy overloaded"));
    assert!(answers(probes, "hello"), "the listener that bypasses it");
    drop(clients);
    wait_until("the action is off", || counter(admin, REFUSES) == 0);
    // A worker hears of it a moment later.
    wait_until("requests are taken again", || answers(front, "hello"));
}
