//! Every golden scenario of the controller must load: each proxy's resources are accepted and nothing stays warming.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use heddle_config::{Bootstrap, Builder, Options, Resource, ResourceKind, SecretSource, Update};
use prost_reflect::DynamicMessage;
use prost_reflect::prost::Message;
use prost_types::Any;
use serde_json::{Value, json};

/// A bootstrap like the one that the agent writes, with the clusters that streams go to.
const BOOTSTRAP: &str = r#"
node: { id: "sidecar~10.0.0.1~a.b~b.svc.cluster.local", cluster: a }
dynamic_resources:
  ads_config: { api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{ envoy_grpc: { cluster_name: xds-grpc } }] }
  cds_config: { ads: {}, resource_api_version: V3 }
  lds_config: { ads: {}, resource_api_version: V3 }
static_resources:
  clusters:
  - &grpc
    name: xds-grpc
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }
    load_assignment: { cluster_name: grpc, endpoints: [{ lb_endpoints: [{ endpoint: { address: { pipe: { path: /run/a.sock } } } }] }] }
  - name: sds-grpc
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: { http2_protocol_options: {} }
    load_assignment: { cluster_name: grpc, endpoints: [{ lb_endpoints: [{ endpoint: { address: { pipe: { path: /run/a.sock } } } }] }] }
"#;

fn resource(kind: ResourceKind, value: &Value) -> Resource {
    let descriptor = heddle_api::pool()
        .get_message_by_name(kind.message_name())
        .expect("known kind");
    let message = DynamicMessage::deserialize(descriptor, value).unwrap_or_else(|e| panic!("{kind}: {e}: {value}"));
    let name = if kind == ResourceKind::Endpoints {
        "cluster_name"
    } else {
        "name"
    };
    Resource {
        name: value[name].as_str().unwrap_or_default().to_owned(),
        version: "1".into(),
        body: Any {
            type_url: kind.type_url(),
            value: message.encode_to_vec(),
        },
    }
}

fn update(kind: ResourceKind, source: SecretSource, resources: Vec<Resource>) -> Update {
    Update {
        kind,
        source,
        resources,
        removed: Vec::new(),
    }
}

/// Secrets as the agent would serve them.
struct Authority {
    chain: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let signed = rcgen::generate_simple_self_signed(vec!["example.com".to_owned()]).expect("a certificate");
        Self {
            chain: signed.cert.pem(),
            key: signed.signing_key.serialize_pem(),
        }
    }

    fn secret(&self, name: &str) -> Value {
        if name.contains("ROOT") || name.ends_with("-cacert") {
            json!({ "name": name, "validation_context": { "trusted_ca": { "inline_string": self.chain } } })
        } else {
            json!({ "name": name, "tls_certificate": {
                "certificate_chain": { "inline_string": self.chain }, "private_key": { "inline_string": self.key } } })
        }
    }
}

/// Loads one proxy's resources in the order of discovery.
fn load(place: &str, resources: &Value, authority: &Authority) -> Builder {
    let bootstrap = Bootstrap::parse([BOOTSTRAP], &Options::default()).expect("bootstrap");
    let mut builder = Builder::new(&bootstrap, Box::new(|_| Ok(()))).expect("builder");
    let mut given: BTreeMap<ResourceKind, Vec<Resource>> = BTreeMap::new();
    for kind in ResourceKind::ALL {
        let list = resources
            .get(kind.plural())
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        given.insert(kind, list.iter().map(|v| resource(kind, v)).collect());
    }
    for kind in [
        ResourceKind::Cluster,
        ResourceKind::Endpoints,
        ResourceKind::Listener,
        ResourceKind::Route,
    ] {
        let applied = builder.apply(update(kind, SecretSource::Ads, given.remove(&kind).unwrap_or_default()));
        applied.unwrap_or_else(|e| panic!("{place}: {kind} refused:\n{e}"));
    }
    let from_ads: BTreeSet<String> = given[&ResourceKind::Secret].iter().map(|s| s.name.clone()).collect();
    let mut secrets = given.remove(&ResourceKind::Secret).unwrap_or_default();
    for (source, names) in builder.subscriptions().secrets {
        let mut list = if source == SecretSource::Ads {
            std::mem::take(&mut secrets)
        } else {
            Vec::new()
        };
        let missing = names
            .iter()
            .filter(|n| source != SecretSource::Ads || !from_ads.contains(*n));
        list.extend(missing.map(|n| resource(ResourceKind::Secret, &authority.secret(n))));
        let applied = builder.apply(update(ResourceKind::Secret, source, list));
        applied.unwrap_or_else(|e| panic!("{place}: secrets refused:\n{e}"));
    }
    builder
}

#[test]
fn every_scenario_loads_and_warms() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../test/scenarios");
    let authority = Authority::new();
    let mut proxies = 0;
    let mut folders: Vec<_> = std::fs::read_dir(&root)
        .unwrap_or_else(|e| panic!("{}: {e}", root.display()))
        .map(|entry| entry.expect("readable").path().join("xds.yaml"))
        .filter(|file| file.exists())
        .collect();
    folders.sort();
    for file in folders {
        let text = std::fs::read_to_string(&file).expect("readable");
        let document: Value = serde_saphyr::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let nodes = document["nodes"]
            .as_object()
            .unwrap_or_else(|| panic!("{}: no nodes", file.display()));
        for (node, resources) in nodes {
            let place = format!("{} {node}", file.display());
            let mut builder = load(&place, resources, &authority);
            assert!(builder.is_complete(), "{place}: {:#?}", builder.waiting());
            let snapshot = builder.snapshot();
            let count = |kind: &str| resources.get(kind).and_then(Value::as_array).map_or(0, Vec::len);
            assert_eq!(snapshot.listeners.len(), count("listeners"), "{place}");
            assert_eq!(snapshot.clusters.len(), count("clusters"), "{place}");
            let dump = builder.config_dump(true).to_string();
            assert!(!dump.contains("PRIVATE KEY"), "{place}: a private key is shown");
            proxies += 1;
        }
    }
    assert!(proxies >= 20, "only {proxies} proxies in {}", root.display());
}
