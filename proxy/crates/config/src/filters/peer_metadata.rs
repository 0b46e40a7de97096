//! `istio.metadata_exchange`.

use std::convert::Infallible;

use super::Kind;

/// The exchange of workload metadata, without settings.
#[derive(Debug, Default)]
pub struct PeerMetadata;

impl Kind for PeerMetadata {
    type Route = Infallible;

    /// The names under which Istio has configured it.
    fn of_struct(name: &str) -> Option<Self> {
        let known = matches!(
            name,
            "io.istio.http.peer_metadata.Config" | "envoy.tcp.metadataexchange.config.MetadataExchange"
        ) || name.ends_with("metadata_exchange.PluginConfig")
            || name.ends_with("metadata_exchange");
        known.then_some(Self)
    }
}
