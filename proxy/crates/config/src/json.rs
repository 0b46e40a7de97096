//! YAML and JSON turned into messages. Unknown fields, unknown types and wrong values are refused with their path.

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;

use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;

/// Largest document that is read, in bytes.
pub(crate) const MAX_DOCUMENT: usize = 64 << 20;

/// Parses YAML 1.2, of which JSON is a part: `y` and `on` are text, not booleans. Aliases are bounded by the parser's own
/// budget.
pub(crate) fn parse(text: &str) -> Result<Value, ConfigError> {
    if text.len() > MAX_DOCUMENT {
        return Err(ConfigError::new(
            "",
            format!("the document has {} bytes, at most {MAX_DOCUMENT} are read", text.len()),
        ));
    }
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|e| ConfigError::new("", format!("not valid YAML: {e}")))
}

/// Reads a value as the message `full_name`.
pub(crate) fn to_message(full_name: &str, value: &Value, path: &Path<'_>) -> Result<DynamicMessage, ConfigErrors> {
    let descriptor = heddle_api::pool()
        .get_message_by_name(full_name)
        .ok_or_else(|| path.error(format!("type {full_name:?} is not implemented")))?;
    match DynamicMessage::deserialize(descriptor.clone(), value) {
        Ok(message) => Ok(message),
        // The parser says what, not where: walk the value to find the place.
        Err(whole) => {
            let mut findings = Vec::new();
            locate(&descriptor, value, path, &mut findings);
            if findings.is_empty() {
                findings.push(path.error(whole.to_string()));
            }
            match ConfigErrors::check(findings) {
                Err(errors) => Err(errors),
                Ok(()) => Err(path.error(whole.to_string()).into()),
            }
        }
    }
}

/// Adds a finding for every place that cannot be read. Only called for documents that are known to be wrong.
fn locate(descriptor: &MessageDescriptor, value: &Value, path: &Path<'_>, findings: &mut Vec<ConfigError>) {
    match descriptor.full_name() {
        "google.protobuf.Any" => return locate_any(value, path, findings),
        name if name.starts_with("google.protobuf.") => return locate_leaf(descriptor, value, path, findings),
        _ => {}
    }
    let Value::Object(members) = value else {
        findings.push(path.error(format!(
            "must be an object ({}), not {}",
            descriptor.name(),
            kind_of(value)
        )));
        return;
    };
    for (name, member) in members {
        if name == "@type" {
            continue;
        }
        let Some(field) = field_of(descriptor, name) else {
            findings.push(path.field(name).error(unknown(descriptor, name)));
            continue;
        };
        locate_field(descriptor, &field, name, member, path, findings);
    }
    // Only what no member explains is left to the message as a whole, such as two members of one choice.
    if findings.is_empty() {
        locate_leaf(descriptor, value, path, findings);
    }
}

fn locate_field(
    descriptor: &MessageDescriptor,
    field: &FieldDescriptor,
    name: &str,
    value: &Value,
    path: &Path<'_>,
    findings: &mut Vec<ConfigError>,
) {
    if value.is_null() {
        return;
    }
    match field.kind() {
        Kind::Message(entry) if entry.is_map_entry() => match (entry.map_entry_value_field().kind(), value) {
            (Kind::Message(inner), Value::Object(entries)) => {
                for (key, item) in entries {
                    locate(&inner, item, &path.key(name, key), findings);
                }
            }
            _ => locate_member(descriptor, name, value, path, findings),
        },
        Kind::Message(inner) if field.is_list() => match value {
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    locate(&inner, item, &path.item(name, i), findings);
                }
            }
            other => findings.push(
                path.field(name)
                    .error(format!("must be a list, not {}", kind_of(other))),
            ),
        },
        Kind::Message(inner) => locate(&inner, value, &path.field(name), findings),
        _ => locate_member(descriptor, name, value, path, findings),
    }
}

/// Tries one member alone, inside an otherwise empty message.
fn locate_member(
    descriptor: &MessageDescriptor,
    name: &str,
    value: &Value,
    path: &Path<'_>,
    findings: &mut Vec<ConfigError>,
) {
    let alone = serde_json::json!({ name: value });
    if let Err(e) = DynamicMessage::deserialize(descriptor.clone(), &alone) {
        findings.push(path.field(name).error(reason(&e)));
    }
}

fn locate_leaf(descriptor: &MessageDescriptor, value: &Value, path: &Path<'_>, findings: &mut Vec<ConfigError>) {
    if let Err(e) = DynamicMessage::deserialize(descriptor.clone(), value) {
        findings.push(path.error(reason(&e)));
    }
}

fn locate_any(value: &Value, path: &Path<'_>, findings: &mut Vec<ConfigError>) {
    let Value::Object(members) = value else {
        findings.push(path.error(format!("must be an object with \"@type\", not {}", kind_of(value))));
        return;
    };
    let Some(type_url) = members.get("@type").and_then(Value::as_str) else {
        findings.push(path.error("\"@type\" is missing; give the type URL of the message"));
        return;
    };
    let name = heddle_api::message_name(type_url);
    let Some(inner) = heddle_api::pool().get_message_by_name(name) else {
        findings.push(path.error(format!("type {name:?} is not implemented; remove it")));
        return;
    };
    if name.starts_with("google.protobuf.") {
        return locate_leaf(&inner, members.get("value").unwrap_or(&Value::Null), path, findings);
    }
    locate(&inner, value, path, findings);
}

fn field_of(descriptor: &MessageDescriptor, name: &str) -> Option<FieldDescriptor> {
    descriptor
        .get_field_by_name(name)
        .or_else(|| descriptor.get_field_by_json_name(name))
}

fn unknown(descriptor: &MessageDescriptor, name: &str) -> String {
    let nearest = descriptor
        .fields()
        .map(|f| f.name().to_owned())
        .map(|known| (distance(&known, name), known))
        .filter(|(d, _)| *d <= 2)
        .min();
    match nearest {
        Some((_, known)) => format!("unknown field of {}; did you mean {known}?", descriptor.name()),
        None => format!("unknown field of {}; remove it", descriptor.name()),
    }
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(128).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, cb) in b.iter().enumerate() {
            let next = (diagonal + usize::from(ca != *cb)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

fn reason(error: &serde_json::Error) -> String {
    error.to_string()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str, yaml: &str) -> String {
        let value = parse(yaml).expect(yaml);
        to_message(name, &value, &Path::document()).expect_err(yaml).to_string()
    }

    const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";
    const LISTENER: &str = "envoy.config.listener.v3.Listener";

    #[test]
    fn wrong_documents_name_the_place() {
        for (name, yaml, expected) in [
            (CLUSTER, "nam: x", "nam: unknown field of Cluster; did you mean name?"),
            (CLUSTER, "zzzzzzzz: x", "zzzzzzzz: unknown field of Cluster; remove it"),
            (CLUSTER, "[]", "must be an object (Cluster), not a list"),
            (
                LISTENER,
                "filter_chains: [{filters: [{name: a}, {nome: b}]}]",
                "filter_chains[0].filters[1].nome: unknown field of Filter; did you mean name?",
            ),
            (
                LISTENER,
                "filter_chains: {}",
                "filter_chains: must be a list, not an object",
            ),
            (
                LISTENER,
                "filter_chains: [{filters: [{typed_config: {a: 1}}]}]",
                "filter_chains[0].filters[0].typed_config: \"@type\" is missing; give the type URL of the message",
            ),
            (
                LISTENER,
                "filter_chains: [{filters: [{typed_config: {'@type': type.googleapis.com/a.B}}]}]",
                "filter_chains[0].filters[0].typed_config: type \"a.B\" is not implemented; remove it",
            ),
        ] {
            assert_eq!(error(name, yaml), expected, "{yaml}");
        }
        assert!(error(CLUSTER, "connect_timeout: soon").starts_with("connect_timeout: "));
        assert!(error(CLUSTER, "type: STATIK").starts_with("type: "));
        assert!(
            error(CLUSTER, "circuit_breakers: {thresholds: [{max_connections: many}]}")
                .starts_with("circuit_breakers.thresholds[0].max_connections: ")
        );
    }

    #[test]
    fn both_spellings_of_a_field_are_read() {
        for yaml in ["connect_timeout: 0.25s", "connectTimeout: 0.25s"] {
            let value = parse(yaml).expect(yaml);
            let message = to_message(CLUSTER, &value, &Path::document()).expect(yaml);
            assert!(message.has_field_by_name("connect_timeout"));
        }
    }

    #[test]
    fn only_true_and_false_are_booleans() {
        assert_eq!(
            parse("[y, on, no, true]").expect("YAML"),
            serde_json::json!(["y", "on", "no", true])
        );
    }

    #[test]
    fn yaml_errors_are_told() {
        assert!(
            parse("a: [")
                .expect_err("not YAML")
                .to_string()
                .starts_with("not valid YAML: ")
        );
    }
}
