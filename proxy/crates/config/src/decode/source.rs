//! Where a resource comes from.

use std::sync::Arc;

use super::{Result, enumeration, pb, required};
use crate::path::Path;
use crate::resource::SecretSource;

/// A `ConfigSource`: the aggregated stream, or a static cluster with a stream of its own.
pub(crate) fn config_source(source: &pb::core::ConfigSource, path: &Path<'_>) -> Result<SecretSource> {
    use pb::core::config_source::ConfigSourceSpecifier as Spec;
    version(source.resource_api_version, &path.field("resource_api_version"))?;
    match &source.config_source_specifier {
        Some(Spec::Ads(_)) => Ok(SecretSource::Ads),
        Some(Spec::ApiConfigSource(api)) => {
            let (cluster, _) = api_source(api, &path.field("api_config_source"))?;
            Ok(SecretSource::Cluster(cluster))
        }
        _ => Err(path.error("must be ads or api_config_source")),
    }
}

/// A source that must be the aggregated stream.
pub(super) fn aggregated(source: Option<&pb::core::ConfigSource>, path: &Path<'_>) -> Result<()> {
    match config_source(required(source, path)?, path)? {
        SecretSource::Ads => Ok(()),
        _ => Err(path
            .field("api_config_source")
            .unsupported("a stream of its own", "use ads")),
    }
}

/// An `ApiConfigSource`: the cluster to call, and the `:authority` to call it by, if one is given.
pub(crate) fn api_source(api: &pb::core::ApiConfigSource, path: &Path<'_>) -> Result<(Arc<str>, Option<String>)> {
    use pb::core::api_config_source::ApiType;
    use pb::core::grpc_service::TargetSpecifier;
    match enumeration(api.api_type, &path.field("api_type"))? {
        // For a server both are the same promise; Heddle always speaks the incremental variant.
        ApiType::Grpc | ApiType::DeltaGrpc => {}
        other => {
            return Err(path
                .field("api_type")
                .unsupported(other.as_str_name(), "use DELTA_GRPC"));
        }
    }
    version(api.transport_api_version, &path.field("transport_api_version"))?;
    let [service] = api.grpc_services.as_slice() else {
        return Err(path.field("grpc_services").error("must name exactly one service"));
    };
    let here = path.item("grpc_services", 0);
    match &service.target_specifier {
        Some(TargetSpecifier::EnvoyGrpc(grpc)) => {
            let here = [
                ("initial_metadata", !service.initial_metadata.is_empty()),
                ("retry_policy", service.retry_policy.is_some()),
                ("timeout", service.timeout.is_some()),
            ];
            if let Some((field, _)) = here.iter().find(|(_, set)| *set) {
                return Err(path
                    .item("grpc_services", 0)
                    .field(field)
                    .error("has no meaning for a stream of configuration; remove it"));
            }
            let authority = (!grpc.authority.is_empty()).then(|| grpc.authority.clone());
            Ok((grpc.cluster_name.as_str().into(), authority))
        }
        _ => Err(here.error("must be envoy_grpc")),
    }
}

fn version(number: i32, path: &Path<'_>) -> Result<()> {
    match enumeration(number, path)? {
        // AUTO meant V2 once; Envoy refuses it today, but tools still leave it out where ads decides.
        pb::core::ApiVersion::V3 | pb::core::ApiVersion::Auto => Ok(()),
        pb::core::ApiVersion::V2 => Err(path.error("V2 is gone; use V3")),
    }
}
