//! The constraints that Envoy's API declares on its own fields (`validate.rules`): required messages, bounds of numbers
//! and durations, lengths, header syntax. Envoy refuses what breaks them, and so does Heddle.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, EnumDescriptor, ExtensionDescriptor, FieldDescriptor, Kind,
    OneofDescriptor, ReflectMessage, Value,
};

use super::fields;
use crate::error::ConfigError;
use crate::path::Path;

/// Constraints of one message type.
struct MessageRules {
    fields: Vec<FieldRules>,
    required_oneofs: Vec<OneofDescriptor>,
}

struct FieldRules {
    field: FieldDescriptor,
    required: bool,
    /// On the value, or on the list or map as a whole.
    tests: Vec<Test>,
    /// On each item of a list.
    items: Vec<Test>,
    /// Empty values are not tested.
    ignore_empty: bool,
}

enum Test {
    MinLength(u64),
    MaxLength(u64),
    MinBytes(u64),
    MaxBytes(u64),
    Prefix(String),
    HeaderName { strict: bool },
    HeaderValue { strict: bool },
    Above(f64),
    AtLeast(f64),
    Below(f64),
    AtMost(f64),
    MustBe(bool),
    OneOf(Vec<Value>),
    NoneOf(Vec<Value>),
    Defined(EnumDescriptor),
    MinItems(u64),
    MaxItems(u64),
    Unique,
}

/// Adds a finding for each broken constraint on the fields of `message` itself.
pub(super) fn check(message: &DynamicMessage, path: &Path<'_>, findings: &mut Vec<ConfigError>) {
    let compiled = compiled();
    let Some(rules) = compiled.get(message.descriptor().full_name()) else {
        return;
    };
    for oneof in &rules.required_oneofs {
        if !oneof.fields().any(|f| message.has_field(&f)) {
            let names: Vec<_> = oneof.fields().map(|f| f.name().to_owned()).collect();
            findings.push(path.error(format!("one of {} must be set", names.join(", "))));
        }
    }
    for rule in &rules.fields {
        check_field(message, rule, path, findings);
    }
}

fn check_field(message: &DynamicMessage, rule: &FieldRules, path: &Path<'_>, findings: &mut Vec<ConfigError>) {
    let field = &rule.field;
    let set = message.has_field(field);
    // On a member of a choice, "required" speaks of the member that was chosen.
    if rule.required && !set && field.containing_oneof().is_none() {
        findings.push(path.field(field.name()).error("must be set"));
        return;
    }
    // Presence is known for members of a oneof and for messages: what is absent has nothing to test.
    if !set && (field.supports_presence() || rule.ignore_empty) {
        return;
    }
    let value = message.get_field(field);
    let here = path.field(field.name());
    for test in &rule.tests {
        if let Some(problem) = test.broken(&value) {
            findings.push(here.error(problem));
        }
    }
    if let Some(items) = value.as_list() {
        for (i, item) in items.iter().enumerate() {
            for problem in rule.items.iter().filter_map(|t| t.broken(item)) {
                findings.push(path.item(field.name(), i).error(problem));
            }
        }
    }
}

impl Test {
    /// The problem, when `value` does not pass.
    fn broken(&self, value: &Value) -> Option<String> {
        let text = value.as_str();
        let length = || text.map(|s| s.chars().count() as u64);
        let bytes = || {
            text.map(|s| s.len() as u64)
                .or_else(|| value.as_bytes().map(|b| b.len() as u64))
        };
        let items = || {
            value
                .as_list()
                .map(|l| l.len() as u64)
                .or_else(|| value.as_map().map(|m| m.len() as u64))
                .unwrap_or(0)
        };
        let fails = |bad: bool, problem: String| bad.then_some(problem);
        match self {
            Self::MinLength(1) => fails(length()? < 1, "must not be empty".into()),
            Self::MinLength(n) => fails(length()? < *n, format!("must have at least {n} characters")),
            Self::MaxLength(n) => fails(length()? > *n, format!("must have at most {n} characters")),
            Self::MinBytes(1) => fails(bytes()? < 1, "must not be empty".into()),
            Self::MinBytes(n) => fails(bytes()? < *n, format!("must have at least {n} bytes")),
            Self::MaxBytes(n) => fails(bytes()? > *n, format!("must have at most {n} bytes")),
            Self::Prefix(p) => fails(!text?.starts_with(p.as_str()), format!("must begin with {p:?}")),
            Self::HeaderName { strict } => fails(
                !is_header_name(text?, *strict),
                format!("{:?} is not a valid header name", text?),
            ),
            Self::HeaderValue { strict } => fails(
                !is_header_value(text?, *strict),
                "holds characters that a header value may not have".into(),
            ),
            Self::Above(n) => fails(number(value)? <= *n, format!("must be above {n}")),
            Self::AtLeast(n) => fails(number(value)? < *n, format!("must be at least {n}")),
            Self::Below(n) => fails(number(value)? >= *n, format!("must be below {n}")),
            Self::AtMost(n) => fails(number(value)? > *n, format!("must be at most {n}")),
            Self::MustBe(b) => fails(inner(value).as_bool()? != *b, format!("must be {b}")),
            Self::OneOf(allowed) => {
                let value = inner(value);
                fails(
                    !allowed.contains(value),
                    format!("{} is not an allowed value", plain(value)),
                )
            }
            Self::NoneOf(forbidden) => {
                let value = inner(value);
                fails(
                    forbidden.contains(value),
                    format!("{} is not an allowed value", plain(value)),
                )
            }
            Self::Defined(values) => {
                let number = value.as_enum_number()?;
                fails(
                    values.get_value(number).is_none(),
                    format!("{number} is not a value of {}", values.name()),
                )
            }
            Self::MinItems(1) => fails(items() < 1, "must not be empty".into()),
            Self::MinItems(n) => fails(items() < *n, format!("must have at least {n} items")),
            Self::MaxItems(n) => fails(items() > *n, format!("must have at most {n} items")),
            Self::Unique => {
                let list = value.as_list()?;
                let twice = list.iter().enumerate().find(|(i, v)| list[..*i].contains(v))?;
                Some(format!("{} stands there twice", plain(twice.1)))
            }
        }
    }
}

/// The value inside a wrapper such as `UInt32Value`.
fn inner(value: &Value) -> &Value {
    // `get_field` would clone; a wrapper has one field, so its first set one is the value.
    match value {
        Value::Message(m) => m.fields().next().map_or(value, |(_, v)| v),
        other => other,
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(s) => format!("{s:?}"),
        Value::U32(n) => n.to_string(),
        Value::U64(n) => n.to_string(),
        Value::I32(n) | Value::EnumNumber(n) => n.to_string(),
        Value::I64(n) => n.to_string(),
        Value::F64(n) => n.to_string(),
        _ => "it".to_owned(),
    }
}

/// A number, a wrapped number or a duration in seconds. Doubles are exact up to 2^53, far above any bound declared.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::U32(n) => Some(f64::from(*n)),
        Value::I32(n) => Some(f64::from(*n)),
        Value::U64(n) => Some(*n as f64),
        Value::I64(n) => Some(*n as f64),
        Value::F32(n) => Some(f64::from(*n)),
        Value::F64(n) => Some(*n),
        Value::Message(m) if m.descriptor().full_name() == "google.protobuf.Duration" => {
            let seconds = m.get_field_by_name("seconds")?.as_i64()?;
            let nanos = m.get_field_by_name("nanos")?.as_i32()?;
            Some(seconds as f64 + f64::from(nanos) / 1e9)
        }
        Value::Message(m) => number(m.get_field_by_name("value")?.as_ref()),
        _ => None,
    }
}

/// RFC 9110 §5.1, with the leading colon of pseudo-headers. Not strict means: anything without NUL, CR and LF.
fn is_header_name(name: &str, strict: bool) -> bool {
    if !strict {
        return !name.contains(['\0', '\r', '\n']);
    }
    let token = name.strip_prefix(':').unwrap_or(name);
    !token.is_empty()
        && token
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// RFC 9110 §5.5.
fn is_header_value(value: &str, strict: bool) -> bool {
    value.chars().all(|c| {
        if strict {
            c == '\t' || (c >= ' ' && c != '\u{7f}')
        } else {
            !matches!(c, '\0' | '\r' | '\n')
        }
    })
}

type Rules = HashMap<&'static str, MessageRules>;

/// The rules of every message. They hold descriptors, so they come and go with the pool.
static RULES: Mutex<Option<Arc<Rules>>> = Mutex::new(None);

fn compiled() -> Arc<Rules> {
    let compile_all = || {
        let pool = heddle_api::pool();
        let Some(on_field) = pool.get_extension_by_name("validate.rules") else {
            return Arc::default();
        };
        let on_oneof = pool.get_extension_by_name("validate.required");
        let rules = fields::all()
            .filter_map(|entry| Some((entry.name, compile(&pool, entry.name, &on_field, on_oneof.as_ref())?)));
        Arc::new(rules.collect())
    };
    let mut kept = RULES.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(kept.get_or_insert_with(compile_all))
}

/// Forgets the rules until they are needed again.
pub(super) fn release() {
    *RULES.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

fn compile(
    pool: &DescriptorPool,
    name: &str,
    on_field: &ExtensionDescriptor,
    on_oneof: Option<&ExtensionDescriptor>,
) -> Option<MessageRules> {
    let descriptor = pool.get_message_by_name(name)?;
    let fields = descriptor.fields().filter_map(|field| {
        let options = field.options();
        if !options.has_extension(on_field) {
            return None;
        }
        let rules = options.get_extension(on_field);
        compile_field(field, rules.as_message()?)
    });
    let required_oneofs = descriptor
        .oneofs()
        .filter(|oneof| on_oneof.is_some_and(|e| oneof.options().get_extension(e).as_bool() == Some(true)));
    Some(MessageRules {
        fields: fields.collect(),
        required_oneofs: required_oneofs.collect(),
    })
}

fn compile_field(field: FieldDescriptor, rules: &DynamicMessage) -> Option<FieldRules> {
    let mut out = FieldRules {
        required: false,
        tests: Vec::new(),
        items: Vec::new(),
        ignore_empty: false,
        field,
    };
    for (kind, body) in rules.fields() {
        let Some(body) = body.as_message() else { continue };
        let flag = |name: &str| body.get_field_by_name(name).and_then(|v| v.as_bool()).unwrap_or(false);
        out.required |= flag("required");
        out.ignore_empty |= flag("ignore_empty");
        match kind.name() {
            "message" => {}
            "repeated" => {
                out.tests.extend(tests(body, &out.field));
                if let Some(items) = body
                    .get_field_by_name("items")
                    .filter(|_| body.has_field_by_name("items"))
                    && let Some(items) = items.as_message()
                {
                    for (_, item_rules) in items.fields() {
                        out.items.extend(
                            item_rules
                                .as_message()
                                .map(|m| tests(m, &out.field))
                                .unwrap_or_default(),
                        );
                    }
                }
            }
            _ => out.tests.extend(tests(body, &out.field)),
        }
    }
    Some(out)
}

/// The tests in one rule message, whatever its type: the members of all of them have the same names.
fn tests(rules: &DynamicMessage, field: &FieldDescriptor) -> Vec<Test> {
    let strict = rules
        .get_field_by_name("strict")
        .and_then(|v| v.as_bool())
        .unwrap_or(true);
    let mut out = Vec::new();
    for (member, value) in rules.fields() {
        let list = || value.as_list().map(<[Value]>::to_vec).unwrap_or_default();
        let test = match member.name() {
            "min_len" => value.as_u64().map(if is_text(field) {
                Test::MinLength
            } else {
                Test::MinBytes
            }),
            "max_len" => value.as_u64().map(if is_text(field) {
                Test::MaxLength
            } else {
                Test::MaxBytes
            }),
            "min_bytes" => value.as_u64().map(Test::MinBytes),
            "max_bytes" => value.as_u64().map(Test::MaxBytes),
            "prefix" => value.as_str().map(|s| Test::Prefix(s.to_owned())),
            "well_known_regex" => match value.as_enum_number() {
                Some(1) => Some(Test::HeaderName { strict }),
                Some(2) => Some(Test::HeaderValue { strict }),
                _ => None,
            },
            "gt" => number(value).map(Test::Above),
            "gte" => number(value).map(Test::AtLeast),
            "lt" => number(value).map(Test::Below),
            "lte" => number(value).map(Test::AtMost),
            "const" => value.as_bool().map(Test::MustBe),
            "in" => Some(Test::OneOf(as_values_of(list(), field))),
            "not_in" => Some(Test::NoneOf(as_values_of(list(), field))),
            "defined_only" if value.as_bool() == Some(true) => match field.kind() {
                Kind::Enum(values) => Some(Test::Defined(values)),
                _ => None,
            },
            "min_items" | "min_pairs" => value.as_u64().map(Test::MinItems),
            "max_items" | "max_pairs" => value.as_u64().map(Test::MaxItems),
            "unique" if value.as_bool() == Some(true) => Some(Test::Unique),
            _ => None,
        };
        out.extend(test);
    }
    out
}

fn is_text(field: &FieldDescriptor) -> bool {
    !matches!(field.kind(), Kind::Bytes) || field.cardinality() == Cardinality::Repeated
}

/// Rules list enum values as plain integers; the field holds enum numbers.
fn as_values_of(list: Vec<Value>, field: &FieldDescriptor) -> Vec<Value> {
    let is_enum = matches!(field.kind(), Kind::Enum(_));
    list.into_iter()
        .map(|v| match v {
            Value::I32(n) if is_enum => Value::EnumNumber(n),
            other => other,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(message: &str, json: &str) -> Vec<String> {
        let descriptor = heddle_api::pool().get_message_by_name(message).expect(message);
        let mut parser = serde_json::Deserializer::from_str(json);
        let message = DynamicMessage::deserialize(descriptor, &mut parser).expect(json);
        let mut out = Vec::new();
        check(&message, &Path::document(), &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn constraints_of_the_api_hold() {
        for (message, json, expected) in [
            (
                "envoy.config.cluster.v3.Cluster",
                r#"{}"#,
                vec!["name: must not be empty"],
            ),
            (
                "envoy.config.cluster.v3.Cluster",
                r#"{"name":"a","connect_timeout":"0s"}"#,
                vec!["connect_timeout: must be above 0"],
            ),
            (
                "envoy.config.cluster.v3.Cluster",
                r#"{"name":"a","connect_timeout":"1s"}"#,
                vec![],
            ),
            (
                "envoy.config.cluster.v3.Cluster",
                r#"{"name":"a","type":77}"#,
                vec!["type: 77 is not a value of DiscoveryType"],
            ),
            (
                "envoy.config.route.v3.VirtualHost",
                r#"{"name":"a"}"#,
                vec!["domains: must not be empty"],
            ),
            (
                "envoy.config.route.v3.Route",
                r#"{}"#,
                vec![
                    "one of route, redirect, direct_response, filter_action, non_forwarding_action must be set",
                    "match: must be set",
                ],
            ),
            (
                "envoy.config.route.v3.VirtualHost",
                r#"{"name":"a","domains":["*"],"request_headers_to_remove":["a\nb"]}"#,
                vec!["request_headers_to_remove[0]: \"a\\nb\" is not a valid header name"],
            ),
            (
                "envoy.config.cluster.v3.OutlierDetection",
                r#"{"max_ejection_percent":101}"#,
                vec!["max_ejection_percent: must be at most 100"],
            ),
            (
                "envoy.config.core.v3.SocketAddress",
                r#"{"address":"1.1.1.1","port_value":70000}"#,
                vec!["port_value: must be at most 65535"],
            ),
        ] {
            assert_eq!(findings(message, json), expected, "{message} {json}");
        }
    }

    #[test]
    fn header_syntax() {
        for (name, strict, good) in [
            ("x-a", true, true),
            (":path", true, true),
            ("", true, false),
            ("a b", true, false),
            ("a b", false, true),
            ("a\n", false, false),
        ] {
            assert_eq!(is_header_name(name, strict), good, "{name:?} {strict}");
        }
        assert!(is_header_value("a\tb é", true));
        assert!(!is_header_value("a\u{7f}", true));
        assert!(!is_header_value("a\rb", false));
    }
}
