//! `envoy.config.route.v3.HeaderMatcher`.

mod readings;

use readings::is_host;
pub use readings::{HeaderReadings, is_other_spelling, is_respelled, is_separator};

use crate::scans::{Found, Readings, Scans, Shared, Subject, Visit, all_bits};
use crate::{Reading, StringMatcher};

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

/// A test on one header, in each of its [readings](HeaderReadings).
#[derive(Clone, Debug)]
pub struct HeaderMatcher {
    name: Box<str>,
    test: HeaderTest,
    invert: bool,
    missing_as_empty: bool,
    /// Whether there may be [other readings](HeaderReadings::visit_others) of it in a request of which no field is respelled.
    has_others: bool,
}

impl HeaderMatcher {
    /// A matcher for the header `name` (any case; pseudo-headers begin with `:`).
    ///
    /// `invert` is `invert_match`, `missing_as_empty` is `treat_missing_header_as_empty`. As in Envoy, a header that
    /// is absent matches no string and no range, inverted or not, unless `missing_as_empty` is set.
    pub fn new(name: &str, test: HeaderTest, invert: bool, missing_as_empty: bool) -> Self {
        let name: Box<str> = name.to_ascii_lowercase().into();
        Self {
            has_others: is_host(&name) || is_respelled(name.as_bytes()),
            name,
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
    pub fn matches(&self, headers: &HeaderReadings<'_>, scans: &Scans<'_>) -> bool {
        let found = self.find(headers, scans);
        found.is_some_and(|found| self.is_in(found.any) != self.invert)
    }

    /// Shows the test on strings, if it is one.
    pub fn visit_regexes(&mut self, see: Visit<'_>) {
        if let HeaderTest::String(matcher) = &mut self.test {
            see(Subject::Header(self.name.clone()), matcher);
        }
    }

    /// The word in which the test has a bit, and that bit, if its expression is in a set.
    pub(crate) fn shared(&self) -> Option<(Shared, u64)> {
        let HeaderTest::String(matcher) = &self.test else {
            return None;
        };
        let variant = u8::from(self.invert) | u8::from(self.missing_as_empty) << 1;
        matcher.shared(variant)
    }

    /// Whether the request, or a connection without one, matches in any or in every reading: a bit for each test that
    /// [shares](HeaderMatcher::shared) the word. Inverted, the test holds in a reading in which it would not otherwise.
    ///
    /// A field in other spelling (`x_role`) refuses as the field itself does, and lets nobody in. So does a host without its
    /// port, which routing leaves out of account; whoever lets in, or refuses all but one, names host and port as they are
    /// sent.
    pub(crate) fn holds(&self, reading: Reading, headers: Option<&HeaderReadings<'_>>, scans: &Scans<'_>) -> u64 {
        let found = match headers {
            Some(headers) => self.find(headers, scans),
            None => self.absent(scans),
        };
        let headers = headers.filter(|headers| self.has_others || headers.are_respelled());
        let mut others = headers.map_or(Found::NOTHING, |headers| {
            self.ask(scans, Readings::Others, |see| {
                headers.visit_others(&self.name, self.beginning(), see);
            })
        });
        let has_others = others.is_there();
        if has_others && is_host(&self.name) {
            others.every = u64::MAX;
        }
        let found = match (found, reading) {
            (None, Reading::Any) if has_others => Some(Found::NOTHING),
            (found, _) => found,
        };
        let Some(found) = found else {
            return all_bits(false);
        };
        let (any, every) = (found.any | others.any, found.every & others.every);
        match (reading, self.invert) {
            (Reading::Any, false) => any,
            (Reading::Any, true) => !every,
            (Reading::Every, false) => every,
            (Reading::Every, true) => !any,
        }
    }

    /// Whether the test's bit is set in a word of answers.
    fn is_in(&self, word: u64) -> bool {
        match &self.test {
            HeaderTest::String(matcher) => matcher.is_in(word),
            HeaderTest::Present(_) | HeaderTest::Range { .. } => word != 0,
        }
    }

    /// As [`StringMatcher::beginning`].
    fn beginning(&self) -> Option<&str> {
        match &self.test {
            HeaderTest::String(matcher) => matcher.beginning(),
            HeaderTest::Present(_) | HeaderTest::Range { .. } => None,
        }
    }

    /// None when the header is absent, which matches nothing.
    fn find(&self, headers: &HeaderReadings<'_>, scans: &Scans<'_>) -> Option<Found> {
        let found = match self.test {
            HeaderTest::Present(wanted) if headers.has(&self.name) => Found::all(wanted),
            HeaderTest::Present(_) => Found::NOTHING,
            _ => self.ask(scans, Readings::Sent, |see| {
                headers.visit(&self.name, self.beginning(), see);
            }),
        };
        if found.is_there() {
            Some(found)
        } else {
            self.absent(scans)
        }
    }

    /// What the test says about the readings that `visit` shows.
    fn ask(&self, scans: &Scans<'_>, readings: Readings, visit: impl Fn(&mut dyn FnMut(&str))) -> Found {
        if let HeaderTest::String(matcher) = &self.test {
            return scans.find(matcher, readings, visit);
        }
        let mut found = Found::NOTHING;
        visit(&mut |value| found.add(self.test(value)));
        found
    }

    fn absent(&self, scans: &Scans<'_>) -> Option<Found> {
        match &self.test {
            HeaderTest::Present(wanted) => Some(Found::all(*wanted == self.missing_as_empty)),
            _ if self.missing_as_empty => Some(self.ask(scans, Readings::Empty, |see| see(""))),
            _ => None,
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
