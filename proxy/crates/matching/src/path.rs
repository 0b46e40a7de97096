//! The readings of a path: what the servers behind may make of it.
//!
//! The connection manager leaves no dot segment (`normalize_path`). What stays open is left to the server: whether it
//! joins empty segments, cuts path parameters (`;v=1`) off, decodes escapes before it looks for slashes, or takes what
//! follows two leading slashes or more for a host (WHATWG URL against a base).

use std::borrow::Cow;
use std::cell::OnceCell;

use crate::percent::{escape, push_escape};
use crate::scans::{Readings, Scans, Shared, Subject, Visit, all_bits};
use crate::{Reading, Regex, StringMatcher, StringTest};

/// A test on paths, for `url_path`.
///
/// A pattern that spells escapes out has many spellings (`/caf%C3%A9`, `/caf%c3%a9`, `/%63af%C3%A9`). For what refuses, it
/// stands for all of them.
#[derive(Clone, Debug)]
pub struct PathMatcher {
    written: StringMatcher,
    /// With its escapes in normal form ([`Decode::Normal`]); none where it has no escapes.
    normal: Option<StringMatcher>,
}

impl From<StringMatcher> for PathMatcher {
    fn from(written: StringMatcher) -> Self {
        let normal = |text: &str| text.contains('%').then(|| read(text, false, Decode::Normal).into());
        let test = match written.test() {
            StringTest::Exact(text) => normal(text).map(StringTest::Exact),
            StringTest::Prefix(text) => normal(text).map(StringTest::Prefix),
            StringTest::Suffix(text) => normal(text).map(StringTest::Suffix),
            StringTest::Contains(text) => normal(text).map(StringTest::Contains),
            StringTest::Regex(regex) => normal_regex(regex.pattern()).map(StringTest::Regex),
        };
        let normal = test.map(|test| StringMatcher::new(test, written.ignores_case()));
        Self { written, normal }
    }
}

impl PathMatcher {
    /// The word in which the test has a bit, and that bit, if its expression is in a set and has one form only.
    pub(crate) fn shared(&self) -> Option<(Shared, u64)> {
        let written = self.normal.is_none().then_some(&self.written)?;
        written.shared(is_verbatim(written).into())
    }

    /// Shows the tests on strings.
    pub(crate) fn visit_regexes(&mut self, see: Visit<'_>) {
        for matcher in std::iter::once(&mut self.written).chain(&mut self.normal) {
            see(Subject::Path, matcher);
        }
    }
}

/// An expression that names escapes by their characters. None when it has none, or makes no sense that way: an escape may
/// end inside of a set, or before a repetition of its last digit.
fn normal_regex(pattern: &str) -> Option<Regex> {
    let mut out = Vec::with_capacity(pattern.len());
    let mut rest = pattern.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let Some(byte) = escape(rest) else {
            out.push(*first);
            rest = after;
            continue;
        };
        rest = rest.get(3..).unwrap_or_default();
        match byte {
            _ if !Decode::Normal.takes(byte) => push_escape(byte, &mut out),
            // By its number: it may mean something in an expression.
            0..=0x7f => out.extend_from_slice(format!("\\x{{{byte:x}}}").as_bytes()),
            _ => out.push(byte),
        }
    }
    pattern.contains('%').then(|| Regex::new(&text(out)).ok()).flatten()
}

/// Which escapes a reading decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decode {
    /// Slashes and backslashes, which make other segments.
    Slashes,
    /// Everything that delimits nothing; the escapes that stay have capital digits.
    Normal,
    /// Everything but control characters.
    All,
}

impl Decode {
    fn takes(self, byte: u8) -> bool {
        let delimiter = matches!(byte, b'/' | b'\\' | b';' | b'%');
        match self {
            Self::Slashes => matches!(byte, b'/' | b'\\'),
            Self::Normal => !byte.is_ascii_control() && !delimiter,
            Self::All => !byte.is_ascii_control(),
        }
    }
}

/// A path with its other readings, for `url_path`. An ordinary path has one and costs nothing; what another may mean is worked
/// out when it is first asked for, in time that grows with its length only.
#[derive(Clone, Debug, Default)]
pub(crate) struct PathReadings<'p> {
    sent: &'p str,
    /// There are no others.
    ordinary: bool,
    /// Decoded as far as it can be.
    decoded: OnceCell<Vec<String>>,
    /// For comparison with patterns in normal form.
    normal: OnceCell<Vec<String>>,
    /// Only the segments changed, for comparison with patterns that are written as paths are sent.
    structural: OnceCell<Vec<String>>,
}

impl<'p> PathReadings<'p> {
    /// The readings of a path without query.
    pub(crate) fn of(path: &'p str) -> Self {
        let bytes = path.as_bytes();
        Self {
            sent: path,
            ordinary: !bytes.iter().any(|b| matches!(b, b';' | b'%' | b'\\'))
                && memchr::memmem::find(bytes, b"//").is_none(),
            ..Self::default()
        }
    }

    /// What else it may mean, each once.
    fn others(&self, decode: Decode) -> Vec<String> {
        let mut others = Vec::new();
        if self.ordinary {
            return others;
        }
        let mut add = |text: &str, cut| {
            let reading = read(text, cut, decode);
            if reading != self.sent && !others.contains(&reading) {
                others.push(reading);
            }
        };
        for text in [Some(self.sent), without_host(self.sent)].into_iter().flatten() {
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

    /// Whether the path matches in any, or in every reading: a bit for each test that [shares](PathMatcher::shared) the word.
    ///
    /// A pattern that spells escapes, parameters or empty segments out, and one that names the whole path, is about the
    /// path as it is sent where all readings must match: the others are not asked for agreement.
    pub(crate) fn holds(&self, reading: Reading, matcher: &PathMatcher, scans: &Scans<'_>) -> u64 {
        let written = &matcher.written;
        let sent = |matcher: &StringMatcher| scans.find(matcher, Readings::Sent, |see| see(self.sent));
        let ask = |matcher: &StringMatcher, readings, paths: &[String]| {
            scans.find(matcher, readings, |see| paths.iter().for_each(|path| see(path)))
        };
        let found = sent(written).any;
        let found = match reading {
            Reading::Any if found == u64::MAX => found,
            Reading::Any => {
                let decoded = self.decoded.get_or_init(|| self.others(Decode::All));
                found | ask(written, Readings::Others, decoded).any
            }
            Reading::Every if found == 0 || is_verbatim(written) => found,
            Reading::Every => {
                let structural = self.structural.get_or_init(|| self.others(Decode::Slashes));
                found & ask(written, Readings::Structural, structural).every
            }
        };
        let Some(normal) = &matcher.normal else {
            return found;
        };
        // The two forms have their bits in different places.
        let in_normal_form = || {
            let decoded = self.decoded.get_or_init(|| self.others(Decode::All));
            let others = self.normal.get_or_init(|| self.others(Decode::Normal));
            let found = sent(normal).any | ask(normal, Readings::Others, decoded).any;
            normal.is_in(found | ask(normal, Readings::Normal, others).any)
        };
        all_bits(written.is_in(found) || reading == Reading::Any && in_normal_form())
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

/// What is left behind the host that two slashes or more begin (WHATWG URL, "special authority ignore slashes state").
fn without_host(path: &str) -> Option<&str> {
    const SLASHES: [char; 2] = ['/', '\\'];
    let host = path.trim_start_matches(SLASHES);
    let rest = || host.find(SLASHES).and_then(|at| host.get(at..)).unwrap_or("/");
    (path.len() - host.len() >= 2).then(rest)
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

/// One reading: escapes decoded once, as far as `decode` says, and the others as they came or, but for
/// [`Decode::Slashes`], with capital digits; backslashes as slashes, runs of slashes as one, and parameters cut off behind
/// semicolons of either kind where `cut` says so.
fn read(path: &str, cut: bool, decode: Decode) -> String {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    let mut in_parameters = false;
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = escape(rest);
        let kept = rest.get(..3).unwrap_or_default();
        rest = match escaped {
            Some(_) => rest.get(3..).unwrap_or_default(),
            None => after,
        };
        let byte = match escaped {
            Some(b';') if cut => b';',
            Some(byte) if decode.takes(byte) => byte,
            Some(byte) => {
                match decode {
                    _ if in_parameters => {}
                    Decode::Slashes => out.extend_from_slice(kept),
                    _ => push_escape(byte, &mut out),
                }
                continue;
            }
            None => *first,
        };
        match byte {
            b'/' | b'\\' => {
                in_parameters = false;
                if out.last() != Some(&b'/') {
                    out.push(b'/');
                }
            }
            b';' if cut => in_parameters = true,
            _ if in_parameters => {}
            other => out.push(other),
        }
    }
    text(out)
}

/// Bytes as text; what is no UTF-8 is escaped.
fn text(bytes: Vec<u8>) -> String {
    let error = match String::from_utf8(bytes) {
        Ok(text) => return text,
        Err(error) => error,
    };
    let mut out = Vec::with_capacity(error.as_bytes().len() * 2);
    for chunk in error.as_bytes().utf8_chunks() {
        out.extend_from_slice(chunk.valid().as_bytes());
        chunk.invalid().iter().for_each(|byte| push_escape(*byte, &mut out));
    }
    String::from_utf8(out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Regex;

    #[test]
    fn readings() {
        use Decode::{All, Normal, Slashes};
        for (path, cut, decode, expected) in [
            ("/a/b", false, Slashes, "/a/b"),
            ("//a///b/", false, Slashes, "/a/b/"),
            ("/a;v=1/b;w", true, Slashes, "/a/b"),
            ("/a;v=1/b;w", false, Slashes, "/a;v=1/b;w"),
            ("/a%3Bv=1/b", true, Slashes, "/a/b"),
            ("/;x/admin", true, Slashes, "/admin"),
            ("/%2fadmin", false, Slashes, "/admin"),
            ("/a%5Cb\\c", false, Slashes, "/a/b/c"),
            ("/%24meta%20data", false, All, "/$meta data"),
            ("/%24meta", false, Slashes, "/%24meta"),
            ("/a%2", false, All, "/a%2"),
            ("/a%252fb", false, All, "/a%2fb"),
            ("/caf%c3%a9/%zz", true, All, "/café/%zz"),
            ("/caf%c3%a9/%zz", true, Slashes, "/caf%c3%a9/%zz"),
            ("/%c3/%ff%0a", false, All, "/%C3/%FF%0A"),
            ("/%c3%a9%24/%2f%5c%3b%25", false, Normal, "/é$/%2F%5C%3B%25"),
            ("//a%3bb%2f/c", true, Normal, "/a/c"),
        ] {
            assert_eq!(read(path, cut, decode), expected, "{path} cut={cut} {decode:?}");
        }
        assert_eq!(without_parameters("/a;b%2f..;c/d;/e"), "/a/d/e");
    }

    #[test]
    fn each_reading_is_made_once() {
        for (path, decoded, structural) in [
            ("/a/b.c", &[][..], &[][..]),
            ("/a%20b", &["/a b"], &[]),
            ("/%24a", &["/$a"], &[]),
            ("/a;v=1/b", &["/a/b"], &["/a/b"]),
            ("//h/%21", &["/h/!", "/!"], &["/h/%21", "/%21"]),
            ("/%3bx", &["/;x", "/"], &["/"]),
        ] {
            let readings = PathReadings::of(path);
            assert_eq!(readings.others(Decode::All), decoded, "{path}");
            assert_eq!(readings.others(Decode::Slashes), structural, "{path}");
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
            (StringMatcher::prefix("/admin"), "///host/admin", true, false),
            (StringMatcher::prefix("/admin"), "////u@host:80/%61dmin", true, false),
            (StringMatcher::prefix("/admin"), "//\\host;x\\admin", true, false),
            (StringMatcher::prefix("/admin"), "/host/admin", false, false),
            (StringMatcher::prefix("/a/b"), "/a;v=1/b", true, false),
            (StringMatcher::exact("/admin"), "/admin;v=1", true, false),
            (StringMatcher::exact("/$metadata"), "/%24metadata", true, false),
            (StringMatcher::prefix("/shop"), "/cart", false, false),
            // An escape has more than one spelling, in a pattern too.
            (StringMatcher::prefix("/caf%C3%A9"), "/caf%c3%a9/x", true, false),
            (StringMatcher::prefix("/caf%C3%A9"), "/%63af%C3%a9;v=1", true, false),
            (StringMatcher::prefix("/café"), "/caf%c3%a9/x", true, false),
            (StringMatcher::exact("/my file"), "/my%20file", true, false),
            (StringMatcher::exact("/f/a%2Fb"), "/f/a%2fb", true, false),
            (StringMatcher::exact("/f/a%2Fb"), "//f/a%2fb", true, false),
            (StringMatcher::exact("/f/a%2Fb"), "/f/a/b", false, false),
            (StringMatcher::contains("%2F"), "/f/a/b", false, false),
            (StringMatcher::suffix("%2f"), "/a%2F", true, false),
            (StringMatcher::exact("/a%24b"), "/a$b", true, false),
            (StringMatcher::exact("/a%25b"), "/a%25b;v=1", true, false),
            (StringMatcher::exact("/caf%C3%A9"), "/%2fcaf%c3%a9", true, false),
            (StringMatcher::prefix("/%ff"), "/%Ff/x", true, false),
            (regex("/caf%C3%A9(/.*)?"), "/caf%c3%a9/x", true, false),
            (regex("/a%24b"), "/a$b", true, false),
            (regex("/a%2[Ff]b"), "/a%2fb", true, true),
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
            let matcher = PathMatcher::from(matcher);
            assert_eq!(
                readings.holds(Reading::Any, &matcher, &Scans::none()),
                all_bits(deny),
                "deny: {said}"
            );
            assert_eq!(
                readings.holds(Reading::Every, &matcher, &Scans::none()),
                all_bits(allow),
                "allow: {said}"
            );
        }
    }
}
