//! What is wrong with a configuration, and where.

use std::collections::BTreeSet;
use std::fmt;

/// One finding: the path of the field, what is wrong with it and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    path: String,
    problem: String,
}

impl ConfigError {
    /// A finding at `path`, such as `listeners[http].filter_chains[0]`; an empty path stands for the whole document.
    pub fn new(path: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            problem: problem.into(),
        }
    }

    /// Where.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What, why and the remedy.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.problem)
        } else {
            write!(f, "{}: {}", self.path, self.problem)
        }
    }
}

impl std::error::Error for ConfigError {}

/// All findings of one document or update, at least one. At most [`ConfigErrors::LIMIT`] are kept: the text travels in
/// a NACK, and the first few say enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    errors: Vec<ConfigError>,
    dropped: usize,
}

impl ConfigErrors {
    /// Most findings that are kept.
    pub const LIMIT: usize = 16;

    /// `Ok` when there is no finding.
    pub fn check(mut errors: Vec<ConfigError>) -> Result<(), Self> {
        if errors.is_empty() {
            return Ok(());
        }
        let dropped = errors.len().saturating_sub(Self::LIMIT);
        errors.truncate(Self::LIMIT);
        Err(Self { errors, dropped })
    }

    /// The findings that were kept.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.errors.iter()
    }
}

/// What of an update was refused, and why. Everything else in the update was taken; of a route table, so were its virtual hosts that
/// are right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    names: BTreeSet<String>,
    errors: ConfigErrors,
}

impl Refusal {
    /// Names of the resources that were refused, at least one: what was in force of them stays.
    pub fn names(&self) -> &BTreeSet<String> {
        &self.names
    }

    /// Why.
    pub fn errors(&self) -> &ConfigErrors {
        &self.errors
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.errors.fmt(f)
    }
}

impl std::error::Error for Refusal {}

/// What is wrong with the resources of an update, of which a [`Refusal`] is made.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    names: BTreeSet<String>,
    findings: Vec<ConfigError>,
}

impl Problems {
    /// Refuses a resource.
    pub(crate) fn add(&mut self, name: impl Into<String>, why: impl Into<ConfigErrors>) {
        self.names.insert(name.into());
        self.findings.extend(why.into().errors);
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// `Ok` when nothing was refused.
    pub(crate) fn check(self) -> Result<(), Refusal> {
        ConfigErrors::check(self.findings).map_err(|errors| Refusal {
            names: self.names,
            errors,
        })
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self {
            errors: vec![error],
            dropped: 0,
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        if self.dropped > 0 {
            write!(f, "\nand {} more", self.dropped)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_beyond_the_limit_are_counted() {
        let many = (0..20).map(|i| ConfigError::new(format!("f{i}"), "wrong")).collect();
        let text = ConfigErrors::check(many).expect_err("there are findings").to_string();
        assert!(text.starts_with("f0: wrong\nf1: wrong\n"), "{text}");
        assert!(text.ends_with("f15: wrong\nand 4 more"), "{text}");
    }

    #[test]
    fn nothing_found_is_ok() {
        assert_eq!(ConfigErrors::check(Vec::new()), Ok(()));
    }
}
