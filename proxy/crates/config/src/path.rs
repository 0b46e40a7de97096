//! Where in a document a value stands.

use std::fmt;

use crate::error::ConfigError;

/// A path that lives on the stack of the decoder; text is made only when there is an error to report.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root(&'a str, Option<&'a str>),
    Field(&'a str),
    Item(&'a str, usize),
    Key(&'a str, &'a str),
}

impl<'a> Path<'a> {
    /// The whole document.
    pub(crate) const fn document() -> Path<'static> {
        Path {
            parent: None,
            step: Step::Root("", None),
        }
    }

    /// A named resource: `listeners[http]`.
    pub(crate) const fn resource(kind: &'a str, name: &'a str) -> Path<'a> {
        Path {
            parent: None,
            step: Step::Root(kind, Some(name)),
        }
    }

    pub(crate) const fn field(&'a self, name: &'a str) -> Path<'a> {
        Path {
            parent: Some(self),
            step: Step::Field(name),
        }
    }

    pub(crate) const fn item(&'a self, name: &'a str, index: usize) -> Path<'a> {
        Path {
            parent: Some(self),
            step: Step::Item(name, index),
        }
    }

    pub(crate) const fn key(&'a self, name: &'a str, key: &'a str) -> Path<'a> {
        Path {
            parent: Some(self),
            step: Step::Key(name, key),
        }
    }

    pub(crate) fn error(&self, problem: impl Into<String>) -> ConfigError {
        ConfigError::new(self.to_string(), problem)
    }

    /// A value that Envoy knows and Heddle does not do.
    pub(crate) fn unsupported(&self, value: impl fmt::Display, remedy: &str) -> ConfigError {
        self.error(format!("{value} is not implemented; {remedy}"))
    }

    pub(crate) fn depth(&self) -> usize {
        1 + self.parent.map_or(0, Path::depth)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut dot = "";
        if let Some(parent) = self.parent {
            let before = parent.to_string();
            if !before.is_empty() {
                f.write_str(&before)?;
                dot = ".";
            }
        }
        match self.step {
            Step::Root(kind, None) => f.write_str(kind),
            Step::Root(kind, Some(name)) => write!(f, "{kind}[{name}]"),
            Step::Field(name) => write!(f, "{dot}{name}"),
            Step::Item(name, index) => write!(f, "{dot}{name}[{index}]"),
            Step::Key(name, key) => write!(f, "{dot}{name}[{key:?}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_like_the_document() {
        let document = Path::document();
        let admin = document.field("admin");
        assert_eq!(admin.field("address").to_string(), "admin.address");
        let listener = Path::resource("listeners", "http");
        let chain = listener.item("filter_chains", 0);
        let filter = chain.item("filters", 1);
        assert_eq!(
            filter.field("typed_config").to_string(),
            "listeners[http].filter_chains[0].filters[1].typed_config"
        );
        assert_eq!(
            chain.key("labels", "a").to_string(),
            "listeners[http].filter_chains[0].labels[\"a\"]"
        );
        assert_eq!(filter.depth(), 3);
    }
}
