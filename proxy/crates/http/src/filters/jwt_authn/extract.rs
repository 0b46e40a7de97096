//! Tokens in a request: where they are, and taking them out.

use heddle_config::filters::jwt_authn::{Extractor, Location, Place};

use crate::head::{RequestHead, cookie};

/// A token, and where it was found.
pub(super) struct Sent<'c> {
    pub(super) text: String,
    pub(super) location: &'c Location,
}

/// The tokens of a request: those of headers first, then of query parameters, then of cookies.
pub(super) fn tokens<'c>(extractor: &'c Extractor, request: &RequestHead) -> Vec<Sent<'c>> {
    let mut found = Vec::new();
    for location in &extractor.locations {
        let mut add = |text: &str| {
            found.push(Sent {
                text: text.to_owned(),
                location,
            });
        };
        match &location.place {
            Place::Header { name, prefix } => {
                for value in request.fields.all(name.as_bytes()) {
                    let value = std::str::from_utf8(value).unwrap_or_default();
                    if let Some(token) = behind(value, prefix) {
                        add(token);
                    }
                }
            }
            Place::Parameter(name) => {
                if let Some(value) = parameter(request.target(), name) {
                    add(&decoded(value));
                }
            }
            Place::Cookie(name) => {
                if let Some(value) = cookie(&request.fields, name) {
                    add(value);
                }
            }
        }
    }
    found
}

/// What stands behind a prefix that may itself stand anywhere in the value, from the first character that a token can
/// begin with; the whole value where there is none. All as in Envoy.
fn behind<'v>(value: &'v str, prefix: &str) -> Option<&'v str> {
    if prefix.is_empty() {
        return Some(value);
    }
    let rest = value.get(value.find(prefix)? + prefix.len()..)?;
    let of_token = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match rest.find(of_token) {
        Some(at) => rest.get(at..),
        None => Some(value),
    }
}

/// The query of a path, without its question mark.
fn query(target: &str) -> Option<&str> {
    let target = target.split('#').next().unwrap_or_default();
    target.split_once('?').map(|(_, query)| query)
}

fn name_of(pair: &str) -> &str {
    pair.split('=').next().unwrap_or_default()
}

/// A query parameter's first value.
fn parameter<'t>(target: &'t str, name: &str) -> Option<&'t str> {
    let mut pairs = query(target)?.split('&');
    let pair = pairs.find(|pair| decoded(name_of(pair)) == name)?;
    Some(pair.split_once('=').map_or("", |(_, value)| value))
}

/// Percent-decoding (RFC 3986 section 2.1). What is no text, and what is no escape, stays as it is.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digits = bytes
            .get(at + 1..at + 3)
            .filter(|d| d.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
        match (byte, digits) {
            (b'%', Some(escaped)) => {
                out.push(escaped);
                at += 3;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

/// Takes a token out of the request, with everything else of that name. Cookies stay, as in Envoy.
pub(super) fn remove(place: &Place, request: &mut RequestHead) {
    match place {
        Place::Header { name, .. } => request.fields.remove(name.as_bytes()),
        Place::Parameter(name) => {
            if let Some(target) = without_parameter(request.target(), name) {
                request.set_target(&target);
            }
        }
        Place::Cookie(_) => {}
    }
}

fn without_parameter(target: &str, name: &str) -> Option<String> {
    let query = query(target)?;
    let path = target.split('?').next().unwrap_or_default();
    let pairs: Vec<&str> = query.split('&').filter(|pair| decoded(name_of(pair)) != name).collect();
    let joined = pairs.join("&");
    Some(if joined.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{joined}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_headers() {
        for (value, prefix, expected) in [
            ("Bearer a.b.c", "Bearer ", Some("a.b.c")),
            ("bearer a.b.c", "Bearer ", None),
            ("x Bearer  a.b.c", "Bearer ", Some("a.b.c")),
            ("Bearer \"a.b.c\"", "Bearer ", Some("a.b.c\"")),
            ("Bearer !", "Bearer ", Some("Bearer !")),
            ("a.b.c", "", Some("a.b.c")),
        ] {
            assert_eq!(behind(value, prefix), expected, "{value}");
        }
    }

    #[test]
    fn parameters() {
        for (target, value, rest) in [
            ("/a?t=1&b=2", Some("1"), Some("/a?b=2")),
            ("/a?b=2&t=1&t=3", Some("1"), Some("/a?b=2")),
            ("/a?t=1", Some("1"), Some("/a")),
            ("/a?%74=1", Some("1"), Some("/a")),
            ("/a?t", Some(""), Some("/a")),
            ("/a?tt=1", None, Some("/a?tt=1")),
            ("/a#?t=1", None, None),
            ("/a", None, None),
        ] {
            assert_eq!(parameter(target, "t"), value, "{target}");
            assert_eq!(without_parameter(target, "t").as_deref(), rest, "{target}");
        }
        for (text, expected) in [
            ("a%2Eb", "a.b"),
            ("a%2", "a%2"),
            ("a%zz", "a%zz"),
            ("%ff", "%ff"),
            ("%+1", "%+1"),
        ] {
            assert_eq!(decoded(text), expected);
        }
    }
}
