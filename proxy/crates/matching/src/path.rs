//! The readings of a path: what the servers behind may make of it.
//!
//! The connection manager leaves no dot segment (`normalize_path`). What stays open is left to the server: whether it
//! joins empty segments, cuts path parameters (`;v=1`) off, decodes escapes before it looks for slashes, or takes what
//! follows two leading slashes for a host (WHATWG URL against a base).

use std::borrow::Cow;
use std::cell::OnceCell;

use crate::{Reading, StringMatcher, StringTest};

/// A path with its other readings, for `url_path`. An ordinary path has one and costs nothing; what another may mean is worked
/// out when it is first asked for, in time that grows with its length only.
#[derive(Clone, Debug, Default)]
pub struct PathReadings<'p> {
    sent: &'p str,
    /// There are no others.
    ordinary: bool,
    /// Decoded as far as it can be.
    decoded: OnceCell<Vec<String>>,
    /// Only the segments changed, for comparison with patterns that are written as paths are sent.
    structural: OnceCell<Vec<String>>,
}

impl<'p> PathReadings<'p> {
    /// The readings of a path without query.
    pub fn of(path: &'p str) -> Self {
        let bytes = path.as_bytes();
        Self {
            sent: path,
            ordinary: !bytes.iter().any(|b| matches!(b, b';' | b'%' | b'\\'))
                && memchr::memmem::find(bytes, b"//").is_none(),
            ..Self::default()
        }
    }

    /// What else it may mean, each once.
    fn others(&self, decode_all: bool) -> Vec<String> {
        let mut others = Vec::new();
        if self.ordinary {
            return others;
        }
        let mut add = |text: &str, cut| {
            let reading = read(text, cut, decode_all);
            if reading != self.sent && !others.contains(&reading) {
                others.push(reading);
            }
        };
        let without_host = self
            .sent
            .strip_prefix("//")
            .map(|rest| rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/"));
        for text in [Some(self.sent), without_host].into_iter().flatten() {
            // Parameters stay, are cut off before escapes are decoded, or after.
            add(text, false);
            if let Cow::Owned(names) = without_parameters(text) {
                add(&names, false);
            }
            if has_parameters(text) {
                add(text, true);
            }
        }
        others
    }

    /// Whether the path matches in any, or in every reading.
    ///
    /// A pattern that spells escapes, parameters or empty segments out, and one that names the whole path, is about the
    /// path as it is sent: there the other readings are not asked for agreement.
    pub fn matches(&self, reading: Reading, matcher: &StringMatcher) -> bool {
        let sent = matcher.matches(self.sent);
        match reading {
            Reading::Any => {
                let decoded = || self.decoded.get_or_init(|| self.others(true));
                sent || decoded().iter().any(|path| matcher.matches(path))
            }
            Reading::Every => {
                let structural = || self.structural.get_or_init(|| self.others(false));
                sent && (is_verbatim(matcher) || structural().iter().all(|path| matcher.matches(path)))
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

/// Whether a semicolon is in it, as it is or escaped.
fn has_parameters(path: &str) -> bool {
    path.contains(';') || path.contains("%3B") || path.contains("%3b")
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
                    let [high, low] = [kept as u32 >> 4, kept as u32 & 15].map(|digit| char::from_digit(digit, 16));
                    out.push('%');
                    out.extend(
                        [high, low]
                            .into_iter()
                            .flatten()
                            .map(|digit| digit.to_ascii_uppercase()),
                    );
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
    }

    #[test]
    fn each_reading_is_made_once() {
        for (path, decoded, structural) in [
            ("/a/b.c", &[][..], &[][..]),
            ("/a%20b", &[], &[]),
            ("/%24a", &["/$a"], &[]),
            ("/a;v=1/b", &["/a/b"], &["/a/b"]),
            ("//h/%21", &["/h/!", "/!"], &["/h/%21", "/%21"]),
            ("/%3bx", &["/;x", "/"], &["/%3Bx", "/"]),
        ] {
            let readings = PathReadings::of(path);
            assert_eq!(readings.others(true), decoded, "{path}");
            assert_eq!(readings.others(false), structural, "{path}");
        }
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
