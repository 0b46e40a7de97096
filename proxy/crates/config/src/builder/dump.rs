//! The configuration as JSON, as Envoy's `/config_dump` has it.

use prost_reflect::{DynamicMessage, SerializeOptions};
use serde_json::{Map, Value, json};

use super::{Builder, Held, Slot};
use crate::bootstrap::BOOTSTRAP;
use crate::check;
use crate::resource::{Resource, SecretSource};
use crate::snapshot::Discovery;

/// Members whose content is never shown.
const PRIVATE: [&str; 6] = [
    "private_key",
    "password",
    "session_ticket_keys",
    "generic_secret",
    "pkcs12",
    "private_key_provider",
];

impl Builder {
    /// `envoy.admin.v3.ConfigDump` as JSON, private keys redacted. Endpoints are included only with `endpoints`
    /// (Envoy's `?include_eds`).
    pub fn config_dump(&self, endpoints: bool) -> Value {
        let mut configs = vec![
            dump("BootstrapConfigDump", [("bootstrap", self.dump_bootstrap())]),
            self.dump_clusters(),
            self.dump_listeners(),
            self.dump_routes(),
            self.dump_secrets(),
        ];
        if endpoints {
            configs.insert(2, self.dump_endpoints());
        }
        json!({ "configs": configs })
    }

    fn dump_bootstrap(&self) -> Value {
        // It was encoded here, so it can be decoded.
        check::decode(BOOTSTRAP, &self.bootstrap).map_or(Value::Null, |message| message_json(&message))
    }

    fn dump_clusters(&self) -> Value {
        let (mut fixed, mut active, mut warming) = (Vec::new(), Vec::new(), Vec::new());
        for slot in self.state.clusters.values() {
            for (held, is_active) in versions(slot) {
                let entry = json!({ "version_info": held.raw.version, "cluster": body(&held.raw) });
                match (held.from_bootstrap, is_active) {
                    (true, _) => fixed.push(json!({ "cluster": body(&held.raw) })),
                    (false, true) => active.push(entry),
                    (false, false) => warming.push(entry),
                }
            }
        }
        dump(
            "ClustersConfigDump",
            [
                ("static_clusters", Value::Array(fixed)),
                ("dynamic_active_clusters", Value::Array(active)),
                ("dynamic_warming_clusters", Value::Array(warming)),
            ],
        )
    }

    fn dump_listeners(&self) -> Value {
        let (mut fixed, mut dynamic) = (Vec::new(), Vec::new());
        for (name, slot) in &self.state.listeners {
            let mut entry = Map::new();
            for (held, is_active) in versions(slot) {
                if held.from_bootstrap {
                    fixed.push(json!({ "listener": body(&held.raw) }));
                } else {
                    let state = json!({ "version_info": held.raw.version, "listener": body(&held.raw) });
                    entry.insert(
                        if is_active { "active_state" } else { "warming_state" }.to_owned(),
                        state,
                    );
                }
            }
            if !entry.is_empty() {
                entry.insert("name".to_owned(), json!(**name));
                dynamic.push(Value::Object(entry));
            }
        }
        dump(
            "ListenersConfigDump",
            [
                ("static_listeners", Value::Array(fixed)),
                ("dynamic_listeners", Value::Array(dynamic)),
            ],
        )
    }

    fn dump_routes(&self) -> Value {
        let routes = self.state.routes.values().filter_map(|table| table.active.as_ref());
        let routes = routes.map(|s| json!({ "version_info": s.raw.version, "route_config": body(&s.raw) }));
        dump("RoutesConfigDump", [("dynamic_route_configs", routes.collect())])
    }

    fn dump_endpoints(&self) -> Value {
        let dynamic = self.state.endpoints.values();
        let dynamic = dynamic.map(|s| json!({ "version_info": s.raw.version, "endpoint_config": body(&s.raw) }));
        let fixed = self.state.clusters.values().filter_map(|slot| slot.active.as_ref());
        let fixed = fixed.filter(|held| !matches!(held.parts.cluster.discovery, Discovery::Eds(_)));
        let fixed = fixed.filter_map(|held| body(&held.raw).get("load_assignment").cloned());
        dump(
            "EndpointsConfigDump",
            [
                (
                    "static_endpoint_configs",
                    fixed.map(|e| json!({ "endpoint_config": e })).collect(),
                ),
                ("dynamic_endpoint_configs", dynamic.collect()),
            ],
        )
    }

    fn dump_secrets(&self) -> Value {
        let (mut fixed, mut active) = (Vec::new(), Vec::new());
        for (name, stored) in &self.state.secrets {
            let entry = json!({ "name": *name.name, "version_info": stored.raw.version, "secret": body(&stored.raw) });
            let list = if name.source == SecretSource::Static {
                &mut fixed
            } else {
                &mut active
            };
            list.push(entry);
        }
        let wanted = self.wanted_secrets();
        let missing = wanted.iter().filter(|s| !self.state.secrets.contains_key(s));
        dump(
            "SecretsConfigDump",
            [
                ("static_secrets", Value::Array(fixed)),
                ("dynamic_active_secrets", Value::Array(active)),
                (
                    "dynamic_warming_secrets",
                    missing.map(|s| json!({ "name": *s.name })).collect(),
                ),
            ],
        )
    }
}

/// Versions of a slot, with whether each is in force.
fn versions<P>(slot: &Slot<P>) -> impl Iterator<Item = (&Held<P>, bool)> {
    slot.active
        .iter()
        .map(|h| (&**h, true))
        .chain(slot.warming.iter().map(|h| (&**h, false)))
}

fn dump<const N: usize>(kind: &str, members: [(&str, Value); N]) -> Value {
    let mut out = Map::new();
    out.insert(
        "@type".to_owned(),
        json!(format!("type.googleapis.com/envoy.admin.v3.{kind}")),
    );
    for (name, value) in members {
        let is_empty = value.as_array().is_some_and(Vec::is_empty);
        if !is_empty {
            out.insert(name.to_owned(), value);
        }
    }
    Value::Object(out)
}

fn body(resource: &Resource) -> Value {
    let Ok(message) = check::decode(&resource.body.type_url, &resource.body.value) else {
        return Value::Null;
    };
    let mut out = message_json(&message);
    if let Value::Object(members) = &mut out {
        let mut with_type = Map::new();
        with_type.insert("@type".to_owned(), json!(resource.body.type_url));
        with_type.append(members);
        *members = with_type;
    }
    out
}

/// A message as JSON with the API's own field names, private parts redacted.
fn message_json(message: &DynamicMessage) -> Value {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false);
    let mut out = match message.serialize_with_options(serde_json::value::Serializer, &options) {
        Ok(value) => value,
        // Only an Any of an unknown type cannot be printed, and none is ever accepted.
        Err(e) => json!({ "error": e.to_string() }),
    };
    redact(&mut out);
    out
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                if PRIVATE.contains(&name.as_str()) {
                    *member = json!({ "inline_string": "[redacted]" });
                } else {
                    redact(member);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}
