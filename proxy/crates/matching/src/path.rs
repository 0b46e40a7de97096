//! The readings of a path: what the servers behind may make of it.
//!
//! The connection manager leaves no dot segment (`normalize_path`). What stays open is left to the server: whether it
//! joins empty segments, cuts path parameters (`;v=1`) off, decodes escapes before it looks for slashes, or takes what
//! follows two leading slashes for a host (WHATWG URL against a base).

use std::borrow::Cow;

use crate::{Reading, StringMatcher, StringTest};

/// A path with its other readings, for `url_path`. An ordinary path has one and costs nothing.
#[derive(Clone, Debug, Default)]
pub struct PathReadings<'p> {
    sent: &'p str,
    /// Decoded as far as it can be.
    decoded: Vec<String>,
    /// Only the segments changed, for comparison with patterns that are written as paths are sent.
    structural: Vec<String>,
}

impl<'p> PathReadings<'p> {
    /// The readings of a path without query.
    pub fn of(path: &'p str) -> Self {
        let mut readings = Self {
            sent: path,
            ..Self::default()
        };
        let bytes = path.as_bytes();
        if !bytes.iter().any(|b| matches!(b, b';' | b'%' | b'\\')) && memchr::memmem::find(bytes, b"//").is_none() {
            return readings;
        }
        let without_host = path
            .strip_prefix("//")
            .map(|rest| rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"));
        for text in [Some(path), without_host].into_iter().flatten() {
            // Parameters stay, are cut off before escapes are decoded, or after.
            for (text, cut) in [(text, false), (&*without_parameters(text), false), (text, true)] {
                readings.decoded.push(read(text, cut, true));
                readings.structural.push(read(text, cut, false));
            }
        }
        readings
    }

    /// Whether the path matches in any, or in every reading.
    ///
    /// A pattern that spells escapes, parameters or empty segments out, and one that names the whole path, is about the
    /// path as it is sent: there the other readings are not asked for agreement.
    pub fn matches(&self, reading: Reading, matcher: &StringMatcher) -> bool {
        let sent = matcher.matches(self.sent);
        match reading {
            Reading::Any => sent || self.decoded.iter().any(|path| matcher.matches(path)),
            Reading::Every => {
                sent && (is_verbatim(matcher) || self.structural.iter().all(|path| matcher.matches(path)))
            }
        }
    }
}

fn is_verbatim(matcher: &StringMatcher) -> bool {
    match matcher.test() {
        StringTest::Exact(_) => true,
        StringTest::Prefix(text) | StringTest::Suffix(text) | StringTest::Contains(text) => spells_out(text),
        StringTest::Regex(regex) => spells_out(regex.pattern()),
    }
}

fn spells_out(pattern: &str) -> bool {
    pattern.contains(['%', ';']) || pattern.contains("//")
}

/// The path with every segment up to its first semicolon.
fn without_parameters(path: &str) -> Cow<'_, str> {
    if !path.contains(';') {
        return Cow::Borrowed(path);
    }
    let names = path
        .split('/')
        .map(|segment| segment.split(';').next().unwrap_or_default());
    Cow::Owned(names.collect::<Vec<_>>().join("/"))
}

/// One reading: escapes of slashes (or of every graphic character) decoded once, backslashes as slashes, runs of slashes
/// as one, and parameters cut off behind semicolons of either kind where `cut` says so.
fn read(path: &str, cut: bool, decode_all: bool) -> String {
    let mut out = String::with_capacity(path.len());
    let mut in_parameters = false;
    let mut rest = path;
    while let Some(c) = rest.chars().next() {
        let escaped = match c {
            '%' => rest.get(1..3).and_then(escaped),
            _ => None,
        };
        rest = rest.get(escaped.map_or(c.len_utf8(), |_| 3)..).unwrap_or_default();
        let read = match escaped {
            Some('/' | '\\') => '/',
            Some(';') if cut => ';',
            Some(decoded) if decode_all => decoded,
            Some(kept) => {
                // Written again as it came, but for the case of its digits.
                if !in_parameters {
                    out.push_str(&format!("%{:02X}", kept as u32));
                }
                continue;
            }
            None if c == '\\' => '/',
            None => c,
        };
        match read {
            '/' => {
                in_parameters = false;
                if !out.ends_with('/') {
                    out.push('/');
                }
            }
            ';' if cut => in_parameters = true,
            _ if in_parameters => {}
            other => out.push(other),
        }
    }
    out
}

/// The graphic ASCII character of two hexadecimal digits.
fn escaped(digits: &str) -> Option<char> {
    if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let byte = u8::from_str_radix(digits, 16).ok()?;
    byte.is_ascii_graphic().then_some(char::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Regex;

    #[test]
    fn readings() {
        for (path, cut, all, expected) in [
            ("/a/b", false, false, "/a/b"),
            ("//a///b/", false, false, "/a/b/"),
            ("/a;v=1/b;w", true, false, "/a/b"),
            ("/a;v=1/b;w", false, false, "/a;v=1/b;w"),
            ("/a%3Bv=1/b", true, false, "/a/b"),
            ("/;x/admin", true, false, "/admin"),
            ("/%2fadmin", false, false, "/admin"),
            ("/a%5Cb\\c", false, false, "/a/b/c"),
            ("/%24meta%20data", false, true, "/$meta%20data"),
            ("/%24meta", false, false, "/%24meta"),
            ("/a%2", false, true, "/a%2"),
            ("/a%252fb", false, true, "/a%2fb"),
            ("/caf%c3%a9/%zz", true, true, "/caf%c3%a9/%zz"),
        ] {
            assert_eq!(read(path, cut, all), expected, "{path} cut={cut} all={all}");
        }
        assert_eq!(without_parameters("/a;b%2f..;c/d;/e"), "/a/d/e");
        assert!(
            PathReadings::of("/a/b.c").decoded.is_empty(),
            "one reading costs nothing"
        );
    }

    #[test]
    fn who_refuses_needs_one_reading_who_lets_in_all() {
        let regex = |p: &str| StringMatcher::regex(Regex::new(p).expect("pattern"));
        for (matcher, path, deny, allow) in [
            (StringMatcher::prefix("/admin"), "/admin/x", true, true),
            (StringMatcher::prefix("/admin"), "//admin", true, false),
            (StringMatcher::prefix("/admin"), "/;x/admin", true, false),
            (StringMatcher::prefix("/admin"), "/%2Fadmin", true, false),
            (StringMatcher::prefix("/admin"), "/%5cadmin", true, false),
            (StringMatcher::prefix("/admin"), "//host/admin", true, false),
            (StringMatcher::prefix("/a/b"), "/a;v=1/b", true, false),
            (StringMatcher::exact("/admin"), "/admin;v=1", true, false),
            (StringMatcher::exact("/$metadata"), "/%24metadata", true, false),
            (StringMatcher::prefix("/shop"), "/cart", false, false),
            // What an application's own rules let in stays in.
            (StringMatcher::prefix("/static/"), "/static//a.js", true, true),
            (StringMatcher::prefix("/api/"), "/api/a%2Fb", true, true),
            (StringMatcher::prefix("/users"), "/users;id=1/x", true, true),
            (StringMatcher::exact("/users;id=1/x"), "/users;id=1/x", true, true),
            (StringMatcher::prefix("/users;id=1/"), "/users;id=1/x", true, true),
            (StringMatcher::exact("/my%20file"), "/my%20file", true, true),
            (regex("/files/[^ ]*"), "/files/a%20b", true, true),
            (regex("/users;id=[0-9]+"), "/users;id=1", true, true),
            // A parameter must not carry the ending that an ALLOW asks for.
            (StringMatcher::suffix(".png"), "/admin;x.png", true, false),
        ] {
            let readings = PathReadings::of(path);
            let said = format!("{matcher:?} on {path}");
            assert_eq!(readings.matches(Reading::Any, &matcher), deny, "deny: {said}");
            assert_eq!(readings.matches(Reading::Every, &matcher), allow, "allow: {said}");
        }
    }
}
