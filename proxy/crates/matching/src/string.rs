//! `envoy.type.matcher.v3.StringMatcher`.

use crate::Regex;
use crate::scans::{Member, Shared};

/// What a string is held against.
#[derive(Clone, Debug)]
pub enum StringTest {
    /// `exact`.
    Exact(Box<str>),
    /// `prefix`.
    Prefix(Box<str>),
    /// `suffix`.
    Suffix(Box<str>),
    /// `contains`.
    Contains(Box<str>),
    /// `safe_regex`; the whole string must match.
    Regex(Regex),
}

/// A test on a string, with or without regard to the case of ASCII letters.
#[derive(Clone, Debug)]
pub struct StringMatcher {
    test: StringTest,
    ignore_case: bool,
    /// Where the expression is among those that look at the same.
    member: Option<Member>,
}

impl StringMatcher {
    /// A matcher. `ignore_case` has no effect on [`StringTest::Regex`], as in Envoy.
    pub fn new(mut test: StringTest, ignore_case: bool) -> Self {
        if ignore_case && let StringTest::Contains(wanted) = &mut test {
            wanted.make_ascii_lowercase();
        }
        Self {
            test,
            ignore_case,
            member: None,
        }
    }

    /// Matches exactly this string.
    pub fn exact(value: impl Into<Box<str>>) -> Self {
        Self::new(StringTest::Exact(value.into()), false)
    }

    /// Matches every string that begins with this one.
    pub fn prefix(value: impl Into<Box<str>>) -> Self {
        Self::new(StringTest::Prefix(value.into()), false)
    }

    /// Matches every string that ends with this one.
    pub fn suffix(value: impl Into<Box<str>>) -> Self {
        Self::new(StringTest::Suffix(value.into()), false)
    }

    /// Matches every string that holds this one.
    pub fn contains(value: impl Into<Box<str>>) -> Self {
        Self::new(StringTest::Contains(value.into()), false)
    }

    /// Matches every string that the expression matches from end to end.
    pub fn regex(regex: Regex) -> Self {
        Self::new(StringTest::Regex(regex), false)
    }

    /// What is tested, for printing a configuration back.
    pub fn test(&self) -> &StringTest {
        &self.test
    }

    /// Whether the case of ASCII letters makes no difference.
    pub(crate) fn ignores_case(&self) -> bool {
        self.ignore_case
    }

    /// What a text begins with that matches, where that alone decides it: of texts in order, the first and the last say whether
    /// all match, and the first one that is not before this whether any does.
    pub(crate) fn beginning(&self) -> Option<&str> {
        match &self.test {
            StringTest::Exact(wanted) | StringTest::Prefix(wanted) if !self.ignore_case => Some(wanted),
            _ => None,
        }
    }

    /// Its expression's place among those of a configuration; none for a matcher that is asked alone.
    pub(crate) fn member(&self) -> Option<Member> {
        self.member
    }

    /// The word of answers in which the test has a bit, and that bit, if its expression is in a set. Tests of another variant
    /// do not share the word.
    pub(crate) fn shared(&self, variant: u8) -> Option<(Shared, u64)> {
        Some(self.member?.shared(variant))
    }

    /// Whether the test's bit is set in a word of answers.
    pub(crate) fn is_in(&self, word: u64) -> bool {
        word & self.shared(0).map_or(u64::MAX, |(_, bit)| bit) != 0
    }

    pub(crate) fn enrol(&mut self, member: Option<Member>) {
        self.member = member;
    }

    /// Whether `value` matches.
    pub fn matches(&self, value: &str) -> bool {
        let bytes = value.as_bytes();
        match (&self.test, self.ignore_case) {
            (StringTest::Exact(w), false) => value == &**w,
            (StringTest::Exact(w), true) => value.eq_ignore_ascii_case(w),
            (StringTest::Prefix(w), false) => value.starts_with(&**w),
            (StringTest::Prefix(w), true) => bytes
                .get(..w.len())
                .is_some_and(|b| b.eq_ignore_ascii_case(w.as_bytes())),
            (StringTest::Suffix(w), false) => value.ends_with(&**w),
            (StringTest::Suffix(w), true) => bytes
                .len()
                .checked_sub(w.len())
                .and_then(|from| bytes.get(from..))
                .is_some_and(|b| b.eq_ignore_ascii_case(w.as_bytes())),
            (StringTest::Contains(w), false) => memchr::memmem::find(bytes, w.as_bytes()).is_some(),
            (StringTest::Contains(w), true) => {
                w.is_empty() || bytes.windows(w.len()).any(|b| b.eq_ignore_ascii_case(w.as_bytes()))
            }
            (StringTest::Regex(r), _) => r.is_full_match(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(kind: &str, wanted: &str, ignore_case: bool) -> StringMatcher {
        let wanted: Box<str> = wanted.into();
        let test = match kind {
            "exact" => StringTest::Exact(wanted),
            "prefix" => StringTest::Prefix(wanted),
            "suffix" => StringTest::Suffix(wanted),
            "contains" => StringTest::Contains(wanted),
            _ => StringTest::Regex(Regex::new(&wanted).expect("pattern")),
        };
        StringMatcher::new(test, ignore_case)
    }

    #[test]
    fn table() {
        for (kind, wanted, ignore_case, value, expected) in [
            ("exact", "abc", false, "abc", true),
            ("exact", "abc", false, "abcd", false),
            ("exact", "abc", false, "ABC", false),
            ("exact", "abc", true, "ABC", true),
            ("exact", "", false, "", true),
            ("prefix", "ab", false, "abc", true),
            ("prefix", "ab", false, "a", false),
            ("prefix", "ab", true, "ABc", true),
            ("prefix", "abc", true, "ab", false),
            ("prefix", "", true, "", true),
            ("suffix", "bc", false, "abc", true),
            ("suffix", "bc", true, "aBC", true),
            ("suffix", "abc", true, "bc", false),
            ("suffix", "bc", false, "bcd", false),
            ("contains", "b", false, "abc", true),
            ("contains", "B", false, "abc", false),
            ("contains", "BC", true, "abcd", true),
            ("contains", "", true, "", true),
            ("contains", "abc", true, "ab", false),
            ("regex", "a.c", false, "abc", true),
            ("regex", "a.c", false, "xabc", false),
            ("regex", "a.c", true, "ABC", false),
            ("prefix", "é", true, "e", false),
            ("suffix", "x", true, "éx", true),
        ] {
            assert_eq!(
                matcher(kind, wanted, ignore_case).matches(value),
                expected,
                "{kind} {wanted:?} ignore_case={ignore_case} on {value:?}"
            );
        }
    }
}
