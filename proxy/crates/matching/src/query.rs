//! `envoy.config.route.v3.QueryParameterMatcher`.

use crate::StringMatcher;

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

    /// Whether the query of this path (`/a?b=c`) matches.
    pub fn matches(&self, path_and_query: &str) -> bool {
        let path = path_and_query
            .split_once('#')
            .map_or(path_and_query, |(before, _)| before);
        let value = path.split_once('?').and_then(|(_, query)| {
            query
                .split('&')
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .find(|(name, _)| *name == &*self.name)
                .map(|(_, value)| value)
        });
        match &self.test {
            QueryTest::Present(wanted) => value.is_some() == *wanted,
            QueryTest::String(matcher) => value.is_some_and(|value| matcher.matches(value)),
        }
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
            assert_eq!(present.matches(path), is_present, "{path}");
            assert_eq!(absent.matches(path), !is_present, "{path}");
            assert_eq!(exact.matches(path), is_one, "{path}");
        }
    }
}
