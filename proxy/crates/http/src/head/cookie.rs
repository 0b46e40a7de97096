//! Cookies of a request (RFC 6265 section 5.4).

use super::Fields;

/// The values of all cookies of a name (RFC 6265 section 4.2), without quotes, as they came.
pub(crate) fn cookies<'f>(fields: &'f Fields, name: &'f str) -> impl Iterator<Item = &'f [u8]> {
    let pairs = fields.all(b"cookie").flat_map(|value| value.split(|b| *b == b';'));
    pairs.filter_map(move |pair| {
        let at = pair.iter().position(|b| *b == b'=')?;
        let (key, value) = pair.split_at(at);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let unquoted = value.strip_prefix(b"\"").and_then(|v| v.strip_suffix(b"\""));
        (key.trim_ascii() == name.as_bytes()).then(|| unquoted.unwrap_or(value))
    })
}

/// A cookie's first value; none when it is no text.
pub(crate) fn cookie<'f>(fields: &'f Fields, name: &'f str) -> Option<&'f str> {
    cookies(fields, name)
        .next()
        .and_then(|value| std::str::from_utf8(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_name() {
        let mut fields = Fields::new();
        fields.push(b"cookie", b"a=1; t=\"x.y.z\"; t=2");
        fields.push(b"cookie", b"b=3;t =\xff; bare");
        assert_eq!(cookie(&fields, "t"), Some("x.y.z"));
        assert_eq!(cookie(&fields, "b"), Some("3"));
        assert_eq!(cookie(&fields, "c"), None);
        let all: Vec<_> = cookies(&fields, "t").collect();
        assert_eq!(all, [&b"x.y.z"[..], b"2", b"\xff"]);
    }
}
