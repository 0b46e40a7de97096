//! One resource of a discovery response: its first byte chooses the kind, the rest is the message. Refused or applied, and
//! applied it is removed again.
#![no_main]

use std::sync::OnceLock;

use heddle_config::{Bootstrap, Builder, ConfigErrors, Options, Resource, ResourceKind, SecretSource, Update};
use libfuzzer_sys::fuzz_target;
use prost_types::Any;

const BOOTSTRAP: &str = r"
node: { id: a, cluster: b }
dynamic_resources:
  ads_config: { api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [{ envoy_grpc: { cluster_name: xds } }] }
  cds_config: { ads: {}, resource_api_version: V3 }
  lds_config: { ads: {}, resource_api_version: V3 }
static_resources:
  clusters:
  - name: xds
    type: STATIC
    http2_protocol_options: {}
    load_assignment: { cluster_name: xds, endpoints: [{ lb_endpoints: [{ endpoint: { address: { pipe: { path: /run/x } } } }] }] }
";

static PARSED: OnceLock<Bootstrap> = OnceLock::new();

/// The name that the message gives itself: its first field of type string (number 1 in all five kinds).
fn own_name(body: &[u8]) -> String {
    match body {
        [0x0a, length, rest @ ..] => rest
            .get(..usize::from(*length))
            .and_then(|name| std::str::from_utf8(name).ok())
            .unwrap_or("x")
            .to_owned(),
        _ => "x".to_owned(),
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, body)) = bytes.split_first() else {
        return;
    };
    let kind = ResourceKind::ALL[usize::from(*choice) % ResourceKind::ALL.len()];
    let bootstrap = PARSED.get_or_init(|| Bootstrap::parse([BOOTSTRAP], &Options::default()).expect("the bootstrap"));
    let mut builder = Builder::new(bootstrap, Box::new(|_| Ok(()))).expect("the bootstrap");
    let before = builder.snapshot();
    let name = own_name(body);
    let update = |resources, removed| Update {
        kind,
        source: SecretSource::Ads,
        resources,
        removed,
    };
    let resource = Resource {
        name: name.clone(),
        version: "1".to_owned(),
        body: Any {
            type_url: kind.type_url(),
            value: body.to_vec(),
        },
    };
    match builder.apply(update(vec![resource], Vec::new())) {
        Ok(()) => {
            let _ = builder.snapshot();
            let _ = builder.subscriptions();
            builder.apply(update(Vec::new(), vec![name])).expect("what came may go");
            let after = builder.snapshot();
            assert!(after.listeners.len() == before.listeners.len() && after.clusters.len() == before.clusters.len());
        }
        Err(refusal) => {
            assert!((1..=ConfigErrors::LIMIT).contains(&refusal.errors().iter().count()));
            // Of a route table, the virtual hosts that are right may be taken; no listener has it here.
            let after = builder.snapshot();
            assert!(
                std::sync::Arc::ptr_eq(&after, &before) || (kind == ResourceKind::Route && after.routes.is_empty()),
                "nothing half applied"
            );
        }
    }
});
