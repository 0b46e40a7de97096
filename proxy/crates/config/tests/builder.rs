//! How updates become snapshots: warming, identity of what did not change, rotation, refusal of what is wrong.

use std::sync::{Arc, Mutex};

use heddle_config::snapshot::{Action, RouteSource, RouteTable, Snapshot};
use heddle_config::{Bootstrap, Builder, Options, Resource, ResourceKind, SecretSource, Update};
use prost_reflect::DynamicMessage;
use prost_reflect::prost::Message;
use prost_types::Any;
use serde_json::{Value, json};

const BOOTSTRAP: &str = r#"
node: { id: a, cluster: b, metadata: { NAME: a-0, LABELS: { app: a } } }
dynamic_resources:
  ads_config: { api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{ envoy_grpc: { cluster_name: xds } }] }
  cds_config: { ads: {}, resource_api_version: V3 }
  lds_config: { ads: {}, resource_api_version: V3 }
layered_runtime: { layers: [{ name: a, static_layer: { envoy.resource_limits.listener.front.connection_limit: 7 } }] }
static_resources:
  clusters:
  - name: xds
    type: STATIC
    http2_protocol_options: {}
    load_assignment: { cluster_name: xds, endpoints: [{ lb_endpoints: [{ endpoint: { address: { pipe: { path: /run/x.sock } } } }] }] }
  - name: fixed
    type: STATIC
    load_assignment: { cluster_name: fixed, endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 10.0.0.9, port_value: 80 } } } }] }] }
"#;

use ResourceKind::{Cluster, Endpoints, Listener, Route, Secret};

fn builder() -> Builder {
    let bootstrap = Bootstrap::parse([BOOTSTRAP], &Options::default()).expect("bootstrap");
    Builder::new(&bootstrap, Box::new(|_| Ok(()))).expect("builder")
}

fn update(kind: ResourceKind, resources: &[Value]) -> Update {
    let descriptor = heddle_api::pool()
        .get_message_by_name(kind.message_name())
        .expect("known kind");
    let name = if kind == Endpoints { "cluster_name" } else { "name" };
    let resources = resources.iter().map(|value| Resource {
        name: value[name].as_str().expect("a name").to_owned(),
        version: "1".into(),
        body: Any {
            type_url: kind.type_url(),
            value: DynamicMessage::deserialize(descriptor.clone(), value)
                .expect("valid")
                .encode_to_vec(),
        },
    });
    Update {
        kind,
        source: SecretSource::Ads,
        resources: resources.collect(),
        removed: Vec::new(),
    }
}

fn remove(kind: ResourceKind, name: &str) -> Update {
    Update {
        kind,
        source: SecretSource::Ads,
        resources: Vec::new(),
        removed: vec![name.to_owned()],
    }
}

fn eds_cluster(name: &str) -> Value {
    json!({ "name": name, "type": "EDS", "connect_timeout": "1s",
            "eds_cluster_config": { "eds_config": { "ads": {}, "resource_api_version": "V3" } } })
}

fn endpoints(cluster: &str, address: &str) -> Value {
    json!({ "cluster_name": cluster, "endpoints": [{ "lb_endpoints": [{ "endpoint": {
        "address": { "socket_address": { "address": address, "port_value": 80 } } } }] }] })
}

fn listener(name: &str, port: u16, routes: &str) -> Value {
    json!({ "name": name, "address": { "socket_address": { "address": "127.0.0.1", "port_value": port } },
        "filter_chains": [{ "filters": [{ "name": "http", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "http",
            "rds": { "route_config_name": routes, "config_source": { "ads": {}, "resource_api_version": "V3" } },
            "http_filters": [{ "name": "router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" } }] } }] }] })
}

fn routes(name: &str, cluster: &str) -> Value {
    json!({ "name": name, "virtual_hosts": [{ "name": "all", "domains": ["*"],
        "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": cluster } }] }] })
}

fn tls_cluster(name: &str, secret: &str) -> Value {
    json!({ "name": name, "connect_timeout": "1s", "transport_socket": { "name": "tls", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": { "tls_certificate_sds_secret_configs": [{ "name": secret,
            "sds_config": { "ads": {}, "resource_api_version": "V3" } }] } } } })
}

fn pair(name: &str, host: &str) -> Value {
    let signed = rcgen::generate_simple_self_signed(vec![host.to_owned()]).expect("a certificate");
    json!({ "name": name, "tls_certificate": { "certificate_chain": { "inline_string": signed.cert.pem() },
            "private_key": { "inline_string": signed.signing_key.serialize_pem() } } })
}

fn apply(builder: &mut Builder, kind: ResourceKind, resources: &[Value]) -> Arc<Snapshot> {
    builder
        .apply(update(kind, resources))
        .unwrap_or_else(|e| panic!("{kind}: {e}"));
    builder.snapshot()
}

#[test]
fn static_resources_are_there_at_once_and_pipes_are_not_clusters() {
    let mut b = builder();
    let s = b.snapshot();
    assert_eq!(s.clusters.keys().map(|k| &**k).collect::<Vec<_>>(), ["fixed"]);
    assert_eq!(s.endpoints["fixed"][0].endpoints[0].address.to_string(), "10.0.0.9:80");
    assert_eq!(s.node.metadata["LABELS"]["app"], "a");
    assert!(!b.is_complete(), "clusters and listeners are still to come");
}

/// The order in which the bootstrap lists them does not matter.
#[test]
fn static_clusters_and_listeners_use_static_secrets() {
    let mut cluster = tls_cluster("c", "own");
    let common = &mut cluster["transport_socket"]["typed_config"]["common_tls_context"];
    common["tls_certificate_sds_secret_configs"] = json!([{ "name": "own" }]);
    let text = json!({ "static_resources": { "clusters": [cluster], "secrets": [pair("own", "a")] } }).to_string();
    let bootstrap = Bootstrap::parse([text.as_str()], &Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let mut b = Builder::new(&bootstrap, Box::new(|_| Ok(()))).unwrap_or_else(|e| panic!("{e}"));
    assert!(b.is_complete(), "{:?}", b.waiting());
    assert!(b.snapshot().clusters.contains_key("c"));
}

#[test]
fn a_cluster_waits_for_its_endpoints() {
    let mut b = builder();
    assert!(!apply(&mut b, Cluster, &[eds_cluster("c")]).clusters.contains_key("c"));
    assert_eq!(b.waiting(), ["cluster c waits for endpoints c"]);
    assert_eq!(b.subscriptions().endpoints.into_iter().collect::<Vec<_>>(), ["c"]);
    let s = apply(&mut b, Endpoints, &[endpoints("c", "10.0.0.1")]);
    assert!(s.clusters.contains_key("c") && s.endpoints.contains_key("c"));
    assert!(b.clusters_are_warm());
}

#[test]
fn new_endpoints_leave_everything_else_alone() {
    let mut b = builder();
    apply(&mut b, Cluster, &[eds_cluster("c"), eds_cluster("d")]);
    let before = apply(
        &mut b,
        Endpoints,
        &[endpoints("c", "10.0.0.1"), endpoints("d", "10.0.0.2")],
    );
    let after = apply(&mut b, Endpoints, &[endpoints("c", "10.0.0.3")]);
    assert!(Arc::ptr_eq(&before.clusters["c"], &after.clusters["c"]));
    assert!(Arc::ptr_eq(&before.endpoints["d"], &after.endpoints["d"]));
    assert!(!Arc::ptr_eq(&before.endpoints["c"], &after.endpoints["c"]));
    assert_eq!(after.version, before.version + 1);
}

#[test]
fn the_same_resources_make_no_new_snapshot() {
    let mut b = builder();
    apply(&mut b, Cluster, &[eds_cluster("c")]);
    let before = apply(&mut b, Endpoints, &[endpoints("c", "10.0.0.1")]);
    let mut again = update(Cluster, &[eds_cluster("c")]);
    again.resources[0].version = "2".into();
    b.apply(again).expect("accepted");
    assert!(Arc::ptr_eq(&before, &b.snapshot()));
}

#[test]
fn a_listener_waits_for_its_routes_and_the_old_version_serves_on() {
    let mut b = builder();
    assert!(
        apply(&mut b, Listener, &[listener("front", 80, "r")])
            .listeners
            .is_empty()
    );
    assert_eq!(b.waiting(), ["listener front waits for routes r"]);
    let first = apply(&mut b, Route, &[routes("r", "c")]);
    assert!(first.routes.contains_key("r"));
    assert_eq!(
        first.listeners["front"].max_connections,
        Some(7),
        "from the runtime key"
    );

    let waiting = apply(&mut b, Listener, &[listener("front", 80, "s")]);
    assert!(Arc::ptr_eq(&first.listeners["front"], &waiting.listeners["front"]));
    assert!(waiting.routes.contains_key("r"));
    let second = apply(&mut b, Route, &[routes("s", "c")]);
    assert!(!Arc::ptr_eq(&first.listeners["front"], &second.listeners["front"]));
    assert!(!second.routes.contains_key("r"), "nobody refers to it any more");
    assert_eq!(b.subscriptions().routes.into_iter().collect::<Vec<_>>(), ["s"]);
}

#[test]
fn new_routes_do_not_touch_the_listener() {
    let mut b = builder();
    apply(&mut b, Listener, &[listener("front", 80, "r")]);
    let before = apply(&mut b, Route, &[routes("r", "c")]);
    let after = apply(&mut b, Route, &[routes("r", "d")]);
    assert!(Arc::ptr_eq(&before.listeners["front"], &after.listeners["front"]));
    assert!(!Arc::ptr_eq(&before.routes["r"], &after.routes["r"]));
}

/// What is refused of an update: names and text.
fn refusal(builder: &mut Builder, update: Update) -> (Vec<String>, String) {
    let refusal = builder.apply(update).expect_err("refused");
    (refusal.names().iter().cloned().collect(), refusal.to_string())
}

#[test]
fn one_bad_resource_leaves_the_others_alone() {
    let mut b = builder();
    let mut bad = eds_cluster("bad");
    bad["lb_policy"] = json!("MAGLEV");
    let (names, error) = refusal(&mut b, update(Cluster, &[bad, eds_cluster("good")]));
    assert_eq!(names, ["bad"]);
    assert!(
        error.starts_with("clusters[bad].lb_policy: MAGLEV is not implemented"),
        "{error}"
    );
    assert_eq!(b.subscriptions().endpoints.into_iter().collect::<Vec<_>>(), ["good"]);
    assert!(b.has_clusters(), "they have come, and one of them was wrong");

    let mut wrong = endpoints("good", "10.0.0.1");
    wrong["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]["port_value"] = json!(70_000);
    apply(&mut b, Cluster, &[eds_cluster("good"), eds_cluster("more")]);
    let (names, _) = refusal(&mut b, update(Endpoints, &[wrong, endpoints("more", "10.0.0.2")]));
    assert_eq!(names, ["good"]);
    let s = b.snapshot();
    assert!(s.clusters.contains_key("more"));
    assert!(s.endpoints["good"].is_empty(), "nobody waits for what was refused");

    apply(
        &mut b,
        Listener,
        &[listener("front", 80, "r"), listener("back", 81, "s")],
    );
    let mut wrong = routes("r", "more");
    wrong["vhds"] = json!({ "config_source": { "ads": {}, "resource_api_version": "V3" } });
    let (names, _) = refusal(&mut b, update(Route, &[wrong, routes("s", "more")]));
    assert_eq!(names, ["r"]);
    let s = b.snapshot();
    assert!(s.routes["r"].virtual_hosts.is_empty());
    assert_eq!(s.routes["s"].virtual_hosts.len(), 1);
    assert!(b.is_complete(), "{:?}", b.waiting());
}

/// A route table with a virtual host for each of these, which routes what the expression matches to the cluster.
fn table(name: &str, hosts: &[(&str, &str, &str)]) -> Value {
    let hosts = hosts.iter().map(|(host, regex, cluster)| {
        json!({ "name": host, "domains": [host], "routes": [
            { "match": { "safe_regex": { "regex": regex } }, "route": { "cluster": cluster } }] })
    });
    json!({ "name": name, "virtual_hosts": hosts.collect::<Vec<_>>() })
}

/// What each virtual host of a table does: the clusters that it routes to, or the status that it answers.
fn does(table: &RouteTable) -> Vec<(&str, Vec<String>)> {
    let hosts = table.virtual_hosts.iter();
    hosts
        .map(|host| {
            let actions = host.routes.iter().map(|route| match &route.action {
                Action::Route(action) => action.cluster.names().map(|name| &**name).collect(),
                Action::Direct(direct) => direct.status.to_string(),
                Action::Redirect(_) => "redirect".to_owned(),
            });
            (&*host.name, actions.collect())
        })
        .collect()
}

#[test]
fn a_bad_virtual_host_leaves_the_others_of_its_table_alone() {
    let mut b = builder();
    apply(&mut b, Listener, &[listener("front", 80, "r")]);
    // The first version: there is nothing that it could go on as.
    let hosts = [("a", "/a.*", "fixed"), ("b", "(", "fixed"), ("c", "/c.*", "fixed")];
    let (names, error) = refusal(&mut b, update(Route, &[table("r", &hosts)]));
    assert_eq!(names, ["r"]);
    assert!(
        error.starts_with("routes[r].virtual_hosts[1].routes[0].match.safe_regex"),
        "{error}"
    );
    let is = |b: &mut Builder, want: [(&str, &str); 3]| {
        let s = b.snapshot();
        assert_eq!(
            does(&s.routes["r"]),
            want.map(|(host, does)| (host, vec![does.to_owned()]))
        );
    };
    is(&mut b, [("a", "fixed"), ("b", "503"), ("c", "fixed")]);
    // One that has served goes on as it was.
    let hosts = [("a", "/a.*", "fixed"), ("b", "/b.*", "b"), ("c", "/c.*", "fixed")];
    apply(&mut b, Route, &[table("r", &hosts)]);
    is(&mut b, [("a", "fixed"), ("b", "b"), ("c", "fixed")]);
    let hosts = [("a", "/a.*", "other"), ("b", "(", "other"), ("c", "/c.*", "fixed")];
    refusal(&mut b, update(Route, &[table("r", &hosts)]));
    is(&mut b, [("a", "other"), ("b", "b"), ("c", "fixed")]);
    // It is refused as often as it comes, whatever else changes.
    refusal(&mut b, update(Route, &[table("r", &hosts)]));
    let hosts = [("c", "/c.*", "c"), ("b", "(", "other"), ("a", "/a.*", "other")];
    let (_, error) = refusal(&mut b, update(Route, &[table("r", &hosts)]));
    assert!(error.starts_with("routes[r].virtual_hosts[1]"), "{error}");
    is(&mut b, [("c", "c"), ("b", "b"), ("a", "other")]);
    assert!(
        error.ends_with("routes[r]: its other virtual hosts are in force"),
        "{error}"
    );
    // The domains are those of now, whoever else had them before, so that no other virtual host answers.
    let mut moved = table("r", &hosts);
    moved["virtual_hosts"][0]["domains"] = json!(["c", "b"]);
    moved["virtual_hosts"][1]["domains"] = json!(["b.new"]);
    refusal(&mut b, update(Route, &[moved]));
    let s = b.snapshot();
    let exact = &s.routes["r"].exact;
    assert_eq!((exact.get("b"), exact.get("b.new")), (Some(&0), Some(&1)));
    refusal(&mut b, update(Route, &[table("r", &hosts)]));
    // A cluster that has to exist and does not is its trouble alone as well.
    let mut strict = table(
        "r",
        &[("a", "/a.*", "missing"), ("b", "/b.*", "fixed"), ("c", "/c.*", "fixed")],
    );
    strict["validate_clusters"] = json!(true);
    let mut whole = strict.clone();
    refusal(&mut b, update(Route, &[strict]));
    // "a" named a cluster that is not there before, too: the table is refused, and stays.
    is(&mut b, [("c", "c"), ("b", "b"), ("a", "other")]);
    // So does what Heddle does not know beside the virtual hosts.
    let mut both = update(Route, &[table("r", &[("a", "/a.*", "fixed"), ("b", "(", "fixed")])]);
    both.resources[0].body.value.extend([0xfa, 0x3e, 0x01, 0x00]);
    let (_, error) = refusal(&mut b, both);
    assert!(error.contains("is not part of the API version"), "{error}");
    is(&mut b, [("c", "c"), ("b", "b"), ("a", "other")]);
    // What is wrong with more than a virtual host refuses the table.
    whole["virtual_hosts"][1]["domains"] = json!(["a"]);
    let (_, error) = refusal(&mut b, update(Route, &[whole]));
    assert!(error.contains("belongs to another virtual host already"), "{error}");
    is(&mut b, [("c", "c"), ("b", "b"), ("a", "other")]);
}

#[test]
fn what_is_refused_stays_as_it_was() {
    let mut b = serving();
    let before = b.snapshot();
    let mut bad = eds_cluster("c");
    bad["lb_policy"] = json!("MAGLEV");
    let (names, _) = refusal(&mut b, update(Cluster, &[bad.clone()]));
    assert_eq!(names, ["c"]);
    assert!(Arc::ptr_eq(&before, &b.snapshot()));
    // One that is on its way out is not kept by a version that is refused.
    b.apply(remove(Cluster, "c")).expect("accepted");
    refusal(&mut b, update(Cluster, &[bad]));
    let over = b.deadline().expect("it is to end");
    b.tick(over);
    assert!(!b.snapshot().clusters.contains_key("c"));
}

#[test]
fn removal_takes_effect_and_forgets_what_it_referred_to() {
    let mut b = builder();
    apply(&mut b, Cluster, &[eds_cluster("c")]);
    apply(&mut b, Endpoints, &[endpoints("c", "10.0.0.1")]);
    b.apply(remove(Cluster, "c")).expect("accepted");
    let s = b.snapshot();
    assert!(!s.clusters.contains_key("c") && !s.endpoints.contains_key("c"));
    assert!(b.subscriptions().endpoints.is_empty());
}

/// A proxy that serves: a listener whose routes lead to the cluster `c`.
fn serving() -> Builder {
    let mut b = builder();
    apply(&mut b, Cluster, &[eds_cluster("c")]);
    apply(&mut b, Endpoints, &[endpoints("c", "10.0.0.1")]);
    apply(&mut b, Listener, &[listener("front", 80, "r")]);
    apply(&mut b, Route, &[routes("r", "c")]);
    assert!(b.snapshot().listeners.contains_key("front"));
    b
}

#[test]
fn a_removed_cluster_stays_until_no_route_leads_to_it() {
    let mut b = serving();
    b.apply(remove(Cluster, "c")).expect("accepted");
    b.apply(remove(Endpoints, "c")).expect("accepted");
    let s = b.snapshot();
    assert!(s.clusters.contains_key("c"));
    assert_eq!(s.endpoints["c"].len(), 1);
    assert!(b.deadline().is_some());
    let s = apply(&mut b, Route, &[routes("r", "fixed")]);
    assert!(!s.clusters.contains_key("c") && !s.endpoints.contains_key("c"));
    assert_eq!(b.deadline(), None);
}

#[test]
fn a_removed_cluster_does_not_stay_for_ever() {
    let start = std::time::Instant::now();
    let mut b = serving();
    b.set_time(start);
    b.apply(remove(Cluster, "c")).expect("accepted");
    let over = b.deadline().expect("it is to end");
    assert_eq!(over.duration_since(start).as_secs(), 10);
    b.tick(over - std::time::Duration::from_millis(1));
    assert!(b.snapshot().clusters.contains_key("c"));
    // A table that comes only now, and checks its clusters, finds it gone.
    let mut strict = routes("strict", "c");
    strict["validate_clusters"] = json!(true);
    let refused = b.apply(update(Route, &[strict])).expect_err("refused").to_string();
    assert!(refused.contains("there is no cluster \"c\""), "{refused}");
    b.tick(over);
    assert!(!b.snapshot().clusters.contains_key("c"));
    assert_eq!(b.deadline(), None);
}

#[test]
fn a_cluster_that_comes_back_was_never_gone() {
    let mut b = serving();
    let before = b.snapshot();
    b.apply(remove(Cluster, "c")).expect("accepted");
    b.apply(update(Cluster, &[eds_cluster("c")])).expect("accepted");
    assert_eq!(b.deadline(), None);
    assert!(Arc::ptr_eq(&before.clusters["c"], &b.snapshot().clusters["c"]));
}

#[test]
fn routes_wait_for_clusters_on_their_way() {
    let start = std::time::Instant::now();
    let mut b = serving();
    b.set_time(start);
    apply(&mut b, Cluster, &[eds_cluster("c"), eds_cluster("next")]);
    let before = b.snapshot();
    let s = apply(&mut b, Route, &[routes("r", "next")]);
    assert!(
        Arc::ptr_eq(&before.routes["r"], &s.routes["r"]),
        "the old table serves on"
    );
    let s = apply(&mut b, Endpoints, &[endpoints("next", "10.0.0.2")]);
    assert!(s.clusters.contains_key("next"));
    assert!(!Arc::ptr_eq(&before.routes["r"], &s.routes["r"]));
    assert_eq!(b.deadline(), None);
    // Not for ever: this one's endpoints never come. What names no cluster at all does not wait.
    let names: Vec<_> = ["c", "next", "lost"].map(eds_cluster).into();
    apply(&mut b, Cluster, &names);
    let before = apply(&mut b, Route, &[routes("r", "lost")]);
    let over = b.deadline().expect("it is to end");
    assert_eq!(over.duration_since(start).as_secs(), 3);
    b.tick(over);
    assert!(!Arc::ptr_eq(&before.routes["r"], &b.snapshot().routes["r"]));
    let s = apply(&mut b, Route, &[routes("r", "unknown")]);
    assert_eq!(s.routes["r"].clusters().map(|n| &**n).collect::<Vec<_>>(), ["unknown"]);
}

#[test]
fn a_listener_waits_for_clusters_on_their_way() {
    let start = std::time::Instant::now();
    let mut b = builder();
    b.set_time(start);
    let tcp = |cluster: &str| {
        json!({ "name": "tcp", "address": { "socket_address": { "address": "127.0.0.1", "port_value": 81 } },
                "filter_chains": [{ "filters": [{ "name": "t", "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                    "stat_prefix": "t",
                    "weighted_clusters": { "clusters": [{ "name": "fixed", "weight": 1 }, { "name": cluster, "weight": 1 }] } } }] }] })
    };
    apply(&mut b, Cluster, &[eds_cluster("c")]);
    let s = apply(&mut b, Listener, &[tcp("c")]);
    assert!(!s.listeners.contains_key("tcp"));
    let s = apply(&mut b, Endpoints, &[endpoints("c", "10.0.0.1")]);
    assert!(s.listeners.contains_key("tcp"));
    apply(&mut b, Cluster, &[eds_cluster("c"), eds_cluster("lost")]);
    let before = apply(&mut b, Listener, &[tcp("lost")]);
    b.tick(b.deadline().expect("it is to end"));
    assert!(!Arc::ptr_eq(&before.listeners["tcp"], &b.snapshot().listeners["tcp"]));
}

#[test]
fn chains_that_stay_are_known_by_their_content() {
    let mut b = builder();
    let tcp = |name: &str, cluster: &str, port: u16| {
        json!({ "name": name, "filter_chain_match": { "destination_port": port }, "filters": [{ "name": "t", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "stat_prefix": "t", "cluster": cluster } }] })
    };
    let with = |chains: &[Value], direction: &str| {
        json!({ "name": "l", "address": { "socket_address": { "address": "127.0.0.1", "port_value": 81 } },
                "traffic_direction": direction, "filter_chains": chains })
    };
    let put = |b: &mut Builder, chains: &[Value], direction: &str| {
        let s = apply(b, Listener, &[with(chains, direction)]);
        let l = s.listeners["l"].clone();
        (
            l.frame.expect("known"),
            l.filter_chains
                .iter()
                .map(|c| c.identity.expect("known"))
                .collect::<Vec<_>>(),
        )
    };
    let (frame, chains) = put(&mut b, &[tcp("a", "fixed", 1), tcp("b", "fixed", 2)], "INBOUND");
    assert_ne!(chains[0], chains[1]);
    let (same, moved) = put(&mut b, &[tcp("c", "fixed", 3), tcp("a", "fixed", 1)], "INBOUND");
    assert_eq!((same, moved[1]), (frame, chains[0]));
    let (other, changed) = put(&mut b, &[tcp("a", "elsewhere", 1)], "OUTBOUND");
    assert_ne!(other, frame);
    assert_ne!(changed[0], chains[0]);
}

#[test]
fn removed_routes_and_endpoints_stay_while_they_are_in_use() {
    let mut b = builder();
    apply(&mut b, Cluster, &[eds_cluster("c")]);
    apply(&mut b, Endpoints, &[endpoints("c", "10.0.0.1")]);
    b.apply(remove(Endpoints, "c")).expect("accepted");
    assert_eq!(b.snapshot().endpoints["c"].len(), 1);
}

#[test]
fn what_the_server_does_not_have_is_not_waited_for() {
    let mut b = builder();
    apply(&mut b, Cluster, &[eds_cluster("c")]);
    b.apply(remove(Endpoints, "c")).expect("accepted");
    assert!(b.snapshot().endpoints["c"].is_empty());
    apply(&mut b, Listener, &[listener("front", 80, "r")]);
    b.apply(remove(Route, "r")).expect("accepted");
    let s = b.snapshot();
    assert!(s.routes["r"].virtual_hosts.is_empty());
    let heddle_config::snapshot::NetworkFilter::Http(manager) = &s.listeners["front"].filter_chains[0].filters[0]
    else {
        panic!("an HTTP connection manager");
    };
    assert!(matches!(&manager.routes, RouteSource::Rds(name) if **name == *"r"));
    assert!(b.is_complete());
}

#[test]
fn static_resources_cannot_be_replaced_or_removed() {
    let mut b = builder();
    apply(&mut b, Cluster, &[eds_cluster("c")]);
    let mut wrong = update(Cluster, &[eds_cluster("fixed"), eds_cluster("d")]);
    wrong.removed = vec!["fixed".into(), "c".into()];
    let (names, error) = refusal(&mut b, wrong);
    assert_eq!(names, ["fixed"]);
    assert!(error.contains("static resource of the bootstrap"), "{error}");
    assert!(b.snapshot().clusters.contains_key("fixed"));
    assert_eq!(b.subscriptions().endpoints.into_iter().collect::<Vec<_>>(), ["d"]);
}

#[test]
fn a_rotated_secret_makes_a_new_context_behind_the_same_key() {
    let mut b = builder();
    apply(&mut b, Cluster, &[tls_cluster("c", "id"), tls_cluster("d", "id")]);
    assert_eq!(
        b.waiting(),
        ["cluster c waits for secret id", "cluster d waits for secret id"]
    );
    assert_eq!(
        b.subscriptions().secrets[&SecretSource::Ads].iter().collect::<Vec<_>>(),
        ["id"]
    );
    let before = apply(&mut b, Secret, &[pair("id", "a.example")]);
    let after = apply(&mut b, Secret, &[pair("id", "b.example")]);
    assert!(Arc::ptr_eq(&before.clusters["c"], &after.clusters["c"]));
    let key = "cluster/c/default";
    assert!(!Arc::ptr_eq(&before.client_tls[key], &after.client_tls[key]));
    assert!(
        Arc::ptr_eq(&after.client_tls[key], &after.client_tls["cluster/d/default"]),
        "equal specifications share a context"
    );
    assert!(!b.config_dump(true).to_string().contains("PRIVATE KEY"));
}

#[test]
fn a_bad_secret_is_refused_and_the_old_one_serves_on() {
    let mut b = builder();
    apply(&mut b, Cluster, &[tls_cluster("c", "id")]);
    let before = apply(&mut b, Secret, &[pair("id", "a.example")]);
    let mut mixed = pair("id", "b.example");
    mixed["tls_certificate"]["private_key"] = pair("id", "c.example")["tls_certificate"]["private_key"].clone();
    let error = b.apply(update(Secret, &[mixed])).expect_err("refused").to_string();
    assert!(error.contains("does not match"), "{error}");
    let wrong_kind = json!({ "name": "id", "validation_context": {} });
    let error = b.apply(update(Secret, &[wrong_kind])).expect_err("refused").to_string();
    assert!(error.contains("a tls_certificate is needed"), "{error}");
    assert!(Arc::ptr_eq(&before, &b.snapshot()));
}

#[test]
fn who_cannot_use_a_secret_does_not_keep_it_from_others() {
    let mut b = builder();
    let mut mistaken = tls_cluster("mistaken", "unused");
    mistaken["transport_socket"]["typed_config"]["common_tls_context"] = json!({
        "validation_context_sds_secret_config": {
            "name": "id", "sds_config": { "ads": {}, "resource_api_version": "V3" } } });
    apply(&mut b, Cluster, &[tls_cluster("c", "id"), mistaken]);
    let (names, error) = refusal(&mut b, update(Secret, &[pair("id", "a.example")]));
    assert_eq!(names, ["id"]);
    assert!(error.starts_with("clusters[mistaken].transport_socket"), "{error}");
    assert!(b.snapshot().clusters.contains_key("c"));
    assert_eq!(
        b.waiting(),
        ["cluster mistaken waits for secrets that it can use: those that have come do not fit"]
    );
    // A secret that nobody can use leaves those beside it alone.
    let mut mixed = pair("id", "b.example");
    mixed["tls_certificate"]["private_key"] = pair("id", "c.example")["tls_certificate"]["private_key"].clone();
    apply(&mut b, Cluster, &[tls_cluster("d", "other")]);
    let (names, _) = refusal(&mut b, update(Secret, &[mixed, pair("other", "d.example")]));
    assert_eq!(names, ["id"]);
    assert!(b.snapshot().clusters.contains_key("d"));
}

#[test]
fn a_secret_of_another_kind_does_not_stop_those_beside_it() {
    let mut b = builder();
    let both = |name: &str, one: &str, other: &str| {
        let mut cluster = tls_cluster(name, one);
        let common = &mut cluster["transport_socket"]["typed_config"]["common_tls_context"];
        common["validation_context_sds_secret_config"] =
            json!({ "name": other, "sds_config": { "ads": {}, "resource_api_version": "V3" } });
        cluster
    };
    let ca = |host: &str| {
        let pem = pair("ca", host)["tls_certificate"]["certificate_chain"].clone();
        json!({ "name": "ca", "validation_context": { "trusted_ca": pem } })
    };
    apply(&mut b, Cluster, &[both("c", "id", "ca"), tls_cluster("d", "other")]);
    let before = apply(
        &mut b,
        Secret,
        &[pair("id", "a.example"), pair("other", "o.example"), ca("a.example")],
    );
    // "id" becomes what nobody can use; the authority and "other" are renewed beside it.
    let mut mistaken = ca("x.example");
    mistaken["name"] = json!("id");
    let (names, error) = refusal(
        &mut b,
        update(Secret, &[mistaken, ca("b.example"), pair("other", "p.example")]),
    );
    assert_eq!(names, ["id"], "{error}");
    let after = b.snapshot();
    for key in ["cluster/c/default", "cluster/d/default"] {
        assert!(!Arc::ptr_eq(&before.client_tls[key], &after.client_tls[key]), "{key}");
    }
    // It was not kept: what comes later uses the certificate that there was.
    let s = apply(
        &mut b,
        Cluster,
        &[both("c", "id", "ca"), tls_cluster("d", "other"), tls_cluster("e", "id")],
    );
    assert!(s.clusters.contains_key("e"));
}

#[test]
fn a_proxy_is_not_ready_without_its_inbound_listener() {
    let mut b = builder();
    apply(&mut b, Cluster, &[]);
    let mut inbound = listener("inbound", 80, "r");
    inbound["traffic_direction"] = json!("INBOUND");
    let right = inbound.clone();
    inbound["udp_listener_config"] = json!({});
    let mut outbound = listener("outbound", 81, "r");
    outbound["udp_listener_config"] = json!({});
    let (names, _) = refusal(
        &mut b,
        update(Listener, &[inbound, outbound, listener("front", 82, "r")]),
    );
    assert_eq!(names, ["inbound", "outbound"]);
    apply(&mut b, Route, &[routes("r", "fixed")]);
    assert!(!b.is_complete());
    assert_eq!(b.waiting(), ["listener inbound was refused"]);
    let mut elsewhere = right.clone();
    elsewhere["address"]["socket_address"]["port_value"] = json!(82);
    refusal(&mut b, update(Listener, &[elsewhere]));
    assert!(!b.is_complete(), "its address is another's");
    apply(&mut b, Listener, &[right]);
    assert!(b.is_complete());
    // Of one that has served there is a version.
    let mut worse = listener("inbound", 80, "r");
    worse["traffic_direction"] = json!("INBOUND");
    worse["udp_listener_config"] = json!({});
    refusal(&mut b, update(Listener, &[worse]));
    assert!(b.is_complete());
}

#[test]
fn a_listener_waits_for_the_keys_of_its_tickets_and_takes_new_ones() {
    let keys = |fills: &[char]| {
        let keys = fills
            .iter()
            .map(|c| json!({ "inline_string": c.to_string().repeat(80) }));
        json!({ "name": "keys", "session_ticket_keys": { "keys": keys.collect::<Vec<_>>() } })
    };
    let from_ads = |name: &str| json!({ "name": name, "sds_config": { "ads": {}, "resource_api_version": "V3" } });
    let mut front = listener("front", 80, "r");
    front["filter_chains"][0]["transport_socket"] = json!({ "name": "tls", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "session_ticket_keys_sds_secret_config": from_ads("keys"),
        "common_tls_context": { "tls_certificate_sds_secret_configs": [from_ads("id")] } } });
    let mut b = builder();
    apply(&mut b, Listener, &[front]);
    apply(&mut b, Route, &[routes("r", "fixed")]);
    apply(&mut b, Secret, &[pair("id", "a.example")]);
    assert!(
        b.waiting().iter().any(|w| w.ends_with("waits for secret keys")),
        "{:?}",
        b.waiting()
    );
    let before = apply(&mut b, Secret, &[keys(&['a'])]);
    let after = apply(&mut b, Secret, &[keys(&['b', 'a'])]);
    let (key, first) = before.server_tls.iter().next().expect("a context");
    assert!(!Arc::ptr_eq(first, &after.server_tls[key]));
    let dump = b.config_dump(true).to_string();
    assert!(!dump.contains("aaaa") && dump.contains("[redacted]"), "{dump}");

    let error = b
        .apply(update(Secret, &[pair("keys", "b.example")]))
        .expect_err("refused")
        .to_string();
    assert!(
        error.contains("is a tls_certificate, a session_ticket_keys is needed"),
        "{error}"
    );
    assert!(Arc::ptr_eq(&after, &b.snapshot()));
}

#[test]
fn an_address_that_cannot_be_bound_refuses_the_listener() {
    let bootstrap = Bootstrap::parse([BOOTSTRAP], &Options::default()).expect("bootstrap");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    let check = move |address: std::net::SocketAddr| {
        log.lock().expect("not poisoned").push(address.port());
        if address.port() == 81 {
            Err("it is taken".to_owned())
        } else {
            Ok(())
        }
    };
    let mut b = Builder::new(&bootstrap, Box::new(check)).expect("builder");
    apply(&mut b, Listener, &[listener("front", 80, "r")]);
    let error = b
        .apply(update(Listener, &[listener("other", 81, "r")]))
        .expect_err("refused")
        .to_string();
    assert_eq!(error, "listeners[other].address: cannot bind 127.0.0.1:81: it is taken");
    // An address that is ours already is not tried again.
    apply(&mut b, Listener, &[listener("front", 80, "s")]);
    assert_eq!(*asked.lock().expect("not poisoned"), [80, 81]);
}

#[test]
fn two_listeners_cannot_have_one_address_but_one_may_take_over() {
    let mut b = builder();
    apply(&mut b, Listener, &[listener("front", 80, "r")]);
    let error = b
        .apply(update(Listener, &[listener("other", 80, "r")]))
        .expect_err("refused")
        .to_string();
    assert!(
        error.contains("is the address of listener \"front\" already"),
        "{error}"
    );
    let mut swap = update(Listener, &[listener("other", 80, "r")]);
    swap.removed.push("front".into());
    b.apply(swap).expect("accepted");
}

fn ports(snapshot: &Snapshot) -> Vec<(&str, u16)> {
    let listeners = snapshot.listeners.values();
    let mut out: Vec<_> = listeners.map(|l| (&*l.name, l.addresses[0].port())).collect();
    out.sort_unstable();
    out
}

#[test]
fn an_address_stays_with_who_has_it() {
    let mut b = builder();
    apply(&mut b, Listener, &[listener("m", 80, "r"), listener("n", 81, "r")]);
    apply(&mut b, Route, &[routes("r", "fixed")]);
    // One that changes keeps its address, whatever the names: "a" comes before "m".
    let (names, error) = refusal(
        &mut b,
        update(
            Listener,
            &[listener("a", 80, "r"), listener("m", 80, "s"), listener("z", 82, "r")],
        ),
    );
    assert_eq!(names, ["a"]);
    assert_eq!(
        error,
        "listeners[a].address: 127.0.0.1:80 is the address of listener \"m\" already"
    );
    apply(&mut b, Route, &[routes("s", "fixed")]);
    assert_eq!(ports(&b.snapshot()), [("m", 80), ("n", 81), ("z", 82)]);
}

#[test]
fn an_address_that_is_kept_beside_a_new_one_stays_with_who_has_it() {
    let mut b = builder();
    apply(&mut b, Listener, &[listener("m", 80, "r")]);
    apply(&mut b, Route, &[routes("r", "fixed")]);
    let mut grown = listener("m", 80, "r");
    grown["additional_addresses"] =
        json!([{ "address": { "socket_address": { "address": "127.0.0.1", "port_value": 81 } } }]);
    let (names, _) = refusal(&mut b, update(Listener, &[listener("a", 80, "r"), grown]));
    assert_eq!(names, ["a"]);
    assert_eq!(b.snapshot().listeners["m"].addresses.len(), 2);
}

#[test]
fn who_counts_on_the_address_of_one_that_is_refused_is_refused_too() {
    let mut b = builder();
    let before: Vec<_> = (0..4).map(|i| listener(&format!("l{i}"), 80 + i, "r")).collect();
    apply(&mut b, Listener, &before);
    apply(&mut b, Route, &[routes("r", "fixed")]);
    // Each moves one up; the last goes where "a" wants to go as well, which comes first by its name.
    let mut moved: Vec<_> = (0..4).map(|i| listener(&format!("l{i}"), 81 + i, "r")).collect();
    moved.push(listener("a", 84, "r"));
    let (names, error) = refusal(&mut b, update(Listener, &moved));
    assert_eq!(names, ["l0", "l1", "l2", "l3"], "{error}");
    let s = b.snapshot();
    assert_eq!(ports(&s), [("a", 84), ("l0", 80), ("l1", 81), ("l2", 82), ("l3", 83)]);
    // Without the one that is in the way they move.
    b.apply(remove(Listener, "a")).expect("accepted");
    let s = apply(&mut b, Listener, &moved[..4]);
    assert_eq!(ports(&s), [("l0", 81), ("l1", 82), ("l2", 83), ("l3", 84)]);
}

#[test]
fn a_checkpoint_brings_the_old_configuration_back() {
    let mut b = builder();
    apply(&mut b, Listener, &[listener("front", 80, "r")]);
    let before = apply(&mut b, Route, &[routes("r", "c")]);
    let checkpoint = b.checkpoint();
    let after = apply(
        &mut b,
        Listener,
        &[listener("front", 81, "r"), listener("more", 82, "r")],
    );
    assert_eq!(after.listeners.len(), 2);
    b.restore(checkpoint);
    let back = b.snapshot();
    assert!(back.version > after.version);
    assert_eq!(back.listeners.len(), 1);
    assert!(Arc::ptr_eq(&before.listeners["front"], &back.listeners["front"]));
}

#[test]
fn names_must_agree_and_be_unique() {
    let mut b = builder();
    let mut renamed = update(Cluster, &[eds_cluster("c")]);
    renamed.resources[0].name = "d".into();
    assert!(
        b.apply(renamed)
            .expect_err("refused")
            .to_string()
            .contains("they must agree")
    );
    let twice = update(Cluster, &[eds_cluster("c"), eds_cluster("c"), eds_cluster("d")]);
    let (names, error) = refusal(&mut b, twice);
    assert_eq!(names, ["c"]);
    assert!(error.contains("twice"), "{error}");
    assert_eq!(b.subscriptions().endpoints.into_iter().collect::<Vec<_>>(), ["d"]);
}

#[test]
fn hostile_bytes_are_errors() {
    let mut b = builder();
    for kind in ResourceKind::ALL {
        for bytes in [&b"\xff\xff\xff\xff\xff"[..], b"\x0a\xff", b"\xfa\x7f\x00"] {
            let body = Any {
                type_url: kind.type_url(),
                value: bytes.to_vec(),
            };
            let resources = vec![Resource {
                name: "x".into(),
                version: "1".into(),
                body,
            }];
            let wrong = Update {
                kind,
                source: SecretSource::Ads,
                resources,
                removed: Vec::new(),
            };
            assert!(b.apply(wrong).is_err(), "{kind} {bytes:?}");
        }
        let body = Any {
            type_url: "type.googleapis.com/google.protobuf.Empty".into(),
            value: Vec::new(),
        };
        let resources = vec![Resource {
            name: "x".into(),
            version: "1".into(),
            body,
        }];
        assert!(
            b.apply(Update {
                kind,
                source: SecretSource::Ads,
                resources,
                removed: Vec::new()
            })
            .is_err()
        );
    }
}
