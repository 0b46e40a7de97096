//! What filters learn about a request (`envoy.config.core.v3.Metadata`), and `envoy.type.matcher.v3.MetadataMatcher`.

use serde_json::{Map, Value};

use crate::StringMatcher;

/// Most bytes of metadata that a request may gather, with what the structures themselves take.
pub const MAX_METADATA: usize = 64 * 1024;

/// Metadata did not fit within [`MAX_METADATA`]; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {MAX_METADATA} bytes of dynamic metadata")]
pub struct MetadataOverflow;

/// Dynamic metadata of a request: a structure for each filter's namespace. Values are those of `google.protobuf.Struct`.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    namespaces: Vec<(Box<str>, Map<String, Value>)>,
    bytes: usize,
}

impl Metadata {
    /// Adds fields to a namespace; fields of the same name are replaced as a whole.
    ///
    /// # Errors
    /// There is no room. What was there stays.
    pub fn merge(&mut self, namespace: &str, fields: Map<String, Value>) -> Result<(), MetadataOverflow> {
        let at = self.namespaces.iter().position(|(name, _)| **name == *namespace);
        let there = at.and_then(|at| self.namespaces.get(at)).map(|(_, fields)| fields);
        let replaced: usize = fields
            .keys()
            .filter_map(|key| Some(entry_size(key, there?.get(key)?)))
            .sum();
        let added: usize = fields.iter().map(|(key, value)| entry_size(key, value)).sum();
        let name = if at.is_none() { ENTRY + namespace.len() } else { 0 };
        let bytes = (self.bytes + name + added).saturating_sub(replaced);
        if bytes > MAX_METADATA {
            return Err(MetadataOverflow);
        }
        self.bytes = bytes;
        match at.and_then(|at| self.namespaces.get_mut(at)) {
            Some((_, there)) => there.extend(fields),
            None => self.namespaces.push((namespace.into(), fields)),
        }
        Ok(())
    }

    /// The structure of a namespace.
    pub fn namespace(&self, name: &str) -> Option<&Map<String, Value>> {
        let found = self.namespaces.iter().find(|(namespace, _)| **namespace == *name);
        found.map(|(_, fields)| fields)
    }

    /// The value behind a path of names, of which there must be one at least.
    pub fn get<'p>(&self, namespace: &str, path: impl IntoIterator<Item = &'p str>) -> Option<&Value> {
        let mut path = path.into_iter();
        let first = self.namespace(namespace)?.get(path.next()?)?;
        path.try_fold(first, |value, name| value.as_object()?.get(name))
    }
}

/// What a value takes in a structure, roughly.
const ENTRY: usize = 64;

fn entry_size(key: &str, value: &Value) -> usize {
    ENTRY + key.len() + size(value)
}

/// Text and nested values; structures nest as deep as the JSON parser lets them, which is 128 levels.
fn size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| ENTRY + size(item)).sum(),
        Value::Object(fields) => fields.iter().map(|(key, value)| entry_size(key, value)).sum(),
    }
}

/// `envoy.type.matcher.v3.ValueMatcher`.
#[derive(Clone, Debug)]
pub enum ValueMatcher {
    /// `null_match`: the value is there and is null.
    Null,
    /// `double_match.exact`.
    Number(f64),
    /// `double_match.range`: from `start` up to, not including, `end`.
    Range {
        /// First number that matches.
        start: f64,
        /// First number that no longer matches.
        end: f64,
    },
    /// `string_match`.
    String(StringMatcher),
    /// `bool_match`.
    Bool(bool),
    /// `present_match`; false matches nothing, as in Envoy.
    Present(bool),
    /// `list_match.one_of`: the value is a list, and one of its items matches.
    OneOf(Box<ValueMatcher>),
    /// `or_match`.
    Or(Vec<ValueMatcher>),
}

impl ValueMatcher {
    /// Whether a value matches; a value that is not there matches nothing.
    pub fn matches(&self, value: Option<&Value>) -> bool {
        let number = || value.and_then(Value::as_f64);
        match self {
            Self::Null => value.is_some_and(Value::is_null),
            Self::Number(wanted) => number().is_some_and(|n| n == *wanted),
            Self::Range { start, end } => number().is_some_and(|n| n >= *start && n < *end),
            Self::String(matcher) => value.and_then(Value::as_str).is_some_and(|text| matcher.matches(text)),
            Self::Bool(wanted) => value.and_then(Value::as_bool) == Some(*wanted),
            Self::Present(wanted) => *wanted && value.is_some(),
            Self::OneOf(matcher) => {
                let items = value.and_then(Value::as_array);
                items.is_some_and(|items| items.iter().any(|item| matcher.matches(Some(item))))
            }
            Self::Or(matchers) => matchers.iter().any(|matcher| matcher.matches(value)),
        }
    }
}

/// A test on a value of dynamic metadata.
#[derive(Clone, Debug)]
pub struct MetadataMatcher {
    namespace: Box<str>,
    path: Box<[Box<str>]>,
    value: ValueMatcher,
    invert: bool,
}

impl MetadataMatcher {
    /// A matcher for the value behind `path` in the namespace (`filter`); `invert` turns the answer around.
    pub fn new(namespace: &str, path: Vec<Box<str>>, value: ValueMatcher, invert: bool) -> Self {
        Self {
            namespace: namespace.into(),
            path: path.into(),
            value,
            invert,
        }
    }

    /// Whether metadata matches; a connection, and a request that nobody wrote any for, have none.
    pub fn matches(&self, metadata: Option<&Metadata>) -> bool {
        let value = metadata.and_then(|m| m.get(&self.namespace, self.path.iter().map(|name| &**name)));
        self.value.matches(value) != self.invert
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    fn metadata() -> Metadata {
        let mut metadata = Metadata::default();
        let payload = json!({"payload": {
            "iss": "me", "admin": true, "level": 7, "none": null, "aud": ["a", "b"], "nested": {"x": "y"},
        }});
        metadata.merge("jwt", fields(payload)).expect("it fits");
        metadata
    }

    #[test]
    fn values() {
        use ValueMatcher as V;
        let text = |t: &str| V::String(StringMatcher::exact(t));
        let one_of = |t: &str| V::OneOf(Box::new(text(t)));
        let metadata = metadata();
        for (path, value, expected) in [
            ("iss", text("me"), true),
            ("iss", text("you"), false),
            ("iss", V::Present(true), true),
            ("iss", V::Present(false), false),
            ("sub", V::Present(true), false),
            ("sub", V::Present(false), false),
            ("admin", V::Bool(true), true),
            ("admin", V::Bool(false), false),
            ("admin", text("true"), false),
            ("level", V::Number(7.0), true),
            ("level", V::Range { start: 7.0, end: 8.0 }, true),
            ("level", V::Range { start: 6.0, end: 7.0 }, false),
            ("none", V::Null, true),
            ("none", V::Present(true), true),
            ("sub", V::Null, false),
            ("aud", one_of("b"), true),
            ("aud", one_of("c"), false),
            ("aud", text("a"), false),
            ("iss", one_of("me"), false),
            ("iss", V::Or(vec![one_of("me"), text("me")]), true),
            ("nested", V::Present(true), true),
        ] {
            for invert in [false, true] {
                let matcher = MetadataMatcher::new("jwt", vec!["payload".into(), path.into()], value.clone(), invert);
                assert_eq!(
                    matcher.matches(Some(&metadata)),
                    expected != invert,
                    "{path} {matcher:?}"
                );
            }
        }
    }

    #[test]
    fn paths() {
        let metadata = metadata();
        let found = |path: &[&str]| metadata.get("jwt", path.iter().copied()).is_some();
        assert!(found(&["payload", "nested", "x"]));
        assert!(!found(&["payload", "nested", "x", "z"]));
        assert!(!found(&["payload", "aud", "0"]));
        assert!(!found(&[]));
        assert!(metadata.get("other", ["payload"]).is_none());
        let missing = MetadataMatcher::new("jwt", vec!["a".into()], ValueMatcher::Present(true), true);
        assert!(missing.matches(None));
    }

    #[test]
    fn fields_are_replaced_and_the_bound_holds() {
        let mut metadata = metadata();
        let full = "x".repeat(MAX_METADATA / 2);
        let half = || fields(json!({"half": full}));
        metadata.merge("a", half()).expect("it fits");
        for _ in 0..3 {
            metadata.merge("a", half()).expect("in the place of the other");
        }
        assert_eq!(metadata.merge("b", half()), Err(MetadataOverflow));
        assert!(metadata.namespace("b").is_none());
        metadata
            .merge("a", fields(json!({"half": 1, "more": 2})))
            .expect("less");
        metadata.merge("b", half()).expect("there is room again");
        assert_eq!(metadata.get("a", ["half"]), Some(&json!(1)));
        let many: Vec<Value> = vec![json!([]); 2_000];
        assert_eq!(
            Metadata::default().merge("n", fields(json!({"many": many}))),
            Err(MetadataOverflow),
            "small values take room too"
        );
    }
}
