//! Regular expressions with the meaning that Envoy gives them: RE2's syntax, matched against the whole string.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::re2;

mod compiled;
mod shared;

pub use shared::{RegexMemory, regex_memory};

use compiled::Compiled;

/// Longest accepted pattern in bytes. Istio allows 1024; the rest is room for what the controller wraps around it.
pub const MAX_PATTERN: usize = 16 * 1024;

/// Most memory that one compiled expression may take, in bytes, without what it works out while it is used. Stands in for RE2's
/// program size.
pub const MAX_COMPILED: usize = 3 << 19;

/// Why an expression or substitution was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegexError {
    /// Longer than [`MAX_PATTERN`].
    #[error("regular expression of {length} bytes is longer than the {MAX_PATTERN} allowed")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// Not valid, or too large once compiled.
    #[error("regular expression `{pattern}`: {reason}")]
    Invalid {
        /// The pattern as given.
        pattern: String,
        /// What the engine said.
        reason: String,
    },
    /// A substitution refers to a group that the pattern does not have, or ends in a lone backslash.
    #[error("substitution `{substitution}`: {reason}")]
    Substitution {
        /// The substitution as given.
        substitution: String,
        /// What is wrong.
        reason: String,
    },
}

/// A compiled expression. Matching takes time linear in the length of the input. Cloning shares it, and so do all that are made
/// of the same pattern while one of them lives.
#[derive(Clone)]
pub struct Regex(Arc<Inner>);

struct Inner {
    pattern: Box<str>,
    whole: Compiled,
    /// What it takes, in bytes.
    memory: usize,
    /// The same without anchors, for [`Regex::replace_all`].
    anywhere: OnceLock<Option<regex::Regex>>,
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Regex({:?})", self.0.pattern)
    }
}

impl PartialEq for Regex {
    fn eq(&self, other: &Self) -> bool {
        self.0.pattern == other.0.pattern
    }
}

impl Regex {
    /// Compiles `pattern` (RE2's syntax).
    pub fn new(pattern: &str) -> Result<Self, RegexError> {
        if pattern.len() > MAX_PATTERN {
            return Err(RegexError::TooLong { length: pattern.len() });
        }
        if let Some(before) = shared::find(pattern) {
            return Ok(Self(before));
        }
        let hir = regex_syntax::parse(&re2::translate(pattern)).map_err(|e| invalid(pattern, &e))?;
        let whole = Compiled::new(hir).map_err(|e| match e.size_limit() {
            Some(limit) => too_large(pattern, limit),
            None => invalid(pattern, &e),
        })?;
        let inner = Arc::new(Inner {
            pattern: pattern.into(),
            memory: pattern.len() + whole.memory(),
            whole,
            anywhere: OnceLock::new(),
        });
        shared::keep(&inner);
        Ok(Self(inner))
    }

    /// Compiles `pattern` for [`Regex::replace_all`] and checks the references in `substitution`.
    pub fn for_rewrite(pattern: &str, substitution: &str) -> Result<Self, RegexError> {
        let regex = Self::new(pattern)?;
        let anywhere = match regex.0.anywhere.get() {
            Some(Some(before)) => before.clone(),
            _ => anywhere(pattern)?,
        };
        let groups = anywhere.captures_len();
        let wrong = |reason: String| RegexError::Substitution {
            substitution: substitution.to_owned(),
            reason,
        };
        let mut chars = substitution.chars();
        while let Some(c) = chars.next() {
            if c != '\\' {
                continue;
            }
            match chars.next() {
                Some('\\') => {}
                Some(digit) if digit.is_ascii_digit() => {
                    let group = digit as usize - '0' as usize;
                    if group >= groups {
                        return Err(wrong(format!(
                            "\\{group} refers to a group that `{pattern}` does not have; it has {}",
                            groups - 1
                        )));
                    }
                }
                Some(other) => return Err(wrong(format!("`\\{other}` is not \\0 to \\9 or \\\\"))),
                None => {
                    return Err(wrong("it ends in a lone backslash; write `\\\\`".to_owned()));
                }
            }
        }
        let _ = regex.0.anywhere.set(Some(anywhere));
        Ok(regex)
    }

    /// The pattern as it was written.
    pub fn pattern(&self) -> &str {
        &self.0.pattern
    }

    /// What the pattern means, for engines that look for several at once.
    pub(crate) fn hir(&self) -> Option<regex_syntax::hir::Hir> {
        regex_syntax::parse(&re2::translate(&self.0.pattern)).ok()
    }

    /// Whether the expression matches `text` from end to end.
    pub fn is_full_match(&self, text: &str) -> bool {
        self.0.whole.matches(text)
    }

    /// `text` with every match replaced by `substitution`, in which `\0` to `\9` stand for groups and `\\` for a
    /// backslash (`RegexMatchAndSubstitute`). References are those that [`Regex::for_rewrite`] checked; one that does
    /// not exist is replaced by nothing.
    pub fn replace_all<'t>(&self, text: &'t str, substitution: &str) -> Cow<'t, str> {
        let anywhere = self.0.anywhere.get_or_init(|| anywhere(&self.0.pattern).ok());
        let Some(anywhere) = anywhere else {
            return Cow::Borrowed(text);
        };
        anywhere.replace_all(text, |captures: &regex::Captures<'_>| {
            let mut out = String::with_capacity(substitution.len());
            let mut chars = substitution.chars();
            while let Some(c) = chars.next() {
                match (c, if c == '\\' { chars.next() } else { None }) {
                    ('\\', Some(digit)) if digit.is_ascii_digit() => {
                        let group = digit as usize - '0' as usize;
                        out.push_str(captures.get(group).map_or("", |m| m.as_str()));
                    }
                    ('\\', Some(other)) => out.push(other),
                    (plain, _) => out.push(plain),
                }
            }
            out
        })
    }
}

/// The expression wherever it stands in a text, with its groups.
fn anywhere(pattern: &str) -> Result<regex::Regex, RegexError> {
    regex::RegexBuilder::new(&re2::translate(pattern))
        .size_limit(MAX_COMPILED)
        .dfa_size_limit(MAX_COMPILED)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => too_large(pattern, limit),
            other => invalid(pattern, &other),
        })
}

fn too_large(pattern: &str, limit: usize) -> RegexError {
    RegexError::Invalid {
        pattern: pattern.to_owned(),
        reason: format!("it takes more than {limit} bytes once compiled"),
    }
}

fn invalid(pattern: &str, error: &dyn fmt::Display) -> RegexError {
    // The engine prints the pattern over several lines with a marker; the last line is the reason.
    let reason = error.to_string();
    RegexError::Invalid {
        pattern: pattern.to_owned(),
        reason: reason
            .lines()
            .last()
            .unwrap_or("not valid")
            .trim_start_matches("error: ")
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_string() {
        for (pattern, text, expected) in [
            ("a|ab", "ab", true),
            ("a", "ab", false),
            ("^a$", "a", true),
            (".*", "", true),
            (".*", "a\nb", false),
            (r"(?s).*", "a\nb", true),
            (r"\d+", "123", true),
            (r"\d+", "١٢", false),
            (r"[\d.]+", "1.2", true),
            (r"\w+", "añb", false),
            (r"[^\s]+", "a\u{a0}b", true),
            (r"[[a]+", "[a", true),
            (r"[a&&b]+", "a&b", true),
            (r"[]a]+", "]a", true),
            (r"[^]a]+", "bc", true),
            (r"[a-]+", "a-", true),
            (r"[[:alpha:]-]+", "ab-", true),
            (r"\[a\]", "[a]", true),
            (r"a\bb", "ab", false),
            (r"a\b.*", "a b", true),
            ("(?i)abc", "ABC", true),
            ("/api/v[0-9]+/.*", "/api/v12/x", true),
            (r"/\{x\}", "/{x}", true),
        ] {
            let regex = Regex::new(pattern).expect(pattern);
            assert_eq!(regex.is_full_match(text), expected, "{pattern} on {text:?}");
        }
    }

    #[test]
    fn refused() {
        for (pattern, said) in [
            ("(", "unclosed group"),
            ("a)|(b", "unopened group"),
            ("(?=a)", "look-around"),
            (r"(a)\1", "backreferences are not supported"),
            ("(((a{100}){100}){100})", "once compiled"),
            ("[b-a]", "invalid character class range"),
        ] {
            let error = Regex::new(pattern).expect_err(pattern).to_string();
            assert!(error.contains(said) && error.contains(pattern), "{pattern}: {error}");
        }
        assert_eq!(
            Regex::new(&"a".repeat(MAX_PATTERN + 1)),
            Err(RegexError::TooLong {
                length: MAX_PATTERN + 1
            })
        );
    }

    #[test]
    fn substitution() {
        for (pattern, substitution, text, expected) in [
            (
                "^/service/([^/]+)(/.*)$",
                r"\2/instance/\1",
                "/service/foo/v1/api",
                "/v1/api/instance/foo",
            ),
            ("one", "two", "/xxx/one/yyy/one/zzz", "/xxx/two/yyy/two/zzz"),
            (
                "^(.*?)one(.*)$",
                r"\1two\2",
                "/xxx/one/yyy/one/zzz",
                "/xxx/two/yyy/one/zzz",
            ),
            ("(?i)/xxx/", "/yyy/", "/aaa/XxX/bbb", "/aaa/yyy/bbb"),
            ("a", r"\\$1", "a", r"\$1"),
            ("a(b)?", r"[\1]", "a", "[]"),
            ("z", "y", "abc", "abc"),
        ] {
            let regex = Regex::for_rewrite(pattern, substitution).expect(pattern);
            assert_eq!(
                regex.replace_all(text, substitution),
                expected,
                "{pattern} → {substitution}"
            );
            assert_eq!(
                Regex::new(pattern).expect(pattern).replace_all(text, substitution),
                expected
            );
        }
        for (substitution, said) in [
            (r"\2", "does not have; it has 1"),
            (r"a\", "lone backslash"),
            (r"\x", "is not"),
        ] {
            let error = Regex::for_rewrite("(a)", substitution)
                .expect_err(substitution)
                .to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
