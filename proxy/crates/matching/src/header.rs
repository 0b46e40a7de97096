//! `envoy.config.route.v3.HeaderMatcher`.

use crate::{RequestView, StringMatcher};

/// What is asked of a header.
#[derive(Clone, Debug)]
pub enum HeaderTest {
    /// `present_match`: the header is there (true) or is not (false).
    Present(bool),
    /// `string_match` and the older `exact_match`, `prefix_match`, `safe_regex_match` and so on.
    String(StringMatcher),
    /// `range_match`: a decimal integer from `start` up to, not including, `end`.
    Range {
        /// First value that matches.
        start: i64,
        /// First value that no longer matches.
        end: i64,
    },
}

/// A test on one header, joined by commas when it came more than once.
#[derive(Clone, Debug)]
pub struct HeaderMatcher {
    name: Box<str>,
    test: HeaderTest,
    invert: bool,
    missing_as_empty: bool,
}

impl HeaderMatcher {
    /// A matcher for the header `name` (any case; pseudo-headers begin with `:`).
    ///
    /// `invert` is `invert_match`, `missing_as_empty` is `treat_missing_header_as_empty`. As in Envoy, a header that
    /// is absent matches no string and no range, inverted or not, unless `missing_as_empty` is set.
    pub fn new(name: &str, test: HeaderTest, invert: bool, missing_as_empty: bool) -> Self {
        Self {
            name: name.to_ascii_lowercase().into(),
            test,
            invert,
            missing_as_empty,
        }
    }

    /// The header's name, lower case.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the request matches.
    pub fn matches(&self, request: &dyn RequestView) -> bool {
        self.matches_value(request.header(&self.name).as_deref())
    }

    /// Whether a header of this value (none when absent) matches.
    pub fn matches_value(&self, value: Option<&str>) -> bool {
        let value = if self.missing_as_empty {
            Some(value.unwrap_or(""))
        } else {
            value
        };
        let matched = match (&self.test, value) {
            (HeaderTest::Present(wanted), value) => value.is_some() == *wanted,
            (_, None) => return false,
            (HeaderTest::String(matcher), Some(value)) => matcher.matches(value),
            (HeaderTest::Range { start, end }, Some(value)) => value
                .parse::<i64>()
                .is_ok_and(|number| (*start..*end).contains(&number)),
        };
        matched != self.invert
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(value: &str) -> HeaderTest {
        HeaderTest::String(StringMatcher::exact(value))
    }

    #[test]
    fn table() {
        let range = || HeaderTest::Range { start: 1, end: 10 };
        for (test, invert, missing_as_empty, value, expected) in [
            (exact("a"), false, false, Some("a"), true),
            (exact("a"), false, false, Some("b"), false),
            (exact("a"), true, false, Some("b"), true),
            (exact("a"), true, false, Some("a"), false),
            // Absent: no match either way, unless it counts as empty.
            (exact("a"), false, false, None, false),
            (exact("a"), true, false, None, false),
            (exact("a"), true, true, None, true),
            (exact(""), false, true, None, true),
            (HeaderTest::Present(true), false, false, Some(""), true),
            (HeaderTest::Present(true), false, false, None, false),
            (HeaderTest::Present(true), true, false, None, true),
            (HeaderTest::Present(true), true, false, Some("x"), false),
            (HeaderTest::Present(false), false, false, None, true),
            (HeaderTest::Present(false), false, false, Some("x"), false),
            (HeaderTest::Present(false), true, false, Some("x"), true),
            (HeaderTest::Present(false), false, true, None, false),
            (range(), false, false, Some("1"), true),
            (range(), false, false, Some("10"), false),
            (range(), false, false, Some("-1"), false),
            (range(), false, false, Some("x"), false),
            (range(), false, false, Some(""), false),
            (range(), true, false, Some("x"), true),
            (range(), false, false, None, false),
        ] {
            let said = format!("{test:?} invert={invert} empty={missing_as_empty} on {value:?}");
            assert_eq!(
                HeaderMatcher::new("X-A", test, invert, missing_as_empty).matches_value(value),
                expected,
                "{said}"
            );
        }
        assert_eq!(HeaderMatcher::new("X-A", exact("a"), false, false).name(), "x-a");
    }
}
