//! `envoy.config.route.v3.HeaderMatcher`.

use std::borrow::Cow;

use crate::{Reading, RequestView, StringMatcher};

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

/// A test on one header.
///
/// A header that comes more than once has several readings: each of its values, and all of them joined by `,` or `, `
/// (`; ` for `cookie`). Bytes outside UTF-8 are read as ISO 8859-1 and as replacement characters.
#[derive(Clone, Debug)]
pub struct HeaderMatcher {
    name: Box<str>,
    test: HeaderTest,
    invert: bool,
    missing_as_empty: bool,
}

/// What the test says about the readings of a header.
#[derive(Clone, Copy, Debug)]
struct Found {
    any: bool,
    every: bool,
}

impl Found {
    const NOTHING: Self = Self {
        any: false,
        every: true,
    };

    fn all(matched: bool) -> Self {
        Self {
            any: matched,
            every: matched,
        }
    }

    fn add(&mut self, matched: bool) {
        self.any |= matched;
        self.every &= matched;
    }
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

    /// Whether the request matches, where the answer refuses nobody and lets nobody in (routes): one reading is enough,
    /// and an inverted test holds when none matches.
    pub fn matches(&self, request: &dyn RequestView) -> bool {
        self.find(request).is_some_and(|found| found.any != self.invert)
    }

    /// Whether the request, or a connection without one, matches in any or in every reading. Inverted, the test holds in
    /// a reading in which it would not otherwise.
    pub fn matches_in(&self, reading: Reading, request: Option<&dyn RequestView>) -> bool {
        let found = match request {
            Some(request) => self.find(request),
            None => self.absent(),
        };
        found.is_some_and(|found| match (reading, self.invert) {
            (Reading::Any, false) => found.any,
            (Reading::Any, true) => !found.every,
            (Reading::Every, false) => found.every,
            (Reading::Every, true) => !found.any,
        })
    }

    /// None when the header is absent, which matches nothing.
    fn find(&self, request: &dyn RequestView) -> Option<Found> {
        let mut count = 0;
        let mut found = Found::NOTHING;
        request.visit_header(&self.name, &mut |value| {
            count += 1;
            if !matches!(self.test, HeaderTest::Present(_)) {
                self.read(value, &mut found);
            }
        });
        if count == 0 {
            return self.absent();
        }
        if let HeaderTest::Present(wanted) = self.test {
            return Some(Found::all(wanted));
        }
        if count > 1 {
            let separators: &[&[u8]] = match &*self.name {
                "cookie" => &[b"; "],
                _ => &[b",", b", "],
            };
            for separator in separators {
                let mut joined: Option<Vec<u8>> = None;
                request.visit_header(&self.name, &mut |value| match &mut joined {
                    None => joined = Some(value.to_vec()),
                    Some(all) => {
                        all.extend_from_slice(separator);
                        all.extend_from_slice(value);
                    }
                });
                self.read(&joined.unwrap_or_default(), &mut found);
            }
        }
        Some(found)
    }

    fn absent(&self) -> Option<Found> {
        match &self.test {
            HeaderTest::Present(wanted) => Some(Found::all(*wanted == self.missing_as_empty)),
            _ if self.missing_as_empty => Some(Found::all(self.test(""))),
            _ => None,
        }
    }

    /// Adds what the test says about a value, which has one reading when it is text.
    fn read(&self, value: &[u8], found: &mut Found) {
        match String::from_utf8_lossy(value) {
            Cow::Borrowed(text) => found.add(self.test(text)),
            Cow::Owned(replaced) => {
                found.add(self.test(&replaced));
                let latin: String = value.iter().map(|b| char::from(*b)).collect();
                found.add(self.test(&latin));
            }
        }
    }

    fn test(&self, value: &str) -> bool {
        match &self.test {
            HeaderTest::Present(wanted) => *wanted,
            HeaderTest::String(matcher) => matcher.matches(value),
            HeaderTest::Range { start, end } => value
                .parse::<i64>()
                .is_ok_and(|number| (*start..*end).contains(&number)),
        }
    }
}

#[cfg(test)]
mod tests;
