//! Free-form metadata.

use std::sync::Arc;

use prost_types::value::Kind;
use serde_json::{Map, Value};

use super::pb;

/// A `google.protobuf.Struct` as JSON, with members sorted by name.
pub fn struct_to_json(fields: &prost_types::Struct) -> Value {
    Value::Object(
        fields
            .fields
            .iter()
            .map(|(k, v)| (k.clone(), value_to_json(v)))
            .collect::<Map<_, _>>(),
    )
}

/// A `google.protobuf.Value` as JSON.
pub(crate) fn value_to_json(value: &prost_types::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(n)) => {
            // Whole numbers print without a fraction.
            if n.fract() == 0.0 && n.abs() < 9e15 {
                Value::from(*n as i64)
            } else {
                Value::from(*n)
            }
        }
        Some(Kind::StringValue(s)) => Value::String(s.clone()),
        Some(Kind::BoolValue(b)) => Value::Bool(*b),
        Some(Kind::StructValue(s)) => struct_to_json(s),
        Some(Kind::ListValue(l)) => Value::Array(l.values.iter().map(value_to_json).collect()),
    }
}

/// `filter_metadata[name]`.
pub(super) fn filter<'m>(metadata: Option<&'m pb::core::Metadata>, name: &str) -> Option<&'m prost_types::Struct> {
    metadata?.filter_metadata.get(name)
}

/// String members of a struct, sorted by name. Others match no label and are left out.
pub(super) fn labels(fields: &prost_types::Struct) -> Vec<(String, String)> {
    let mut out: Vec<_> = fields
        .fields
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), text(value)?.to_owned())))
        .collect();
    out.sort();
    out
}

/// A member's text.
pub(super) fn text(value: &prost_types::Value) -> Option<&str> {
    match &value.kind {
        Some(Kind::StringValue(s)) => Some(s),
        _ => None,
    }
}

/// Istio's `services` metadata of a cluster: host, name and namespace of the first service.
pub(super) fn istio_service(metadata: Option<&pb::core::Metadata>) -> Option<(Arc<str>, Arc<str>, Arc<str>)> {
    let Some(Kind::ListValue(services)) = &filter(metadata, "istio")?.fields.get("services")?.kind else {
        return None;
    };
    let Some(Kind::StructValue(service)) = &services.values.first()?.kind else {
        return None;
    };
    let member = |name: &str| service.fields.get(name).and_then(text).unwrap_or_default().into();
    Some((member("host"), member("name"), member("namespace")))
}
