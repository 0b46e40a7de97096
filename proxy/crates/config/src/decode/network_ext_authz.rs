//! The network filter that asks an authorization server about connections.

use std::time::Duration;

use super::{Result, matcher, pb, required, service};
use crate::path::Path;
use crate::snapshot::NetworkExtAuthz;

/// Time for an answer unless the service says otherwise, as in Envoy.
const TIMEOUT: Duration = Duration::from_millis(200);

/// `envoy.filters.network.ext_authz`.
pub(super) fn ext_authz(config: &pb::network_ext_authz::ExtAuthz, path: &Path<'_>) -> Result<NetworkExtAuthz> {
    if config.stat_prefix.is_empty() {
        return Err(path.field("stat_prefix").error("must not be empty"));
    }
    let version = path.field("transport_api_version");
    if pb::core::ApiVersion::try_from(config.transport_api_version) != Ok(pb::core::ApiVersion::V3) {
        return Err(version.error("must be V3"));
    }
    let here = path.field("grpc_service");
    let enabled = config.filter_enabled_metadata.as_ref();
    let namespaces = config.metadata_context_namespaces.iter();
    Ok(NetworkExtAuthz {
        stat_prefix: config.stat_prefix.as_str().into(),
        service: service::grpc(required(config.grpc_service.as_ref(), &here)?, TIMEOUT, &here)?,
        failure_mode_allow: config.failure_mode_allow,
        peer_certificate: config.include_peer_certificate,
        tls_session: config.include_tls_session,
        enabled_metadata: enabled
            .map(|m| matcher::metadata(m, &path.field("filter_enabled_metadata")))
            .transpose()?,
        labels_key: match config.bootstrap_metadata_labels_key.as_str() {
            "" => None,
            key => Some(key.into()),
        },
        metadata_namespaces: namespaces.map(|name| name.as_str().into()).collect(),
    })
}
