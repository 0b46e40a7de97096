//! `normalize_path` and `merge_slashes` (RFC 3986 section 6, as browsers and Envoy apply it).

/// The path holds an encoded NUL, which ends the string for what is written in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the path holds an encoded NUL")]
pub struct PathError;

/// Brings the path of a request target into its normal form; the query stays as it is. `Ok(None)` means that nothing
/// had to change.
///
/// # Errors
/// [`PathError`].
pub fn normalize(target: &str, normalize: bool, merge_slashes: bool) -> Result<Option<String>, PathError> {
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    if !path.starts_with('/') {
        return Ok(None);
    }
    let bytes = path.as_bytes();
    let suspicious = bytes
        .windows(2)
        .any(|w| (normalize && w[0] == b'/' && w[1] == b'.') || (merge_slashes && w == b"//"))
        || (normalize && bytes.iter().any(|b| matches!(b, b'%' | b'\\')));
    if !suspicious {
        return Ok(None);
    }
    let mut path = if normalize {
        decode_unreserved(path)?
    } else {
        path.to_owned()
    };
    if normalize {
        path = remove_dots(&path);
    }
    if merge_slashes {
        let mut merged = String::with_capacity(path.len());
        for c in path.chars() {
            if c != '/' || !merged.ends_with('/') {
                merged.push(c);
            }
        }
        path = merged;
    }
    path.push_str(query);
    Ok((path != target).then_some(path))
}

/// Decodes percent-encoded unreserved characters, raises the case of other escapes, turns backslashes into slashes.
/// Encoded slashes stay encoded (`KEEP_UNCHANGED`).
fn decode_unreserved(path: &str) -> Result<String, PathError> {
    let mut out = String::with_capacity(path.len());
    // Where a percent sign stands in `out` that begins no escape.
    let mut bare = None;
    let mut rest = path;
    while let Some(c) = rest.chars().next() {
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
        match c {
            '\\' => out.push('/'),
            '%' => {
                let hex = rest.get(..2).filter(|h| h.bytes().all(|b| b.is_ascii_hexdigit()));
                match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
                    Some(0) => return Err(PathError),
                    Some(b) if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~') => {
                        out.push(b as char);
                        rest = rest.get(2..).unwrap_or_default();
                    }
                    // The case of escapes is left alone, as in Envoy.
                    Some(_) => out.push('%'),
                    None => {
                        bare = Some(out.len());
                        out.push('%');
                    }
                }
            }
            c => out.push(c),
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

/// RFC 3986 section 5.2.4.
fn remove_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            other => kept.push(other),
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
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        for (input, output) in [
            ("/a/b", "/a/b"),
            ("/a/./b/../c", "/a/c"),
            ("/../../etc/passwd", "/etc/passwd"),
            ("/a/..", "/"),
            ("/a/.", "/a/"),
            ("/%2e%2E/secret?x=/../y", "/secret?x=/../y"),
            ("/a%2fb", "/a%2fb"),
            ("/%41%7e", "/A~"),
            ("/a\\..\\b", "/b"),
            ("/a//b", "/a/b"),
            ("//a///b//", "/a/b/"),
            ("/..", "/"),
            ("*", "*"),
            ("/100%", "/100%"),
            ("/%zz/%", "/%zz/%"),
            ("/a/%%32e%2%65/b", "/a/%252e%252e/b"),
            ("/%%30%30", "/%2500"),
        ] {
            let result = normalize(input, true, true).expect(input);
            assert_eq!(result.as_deref().unwrap_or(input), output, "{input}");
        }
        assert_eq!(normalize("/a//b", true, false), Ok(None));
        assert_eq!(normalize("/a/../b", false, false), Ok(None));
        assert_eq!(normalize("/%00", true, true), Err(PathError));
    }
}
