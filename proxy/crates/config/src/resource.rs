//! xDS resources as they travel.

use std::fmt;
use std::sync::Arc;

use prost_types::Any;

/// The kinds of resource that make up a configuration, in the order in which a change is best applied: what a
/// resource refers to comes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ResourceKind {
    /// CDS.
    Cluster,
    /// EDS.
    Endpoints,
    /// SDS.
    Secret,
    /// LDS.
    Listener,
    /// RDS.
    Route,
}

impl ResourceKind {
    /// Every kind, in order.
    pub const ALL: [Self; 5] = [
        Self::Cluster,
        Self::Endpoints,
        Self::Secret,
        Self::Listener,
        Self::Route,
    ];

    /// The full name of the message.
    pub fn message_name(self) -> &'static str {
        match self {
            Self::Cluster => "envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Secret => "envoy.extensions.transport_sockets.tls.v3.Secret",
            Self::Listener => "envoy.config.listener.v3.Listener",
            Self::Route => "envoy.config.route.v3.RouteConfiguration",
        }
    }

    /// The type URL of the xDS stream.
    pub fn type_url(self) -> String {
        format!("{}{}", heddle_api::TYPE_URL_PREFIX, self.message_name())
    }

    /// The kind with that type URL.
    pub fn from_type_url(type_url: &str) -> Option<Self> {
        let name = heddle_api::message_name(type_url);
        Self::ALL.into_iter().find(|kind| kind.message_name() == name)
    }

    /// How resources of this kind are called in error paths and in fixture files.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Cluster => "clusters",
            Self::Endpoints => "endpoints",
            Self::Secret => "secrets",
            Self::Listener => "listeners",
            Self::Route => "routes",
        }
    }

    /// The abbreviation of the discovery service: `CDS`, `EDS`, `SDS`, `LDS`, `RDS`.
    pub fn service(self) -> &'static str {
        match self {
            Self::Cluster => "CDS",
            Self::Endpoints => "EDS",
            Self::Secret => "SDS",
            Self::Listener => "LDS",
            Self::Route => "RDS",
        }
    }
}

impl fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.service())
    }
}

/// One resource of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct Resource {
    /// Its name.
    pub name: String,
    /// Its version, opaque.
    pub version: String,
    /// The message.
    pub body: Any,
}

/// Where a secret comes from (`SdsSecretConfig.sds_config`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SecretSource {
    /// No `sds_config`: `static_resources.secrets` of the bootstrap.
    Static,
    /// `ads`: over the aggregated stream.
    Ads,
    /// `api_config_source`: over a stream of its own to this static cluster.
    Cluster(Arc<str>),
}

/// What one discovery response, or the bootstrap, changes.
#[derive(Clone, Debug)]
pub struct Update {
    /// Kind of all resources in it.
    pub kind: ResourceKind,
    /// For secrets, which source they came from; [`SecretSource::Ads`] for all else.
    pub source: SecretSource,
    /// New and changed resources.
    pub resources: Vec<Resource>,
    /// Names that no longer exist.
    pub removed: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_type_urls_agree() {
        for kind in ResourceKind::ALL {
            assert_eq!(ResourceKind::from_type_url(&kind.type_url()), Some(kind));
        }
        assert_eq!(ResourceKind::from_type_url("type.googleapis.com/a.B"), None);
    }
}
