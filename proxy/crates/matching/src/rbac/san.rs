//! One kind of subject alternative name of a verified peer (`SubjectAltNameMatcher` in
//! `envoy.extensions.rbac.principals.mtls_authenticated.v3.Config`).

use heddle_net::PeerIdentity;

use crate::scans::{Readings, Scans, Shared, Subject, Visit, all_bits};
use crate::{StringMatcher, StringTest};

/// Which subject alternative names are looked at (`SubjectAltNameMatcher.SanType`). No other kind is, nor the subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SanType {
    /// `URI`.
    Uri,
    /// `DNS`. An exact matcher compares as DNS does: without regard to case, and a wildcard in the certificate's
    /// left-most label stands for any part of one label, as in Envoy.
    Dns,
    /// `EMAIL`.
    Email,
    /// `IP_ADDRESS`, in its canonical text form.
    IpAddress,
}

/// A matcher for names of one kind.
#[derive(Clone, Debug)]
pub struct SanMatcher {
    kind: SanType,
    matcher: StringMatcher,
}

impl SanMatcher {
    /// Matches certificates of which one name of this kind matches.
    pub fn new(kind: SanType, matcher: StringMatcher) -> Self {
        Self { kind, matcher }
    }

    /// Shows the test on strings.
    pub(crate) fn visit_regexes(&mut self, see: Visit<'_>) {
        see(Subject::Peer(Some(self.kind)), &mut self.matcher);
    }

    /// The word in which the test has a bit, and that bit, if its expression is in a set.
    pub(crate) fn shared(&self) -> Option<(Shared, u64)> {
        self.matcher.shared(0)
    }

    /// Whether one of the peer's names of this kind matches: a bit for each test that [shares](SanMatcher::shared) the word.
    pub(crate) fn holds(&self, peer: &PeerIdentity, scans: &Scans<'_>) -> u64 {
        let names = match self.kind {
            SanType::Uri => &peer.uri_sans,
            SanType::Dns => &peer.dns_sans,
            SanType::Email => &peer.email_sans,
            SanType::IpAddress => &peer.ip_sans,
        };
        match (self.kind, self.matcher.test()) {
            (SanType::Dns, StringTest::Exact(wanted)) => all_bits(names.iter().any(|name| covers(name, wanted))),
            _ => {
                let all = |see: &mut dyn FnMut(&str)| names.iter().for_each(|name| see(name));
                scans.find(&self.matcher, Readings::Sent, all).any
            }
        }
    }
}

/// Whether a certificate's DNS name covers a host name, by Envoy's rules: a wildcard is in the left-most of two or more
/// labels, once, not in an A-label (RFC 5890 section 2.3.2.5), and stands for any characters of that label.
fn covers(presented: &str, wanted: &str) -> bool {
    if presented.eq_ignore_ascii_case(wanted) {
        return true;
    }
    let (Some((pattern, domain)), Some((label, rest))) = (presented.split_once('.'), wanted.split_once('.')) else {
        return false;
    };
    if domain.contains('*') || !domain.eq_ignore_ascii_case(rest) {
        return false;
    }
    if pattern == "*" {
        return true;
    }
    let (pattern, label) = (pattern.to_ascii_lowercase(), label.to_ascii_lowercase());
    let Some((before, after)) = pattern.split_once('*') else {
        return false;
    };
    !pattern.starts_with("xn--")
        && !after.contains('*')
        && label.len() >= before.len() + after.len()
        && label.starts_with(before)
        && label.ends_with(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Regex;

    fn peer() -> PeerIdentity {
        PeerIdentity {
            uri_sans: vec!["spiffe://td/ns/a/sa/b".into(), "east.clusters.td".into()],
            dns_sans: vec!["West.clusters.td".into(), "*.apps.td".into()],
            email_sans: vec!["north.clusters.td".into()],
            ip_sans: vec!["10.0.0.1".into()],
            subject: "CN=south.clusters.td".into(),
            ..PeerIdentity::default()
        }
    }

    #[test]
    fn only_the_names_of_its_kind_count() {
        use SanType::{Dns, Email, IpAddress, Uri};
        let exact = |text: &str| StringMatcher::exact(text);
        for (kind, matcher, expected) in [
            (Uri, exact("spiffe://td/ns/a/sa/b"), true),
            (Uri, exact("east.clusters.td"), true),
            (Uri, exact("west.clusters.td"), false),
            (Dns, exact("east.clusters.td"), false),
            (Dns, exact("north.clusters.td"), false),
            (Dns, exact("south.clusters.td"), false),
            (Dns, exact("CN=south.clusters.td"), false),
            (Dns, exact("west.clusters.td"), true),
            (Dns, exact("x.apps.td"), true),
            (Dns, exact("x.y.apps.td"), false),
            // Only exact names are compared as DNS does.
            (Dns, StringMatcher::prefix("west."), false),
            (Dns, StringMatcher::prefix("West."), true),
            (Dns, StringMatcher::suffix(".clusters.td"), true),
            (
                Dns,
                StringMatcher::regex(Regex::new("(?i)west[.].*").expect("regex")),
                true,
            ),
            (
                Dns,
                StringMatcher::regex(Regex::new("east[.].*").expect("regex")),
                false,
            ),
            (Email, exact("north.clusters.td"), true),
            (Email, exact("west.clusters.td"), false),
            (IpAddress, exact("10.0.0.1"), true),
            (IpAddress, exact("10.0.0.2"), false),
        ] {
            let matcher = SanMatcher::new(kind, matcher);
            assert_eq!(
                matcher.holds(&peer(), &Scans::none()),
                all_bits(expected),
                "{matcher:?}"
            );
        }
        let nobody = SanMatcher::new(Dns, StringMatcher::prefix("")).holds(&PeerIdentity::default(), &Scans::none());
        assert_eq!(nobody, 0);
    }

    #[test]
    fn wildcards_as_in_envoy() {
        for (presented, wanted, expected) in [
            ("api.example.com", "API.example.com", true),
            ("*.example.com", "api.example.com", true),
            ("*.com", "example.com", true),
            ("a*.example.com", "api.example.com", true),
            ("*I.example.com", "api.example.com", true),
            ("a*i.example.com", "ai.example.com", true),
            ("ai*i.example.com", "ai.example.com", false),
            ("b*.example.com", "api.example.com", false),
            ("**.example.com", "api.example.com", false),
            ("*.*.com", "api.example.com", false),
            ("xn--*.example.com", "xn--api.example.com", false),
            ("*.api.example.com", "api.example.com", false),
            ("*", "com", false),
            ("", "com", false),
        ] {
            assert_eq!(covers(presented, wanted), expected, "{presented} {wanted}");
        }
    }
}
