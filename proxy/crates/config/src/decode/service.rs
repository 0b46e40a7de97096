//! Services that filters call: `HttpUri` and `GrpcService`.

use std::sync::Arc;
use std::time::Duration;

use super::{Result, duration_or, headers, pb, required, retry};
use crate::path::Path;
use crate::snapshot::{GrpcTarget, HttpTarget};

/// A `GrpcService` that is a cluster. Without `timeout`, `timeout` holds.
pub(crate) fn grpc(config: &pb::core::GrpcService, timeout: Duration, path: &Path<'_>) -> Result<GrpcTarget> {
    use pb::core::grpc_service::TargetSpecifier;
    let Some(TargetSpecifier::EnvoyGrpc(grpc)) = &config.target_specifier else {
        return Err(path.error("must be envoy_grpc"));
    };
    let here = path.field("envoy_grpc");
    let cluster = cluster(&grpc.cluster_name, &here.field("cluster_name"))?;
    let metadata = config.initial_metadata.iter().enumerate();
    Ok(GrpcTarget {
        authority: match grpc.authority.as_str() {
            "" => Arc::clone(&cluster),
            authority => authority.into(),
        },
        cluster,
        timeout: duration_or(config.timeout.as_ref(), timeout, &path.field("timeout"))?,
        metadata: metadata
            .map(|(i, header)| headers::constant(header, &path.item("initial_metadata", i)))
            .collect::<Result<_>>()?,
        retry: retry::of_service(config.retry_policy.as_ref(), path)?,
    })
}

/// An `HttpUri` in the field `name`, with the `retry_policy` that stands beside it.
pub(crate) fn http(
    config: Option<&pb::core::HttpUri>,
    name: &'static str,
    retry: Option<&pb::core::RetryPolicy>,
    beside: &Path<'_>,
) -> Result<HttpTarget> {
    use pb::core::http_uri::HttpUpstreamType;
    let path = beside.field(name);
    let config = required(config, &path)?;
    let HttpUpstreamType::Cluster(name) = required(config.http_upstream_type.as_ref(), &path.field("cluster"))?;
    let here = path.field("uri");
    let uri: http::Uri = config
        .uri
        .parse()
        .map_err(|e| here.error(format!("{:?}: {e}", config.uri)))?;
    let timeout = path.field("timeout");
    Ok(HttpTarget {
        cluster: cluster(name, &path.field("cluster"))?,
        host: match uri.authority() {
            Some(authority) => authority.as_str().into(),
            None => return Err(here.error(format!("{:?} has no host", config.uri))),
        },
        path: uri.path_and_query().map_or("/", |p| p.as_str()).into(),
        https: uri.scheme() == Some(&http::uri::Scheme::HTTPS),
        timeout: super::duration(Some(required(config.timeout.as_ref(), &timeout)?), &timeout)?.unwrap_or_default(),
        retry: retry::of_service(retry, beside)?,
    })
}

fn cluster(name: &str, path: &Path<'_>) -> Result<Arc<str>> {
    match name {
        "" => Err(path.error("must not be empty")),
        name => Ok(name.into()),
    }
}
