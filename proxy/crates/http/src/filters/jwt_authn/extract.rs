//! Tokens in a request: where they are, and taking them out.

use heddle_config::filters::jwt_authn::{Extractor, Location, Place};
use heddle_matching::{is_other_spelling, percent};

use crate::head::{RequestHead, cookies};

/// A token, and where it was found.
pub(super) struct Sent<'c> {
    pub(super) text: String,
    pub(super) location: &'c Location,
}

/// The tokens of a request: those of headers first, then of query parameters, then of cookies. Everything that the
/// application may take for one is among them, so that what is no token there makes the request a bad one.
pub(super) fn tokens<'c>(extractor: &'c Extractor, request: &RequestHead) -> Vec<Sent<'c>> {
    let mut found = Vec::new();
    for location in &extractor.locations {
        let mut add = |text: &[u8]| {
            found.push(Sent {
                text: String::from_utf8_lossy(text).into_owned(),
                location,
            });
        };
        match &location.place {
            Place::Header { name, prefix } => {
                for (_, field, value) in request.fields.iter() {
                    if (field == name.as_bytes() || is_other_spelling(field, name.as_bytes()))
                        && let Some(token) = behind(value, prefix)
                    {
                        add(token);
                    }
                }
            }
            Place::Parameter(name) => {
                parameters(request.target(), name).for_each(|value| add(&percent::decode(value)));
            }
            Place::Cookie(name) => cookies(&request.fields, name).for_each(add),
        }
    }
    found
}

/// What stands behind a prefix that may itself stand anywhere in the value, from the first character that a token can
/// begin with; the whole value where there is none. All as in Envoy.
///
/// The whole value, which is no token, also where the prefix is there in other letters or with other white space: the
/// scheme of credentials has no case (RFC 9110 section 11.1), and some applications split at a tab.
fn behind<'v>(value: &'v [u8], prefix: &str) -> Option<&'v [u8]> {
    if prefix.is_empty() {
        return Some(value);
    }
    let scheme = prefix.trim_ascii().as_bytes();
    if let Some(at) = memchr::memmem::find(value, prefix.as_bytes())
        && !names_scheme(value.get(..at).unwrap_or_default(), scheme)
    {
        let rest = value.get(at + prefix.len()..).unwrap_or_default();
        let of_token = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let token = rest.iter().position(of_token).and_then(|at| rest.get(at..));
        return Some(token.unwrap_or(value));
    }
    names_scheme(value, scheme).then_some(value)
}

/// Whether a scheme stands in a value as a word, in letters of any case, with something behind it.
fn names_scheme(value: &[u8], scheme: &[u8]) -> bool {
    let in_word = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+' | b'/' | b'=');
    !scheme.is_empty()
        && value.windows(scheme.len()).enumerate().any(|(at, window)| {
            let (before, behind) = (value.get(..at), value.get(at + scheme.len()..).unwrap_or_default());
            window.eq_ignore_ascii_case(scheme)
                && !before.and_then(<[u8]>::last).is_some_and(in_word)
                && behind
                    .first()
                    .is_some_and(|b| b.is_ascii_whitespace() || matches!(b, b':' | b','))
                && !behind.trim_ascii().is_empty()
        })
}

/// The query of a path, without its question mark.
fn query(target: &str) -> Option<&str> {
    let target = target.split('#').next().unwrap_or_default();
    target.split_once('?').map(|(_, query)| query)
}

/// All values of a query parameter.
fn parameters<'t>(target: &'t str, name: &'t str) -> impl Iterator<Item = &'t str> {
    let pairs = query(target).into_iter().flat_map(|query| query.split('&'));
    pairs
        .filter(move |pair| is_named(pair, name))
        .map(|pair| pair.split_once('=').map_or("", |(_, value)| value))
}

fn is_named(pair: &str, name: &str) -> bool {
    percent::decode(pair.split('=').next().unwrap_or_default()) == name.as_bytes()
}

/// Takes a token out of the request, with everything else of that name. Cookies stay, as in Envoy.
pub(super) fn remove(place: &Place, request: &mut RequestHead) {
    match place {
        Place::Header { name, .. } => {
            request.fields.remove_any_spelling(name.as_bytes());
        }
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
    let pairs: Vec<&str> = query.split('&').filter(|pair| !is_named(pair, name)).collect();
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
            ("Basic YTpi", "Bearer ", None),
            ("Basic bearer", "Bearer ", None),
            ("Basic xbearer x", "Bearer ", None),
            ("Digest username=\"bearer\"", "Bearer ", None),
            ("Bearer", "Bearer ", None),
            ("bearer ", "Bearer ", None),
            // No tokens, but taken for some.
            ("bearer a.b.c", "Bearer ", Some("bearer a.b.c")),
            ("Basic YTpi, BEARER a.b.c", "Bearer ", Some("Basic YTpi, BEARER a.b.c")),
            ("Bearer\ta.b.c", "Bearer ", Some("Bearer\ta.b.c")),
            ("bearer:a.b.c", "Bearer ", Some("bearer:a.b.c")),
            (
                "bearer x.y.z Bearer a.b.c",
                "Bearer ",
                Some("bearer x.y.z Bearer a.b.c"),
            ),
            ("x Bearer  a.b.c", "Bearer ", Some("a.b.c")),
            ("Bearer \"a.b.c\"", "Bearer ", Some("a.b.c\"")),
            ("Bearer !", "Bearer ", Some("Bearer !")),
            ("a.b.c", "", Some("a.b.c")),
        ] {
            let found = behind(value.as_bytes(), prefix);
            assert_eq!(found, expected.map(str::as_bytes), "{value}");
        }
    }

    #[test]
    fn parameters_by_name() {
        for (target, values, rest) in [
            ("/a?t=1&b=2", &["1"][..], Some("/a?b=2")),
            ("/a?b=2&t=1&t=3", &["1", "3"], Some("/a?b=2")),
            ("/a?t=1&%74=2&t", &["1", "2", ""], Some("/a")),
            ("/a?t", &[""], Some("/a")),
            ("/a?tt=1", &[], Some("/a?tt=1")),
            ("/a#?t=1", &[], None),
            ("/a", &[], None),
        ] {
            assert_eq!(parameters(target, "t").collect::<Vec<_>>(), values, "{target}");
            assert_eq!(without_parameter(target, "t").as_deref(), rest, "{target}");
        }
    }
}
