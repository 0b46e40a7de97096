//! `envoy.filters.http.header_to_metadata`: what fields say, as metadata for those who decide by it.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use heddle_config::filters::RouteFilterConfig;
use heddle_config::filters::header_to_metadata::{
    From, HeaderToMetadata as Config, KeyValue, Replacement, Rule, ValueType, protobuf_value,
};
use heddle_matching::RequestView;
use serde_json::{Map, Number, Value};

use super::{Call, HttpFilter, RouteConfigs, Setup, Verdict};
use crate::head::cookie;

/// Values of this length and longer are left out, as in Envoy.
const MAX_VALUE: usize = 8192;

/// With padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What a head's rules found, by namespace.
type Gathered = Vec<(Box<str>, Map<String, Value>)>;

/// One header to metadata filter.
pub(crate) struct HeaderToMetadata {
    config: Arc<Config>,
}

impl HttpFilter for HeaderToMetadata {
    type Config = Config;
    type Route = Config;
    /// What the route said when the request came: it holds for the response, whatever becomes of the route.
    type State = Option<Box<RouteConfigs<Self>>>;

    fn new(config: &Arc<Config>, _: &Setup<'_>) -> Self {
        Self {
            config: Arc::clone(config),
        }
    }

    fn route_config(config: &RouteFilterConfig) -> Option<&Config> {
        match config {
            RouteFilterConfig::HeaderToMetadata(config) => Some(config),
            _ => None,
        }
    }

    fn on_request(&self, call: &mut Call<'_>, state: &mut Self::State) -> Verdict {
        let route = call.route_configs::<Self>();
        let mut gathered = Gathered::new();
        for rule in &route.first().unwrap_or(&self.config).request {
            let request = &mut call.exchange.request;
            let found = match &rule.from {
                From::Header { name, .. } => request.header(name).map(Cow::into_owned),
                From::Cookie(name) => cookie(&request.fields, name)
                    .filter(|v| !v.is_empty())
                    .map(str::to_owned),
            };
            if let (From::Header { name, remove: true }, Some(_)) = (&rule.from, &found) {
                request.fields.remove(name.as_bytes());
            }
            gather(rule, found, &mut gathered);
        }
        merge(call, gathered);
        *state = route.first().is_some().then(|| Box::new(route));
        Verdict::Continue
    }

    fn on_response(&self, call: &mut Call<'_>, state: &mut Self::State) {
        let route = state.as_ref().and_then(|route| route.first());
        let mut gathered = Gathered::new();
        for rule in &route.unwrap_or(&self.config).response {
            let response = &mut call.exchange.response;
            let found = match &rule.from {
                From::Header { name, .. } if **name == *":status" => Some(response.status.to_string()),
                From::Header { name, .. } => response.fields.joined(name.as_bytes()).map(Cow::into_owned),
                From::Cookie(name) => cookie(&response.fields, name)
                    .filter(|v| !v.is_empty())
                    .map(str::to_owned),
            };
            if let (From::Header { name, remove: true }, Some(_)) = (&rule.from, &found) {
                response.fields.remove(name.as_bytes());
            }
            gather(rule, found, &mut gathered);
        }
        merge(call, gathered);
    }
}

fn merge(call: &mut Call<'_>, gathered: Gathered) {
    for (namespace, fields) in gathered {
        call.merge_metadata(&namespace, fields);
    }
}

/// Adds what a rule makes of what it found.
fn gather(rule: &Rule, found: Option<String>, gathered: &mut Gathered) {
    let pair = match found {
        Some(_) => &rule.present,
        None => &rule.missing,
    };
    let Some(pair) = pair else { return };
    let Some(value) = value(pair, found.as_deref().unwrap_or_default()) else {
        return;
    };
    let at = gathered.iter().position(|(namespace, _)| *namespace == pair.namespace);
    match at.and_then(|at| gathered.get_mut(at)) {
        Some((_, fields)) => {
            fields.insert(pair.key.to_string(), value);
        }
        None => {
            let fields = Map::from_iter([(pair.key.to_string(), value)]);
            gathered.push((pair.namespace.clone(), fields));
        }
    }
}

/// None when there is nothing to write, or it is not what it should be.
fn value(pair: &KeyValue, found: &str) -> Option<Value> {
    let text: Cow<'_, str> = match &pair.value {
        Replacement::Nothing => found.into(),
        Replacement::Text(text) => (&**text).into(),
        Replacement::Rewrite(regex, substitution) => regex.replace_all(found, substitution),
    };
    if text.is_empty() || text.len() >= MAX_VALUE {
        return None;
    }
    let bytes: Cow<'_, [u8]> = match pair.base64 {
        true => BASE64.decode(&*text).ok()?.into(),
        false => text.as_bytes().into(),
    };
    if bytes.is_empty() {
        return None;
    }
    match pair.kind {
        ValueType::Text => Some(String::from_utf8_lossy(&bytes).into_owned().into()),
        ValueType::Number => {
            let number: f64 = std::str::from_utf8(&bytes).ok()?.trim().parse().ok()?;
            Number::from_f64(number).map(Value::Number)
        }
        ValueType::Protobuf => protobuf_value(&bytes),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pair(value: Replacement, kind: ValueType, base64: bool) -> KeyValue {
        KeyValue {
            namespace: "n".into(),
            key: "k".into(),
            value,
            kind,
            base64,
        }
    }

    #[test]
    fn values() {
        use ValueType::{Number, Protobuf, Text};
        let long = "x".repeat(MAX_VALUE);
        for (kind, base64, found, expected) in [
            (Text, false, "a b", Some(json!("a b"))),
            (Text, false, "", None),
            (Text, false, &*long, None),
            (Text, true, "YQ", Some(json!("a"))),
            (Text, true, "YQ==", Some(json!("a"))),
            (Text, true, "%", None),
            (Number, false, " 1.5 ", Some(json!(1.5))),
            (Number, false, "one", None),
            (Number, false, "inf", None),
            (Number, true, "NDI", Some(json!(42.0))),
            // Field 4, a bool.
            (Protobuf, true, "IAE", Some(json!(true))),
            (Protobuf, true, "////", None),
        ] {
            let pair = pair(Replacement::Nothing, kind, base64);
            assert_eq!(value(&pair, found), expected, "{kind:?} {found:.20}");
        }
        let fixed = pair(Replacement::Text("fixed".into()), Text, false);
        assert_eq!(value(&fixed, "found"), Some(json!("fixed")));
        let regex = heddle_matching::Regex::for_rewrite("^/(\\w+)/.*$", "\\1").expect("a pattern");
        let rewrite = pair(Replacement::Rewrite(regex, "\\1".into()), Text, false);
        assert_eq!(value(&rewrite, "/cart/1"), Some(json!("cart")));
    }
}
