//! What may stand in a configuration at all, before anybody decodes it.
//!
//! A field that Heddle does not implement must never be ignored in silence. Protobuf drops what it does not know, so
//! the question is asked by reflection: every field that is set, inside every `typed_config` too, is held against the
//! table in [`fields`]; then the constraints that Envoy's API itself declares are checked by [`rules`].

pub(crate) mod fields;
mod rules;

use prost_reflect::{DynamicMessage, FieldDescriptor, MapKey, MessageDescriptor, ReflectMessage, Value};

use crate::error::ConfigError;
use crate::path::Path;

/// Most steps from the document's root. Envoy's deepest real configurations stay below thirty; the bound keeps a
/// hostile one from exhausting the stack.
const MAX_DEPTH: usize = 96;

/// Adds a finding for every set field that is not implemented, every unknown field, and every broken constraint.
pub(crate) fn check(message: &DynamicMessage, path: &Path<'_>, findings: &mut Vec<ConfigError>) {
    let descriptor = message.descriptor();
    if path.depth() > MAX_DEPTH {
        findings.push(path.error(format!("nested deeper than {MAX_DEPTH} levels")));
        return;
    }
    match descriptor.full_name() {
        "google.protobuf.Any" => return check_any(message, path, findings),
        name if name.starts_with("google.protobuf.") => return,
        _ => {}
    }
    for unknown in message.unknown_fields() {
        findings.push(path.error(format!(
            "field number {} of {} is not part of the API version that Heddle is built with; remove it or use a newer Heddle",
            unknown.number(),
            descriptor.full_name()
        )));
    }
    let Some(table) = fields::of(descriptor.full_name()) else {
        findings.push(path.error(format!("{} is not implemented; remove it", descriptor.full_name())));
        return;
    };
    rules::check(message, path, findings);
    for (field, value) in message.fields() {
        match table.status(field.name()) {
            fields::Status::Implemented => descend(&field, value, path, findings),
            fields::Status::Ignored => {}
            fields::Status::Refused(remedy) => {
                findings.push(path.field(field.name()).error(format!("not implemented; {remedy}")));
            }
        }
    }
}

fn descend(field: &FieldDescriptor, value: &Value, path: &Path<'_>, findings: &mut Vec<ConfigError>) {
    match value {
        Value::Message(inner) => check(inner, &path.field(field.name()), findings),
        Value::List(items) => {
            for (i, item) in items.iter().enumerate() {
                if let Value::Message(inner) = item {
                    check(inner, &path.item(field.name(), i), findings);
                }
            }
        }
        Value::Map(entries) => {
            // Sorted, so that the same document gives the same text.
            let mut entries: Vec<_> = entries.iter().map(|(k, v)| (key_text(k), v)).collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            for (key, item) in entries {
                if let Value::Message(inner) = item {
                    check(inner, &path.key(field.name(), &key), findings);
                }
            }
        }
        _ => {}
    }
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::String(s) => s.clone(),
        MapKey::Bool(b) => b.to_string(),
        MapKey::I32(n) => n.to_string(),
        MapKey::I64(n) => n.to_string(),
        MapKey::U32(n) => n.to_string(),
        MapKey::U64(n) => n.to_string(),
    }
}

/// Looks inside a `typed_config`. The path does not grow: users see one object there.
fn check_any(any: &DynamicMessage, path: &Path<'_>, findings: &mut Vec<ConfigError>) {
    let text = |name: &str| {
        any.get_field_by_name(name)
            .and_then(|v| v.as_str().map(str::to_owned))
            .unwrap_or_default()
    };
    let type_url = text("type_url");
    let body = any.get_field_by_name("value");
    let body = body.as_ref().and_then(|v| v.as_bytes()).cloned().unwrap_or_default();
    if heddle_api::message_name(&type_url) == "google.protobuf.Any" {
        // Nothing in the API wraps twice, and every wrapping costs its sender a few bytes and us a stack frame.
        findings.push(path.error("an Any inside an Any is not implemented; give the type of the message itself"));
        return;
    }
    match decode(&type_url, &body) {
        Ok(inner) => check(&inner, path, findings),
        Err(problem) => findings.push(path.error(problem)),
    }
}

/// Lets go of the API's descriptors, and of what was made of them, unless they were used since the last call. True when this
/// call has let go of them: what reads configurations has had nothing to do for a while.
pub fn release_descriptors() -> bool {
    let released = heddle_api::release_pool();
    if released {
        rules::release();
    }
    released
}

/// Decodes a message by its type URL.
pub(crate) fn decode(type_url: &str, body: &[u8]) -> Result<DynamicMessage, String> {
    let name = heddle_api::message_name(type_url);
    if name.is_empty() {
        return Err("the type URL is missing; give \"@type\"".to_owned());
    }
    let descriptor: MessageDescriptor = heddle_api::pool()
        .get_message_by_name(name)
        .ok_or_else(|| format!("type {name:?} is not implemented; remove it"))?;
    DynamicMessage::decode(descriptor, body).map_err(|e| format!("not a valid {name}: {e}"))
}

/// Whether values of this field are messages, for the table's own test.
#[cfg(test)]
fn message_of(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    use prost_reflect::Kind;
    match field.kind() {
        Kind::Message(m) if m.is_map_entry() => message_of(&m.map_entry_value_field()),
        Kind::Message(m) => Some(m),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_reflect::prost::Message as _;

    /// Deep enough to exhaust a stack, if each wrapping took a frame of it.
    #[test]
    fn wrappings_are_not_followed() {
        let mut any = prost_types::Any::default();
        for _ in 0..2_000 {
            any = prost_types::Any {
                type_url: "google.protobuf.Any".to_owned(),
                value: any.encode_to_vec(),
            };
        }
        let outer = decode("google.protobuf.Any", &any.encode_to_vec()).expect("an Any");
        let mut findings = Vec::new();
        // A small stack, so that a frame for each wrapping would not fit.
        let checked = std::thread::Builder::new().stack_size(128 * 1024).spawn(move || {
            check(&outer, &Path::document(), &mut findings);
            findings
        });
        let findings = checked.expect("a thread").join().expect("no panic");
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(
            findings.iter().all(|f| f.problem().starts_with("an Any inside an Any")),
            "{findings:?}"
        );
    }
}
