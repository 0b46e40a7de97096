//! `envoy.filters.http.header_to_metadata`.

use heddle_api::envoy::extensions::filters::http::header_to_metadata::v3 as pb;
use heddle_matching::Regex;
use prost::Message as _;
use prost_types::Any;
use serde_json::Value;

use super::Kind;
use crate::check::fields::{Message, message};
use crate::decode::{Result, enumeration, headers, required, unpack, value_to_json};
use crate::path::Path;

/// The namespace of rules that name none.
const NAMESPACE: &str = "envoy.filters.http.header_to_metadata";

/// `envoy.extensions.filters.http.header_to_metadata.v3.Config`, of the filter or of a route.
#[derive(Debug, Default)]
pub struct HeaderToMetadata {
    /// `request_rules`.
    pub request: Vec<Rule>,
    /// `response_rules`.
    pub response: Vec<Rule>,
}

/// `Config.Rule`.
#[derive(Debug)]
pub struct Rule {
    /// `header` or `cookie`.
    pub from: From,
    /// `on_header_present`.
    pub present: Option<KeyValue>,
    /// `on_header_missing`.
    pub missing: Option<KeyValue>,
}

/// Where a value comes from.
#[derive(Debug)]
pub enum From {
    /// `header`, lower case.
    Header {
        /// Its name.
        name: Box<str>,
        /// `remove`: it is taken out.
        remove: bool,
    },
    /// `cookie`.
    Cookie(Box<str>),
}

/// `Config.KeyValuePair`.
#[derive(Debug)]
pub struct KeyValue {
    /// `metadata_namespace`.
    pub namespace: Box<str>,
    /// `key`.
    pub key: Box<str>,
    /// In place of what was found.
    pub value: Replacement,
    /// `type`.
    pub kind: ValueType,
    /// `encode`: the value is base64.
    pub base64: bool,
}

/// What is written in place of what was found.
#[derive(Debug)]
pub enum Replacement {
    /// What was found.
    Nothing,
    /// `value`.
    Text(Box<str>),
    /// `regex_value_rewrite`: every match is replaced.
    Rewrite(Regex, Box<str>),
}

/// `Config.ValueType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// `STRING`.
    Text,
    /// `NUMBER`.
    Number,
    /// `PROTOBUF_VALUE`: the bytes of a `google.protobuf.Value`.
    Protobuf,
}

/// Reads the bytes of a `google.protobuf.Value`.
pub fn protobuf_value(bytes: &[u8]) -> Option<Value> {
    prost_types::Value::decode(bytes).ok().as_ref().map(value_to_json)
}

impl Kind for HeaderToMetadata {
    const TYPE: &'static str = "envoy.extensions.filters.http.header_to_metadata.v3.Config";
    const ROUTE_TYPE: &'static str = Self::TYPE;
    const MESSAGES: &'static [Message] = &[
        message(Self::TYPE, &["request_rules", "response_rules"]),
        message("envoy.extensions.filters.http.header_to_metadata.v3.Config.KeyValuePair", &[
            "encode",
            "key",
            "metadata_namespace",
            "regex_value_rewrite",
            "type",
            "value",
        ]),
        message("envoy.extensions.filters.http.header_to_metadata.v3.Config.Rule", &[
            "cookie",
            "header",
            "on_header_missing",
            "on_header_present",
            "remove",
        ]),
    ];
    type Route = Self;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        let config: pb::Config = unpack(any, path)?;
        Ok(Self {
            request: rules(&config.request_rules, "request_rules", path)?,
            response: rules(&config.response_rules, "response_rules", path)?,
        })
    }

    fn decode_route(any: &Any, path: &Path<'_>) -> Result<Self> {
        let config = Self::decode(any, path)?;
        if config.request.is_empty() && config.response.is_empty() {
            return Err(path.error("one of request_rules, response_rules must be set"));
        }
        Ok(config)
    }
}

fn rules(configs: &[pb::config::Rule], name: &str, path: &Path<'_>) -> Result<Vec<Rule>> {
    let configs = configs.iter().enumerate();
    configs.map(|(i, config)| rule(config, &path.item(name, i))).collect()
}

fn rule(config: &pb::config::Rule, path: &Path<'_>) -> Result<Rule> {
    let from = match (config.header.as_str(), config.cookie.as_str()) {
        ("", "") => return Err(path.error("one of header, cookie must be set")),
        ("", _) if config.remove => return Err(path.field("remove").error("a cookie cannot be removed")),
        ("", cookie) => From::Cookie(cookie.into()),
        (header, "") => From::Header {
            name: header.to_ascii_lowercase().into(),
            remove: config.remove,
        },
        _ => return Err(path.error("header and cookie are both set")),
    };
    if let From::Header { name, remove: true } = &from {
        headers::removable(name, &path.field("remove"))?;
    }
    let (present, missing) = (&config.on_header_present, &config.on_header_missing);
    if present.is_none() && missing.is_none() {
        return Err(path.error("one of on_header_present, on_header_missing must be set"));
    }
    let pair = |config: &Option<pb::config::KeyValuePair>, name| match config {
        Some(config) => key_value(config, &path.field(name)).map(Some),
        None => Ok(None),
    };
    let missing = pair(missing, "on_header_missing")?;
    if let Some(missing) = &missing
        && !matches!(missing.value, Replacement::Text(_))
    {
        return Err(path.field("on_header_missing").field("value").error("must not be empty"));
    }
    Ok(Rule {
        from,
        present: pair(present, "on_header_present")?,
        missing,
    })
}

fn key_value(config: &pb::config::KeyValuePair, path: &Path<'_>) -> Result<KeyValue> {
    use pb::config::{ValueEncode, ValueType as Type};
    let value = match (config.value.as_str(), &config.regex_value_rewrite) {
        ("", None) => Replacement::Nothing,
        (text, None) => Replacement::Text(text.into()),
        ("", Some(rewrite)) => {
            let here = path.field("regex_value_rewrite");
            let pattern = required(rewrite.pattern.as_ref(), &here.field("pattern"))?;
            let regex = Regex::for_rewrite(&pattern.regex, &rewrite.substitution);
            Replacement::Rewrite(
                regex.map_err(|e| here.error(e.to_string()))?,
                rewrite.substitution.as_str().into(),
            )
        }
        _ => return Err(path.error("value and regex_value_rewrite are both set")),
    };
    Ok(KeyValue {
        namespace: match config.metadata_namespace.as_str() {
            "" => NAMESPACE.into(),
            name => name.into(),
        },
        key: config.key.as_str().into(),
        value,
        kind: match enumeration(config.r#type, &path.field("type"))? {
            Type::String => ValueType::Text,
            Type::Number => ValueType::Number,
            Type::ProtobufValue => ValueType::Protobuf,
        },
        base64: enumeration::<ValueEncode>(config.encode, &path.field("encode"))? == ValueEncode::Base64,
    })
}
