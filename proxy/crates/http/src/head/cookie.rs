//! Cookies of a request (RFC 6265 section 5.4).

use super::Fields;

/// A cookie's first value (RFC 6265 section 4.2), without quotes.
pub(crate) fn cookie<'f>(fields: &'f Fields, name: &str) -> Option<&'f str> {
    for value in fields.all(b"cookie") {
        let value = std::str::from_utf8(value).unwrap_or_default();
        for pair in value.split(';') {
            if let Some((key, value)) = pair.trim().split_once('=')
                && key == name
            {
                let unquoted = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
                return Some(unquoted.unwrap_or(value));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies() {
        let mut fields = Fields::new();
        fields.push(b"cookie", b"a=1; t=\"x.y.z\"; t=2");
        fields.push(b"cookie", b"b=3");
        assert_eq!(cookie(&fields, "t"), Some("x.y.z"));
        assert_eq!(cookie(&fields, "b"), Some("3"));
        assert_eq!(cookie(&fields, "c"), None);
    }
}
