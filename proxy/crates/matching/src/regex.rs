//! Regular expressions with the meaning that Envoy gives them: RE2's syntax, matched against the whole string.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::re2;

/// Longest accepted pattern in bytes. Istio allows 1024; the rest is room for what the controller wraps around it.
pub const MAX_PATTERN: usize = 16 * 1024;

/// Most memory that one compiled expression may take, in bytes. Stands in for RE2's program size.
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

/// A compiled expression. Matching takes time linear in the length of the input. Cloning shares it.
#[derive(Clone)]
pub struct Regex(Arc<Inner>);

struct Inner {
    pattern: Box<str>,
    whole: regex::Regex,
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
        // Alone first: a pattern such as `a)|(b` must not become valid by what is put around it.
        let translated = re2::translate(pattern);
        compile(pattern, &translated)?;
        let whole = compile(pattern, &format!(r"\A(?:{translated})\z"))?;
        Ok(Self(Arc::new(Inner {
            pattern: pattern.into(),
            whole,
            anywhere: OnceLock::new(),
        })))
    }

    /// Compiles `pattern` for [`Regex::replace_all`] and checks the references in `substitution`.
    pub fn for_rewrite(pattern: &str, substitution: &str) -> Result<Self, RegexError> {
        let regex = Self::new(pattern)?;
        let anywhere = compile(pattern, &re2::translate(pattern))?;
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
        // Its settings are the same as those of `compile`, which took the pattern.
        regex_syntax::parse(&re2::translate(&self.0.pattern)).ok()
    }

    /// Whether the expression matches `text` from end to end.
    pub fn is_full_match(&self, text: &str) -> bool {
        self.0.whole.is_match(text)
    }

    /// `text` with every match replaced by `substitution`, in which `\0` to `\9` stand for groups and `\\` for a
    /// backslash (`RegexMatchAndSubstitute`). References are those that [`Regex::for_rewrite`] checked; one that does
    /// not exist is replaced by nothing.
    pub fn replace_all<'t>(&self, text: &'t str, substitution: &str) -> Cow<'t, str> {
        let anywhere = self
            .0
            .anywhere
            .get_or_init(|| compile(&self.0.pattern, &re2::translate(&self.0.pattern)).ok());
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

fn compile(pattern: &str, translated: &str) -> Result<regex::Regex, RegexError> {
    regex::RegexBuilder::new(translated)
        .size_limit(MAX_COMPILED)
        .dfa_size_limit(MAX_COMPILED)
        .build()
        .map_err(|error| {
            let reason = match error {
                regex::Error::CompiledTooBig(limit) => {
                    format!("it takes more than {limit} bytes once compiled")
                }
                // The engine prints the pattern over several lines with a marker; the last line is the reason.
                other => other
                    .to_string()
                    .lines()
                    .last()
                    .unwrap_or("not valid")
                    .trim_start_matches("error: ")
                    .to_owned(),
            };
            RegexError::Invalid {
                pattern: pattern.to_owned(),
                reason,
            }
        })
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
