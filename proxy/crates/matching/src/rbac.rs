//! Role-based access control (`envoy.config.rbac.v3.RBAC`), for connections and for requests.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use heddle_net::ConnectionInfo;
use serde_json::{Map, Value};

use crate::scans::{Readings, RegexSets, Scans, Shared, Subject as Input, Visit, all_bits};
use crate::{
    Cidr, HeaderMatcher, HeaderReadings, Metadata, MetadataMatcher, PathMatcher, PathReadings, Reading, RequestView,
    StringMatcher,
};

mod conditions;
mod san;

use conditions::Condition;

pub use conditions::Conditions;
pub use san::{SanMatcher, SanType};

/// `RBAC.Action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let through what a policy matches, refuse the rest.
    Allow,
    /// Refuse what a policy matches, let the rest through.
    Deny,
    /// Let everything through; a match is only remembered.
    Log,
}

/// What is being done.
#[derive(Clone, Debug)]
pub enum Permission {
    /// `any`.
    Any,
    /// `and_rules`.
    And(Conditions<Permission>),
    /// `or_rules`.
    Or(Conditions<Permission>),
    /// `not_rule`.
    Not(Box<Permission>),
    /// `header`.
    Header(HeaderMatcher),
    /// `url_path`: the path without query and fragment.
    UrlPath(PathMatcher),
    /// `destination_ip`: the address that the client dialled, before any redirect.
    DestinationIp(Cidr),
    /// `destination_port`.
    DestinationPort(u16),
    /// `destination_port_range`: from `start` up to, not including, `end`.
    DestinationPortRange(Range<u32>),
    /// `requested_server_name`: the server name of the ClientHello, empty when there was none.
    RequestedServerName(StringMatcher),
    /// `metadata`, and `sourced_metadata` of the request.
    Metadata(MetadataMatcher),
}

/// Who is doing it.
#[derive(Clone, Debug)]
pub enum Principal {
    /// `any`.
    Any,
    /// `and_ids`.
    And(Conditions<Principal>),
    /// `or_ids`.
    Or(Conditions<Principal>),
    /// `not_id`.
    Not(Box<Principal>),
    /// `authenticated`: on a TLS connection, any URI subject alternative name of the peer matches, else any DNS name,
    /// else the subject. Without a matcher every TLS connection matches.
    Authenticated(Option<StringMatcher>),
    /// `custom` with `envoy.rbac.principals.mtls_authenticated`: the peer showed a certificate that was verified, and one
    /// of its names of the matcher's kind matches. Without a matcher every verified certificate matches.
    MtlsAuthenticated(Option<SanMatcher>),
    /// `source_ip` and `direct_remote_ip`: the connection's peer.
    DirectRemoteIp(Cidr),
    /// `remote_ip`: the client as `X-Forwarded-For` and the connection manager's settings have it.
    RemoteIp(Cidr),
    /// `header`.
    Header(HeaderMatcher),
    /// `url_path`.
    UrlPath(PathMatcher),
    /// `metadata`, and `sourced_metadata` of the request.
    Metadata(MetadataMatcher),
}

/// `Policy`: matches when one of its permissions and one of its principals does.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Name, for logs and response code details.
    pub name: Arc<str>,
    /// Permissions, of which one must match.
    pub permissions: Conditions<Permission>,
    /// Principals, of which one must match.
    pub principals: Conditions<Principal>,
}

/// An action with its policies.
#[derive(Clone, Debug)]
pub struct Rules {
    action: Action,
    policies: Vec<Policy>,
    /// The regular expressions of all policies, by what they look at.
    sets: Arc<RegexSets>,
}

/// What a filter holds: rules that are enforced and rules that are only evaluated.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// `rules`; none lets everything through.
    pub rules: Option<Rules>,
    /// `shadow_rules`.
    pub shadow_rules: Option<Rules>,
    /// `rules_stat_prefix` (`stat_prefix` of the network filter).
    pub stat_prefix: Arc<str>,
    /// `shadow_rules_stat_prefix`.
    pub shadow_stat_prefix: Arc<str>,
}

/// Outcome of one set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict<'p> {
    /// Whether the rules let it through.
    pub allowed: bool,
    /// The first policy, by name, that matched.
    pub policy: Option<&'p str>,
}

/// Outcome of [`Policies::check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'p> {
    /// Whether to go on.
    pub allowed: bool,
    /// The policy that decided: the one that matched, if any.
    pub policy: Option<&'p str>,
    /// What the shadow rules would have decided.
    pub shadow: Option<Verdict<'p>>,
}

impl Decision<'_> {
    /// The response code details of a refused request: `rbac_access_denied_matched_policy[name]`, with Envoy's `none`
    /// when no policy of an ALLOW filter matched.
    pub fn details(&self) -> String {
        format!("rbac_access_denied_matched_policy[{}]", self.policy.unwrap_or("none"))
    }
}

impl Rules {
    /// Rules from an action and its policies, which are evaluated in the order of their names, as in Envoy. Regular
    /// expressions that look at the same are compiled into one set, which is scanned once for a request at most.
    pub fn new(action: Action, mut policies: Vec<Policy>) -> Self {
        policies.sort_by(|a, b| a.name.cmp(&b.name));
        let sets = RegexSets::of(|see| {
            for policy in &mut policies {
                policy.permissions.all.iter_mut().for_each(|p| p.visit_regexes(see));
                policy.principals.all.iter_mut().for_each(|p| p.visit_regexes(see));
            }
        });
        for policy in &mut policies {
            policy.permissions.join();
            policy.principals.join();
        }
        Self {
            action,
            policies,
            sets: Arc::new(sets),
        }
    }

    /// The action.
    pub fn action(&self) -> Action {
        self.action
    }

    /// The policies by name.
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// Evaluates the rules. Where a header or path can be read in more than one way, rules that let in must match in
    /// every reading and rules that refuse or log in one; a negation turns that around.
    pub fn check(&self, connection: &ConnectionInfo, request: Option<&dyn RequestView>) -> Verdict<'_> {
        self.decide(connection, request, request.and_then(RequestView::metadata))
    }

    fn decide(
        &self,
        connection: &ConnectionInfo,
        request: Option<&dyn RequestView>,
        metadata: Option<&Metadata>,
    ) -> Verdict<'_> {
        let headers = request.map(HeaderReadings::of);
        let path = OnceCell::new();
        let scans = Scans::of(&self.sets);
        let subject = Subject {
            connection,
            headers: headers.as_ref(),
            metadata,
            path: &path,
            scans: &scans,
            reading: match self.action {
                Action::Allow => Reading::Every,
                Action::Deny | Action::Log => Reading::Any,
            },
        };
        let policy = self
            .policies
            .iter()
            .find(|policy| policy.permissions.any(&subject) && policy.principals.any(&subject))
            .map(|policy| &*policy.name);
        let allowed = match self.action {
            Action::Allow => policy.is_some(),
            Action::Deny => policy.is_none(),
            Action::Log => true,
        };
        Verdict { allowed, policy }
    }
}

impl Policies {
    /// Decides on a connection, or on a request of it. Conditions on requests never match on a bare connection (their
    /// negations do).
    pub fn check(&self, connection: &ConnectionInfo, request: Option<&dyn RequestView>) -> Decision<'_> {
        self.decide(connection, request, request.and_then(RequestView::metadata))
    }

    /// Decides on a connection, of which network filters have learned `metadata`; else as [`Policies::check`] without a
    /// request.
    pub fn check_connection(&self, connection: &ConnectionInfo, metadata: Option<&Metadata>) -> Decision<'_> {
        self.decide(connection, None, metadata)
    }

    /// What the shadow rules have come to, for dynamic metadata: `shadow_engine_result` and, where a policy matched,
    /// `shadow_effective_policy_id`, behind `shadow_rules_stat_prefix`.
    pub fn shadow_metadata(&self, outcome: Verdict<'_>) -> Map<String, Value> {
        let prefix = &self.shadow_stat_prefix;
        let result = if outcome.allowed { "allowed" } else { "denied" };
        let mut said = Map::from_iter([(format!("{prefix}shadow_engine_result"), result.into())]);
        if let Some(policy) = outcome.policy {
            said.insert(format!("{prefix}shadow_effective_policy_id"), policy.into());
        }
        said
    }

    fn decide(
        &self,
        connection: &ConnectionInfo,
        request: Option<&dyn RequestView>,
        metadata: Option<&Metadata>,
    ) -> Decision<'_> {
        let shadow = self.shadow_rules.as_ref();
        let shadow = shadow.map(|rules| rules.decide(connection, request, metadata));
        let nothing_asked = Verdict {
            allowed: true,
            policy: None,
        };
        let enforced = self.rules.as_ref();
        let enforced = enforced.map_or(nothing_asked, |rules| rules.decide(connection, request, metadata));
        Decision {
            allowed: enforced.allowed,
            policy: enforced.policy,
            shadow,
        }
    }
}

struct Subject<'a> {
    connection: &'a ConnectionInfo,
    /// The request's headers, each read once for all conditions.
    headers: Option<&'a HeaderReadings<'a>>,
    /// What filters have learned of the request, or of a connection without one.
    metadata: Option<&'a Metadata>,
    /// The request's path, read once for all conditions.
    path: &'a OnceCell<PathReadings<'a>>,
    /// What the regular expressions have found.
    scans: &'a Scans<'a>,
    reading: Reading,
}

impl<'a> Subject<'a> {
    fn request(&self) -> Option<&'a dyn RequestView> {
        self.headers.map(HeaderReadings::request)
    }

    fn negated(&self) -> Self {
        Self {
            reading: self.reading.negated(),
            ..*self
        }
    }

    fn header(&self, matcher: &HeaderMatcher) -> u64 {
        matcher.holds(self.reading, self.headers, self.scans)
    }

    fn url_path(&self, matcher: &PathMatcher) -> u64 {
        self.request().map_or(0, |request| {
            let path = self.path.get_or_init(|| PathReadings::of(request.path()));
            path.holds(self.reading, matcher, self.scans)
        })
    }

    fn metadata(&self, matcher: &MetadataMatcher) -> bool {
        matcher.matches(self.metadata)
    }

    fn remote_ip(&self) -> IpAddr {
        self.request()
            .and_then(|request| request.remote_ip())
            .unwrap_or_else(|| self.connection.remote.ip())
    }

    fn authenticated(&self, matcher: Option<&StringMatcher>) -> u64 {
        let peer = self.connection.peer.as_deref();
        if peer.is_none() && self.connection.tls_version.is_none() {
            return all_bits(false);
        }
        let Some(matcher) = matcher else {
            return all_bits(true);
        };
        let names = |see: &mut dyn FnMut(&str)| match peer {
            Some(peer) => {
                let sans = peer.uri_sans.iter().chain(&peer.dns_sans);
                sans.for_each(|san| see(san));
                see(&peer.subject);
            }
            None => see(""),
        };
        self.scans.find(matcher, Readings::Sent, names).any
    }

    fn server_name(&self, matcher: &StringMatcher) -> u64 {
        let name = self.connection.sni.as_deref().unwrap_or("");
        self.scans.find(matcher, Readings::Sent, |see| see(name)).any
    }
}

impl Permission {
    fn visit_regexes(&mut self, see: Visit<'_>) {
        match self {
            Self::And(several) | Self::Or(several) => several.all.iter_mut().for_each(|p| p.visit_regexes(see)),
            Self::Not(inner) => inner.visit_regexes(see),
            Self::Header(matcher) => matcher.visit_regexes(see),
            Self::UrlPath(matcher) => matcher.visit_regexes(see),
            Self::RequestedServerName(matcher) => see(Input::ServerName, matcher),
            Self::Any
            | Self::DestinationIp(_)
            | Self::DestinationPort(_)
            | Self::DestinationPortRange(_)
            | Self::Metadata(_) => {}
        }
    }
}

impl Condition for Permission {
    fn holds(&self, subject: &Subject<'_>) -> u64 {
        let connection = subject.connection;
        match self {
            Self::Any => all_bits(true),
            Self::And(all) => all_bits(all.every(subject)),
            Self::Or(any) => all_bits(any.any(subject)),
            Self::Not(inner) => all_bits(!inner.matches(&subject.negated())),
            Self::Header(matcher) => subject.header(matcher),
            Self::UrlPath(matcher) => subject.url_path(matcher),
            Self::DestinationIp(range) => all_bits(range.contains(connection.destination.ip())),
            Self::DestinationPort(port) => all_bits(connection.destination.port() == *port),
            Self::DestinationPortRange(ports) => all_bits(ports.contains(&u32::from(connection.destination.port()))),
            Self::RequestedServerName(matcher) => subject.server_name(matcher),
            Self::Metadata(matcher) => all_bits(subject.metadata(matcher)),
        }
    }

    fn shared(&self) -> Option<(Shared, u64)> {
        match self {
            Self::Header(matcher) => matcher.shared(),
            Self::UrlPath(matcher) => matcher.shared(),
            Self::RequestedServerName(matcher) => matcher.shared(0),
            _ => None,
        }
    }

    fn join(&mut self) {
        match self {
            Self::And(several) | Self::Or(several) => several.join(),
            Self::Not(inner) => inner.join(),
            _ => {}
        }
    }
}

impl Principal {
    fn visit_regexes(&mut self, see: Visit<'_>) {
        match self {
            Self::And(several) | Self::Or(several) => several.all.iter_mut().for_each(|p| p.visit_regexes(see)),
            Self::Not(inner) => inner.visit_regexes(see),
            Self::Header(matcher) => matcher.visit_regexes(see),
            Self::UrlPath(matcher) => matcher.visit_regexes(see),
            Self::Authenticated(Some(matcher)) => see(Input::Peer(None), matcher),
            Self::MtlsAuthenticated(Some(matcher)) => matcher.visit_regexes(see),
            Self::Any
            | Self::Authenticated(None)
            | Self::MtlsAuthenticated(None)
            | Self::DirectRemoteIp(_)
            | Self::RemoteIp(_)
            | Self::Metadata(_) => {}
        }
    }
}

impl Condition for Principal {
    fn holds(&self, subject: &Subject<'_>) -> u64 {
        match self {
            Self::Any => all_bits(true),
            Self::And(all) => all_bits(all.every(subject)),
            Self::Or(any) => all_bits(any.any(subject)),
            Self::Not(inner) => all_bits(!inner.matches(&subject.negated())),
            Self::Authenticated(matcher) => subject.authenticated(matcher.as_ref()),
            Self::MtlsAuthenticated(matcher) => match (subject.connection.peer.as_deref(), matcher) {
                (None, _) => all_bits(false),
                (Some(_), None) => all_bits(true),
                (Some(peer), Some(matcher)) => matcher.holds(peer, subject.scans),
            },
            Self::DirectRemoteIp(range) => all_bits(range.contains(subject.connection.remote.ip())),
            Self::RemoteIp(range) => all_bits(range.contains(subject.remote_ip())),
            Self::Header(matcher) => subject.header(matcher),
            Self::UrlPath(matcher) => subject.url_path(matcher),
            Self::Metadata(matcher) => all_bits(subject.metadata(matcher)),
        }
    }

    fn shared(&self) -> Option<(Shared, u64)> {
        match self {
            Self::Authenticated(Some(matcher)) => matcher.shared(0),
            Self::MtlsAuthenticated(Some(matcher)) => matcher.shared(),
            Self::Header(matcher) => matcher.shared(),
            Self::UrlPath(matcher) => matcher.shared(),
            _ => None,
        }
    }

    fn join(&mut self) {
        match self {
            Self::And(several) | Self::Or(several) => several.join(),
            Self::Not(inner) => inner.join(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
