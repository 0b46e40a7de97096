//! What documents become: Envoy's defaults where nothing is said, and what was said otherwise.

use std::sync::Arc;
use std::time::Duration;

use heddle_config::snapshot::{
    Action, ClusterChoice, ConnectionBalance, Discovery, Dns, DnsFamily, EscapedSlashes, FilterConfig, HeaderOp,
    HeaderValue, HostRewrite, Http2Options, HttpCodec, HttpConnectionManager, LbPolicy, ListenerFilter, NetworkFilter,
    PathMatch, PathRewrite, PrematureResetLimits, RouteSource, RouteTable, Runtime, ServerHeader, Snapshot,
    TrafficDirection, UpstreamHttp, UpstreamTransport, XfccMode,
};
use heddle_config::{AdminAddress, Bootstrap, Builder, Options, ResourceKind, TargetAddress};

fn bootstrap(text: &str) -> Bootstrap {
    Bootstrap::parse([text], &Options::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn snapshot(text: &str) -> Arc<Snapshot> {
    let mut builder = Builder::new(&bootstrap(text), Box::new(|_| Ok(()))).unwrap_or_else(|e| panic!("{e}"));
    builder.snapshot()
}

fn manager(snapshot: &Snapshot, listener: &str) -> Arc<HttpConnectionManager> {
    match snapshot.listeners[listener].filter_chains[0].filters.last() {
        Some(NetworkFilter::Http(manager)) => manager.clone(),
        other => panic!("{other:?}"),
    }
}

fn table(manager: &HttpConnectionManager) -> Arc<RouteTable> {
    match &manager.routes {
        RouteSource::Inline(table) => table.clone(),
        RouteSource::Rds(name) => panic!("{name} comes from RDS"),
    }
}

const ROUTER: &str =
    "{ name: router, typed_config: { '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router } }";

fn http(settings: &str, filters: &str, routes: &str) -> String {
    format!(
        r#"
static_resources:
  listeners:
  - name: front
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: 80 }} }}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          http_filters: [{filters} {ROUTER}]
          {settings}
          route_config:
            {routes}
  clusters: [{{ name: a }}, {{ name: b }}]
"#
    )
}

#[test]
fn defaults_are_envoys() {
    let s = snapshot(&http("", "", "name: r"));
    let listener = &s.listeners["front"];
    assert!(listener.bind && !listener.use_original_dst && !listener.continue_on_timeout);
    assert_eq!(listener.listener_filters_timeout, Duration::from_secs(15));
    assert_eq!(
        (listener.buffer_limit, listener.backlog, listener.max_connections),
        (1 << 20, 1024, None)
    );
    assert_eq!(listener.direction, TrafficDirection::Unspecified);
    assert_eq!(listener.filter_chains[0].handshake_timeout, Duration::from_secs(15));
    let m = manager(&s, "front");
    assert_eq!(m.codec, HttpCodec::Auto);
    assert_eq!(m.idle_timeout, Duration::from_secs(3600));
    assert_eq!(m.stream_idle_timeout, Duration::from_secs(300));
    assert_eq!(m.request_timeout, Duration::ZERO);
    assert_eq!(m.request_headers_timeout, Duration::from_secs(60));
    assert_eq!(m.drain_timeout, Duration::from_secs(5));
    assert_eq!((m.max_headers_bytes, m.max_headers_count), (60 * 1024, 100));
    assert_eq!(
        m.http2,
        Http2Options {
            max_concurrent_streams: 1024,
            stream_window: 16 << 20,
            connection_window: 24 << 20,
            hpack_table_size: 4096,
            max_outbound_frames: 10_000,
            max_outbound_control_frames: 1000,
            max_consecutive_inbound_frames_with_empty_payload: 1,
            max_inbound_priority_frames_per_stream: 100,
            max_inbound_window_update_frames_per_data_frame_sent: 10,
            stream_error_on_invalid_http_messaging: true,
            allow_connect: false,
            keepalive: None,
        }
    );
    assert!(m.generate_request_id && !m.preserve_request_id && !m.use_remote_address && !m.normalize_path);
    assert_eq!(m.server_header, ServerHeader::Overwrite("envoy".into()));
    assert_eq!(m.xfcc_mode, XfccMode::Sanitize);
    assert_eq!(m.escaped_slashes, EscapedSlashes::Keep);
    let cluster = &s.clusters["a"];
    assert_eq!(cluster.discovery, Discovery::Static);
    assert_eq!(cluster.lb_policy, LbPolicy::RoundRobin);
    assert_eq!(cluster.connect_timeout, Duration::from_secs(5));
    assert_eq!(cluster.transport, UpstreamTransport::Plain);
    assert_eq!(cluster.http, UpstreamHttp::Http1);
    assert_eq!(cluster.idle_timeout, Duration::from_secs(3600));
    assert_eq!(
        (
            cluster.circuit_breakers.max_connections,
            cluster.circuit_breakers.max_retries
        ),
        (1024, 3)
    );
    assert!(cluster.outlier_detection.is_none() && cluster.health_checks.is_empty());
    assert!((cluster.panic_threshold - 50.0).abs() < f64::EPSILON);
    assert_eq!(cluster.buffer_limit, 1 << 20);
    assert_eq!(cluster.http2, Http2Options::default());
}

#[test]
fn escaped_slashes() {
    for (action, expected) in [
        ("IMPLEMENTATION_SPECIFIC_DEFAULT", EscapedSlashes::Keep),
        ("KEEP_UNCHANGED", EscapedSlashes::Keep),
        ("REJECT_REQUEST", EscapedSlashes::Reject),
        ("UNESCAPE_AND_REDIRECT", EscapedSlashes::Redirect),
        ("UNESCAPE_AND_FORWARD", EscapedSlashes::Forward),
    ] {
        let setting = format!("path_with_escaped_slashes_action: {action}");
        let s = snapshot(&http(&setting, "", "name: r"));
        assert_eq!(manager(&s, "front").escaped_slashes, expected, "{action}");
    }
}

#[test]
fn connection_manager_settings() {
    let settings = r#"codec_type: HTTP2
          use_remote_address: true
          xff_num_trusted_hops: 1
          server_name: shop
          server_header_transformation: APPEND_IF_ABSENT
          forward_client_cert_details: SANITIZE_SET
          set_current_client_cert_details: { subject: true, uri: true }
          common_http_protocol_options: { idle_timeout: 5s, max_headers_count: 7 }
          http2_protocol_options:
            max_concurrent_streams: 9
            initial_stream_window_size: 65535
            initial_connection_window_size: 65536
            hpack_table_size: 65536
            max_outbound_frames: 1
            max_outbound_control_frames: 2
            max_consecutive_inbound_frames_with_empty_payload: 0
            max_inbound_priority_frames_per_stream: 3
            max_inbound_window_update_frames_per_data_frame_sent: 4
            override_stream_error_on_invalid_http_message: false
            allow_connect: true
          stream_idle_timeout: 0s
          request_headers_timeout: 3s
          max_request_headers_kb: 8
          upgrade_configs: [{ upgrade_type: WebSocket }, { upgrade_type: other, enabled: false }]
          via: heddle"#;
    let filters = "{ name: x, typed_config: { '@type': type.googleapis.com/udpa.type.v1.TypedStruct, type_url: type.googleapis.com/stats.PluginConfig, value: {} } },";
    let s = snapshot(&http(settings, filters, "name: r"));
    let m = manager(&s, "front");
    assert_eq!(m.codec, HttpCodec::Http2);
    assert_eq!((m.use_remote_address, m.xff_trusted_hops), (true, 1));
    assert_eq!(m.server_header, ServerHeader::AppendIfAbsent("shop".into()));
    assert_eq!(m.xfcc_mode, XfccMode::SanitizeSet);
    assert_eq!(
        (m.xfcc_detail.subject, m.xfcc_detail.uri, m.xfcc_detail.dns),
        (true, true, false)
    );
    assert_eq!((m.idle_timeout, m.max_headers_count), (Duration::from_secs(5), 7));
    assert_eq!(
        m.http2,
        Http2Options {
            max_concurrent_streams: 9,
            stream_window: 65_535,
            connection_window: 65_536,
            hpack_table_size: 65_536,
            max_outbound_frames: 1,
            max_outbound_control_frames: 2,
            max_consecutive_inbound_frames_with_empty_payload: 0,
            max_inbound_priority_frames_per_stream: 3,
            max_inbound_window_update_frames_per_data_frame_sent: 4,
            stream_error_on_invalid_http_messaging: false,
            allow_connect: true,
            keepalive: None,
        }
    );
    assert_eq!(
        (m.stream_idle_timeout, m.request_headers_timeout),
        (Duration::ZERO, Duration::from_secs(3))
    );
    assert_eq!((m.max_headers_bytes, m.via.as_deref()), (8192, Some("heddle")));
    assert_eq!(m.upgrades, ["websocket"]);
    assert!(
        matches!(&m.filters[..], [f] if matches!(f.config, FilterConfig::IstioStats(_))),
        "{:?}",
        m.filters
    );
}

#[test]
fn domains_are_indexed_by_kind() {
    let routes = r#"{ virtual_hosts: [
              { name: a, domains: [Shop.Example, "shop.example:8080"] },
              { name: b, domains: ["*.example", "*.long.example", "api.*"] },
              { name: c, domains: ["*"] } ] }"#;
    let t = table(&manager(&snapshot(&http("", "", routes)), "front"));
    assert_eq!((t.exact["shop.example"], t.exact["shop.example:8080"]), (0, 0));
    assert_eq!(t.suffix, [(".long.example", 1), (".example", 1)].into_iter().collect());
    assert_eq!(t.prefix, [("api.", 1)].into_iter().collect());
    assert_eq!(t.any, Some(2));
}

#[test]
fn routes_and_their_actions() {
    let routes = r#"{ virtual_hosts: [ { name: v, domains: ["*"], include_request_attempt_count: true, require_tls: ALL, routes: [
              { name: one, match: { path: /x, case_sensitive: false, headers: [{ name: A, string_match: { exact: b } }] },
                route: { cluster: a, timeout: 0s, prefix_rewrite: /y, host_rewrite_literal: h,
                         max_stream_duration: { grpc_timeout_header_max: 0s },
                         retry_policy: { retry_on: "5xx, connect-failure,retriable-status-codes", num_retries: 2,
                                         retriable_status_codes: [503], host_selection_retry_max_attempts: 5,
                                         retry_host_predicate: [{ name: envoy.retry_host_predicates.previous_hosts }] } },
                request_headers_to_add: [{ header: { key: X-A, value: "%DOWNSTREAM_REMOTE_ADDRESS%" }, append_action: OVERWRITE_IF_EXISTS_OR_ADD },
                                         { header: { key: x-b, value: "100%%" } }, { header: { key: x-empty, value: "" } }],
                response_headers_to_remove: [X-Gone] },
              { match: { path_separated_prefix: /s, grpc: {}, runtime_fraction: { default_value: { numerator: 5, denominator: TEN_THOUSAND } } },
                route: { weighted_clusters: { clusters: [{ name: a, weight: 30 }, { name: b, weight: 70 }] }, auto_host_rewrite: true,
                         cluster_not_found_response_code: NOT_FOUND, regex_rewrite: { pattern: { regex: "(a)b" }, substitution: '\1' } } },
              { match: { safe_regex: { regex: "/r/.*" } }, redirect: { https_redirect: true, port_redirect: 443, prefix_rewrite: /n, response_code: FOUND } },
              { match: { prefix: / }, direct_response: { status: 418, body: { inline_string: short and stout } } } ] } ] }"#;
    let t = table(&manager(&snapshot(&http("", "", routes)), "front"));
    let host = &t.virtual_hosts[0];
    assert!(host.require_tls && host.include_attempt_count);
    let one = &host.routes[0];
    assert!(matches!(&one.matches.path, PathMatch::Exact(p) if &**p == "/x"));
    assert!(!one.matches.case_sensitive);
    assert_eq!((one.matches.headers[0].name(), one.matches.fraction), ("a", 1_000_000));
    let Action::Route(action) = &one.action else {
        panic!("{:?}", one.action)
    };
    assert!(matches!(&action.cluster, ClusterChoice::Single(c) if &**c == "a"));
    assert_eq!(
        (action.timeout, action.grpc_timeout_max),
        (Duration::ZERO, Some(Duration::ZERO))
    );
    assert!(matches!(&action.path_rewrite, Some(PathRewrite::Prefix(p)) if &**p == "/y"));
    assert!(matches!(&action.host_rewrite, Some(HostRewrite::Literal(h)) if &**h == "h"));
    let retry = action.retry.as_ref().expect("a retry policy");
    assert!(retry.on.server_error && retry.on.connect_failure && retry.on.retriable_status_codes && !retry.on.reset);
    assert_eq!(
        (
            retry.num_retries,
            &retry.status_codes[..],
            retry.host_selection_attempts
        ),
        (2, &[503][..], 5)
    );
    assert!(retry.avoid_previous_hosts);
    assert_eq!(
        (retry.base_interval, retry.max_interval),
        (Duration::from_millis(25), Duration::from_millis(250))
    );
    let add = &one.request_headers.add;
    assert!(
        matches!(add[0], (ref n, HeaderValue::Format(_), HeaderOp::Overwrite) if &**n == "x-a"),
        "{add:?}"
    );
    assert!(
        matches!(add[1], (_, HeaderValue::Literal(ref v), HeaderOp::Append) if &**v == "100%"),
        "{add:?}"
    );
    assert_eq!(add.len(), 2, "an empty value is not added");
    assert_eq!(
        one.response_headers.remove.iter().map(|n| &**n).collect::<Vec<_>>(),
        ["x-gone"]
    );

    let two = &host.routes[1];
    assert!(two.matches.grpc && two.matches.fraction == 500);
    let Action::Route(action) = &two.action else {
        panic!("{:?}", two.action)
    };
    assert!(matches!(action.cluster, ClusterChoice::Weighted { total: 100, .. }));
    assert_eq!(
        (action.timeout, action.not_found_status),
        (Duration::from_secs(15), 404)
    );
    assert!(matches!(action.path_rewrite, Some(PathRewrite::Regex(..))));
    assert!(matches!(action.host_rewrite, Some(HostRewrite::Auto)));

    let Action::Redirect(redirect) = &host.routes[2].action else {
        panic!("{:?}", host.routes[2].action)
    };
    assert_eq!(
        (redirect.scheme.as_deref(), redirect.port, redirect.status),
        (Some("https"), Some(443), 302)
    );
    assert_eq!(redirect.prefix_rewrite.as_deref(), Some("/n"));
    let Action::Direct(direct) = &host.routes[3].action else {
        panic!("{:?}", host.routes[3].action)
    };
    assert_eq!((direct.status, &direct.body[..]), (418, &b"short and stout"[..]));
}

#[test]
fn clusters_endpoints_and_tls() {
    let s = snapshot(
        r#"
static_resources:
  clusters:
  - name: a
    alt_stat_name: b
    lb_policy: LEAST_REQUEST
    least_request_lb_config: { choice_count: 3 }
    outlier_detection: { consecutive_5xx: 3, enforcing_consecutive_gateway_failure: 100, base_ejection_time: 400s }
    health_checks: [{ timeout: 1s, interval: 2s, unhealthy_threshold: 3, healthy_threshold: 4,
                      tcp_health_check: { send: { text: "50494e47" }, receive: [{ text: "4f4B" }] } }]
    common_lb_config: { healthy_panic_threshold: { value: 0 }, locality_weighted_lb_config: {} }
    upstream_bind_config: { source_address: { address: 127.0.0.6, port_value: 0 } }
    metadata: { filter_metadata: { istio: { services: [{ host: h, name: n, namespace: ns }] } } }
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        common_http_protocol_options: { idle_timeout: 9s, max_requests_per_connection: 1 }
        explicit_http_config: { http2_protocol_options: { max_concurrent_streams: 10 } }
    transport_socket_matches:
    - name: tls
      match: { tlsMode: istio }
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context: { alpn_protocols: [h2] }
          sni: outbound_.80_._.h
    - name: plain
      match: {}
      transport_socket: { name: envoy.transport_sockets.raw_buffer }
    load_assignment:
      cluster_name: a
      endpoints:
      - locality: { region: r, zone: z }
        load_balancing_weight: 2
        lb_endpoints:
        - endpoint: { address: { socket_address: { address: "fd00::1", port_value: 80 } }, hostname: x }
          health_status: DRAINING
          load_balancing_weight: 5
          metadata: { filter_metadata: { envoy.transport_socket_match: { tlsMode: istio }, istio: { workload: "w;ns;c;r;k" } } }
  - name: names
    type: STRICT_DNS
    load_assignment: { cluster_name: names, endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: example.com, port_value: 443 } } } }] }] }
"#,
    );
    let c = &s.clusters["a"];
    assert_eq!((&*c.stat_name, c.lb_policy), ("b", LbPolicy::LeastRequest(3)));
    assert_eq!(
        (c.http, c.http2.max_concurrent_streams, c.max_requests_per_connection),
        (UpstreamHttp::Http2, 10, Some(1))
    );
    assert_eq!(
        (c.idle_timeout, c.locality_weighted, c.panic_threshold),
        (Duration::from_secs(9), true, 0.0)
    );
    assert_eq!(c.bind_source.map(|a| a.to_string()).as_deref(), Some("127.0.0.6"));
    assert_eq!(
        c.service.as_ref().map(|(h, n, ns)| (&**h, &**n, &**ns)),
        Some(("h", "n", "ns"))
    );
    let outlier = c.outlier_detection.as_ref().expect("outlier detection");
    assert_eq!((outlier.consecutive_5xx, outlier.consecutive_gateway_failure), (3, 5));
    assert_eq!(
        outlier.max_ejection_time,
        Duration::from_secs(400),
        "never below the base"
    );
    let heddle_config::snapshot::HealthChecker::Tcp { send, receive } = &c.health_checks[0].checker;
    assert_eq!((&send[..], &receive[0][..]), (&b"PING"[..], &b"OK"[..]));
    let UpstreamTransport::Tls(key) = &c.transport_matches[0].transport else {
        panic!("{:?}", c.transport_matches)
    };
    assert!(s.client_tls.contains_key(key));
    assert_eq!(
        c.transport_matches[0].labels,
        [("tlsMode".to_owned(), "istio".to_owned())]
    );
    assert_eq!(c.transport_matches[1].transport, UpstreamTransport::Plain);
    let group = &s.endpoints["a"][0];
    assert_eq!((group.weight, group.locality.zone.as_str()), (2, "z"));
    let e = &group.endpoints[0];
    assert_eq!(
        (e.address.to_string().as_str(), e.weight, e.workload.as_deref()),
        ("[fd00::1]:80", 5, Some("w;ns;c;r;k"))
    );
    assert_eq!(e.transport_labels, [("tlsMode".to_owned(), "istio".to_owned())]);
    let named = &s.endpoints["names"][0].endpoints[0];
    assert_eq!(
        (named.hostname.as_deref(), named.address.to_string().as_str()),
        (Some("example.com"), "0.0.0.0:443")
    );
}

#[test]
fn chains_match_and_listener_filters() {
    let s = snapshot(
        r#"
static_resources:
  listeners:
  - name: in
    address: { socket_address: { address: 0.0.0.0, port_value: 15006 } }
    additional_addresses: [{ address: { socket_address: { address: "::", port_value: 15006 } } }]
    bind_to_port: false
    use_original_dst: true
    traffic_direction: INBOUND
    listener_filters:
    - { name: o, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.listener.original_dst.v3.OriginalDst } }
    - { name: t, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector } }
    listener_filters_timeout: 0s
    filter_chains:
    - filter_chain_match: { destination_port: 80, prefix_ranges: [{ address_prefix: 10.1.2.3, prefix_len: 16 }], server_names: ["*.A.com"], transport_protocol: tls, application_protocols: [istio] }
      filters:
      - { name: s, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.network.sni_cluster.v3.SniCluster } }
      - { name: r, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC, stat_prefix: r } }
      - { name: p, typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: c, idle_timeout: 0s } }
"#,
    );
    let l = &s.listeners["in"];
    assert_eq!((l.addresses.len(), l.bind, l.use_original_dst), (2, false, true));
    assert_eq!(l.direction, TrafficDirection::Inbound);
    assert_eq!(
        l.listener_filters,
        [ListenerFilter::OriginalDst, ListenerFilter::TlsInspector]
    );
    assert_eq!(l.listener_filters_timeout, Duration::ZERO);
    let m = &l.filter_chains[0].matches;
    assert_eq!((m.destination_port, m.server_names[0].as_str()), (Some(80), "*.a.com"));
    assert_eq!(
        (m.destination[0].address.to_string().as_str(), m.destination[0].prefix),
        ("10.1.0.0", 16)
    );
    let filters = &l.filter_chains[0].filters;
    assert!(matches!(filters[0], NetworkFilter::SniCluster) && matches!(filters[1], NetworkFilter::Rbac(_)));
    let NetworkFilter::TcpProxy(tcp) = &filters[2] else {
        panic!("{filters:?}")
    };
    assert_eq!((tcp.idle_timeout, tcp.max_connect_attempts), (Duration::ZERO, 1));
}

#[test]
fn keepalive_names_and_priorities() {
    let s = snapshot(
        r#"
static_resources:
  clusters:
  - name: far
    type: STRICT_DNS
    dns_lookup_family: V4_ONLY
    dns_refresh_rate: 2s
    respect_dns_ttl: true
    dns_failure_refresh_rate: { base_interval: 1s }
    dns_jitter: 0.5s
    upstream_connection_options: { tcp_keepalive: { keepalive_time: 1, keepalive_interval: 1, keepalive_probes: 2 } }
    upstream_bind_config: { source_address: { address: "::6", port_value: 0 } }
    http2_protocol_options: { connection_keepalive: { interval: 1s, timeout: 2s, interval_jitter: { value: 0 } } }
    outlier_detection: { max_ejection_percent: 100, always_eject_one_host: true }
    load_assignment:
      cluster_name: far
      endpoints:
      - priority: 1
        load_balancing_weight: 3
        lb_endpoints: [{ load_balancing_weight: 2, endpoint: { address: { socket_address: { address: far.example, port_value: 1 } } } }]
  - name: near
    upstream_connection_options: { tcp_keepalive: { keepalive_time: 0 } }
    http2_protocol_options: { connection_keepalive: { timeout: 2s } }
    load_assignment:
      cluster_name: near
      endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: "fd00::1", port_value: 1 } } } }] }]
"#,
    );
    let far = &s.clusters["far"];
    assert_eq!(
        far.dns,
        Dns {
            family: DnsFamily::V4Only,
            refresh: Duration::from_secs(2),
            respect_ttl: true,
            failure: (Duration::from_secs(1), Duration::from_secs(10)),
            jitter: Duration::from_millis(500),
        }
    );
    assert_eq!(far.keepalive.map(|k| k.patience()), Some(Duration::from_secs(3)));
    assert_eq!(far.bind_source, Some("::6".parse().expect("address")));
    let ping = far.http2.keepalive.expect("pings");
    assert_eq!(
        (ping.interval, ping.timeout),
        (Duration::from_secs(1), Duration::from_secs(2))
    );
    assert!(ping.jitter.abs() < f64::EPSILON);
    let outliers = far.outlier_detection.expect("on");
    assert_eq!((outliers.max_ejection_percent, outliers.always_eject_one), (100, true));
    let group = &s.endpoints["far"][0];
    assert_eq!((group.priority, group.weight, group.endpoints[0].weight), (1, 3, 2));
    // Zeros turn it off; nothing said is Envoy's default.
    let near = &s.clusters["near"];
    assert_eq!((near.keepalive, near.http2.keepalive), (None, None));
    assert_eq!(near.dns, Dns::default());
    assert_eq!(near.dns.family, DnsFamily::V6Preferred);
    assert_eq!(s.endpoints["near"][0].weight, 0, "no share of locality-weighted load");
}

#[test]
fn listeners_of_both_families() {
    let text = |address: &str, more: &str| {
        format!(
            r#"
static_resources:
  listeners:
  - name: l
    address: {{ socket_address: {address} }}
    additional_addresses: [{more}]
    tcp_keepalive: {{ keepalive_time: 5 }}
    filter_chains: [{{ filters: [{{ name: t, typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: c }} }}] }}]
"#
        )
    };
    let addresses = |text: &str| {
        let all = snapshot(text).listeners["l"].addresses.clone();
        all.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let v6 = "{ address: '::', port_value: 80 }";
    let both = "{ address: '::', port_value: 80, ipv4_compat: true }";
    let mapped = "{ address: '::ffff:10.0.0.1', port_value: 80, ipv4_compat: true }";
    assert_eq!(addresses(&text(v6, "")), ["[::]:80"]);
    assert_eq!(addresses(&text(both, "")), ["[::]:80", "0.0.0.0:80"]);
    assert_eq!(addresses(&text(mapped, "")), ["10.0.0.1:80"]);
    let v4_too = "{ address: { socket_address: { address: 0.0.0.0, port_value: 80 } } }";
    assert_eq!(addresses(&text(v6, v4_too)), ["[::]:80", "0.0.0.0:80"]);
    let twice = Builder::new(&bootstrap(&text(both, v4_too)), Box::new(|_| Ok(()))).expect_err("refused");
    assert!(twice.to_string().contains("0.0.0.0:80 stands there twice"), "{twice}");
    let keepalive = snapshot(&text(v6, "")).listeners["l"].keepalive.expect("on");
    assert_eq!(
        (keepalive.time, keepalive.interval, keepalive.probes),
        (Some(Duration::from_secs(5)), None, None)
    );
}

#[test]
fn bootstrap_documents_merge_and_options_win() {
    let file = r#"
node: { id: file, cluster: c }
admin: { access_log_path: /dev/null, address: { pipe: { path: /run/admin.sock } } }
dynamic_resources:
  ads_config: { api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{ envoy_grpc: { cluster_name: xds, authority: me } }] }
  lds_config: { ads: {}, resource_api_version: V3 }
static_resources:
  clusters:
  - name: xds
    connect_timeout: 2s
    http2_protocol_options: {}
    load_assignment: { cluster_name: xds, endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 15012 } } } }] }] }
"#;
    let over = "node: { id: over, locality: { zone: z } }";
    let options = Options {
        node_cluster: Some("option".into()),
        ..Options::default()
    };
    let b = Bootstrap::parse([file, over], &options).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        (
            b.node.id.as_str(),
            b.node.cluster.as_str(),
            b.node.locality.zone.as_str()
        ),
        ("over", "option", "z")
    );
    assert_eq!(b.admin, Some(AdminAddress::Unix("/run/admin.sock".into())));
    assert_eq!((b.dynamic_listeners, b.dynamic_clusters), (true, false));
    let ads = b.ads.expect("a target");
    assert_eq!(
        ads.address,
        TargetAddress::Tcp("127.0.0.1:15012".parse().expect("an address"))
    );
    assert_eq!(
        (ads.authority.as_deref(), ads.connect_timeout),
        (Some("me"), Duration::from_secs(2))
    );
    assert_eq!(b.node_message.user_agent_name, "heddle");
}

#[test]
fn a_missing_file_says_which() {
    let options = Options {
        path: Some("/nonexistent/a.yaml".into()),
        ..Options::default()
    };
    let error = Bootstrap::load(&options).expect_err("missing").to_string();
    assert!(error.starts_with("cannot read /nonexistent/a.yaml: "), "{error}");
    assert!(
        Bootstrap::load(&Options::default())
            .expect_err("nothing")
            .to_string()
            .contains("--config-path")
    );
}

#[test]
fn runtime_keys_and_monitors() {
    assert_eq!(
        bootstrap("{}").runtime,
        Runtime {
            premature_resets: PrematureResetLimits {
                total_streams: 500,
                min_stream_lifetime: Duration::from_secs(1),
            },
            max_downstream_connections: None,
        }
    );
    let layers = r#"
layered_runtime:
  layers:
  - name: a
    static_layer:
      overload: { global_downstream_max_connections: 5, premature_reset_total_stream_count: 100 }
  - name: b
    static_layer:
      # Istio writes numbers as text.
      overload.global_downstream_max_connections: "2147483647"
      overload.premature_reset_min_stream_lifetime_seconds: 0
"#;
    let runtime = bootstrap(layers).runtime;
    assert_eq!(runtime.max_downstream_connections, Some(2_147_483_647));
    assert_eq!(
        runtime.premature_resets,
        PrematureResetLimits {
            total_streams: 100,
            min_stream_lifetime: Duration::ZERO,
        }
    );
    assert_eq!(snapshot(layers).runtime, runtime, "every snapshot has them");
    let monitor = r#"
overload_manager:
  resource_monitors:
  - name: envoy.resource_monitors.global_downstream_max_connections
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
      max_active_downstream_connections: 7
"#;
    let both = format!("{layers}{monitor}");
    assert_eq!(bootstrap(&both).runtime.max_downstream_connections, Some(7));
}

#[test]
fn an_overload_manager() {
    use heddle_config::snapshot::{
        LoadShedPoint, OverloadAction, OverloadActionKind, OverloadLimits, OverloadManager, Resource, ResourceMonitor,
        ScaledTimer, ShedPoint, TimerMinimum, Trigger,
    };
    assert_eq!(bootstrap("{}").overload, None);
    let loaded = bootstrap(
        r#"
overload_manager:
  refresh_interval: 0.25s
  buffer_factory_config: { minimum_account_to_track_power_of_two: 20 }
  resource_monitors:
  - name: heap
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig
      max_heap_size_bytes: 1000
  - name: group
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.cgroup_memory.v3.CgroupMemoryConfig
  - name: connections
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig
      max_active_downstream_connections: 7
  actions:
  - name: envoy.overload_actions.reduce_timeouts
    triggers:
    - { name: heap, scaled: { scaling_threshold: 0.8, saturation_threshold: 0.9 } }
    - { name: connections, threshold: { value: 0.5 } }
    typed_config:
      "@type": type.googleapis.com/envoy.config.overload.v3.ScaleTimersOverloadActionConfig
      timer_scale_factors:
      - { timer: HTTP_DOWNSTREAM_CONNECTION_IDLE, min_timeout: 2s }
      - { timer: TRANSPORT_SOCKET_CONNECT, min_scale: { value: 10 } }
  - name: envoy.overload_actions.reset_high_memory_stream
    triggers: [{ name: group, threshold: { value: 0.95 } }]
  loadshed_points:
  - name: envoy.load_shed_points.http_connection_manager_decode_headers
    triggers: [{ name: heap, scaled: { scaling_threshold: 0.5, saturation_threshold: 0.75 } }]
"#,
    );
    let monitor = |name: &str, resource| ResourceMonitor {
        name: name.to_owned(),
        resource,
    };
    let mut limits = OverloadLimits {
        tracked_stream_power: Some(20),
        ..OverloadLimits::default()
    };
    limits.timers[ScaledTimer::HttpDownstreamConnectionIdle as usize] =
        Some(TimerMinimum::Timeout(Duration::from_secs(2)));
    limits.timers[ScaledTimer::TransportSocketConnect as usize] = Some(TimerMinimum::Scale(0.1));
    let trigger = |monitor, scaling, saturation| Trigger {
        monitor,
        scaling,
        saturation,
    };
    let expected = OverloadManager {
        refresh_interval: Duration::from_millis(250),
        monitors: vec![
            monitor("heap", Resource::FixedHeap { max_bytes: 1000 }),
            monitor("group", Resource::CgroupMemory { max_bytes: None }),
            monitor("connections", Resource::DownstreamConnections { max: 7 }),
        ],
        actions: vec![
            OverloadAction {
                kind: OverloadActionKind::ReduceTimeouts,
                triggers: vec![trigger(0, 0.8, 0.9), trigger(2, 0.5, 0.5)],
            },
            OverloadAction {
                kind: OverloadActionKind::ResetHighMemoryStream,
                triggers: vec![trigger(1, 0.95, 0.95)],
            },
        ],
        shed_points: vec![ShedPoint {
            point: LoadShedPoint::DecodeHeaders,
            triggers: vec![trigger(0, 0.5, 0.75)],
        }],
        limits,
    };
    assert_eq!(loaded.overload, Some(expected));
    assert_eq!(loaded.runtime.max_downstream_connections, Some(7));
}

#[test]
fn connections_are_balanced_as_said() {
    let balance = |said: &str| {
        let text = format!(
            r#"
static_resources:
  listeners:
  - name: a
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: 1 }} }}
    {said}
    filter_chains: [{{ filters: [{{ name: t, typed_config: {{ "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: c }} }}] }}]
  clusters: [{{ name: c }}]
"#
        );
        snapshot(&text).listeners["a"].balance
    };
    let dlb = |fields: &str| {
        let message = "type.googleapis.com/envoy.extensions.network.connection_balance.dlb.v3alpha.Dlb";
        balance(&format!(
            "connection_balance_config: {{ extend_balance: {{ name: envoy.network.connection_balance.dlb, typed_config: \
             {{ \"@type\": {message}{fields} }} }} }}"
        ))
    };
    assert_eq!(balance(""), ConnectionBalance::Kernel);
    assert_eq!(
        balance("connection_balance_config: { exact_balance: {} }"),
        ConnectionBalance::Exact
    );
    assert_eq!(dlb(""), ConnectionBalance::LoadAware);
    // Fields about the device that Envoy's extension drives.
    let device = ", id: 1, max_retries: 3, fallback_policy: ExactConnectionBalance";
    assert_eq!(dlb(device), ConnectionBalance::LoadAware);
}

/// Only who finds the expressions differs, not what the configuration becomes.
#[test]
fn a_bootstrap_may_ask_for_hyperscan() {
    let with = include_str!("../../../../test/fixtures/envoy-hyperscan.yaml");
    let without: String = with
        .lines()
        .skip_while(|line| !line.starts_with("static_resources"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let found = |text: &str| {
        let snapshot = snapshot(text);
        let manager = manager(&snapshot, "http");
        let table = table(&manager);
        format!("{:?} {:?}", manager.filters, table.virtual_hosts)
    };
    let (with, without) = (found(with), found(&without));
    assert!(
        with.contains("session=[0-9a-f]+") && with.contains("/echo/[0-9]+(/.*)?"),
        "{with}"
    );
    assert_eq!(with, without, "nothing else depends on the engine");
}

/// Beside the workers and the other updates goes what may take long: much, many expressions, or, with Hyperscan, one.
#[test]
fn updates_with_expressions_are_slow() {
    let builder = |text: &str| Builder::new(&bootstrap(text), Box::new(|_| Ok(()))).expect("a builder");
    let portable = builder("static_resources: {}");
    let hyperscan = builder(include_str!("../../../../test/fixtures/envoy-hyperscan.yaml"));
    for kind in [ResourceKind::Listener, ResourceKind::Route] {
        assert!(!portable.is_slow(kind, (8 << 10) - 1), "{kind:?}");
        assert!(portable.is_slow(kind, 8 << 10), "{kind:?}");
        assert!(hyperscan.is_slow(kind, 100), "{kind:?}");
    }
    for kind in [ResourceKind::Cluster, ResourceKind::Endpoints, ResourceKind::Secret] {
        assert!(!hyperscan.is_slow(kind, (64 << 10) - 1), "{kind:?}");
        assert!(portable.is_slow(kind, 64 << 10), "{kind:?}");
    }
}
