//! What makes a request's rate limit descriptors.

use heddle_matching::HeaderMatcher;

/// `envoy.config.route.v3.RateLimit`: makes one descriptor of a request, or none.
#[derive(Debug)]
pub struct RateLimit {
    /// `stage`.
    pub stage: u32,
    /// Each adds an entry to the descriptor; one that cannot makes that there is no descriptor.
    pub actions: Vec<RateLimitAction>,
}

/// `envoy.config.route.v3.RateLimit.Action`.
#[derive(Debug)]
pub enum RateLimitAction {
    /// `source_cluster`: `node.cluster` of this proxy.
    SourceCluster,
    /// `destination_cluster`: the cluster that the route leads to.
    DestinationCluster,
    /// `remote_address`: the client's.
    RemoteAddress,
    /// `request_headers`.
    Header {
        /// The header, lower case.
        name: Box<str>,
        /// The entry's key.
        key: Box<str>,
        /// Without the header there is a descriptor nevertheless, without this entry.
        skip_if_absent: bool,
    },
    /// `generic_key`.
    Generic {
        /// The entry's key.
        key: Box<str>,
        /// The entry's value.
        value: Box<str>,
    },
    /// `header_value_match`.
    HeaderMatch {
        /// The entry's key.
        key: Box<str>,
        /// The entry's value.
        value: Box<str>,
        /// Whether all of the headers must match, or must not.
        expect: bool,
        /// The headers.
        headers: Vec<HeaderMatcher>,
    },
}
