//! Dynamic metadata as authorization servers see and say it: `google.protobuf.Struct`.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct};
use serde_json::{Map, Value};

/// What a server is shown of a namespace.
pub(super) fn to_struct(fields: &Map<String, Value>) -> Struct {
    Struct {
        fields: fields
            .iter()
            .map(|(name, value)| (name.clone(), to_value(value)))
            .collect(),
    }
}

fn to_value(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        // Whole numbers beyond 2^53 lose digits there, as in Envoy.
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(items) => Kind::ListValue(ListValue {
            values: items.iter().map(to_value).collect(),
        }),
        Value::Object(fields) => Kind::StructValue(to_struct(fields)),
    };
    prost_types::Value { kind: Some(kind) }
}

/// What a server says.
pub(super) fn of_struct(fields: &Struct) -> Map<String, Value> {
    match heddle_config::struct_to_json(fields) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn there_and_back() {
        let all = json!({"a": null, "b": true, "c": 1.5, "d": 7, "e": "text", "f": [1, "x", {"g": []}], "h": {}});
        let fields = all.as_object().expect("an object");
        assert_eq!(&of_struct(&to_struct(fields)), fields);
    }
}
