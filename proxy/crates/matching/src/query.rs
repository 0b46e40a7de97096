//! `envoy.config.route.v3.QueryParameterMatcher`.

use crate::StringMatcher;
use crate::scans::{Readings, Scans, Subject, Visit};

/// What is asked of a query parameter.
#[derive(Clone, Debug)]
pub enum QueryTest {
    /// `present_match`: the parameter is there (true) or is not (false).
    Present(bool),
    /// `string_match` on the first value of that name, as it came (no percent-decoding, as in Envoy).
    String(StringMatcher),
}

/// A test on one query parameter.
#[derive(Clone, Debug)]
pub struct QueryMatcher {
    name: Box<str>,
    test: QueryTest,
}

impl QueryMatcher {
    /// A matcher for the parameter `name`, which is compared by case.
    pub fn new(name: &str, test: QueryTest) -> Self {
        Self {
            name: name.into(),
            test,
        }
    }

    /// Shows the test on strings, if it is one.
    pub fn visit_regexes(&mut self, see: Visit<'_>) {
        if let QueryTest::String(matcher) = &mut self.test {
            see(Subject::Query(self.name.clone()), matcher);
        }
    }

    /// Whether the query of this path (`/a?b=c`) matches.
    pub fn matches(&self, path_and_query: &str, scans: &Scans<'_>) -> bool {
        match &self.test {
            QueryTest::Present(wanted) => self.value(path_and_query).is_some() == *wanted,
            QueryTest::String(matcher) => {
                let value = |see: &mut dyn FnMut(&str)| self.value(path_and_query).into_iter().for_each(see);
                matcher.is_in(scans.find(matcher, Readings::Sent, value).any)
            }
        }
    }

    /// The parameter's first value.
    fn value<'p>(&self, path_and_query: &'p str) -> Option<&'p str> {
        let path = path_and_query
            .split_once('#')
            .map_or(path_and_query, |(before, _)| before);
        let (_, query) = path.split_once('?')?;
        let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.find(|(name, _)| *name == &*self.name).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let present = QueryMatcher::new("a", QueryTest::Present(true));
        let absent = QueryMatcher::new("a", QueryTest::Present(false));
        let exact = QueryMatcher::new("a", QueryTest::String(StringMatcher::exact("1")));
        let scans = Scans::none();
        for (path, is_present, is_one) in [
            ("/x?a=1", true, true),
            ("/x?b=2&a=1", true, true),
            ("/x?a=2&a=1", true, false),
            ("/x?a", true, false),
            ("/x?A=1", false, false),
            ("/x", false, false),
            ("/x?", false, false),
            ("/x#?a=1", false, false),
            ("/x?a=%31", true, false),
        ] {
            assert_eq!(present.matches(path, &scans), is_present, "{path}");
            assert_eq!(absent.matches(path, &scans), !is_present, "{path}");
            assert_eq!(exact.matches(path, &scans), is_one, "{path}");
        }
    }
}
