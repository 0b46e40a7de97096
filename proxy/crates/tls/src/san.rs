//! Matchers of subject alternative names.

use std::fmt;
use std::sync::Arc;

/// Which kind of subject alternative name a matcher looks at (`SubjectAltNameMatcher.SanType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SanKind {
    /// `URI`: SPIFFE identities.
    Uri,
    /// `DNS`. A matcher made by [`SanMatcher::exact`] also accepts a certificate's `*.` wildcard label, as Envoy does.
    Dns,
    /// `IP_ADDRESS`, in its canonical text form.
    Ip,
    /// `EMAIL`.
    Email,
}

type Predicate = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// One entry of `match_typed_subject_alt_names`.
#[derive(Clone)]
pub struct SanMatcher {
    kind: SanKind,
    description: Box<str>,
    predicate: Predicate,
}

impl SanMatcher {
    /// A matcher by any predicate; `description` is shown in errors and dumps, such as `prefix "spiffe://td/"`.
    pub fn new(
        kind: SanKind,
        description: impl Into<Box<str>>,
        predicate: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            kind,
            description: description.into(),
            predicate: Arc::new(predicate),
        }
    }

    /// The whole name. DNS names are compared without regard to case and may match a wildcard in the certificate.
    pub fn exact(kind: SanKind, value: &str) -> Self {
        let wanted = value.to_owned();
        let description = format!("exact {value:?}");
        match kind {
            SanKind::Dns => Self::new(kind, description, move |name| dns_matches(name, &wanted)),
            _ => Self::new(kind, description, move |name| name == wanted),
        }
    }

    /// Names that begin so.
    pub fn prefix(kind: SanKind, value: &str) -> Self {
        let wanted = value.to_owned();
        Self::new(kind, format!("prefix {value:?}"), move |name| name.starts_with(&wanted))
    }

    /// Names that end so.
    pub fn suffix(kind: SanKind, value: &str) -> Self {
        let wanted = value.to_owned();
        Self::new(kind, format!("suffix {value:?}"), move |name| name.ends_with(&wanted))
    }

    /// Which names are looked at.
    pub fn kind(&self) -> SanKind {
        self.kind
    }

    /// Whether `name`, a name of this matcher's kind from a certificate, is accepted.
    pub fn matches(&self, name: &str) -> bool {
        (self.predicate)(name)
    }
}

impl fmt::Debug for SanMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.description)
    }
}

/// Whether the certificate's DNS name `presented` covers the host name `wanted` (RFC 6125 §6.4.3: a wildcard is the
/// whole left-most label, covers exactly one label, and needs two labels after it).
fn dns_matches(presented: &str, wanted: &str) -> bool {
    if presented.eq_ignore_ascii_case(wanted) {
        return true;
    }
    let Some(suffix) = presented.strip_prefix("*.") else {
        return false;
    };
    let Some((label, rest)) = wanted.split_once('.') else {
        return false;
    };
    !label.is_empty() && suffix.contains('.') && suffix.eq_ignore_ascii_case(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_uri_is_case_sensitive_and_whole() {
        let m = SanMatcher::exact(SanKind::Uri, "spiffe://td/ns/a/sa/b");
        assert!(m.matches("spiffe://td/ns/a/sa/b"));
        assert!(!m.matches("spiffe://td/ns/a/sa/bc"));
        assert!(!m.matches("spiffe://TD/ns/a/sa/b"));
    }

    #[test]
    fn dns_wildcards_cover_one_label() {
        let m = SanMatcher::exact(SanKind::Dns, "api.example.com");
        for (presented, expected) in [
            ("api.example.com", true),
            ("API.Example.COM", true),
            ("*.example.com", true),
            ("*.com", false),
            ("*.api.example.com", false),
            ("a*.example.com", false),
            ("*", false),
            ("", false),
        ] {
            assert_eq!(m.matches(presented), expected, "{presented}");
        }
    }

    #[test]
    fn prefix_and_suffix() {
        assert!(SanMatcher::prefix(SanKind::Uri, "spiffe://td/").matches("spiffe://td/x"));
        assert!(!SanMatcher::prefix(SanKind::Uri, "spiffe://td/").matches("spiffe://td2/x"));
        assert!(SanMatcher::suffix(SanKind::Uri, "/sa/cart").matches("spiffe://td/ns/x/sa/cart"));
    }
}
