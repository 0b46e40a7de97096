//! What the connection manager makes of the path of a request target before anyone decides on it: escaped slashes
//! (`path_with_escaped_slashes_action`), `normalize_path` (RFC 3986 section 6, as browsers and Envoy apply it) and
//! `merge_slashes`.

use heddle_config::snapshot::EscapedSlashes;
use heddle_matching::percent::escape;

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// An encoded NUL, which ends the string for what is written in C.
    #[error("the path holds an encoded NUL")]
    Nul,
    /// A dot segment behind an encoded slash, or before an encoded semicolon: some servers would climb by it, and no
    /// client writes it without that in mind.
    #[error("the path hides a dot segment")]
    HiddenDots,
    /// An encoded slash under `REJECT_REQUEST`.
    #[error("the path holds an encoded slash")]
    EscapedSlash,
}

/// What is done to paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRules {
    /// `normalize_path`.
    pub normalize: bool,
    /// `merge_slashes`.
    pub merge_slashes: bool,
    /// `path_with_escaped_slashes_action`.
    pub escaped_slashes: EscapedSlashes,
}

/// What came of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Normalized {
    /// Nothing had to change.
    Unchanged,
    /// It goes on in this form.
    Changed(String),
    /// The client is to ask for this one.
    Redirect(String),
}

/// Brings the path of a request target into its normal form; the query stays as it is.
///
/// Dot segments may have path parameters (`/..;x/`): to a servlet container they are dot segments all the same.
///
/// # Errors
/// [`PathError`].
pub fn normalize(target: &str, rules: PathRules) -> Result<Normalized, PathError> {
    let (path, query) = target.split_at(memchr::memchr(b'?', target.as_bytes()).unwrap_or(target.len()));
    if !path.starts_with('/') || !is_suspicious(path.as_bytes(), rules) {
        return Ok(Normalized::Unchanged);
    }
    let unescaped = match rules.escaped_slashes {
        EscapedSlashes::Keep => None,
        EscapedSlashes::Reject if unescape_slashes(path).is_some() => return Err(PathError::EscapedSlash),
        _ => unescape_slashes(path),
    };
    let redirect = unescaped.is_some() && rules.escaped_slashes == EscapedSlashes::Redirect;
    let mut path = unescaped.unwrap_or_else(|| path.to_owned());
    if rules.normalize {
        path = remove_dots(&decode_unreserved(&path)?)?;
    }
    if rules.merge_slashes {
        let mut merged = String::with_capacity(path.len());
        for c in path.chars() {
            if c != '/' || !merged.ends_with('/') {
                merged.push(c);
            }
        }
        path = merged;
    }
    path.push_str(query);
    Ok(match redirect {
        true => Normalized::Redirect(path),
        false if path == target => Normalized::Unchanged,
        false => Normalized::Changed(path),
    })
}

fn is_suspicious(path: &[u8], rules: PathRules) -> bool {
    path.windows(2)
        .any(|w| (rules.normalize && w == b"/.") || (rules.merge_slashes && w == b"//"))
        || ((rules.normalize || rules.escaped_slashes != EscapedSlashes::Keep)
            && path.iter().any(|b| matches!(b, b'%' | b'\\')))
}

/// Slashes and backslashes for their escapes; none when there is no such escape.
fn unescape_slashes(path: &str) -> Option<String> {
    let mut out = String::new();
    let mut copied = 0;
    for (at, _) in path.match_indices('%') {
        let slash = match escape(path.as_bytes().get(at..).unwrap_or_default()) {
            Some(b'/') => '/',
            Some(b'\\') => '\\',
            _ => continue,
        };
        out.push_str(path.get(copied..at).unwrap_or_default());
        out.push(slash);
        copied = at + 3;
    }
    (copied > 0).then(|| out + path.get(copied..).unwrap_or_default())
}

/// Decodes percent-encoded unreserved characters and turns backslashes into slashes. Other escapes stay as they are.
fn decode_unreserved(path: &str) -> Result<String, PathError> {
    let mut out = String::with_capacity(path.len());
    // Where a percent sign stands in `out` that begins no escape.
    let mut bare = None;
    let mut rest = path;
    while let Some(c) = rest.chars().next() {
        let escaped = (c == '%').then(|| escape(rest.as_bytes())).flatten();
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
        match (c, escaped) {
            ('\\', _) => out.push('/'),
            ('%', Some(0)) => return Err(PathError::Nul),
            ('%', Some(b)) if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~') => {
                out.push(b as char);
                rest = rest.get(2..).unwrap_or_default();
            }
            ('%', None) => {
                bare = Some(out.len());
                out.push('%');
            }
            // The case of escapes is left alone, as in Envoy.
            (c, _) => out.push(c),
        }
        // `%%32e` must not become the escape `%2e`, which whoever decodes next would read as a dot.
        if let Some(at) = bare.filter(|at| out.len() == at + 3) {
            if out.bytes().skip(at + 1).all(|b| b.is_ascii_hexdigit()) {
                out.insert_str(at + 1, "25");
            }
            bare = None;
        }
    }
    Ok(out)
}

/// RFC 3986 section 5.2.4, with the parameters of dot segments.
fn remove_dots(path: &str) -> Result<String, PathError> {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        let name = segment.split(';').next().unwrap_or_default();
        if matches!(name, "." | "..") {
            if name == ".." {
                kept.pop();
            }
            if last {
                kept.push("");
            }
        } else if hides_dots(segment) {
            return Err(PathError::HiddenDots);
        } else {
            kept.push(segment);
        }
    }
    let mut out = String::with_capacity(path.len());
    for segment in kept {
        out.push('/');
        out.push_str(segment);
    }
    if out.is_empty() {
        out.push('/');
    }
    Ok(out)
}

/// Whether a segment would hold a dot segment if its slashes and semicolons were decoded.
fn hides_dots(segment: &str) -> bool {
    let mut rest = segment;
    let mut name = String::new();
    let mut in_parameters = false;
    loop {
        let (c, escaped) = (rest.chars().next(), escape(rest.as_bytes()));
        let read = match (c, escaped) {
            (None, _) | (_, Some(b'/' | b'\\')) => '/',
            (_, Some(b';')) => ';',
            (Some(c), _) => c,
        };
        match read {
            '/' if matches!(name.as_str(), "." | "..") => return true,
            '/' if c.is_none() => return false,
            '/' => {
                name.clear();
                in_parameters = false;
            }
            ';' => in_parameters = true,
            _ if in_parameters => {}
            c => name.push(c),
        }
        // What an escape of something else stands for is no dot and no delimiter; its digits are skipped with it.
        let taken = escaped.map_or(c.map_or(0, char::len_utf8), |_| 3);
        rest = rest.get(taken..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests;
