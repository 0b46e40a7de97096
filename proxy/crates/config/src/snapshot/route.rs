//! Route tables: virtual hosts, matchers, actions.

mod by_path;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use heddle_matching::{
    HeaderMatcher, MetadataMatcher, QueryMatcher, Regex, RegexSets, Scans, StringMatcher, Subject, Visit,
};

use self::by_path::ByPath;
use super::domains::Wildcards;
use super::filter::RouteFilters;
use super::fraction::Fraction;
use super::rate_limit::RateLimit;
use crate::filters::RouteFilterConfig;

/// `envoy.config.route.v3.RouteConfiguration`.
#[derive(Debug, Default)]
pub struct RouteTable {
    /// Name.
    pub name: Arc<str>,
    /// Virtual hosts; [`RouteTable::exact`] and the other indexes point into it.
    pub virtual_hosts: Vec<VirtualHost>,
    /// Exact domains, lower case, with a port when the domain was written with one.
    pub exact: HashMap<Box<str>, usize>,
    /// `*.suffix` domains.
    pub suffix: Wildcards,
    /// `prefix.*` domains.
    pub prefix: Wildcards,
    /// The `*` domain.
    pub any: Option<usize>,
    /// `ignore_port_in_host_matching`.
    pub ignore_port: bool,
    /// `request_headers_to_add/remove` of the table.
    pub request_headers: HeaderOps,
    /// `response_headers_to_add/remove` of the table.
    pub response_headers: HeaderOps,
    /// `internal_only_headers`, lower case: stripped from requests from outside.
    pub internal_only: Vec<String>,
    /// The filters that `typed_per_filter_config` speaks of anywhere in the table, by their places in [`RouteFilters`].
    /// With an example of what is said to the filter; none where it is only switched off.
    pub filters: Vec<(Arc<str>, Option<RouteFilterConfig>)>,
    /// Whether a filter is switched off anywhere in the table.
    pub disables_filters: bool,
}

impl RouteTable {
    /// The clusters that its routes lead to, repeated as often as they are named.
    pub fn clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        let routes = self.virtual_hosts.iter().flat_map(|host| host.routes.iter());
        routes
            .filter_map(|route| match &route.action {
                Action::Route(action) => Some(&action.cluster),
                Action::Redirect(_) | Action::Direct(_) => None,
            })
            .flat_map(ClusterChoice::names)
    }
}

/// `envoy.config.route.v3.VirtualHost`.
#[derive(Debug)]
pub struct VirtualHost {
    /// Name.
    pub name: Arc<str>,
    /// Routes; the first that matches is used.
    pub routes: Routes,
    /// `require_tls`: `ALL`.
    pub require_tls: bool,
    /// Request header changes.
    pub request_headers: HeaderOps,
    /// Response header changes.
    pub response_headers: HeaderOps,
    /// `retry_policy` for routes without one.
    pub retry: Option<Arc<RetryPolicy>>,
    /// `include_request_attempt_count`.
    pub include_attempt_count: bool,
    /// `rate_limits`.
    pub rate_limits: Vec<RateLimit>,
}

/// From how many routes on those that a path can have are looked up; fewer are gone through.
const LOOKED_UP: usize = 16;

/// The routes of a virtual host in their order. Their regular expressions on the path, on one header or on one query
/// parameter are one set, which is scanned once for a request at most.
#[derive(Debug, Default)]
pub struct Routes {
    all: Vec<Route>,
    sets: RegexSets,
    by_path: Option<ByPath>,
}

impl From<Vec<Route>> for Routes {
    fn from(mut all: Vec<Route>) -> Self {
        let sets = RegexSets::in_order(|see| all.iter_mut().for_each(|route| route.matches.visit_regexes(see)));
        let by_path = (all.len() >= LOOKED_UP).then(|| ByPath::new(all.iter().map(|route| route.matches.beginning())));
        Self { all, sets, by_path }
    }
}

impl Routes {
    /// What their regular expressions say about a request. Nothing is scanned yet.
    pub fn scans(&self) -> Scans<'_> {
        Scans::of(&self.sets)
    }

    /// The place of the first route that `is` what a request needs. Asked in order, but for those that its path cannot have.
    pub fn first(&self, path: &str, mut is: impl FnMut(&Route) -> bool) -> Option<usize> {
        match &self.by_path {
            None => self.all.iter().position(is),
            Some(by_path) => by_path
                .candidates(path)
                .find(|route| self.all.get(*route).is_some_and(&mut is)),
        }
    }
}

impl std::ops::Deref for Routes {
    type Target = [Route];

    fn deref(&self) -> &[Route] {
        &self.all
    }
}

/// `envoy.config.route.v3.Route`.
#[derive(Debug)]
pub struct Route {
    /// Name, for logs.
    pub name: Arc<str>,
    /// When.
    pub matches: RouteMatch,
    /// What.
    pub action: Action,
    /// Request header changes.
    pub request_headers: HeaderOps,
    /// Response header changes.
    pub response_headers: HeaderOps,
    /// `typed_per_filter_config`, with what table and virtual host say.
    pub filters: Arc<RouteFilters>,
}

/// How the path is matched.
#[derive(Debug)]
pub enum PathMatch {
    /// `prefix`; the empty prefix and `/` match everything.
    Prefix(Box<str>),
    /// `path`.
    Exact(Box<str>),
    /// `path_separated_prefix`.
    Segments(Box<str>),
    /// `safe_regex` over the path without query, anchored at both ends.
    Regex(StringMatcher),
}

/// `envoy.config.route.v3.RouteMatch`.
#[derive(Debug)]
pub struct RouteMatch {
    /// The path.
    pub path: PathMatch,
    /// `case_sensitive`, default true.
    pub case_sensitive: bool,
    /// All must match.
    pub headers: Vec<HeaderMatcher>,
    /// All must match.
    pub query: Vec<QueryMatcher>,
    /// `dynamic_metadata`: all must match.
    pub metadata: Vec<MetadataMatcher>,
    /// `grpc`: only requests with a gRPC content type.
    pub grpc: bool,
    /// `runtime_fraction.default_value` in millionths of requests, one million being all.
    pub fraction: u32,
}

impl RouteMatch {
    /// What every path begins with that it is for. None where that cannot be said.
    fn beginning(&self) -> Option<&str> {
        match &self.path {
            PathMatch::Prefix(text) | PathMatch::Exact(text) | PathMatch::Segments(text) if self.case_sensitive => {
                Some(text)
            }
            _ => None,
        }
    }

    fn visit_regexes(&mut self, see: Visit<'_>) {
        if let PathMatch::Regex(matcher) = &mut self.path {
            see(Subject::Path, matcher);
        }
        self.headers.iter_mut().for_each(|header| header.visit_regexes(see));
        self.query.iter_mut().for_each(|parameter| parameter.visit_regexes(see));
    }
}

/// What a route does.
#[derive(Debug)]
pub enum Action {
    /// Send to a cluster.
    Route(Box<RouteAction>),
    /// Answer with a redirect.
    Redirect(Box<Redirect>),
    /// Answer at once.
    Direct(DirectResponse),
}

/// Which cluster a request or connection goes to.
#[derive(Clone, Debug)]
pub enum ClusterChoice {
    /// One cluster.
    Single(Arc<str>),
    /// Name and weight; the sum is in `total`.
    Weighted {
        /// Clusters with their weights.
        clusters: Vec<(Arc<str>, u32)>,
        /// Sum of weights, above zero.
        total: u32,
    },
}

impl ClusterChoice {
    /// All clusters that it may choose.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let (one, several) = match self {
            Self::Single(name) => (Some(name), &[][..]),
            Self::Weighted { clusters, .. } => (None, &clusters[..]),
        };
        one.into_iter().chain(several.iter().map(|(name, _)| name))
    }
}

/// `envoy.config.route.v3.RouteAction`.
#[derive(Debug)]
pub struct RouteAction {
    /// Where to.
    pub cluster: ClusterChoice,
    /// `timeout`, default 15 s; zero means none.
    pub timeout: Duration,
    /// `idle_timeout` of the stream; none means the connection manager's.
    pub idle_timeout: Option<Duration>,
    /// `max_stream_duration.grpc_timeout_header_max`: honour `grpc-timeout` up to this; zero means no bound.
    pub grpc_timeout_max: Option<Duration>,
    /// Path rewrite.
    pub path_rewrite: Option<PathRewrite>,
    /// Host rewrite.
    pub host_rewrite: Option<HostRewrite>,
    /// Retry policy; none means the virtual host's.
    pub retry: Option<Arc<RetryPolicy>>,
    /// `cluster_not_found_response_code`: 503 by default, or 404, 500.
    pub not_found_status: u16,
    /// `typed_per_filter_config` of each weighted cluster, with what the levels around it say; empty when no cluster has
    /// one.
    pub weighted_filters: Vec<Arc<RouteFilters>>,
    /// `rate_limits`.
    pub rate_limits: Vec<RateLimit>,
    /// `include_vh_rate_limits`.
    pub include_host_rate_limits: bool,
    /// `request_mirror_policies` of the route, or else of the virtual host or the table.
    pub mirrors: Arc<[Mirror]>,
}

/// `envoy.config.route.v3.RouteAction.RequestMirrorPolicy`: a copy of requests for another cluster.
#[derive(Debug)]
pub struct Mirror {
    /// Where to.
    pub to: MirrorTo,
    /// `runtime_fraction`: of which requests, all by default.
    pub share: Fraction,
    /// The copy's host.
    pub host: MirrorHost,
}

/// The cluster of a copy.
#[derive(Debug)]
pub enum MirrorTo {
    /// `cluster`.
    Cluster(Arc<str>),
    /// `cluster_header`: the one that this request header names, in lower case here.
    Header(Box<str>),
}

/// The host of a copy.
#[derive(Debug)]
pub enum MirrorHost {
    /// With `-shadow` behind the name.
    Suffixed,
    /// `disable_shadow_host_suffix_append`: as it was.
    Same,
    /// `host_rewrite_literal`.
    Literal(Box<str>),
}

/// `prefix_rewrite` or `regex_rewrite`.
#[derive(Debug)]
pub enum PathRewrite {
    /// Replace the matched prefix (or the whole path of an exact match).
    Prefix(Box<str>),
    /// Replace what the pattern matches by the substitution (`\1` references).
    Regex(Regex, Box<str>),
}

/// `host_rewrite_literal` or `auto_host_rewrite`.
#[derive(Debug)]
pub enum HostRewrite {
    /// This value.
    Literal(Box<str>),
    /// The upstream endpoint's host name.
    Auto,
}

/// `envoy.config.route.v3.RedirectAction`.
#[derive(Debug, Default)]
pub struct Redirect {
    /// `https_redirect` or `scheme_redirect`.
    pub scheme: Option<Box<str>>,
    /// `host_redirect`.
    pub host: Option<Box<str>>,
    /// `port_redirect`.
    pub port: Option<u16>,
    /// `path_redirect`.
    pub path: Option<Box<str>>,
    /// `prefix_rewrite`.
    pub prefix_rewrite: Option<Box<str>>,
    /// `strip_query`.
    pub strip_query: bool,
    /// 301 by default.
    pub status: u16,
}

/// `envoy.config.route.v3.DirectResponseAction`.
#[derive(Debug)]
pub struct DirectResponse {
    /// Status.
    pub status: u16,
    /// Body.
    pub body: bytes::Bytes,
}

/// One step of a header change.
#[derive(Clone, Debug)]
pub enum HeaderOp {
    /// Append to what is there (`APPEND_IF_EXISTS_OR_ADD`).
    Append,
    /// Only when absent (`ADD_IF_ABSENT`).
    AddIfAbsent,
    /// Replace (`OVERWRITE_IF_EXISTS_OR_ADD`).
    Overwrite,
    /// Only when present (`OVERWRITE_IF_EXISTS`).
    OverwriteIfExists,
}

/// A header value: text, or a substitution format such as `%DOWNSTREAM_REMOTE_ADDRESS%`.
#[derive(Clone, Debug)]
pub enum HeaderValue {
    /// Plain text.
    Literal(Box<str>),
    /// Format string.
    Format(heddle_telemetry::access_log::Format),
}

/// `*_headers_to_add` and `*_headers_to_remove`, names lower case. Removal comes first.
#[derive(Clone, Debug, Default)]
pub struct HeaderOps {
    /// Names to remove.
    pub remove: Vec<Box<str>>,
    /// Names, values and how to add them.
    pub add: Vec<(Box<str>, HeaderValue, HeaderOp)>,
}

impl HeaderOps {
    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.add.is_empty()
    }
}

/// `retry_on` as flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryOn {
    /// `5xx`.
    pub server_error: bool,
    /// `gateway-error`: 502, 503, 504.
    pub gateway_error: bool,
    /// `reset`.
    pub reset: bool,
    /// `reset-before-request`.
    pub reset_before_request: bool,
    /// `connect-failure`.
    pub connect_failure: bool,
    /// `refused-stream`.
    pub refused_stream: bool,
    /// `retriable-4xx`: 409.
    pub retriable_4xx: bool,
    /// `retriable-status-codes`.
    pub retriable_status_codes: bool,
    /// `cancelled` (gRPC).
    pub grpc_cancelled: bool,
    /// `deadline-exceeded` (gRPC).
    pub grpc_deadline_exceeded: bool,
    /// `internal` (gRPC).
    pub grpc_internal: bool,
    /// `resource-exhausted` (gRPC).
    pub grpc_resource_exhausted: bool,
    /// `unavailable` (gRPC).
    pub grpc_unavailable: bool,
}

/// `envoy.config.route.v3.RetryPolicy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// When to try again.
    pub on: RetryOn,
    /// `num_retries`, default 1.
    pub num_retries: u32,
    /// `per_try_timeout`; zero means the route's.
    pub per_try_timeout: Duration,
    /// `retriable_status_codes`.
    pub status_codes: Vec<u16>,
    /// `retry_back_off.base_interval`, default 25 ms.
    pub base_interval: Duration,
    /// `retry_back_off.max_interval`, default ten times the base.
    pub max_interval: Duration,
    /// `retry_host_predicate: previous_hosts`: avoid endpoints already tried.
    pub avoid_previous_hosts: bool,
    /// `host_selection_retry_max_attempts`, default 1.
    pub host_selection_attempts: u32,
}
