//! The TCP proxy filter.

use std::time::Duration;

use super::{Result, access_log, duration_or, pb, required};
use crate::path::Path;
use crate::snapshot::{ClusterChoice, TcpProxy};

/// `envoy.filters.network.tcp_proxy`.
pub(super) fn tcp_proxy(config: &pb::tcp_proxy::TcpProxy, path: &Path<'_>) -> Result<TcpProxy> {
    use pb::tcp_proxy::tcp_proxy::ClusterSpecifier;
    let cluster = match required(config.cluster_specifier.as_ref(), &path.field("cluster"))? {
        ClusterSpecifier::Cluster(name) if name.is_empty() => {
            return Err(path.field("cluster").error("must not be empty"));
        }
        ClusterSpecifier::Cluster(name) => ClusterChoice::Single(name.as_str().into()),
        ClusterSpecifier::WeightedClusters(weighted) => {
            let clusters: Vec<_> = weighted
                .clusters
                .iter()
                .map(|c| (c.name.as_str().into(), c.weight))
                .collect();
            weighted_choice(clusters, &path.field("weighted_clusters"))?
        }
    };
    let max_connect_attempts = config.max_connect_attempts.unwrap_or(1);
    if max_connect_attempts == 0 {
        return Err(path.field("max_connect_attempts").error("must be at least 1"));
    }
    Ok(TcpProxy {
        stat_prefix: config.stat_prefix.as_str().into(),
        cluster,
        idle_timeout: duration_or(
            config.idle_timeout.as_ref(),
            Duration::from_secs(3600),
            &path.field("idle_timeout"),
        )?,
        max_connect_attempts,
        access_logs: access_log::access_logs(&config.access_log, path)?,
    })
}

/// Weighted clusters with a sum that is above zero and fits, as Envoy demands.
pub(super) fn weighted_choice(clusters: Vec<(std::sync::Arc<str>, u32)>, path: &Path<'_>) -> Result<ClusterChoice> {
    let total: u64 = clusters.iter().map(|(_, weight)| u64::from(*weight)).sum();
    match u32::try_from(total) {
        Ok(0) => Err(path.error("the weights add up to zero; give at least one cluster a weight")),
        Ok(total) => Ok(ClusterChoice::Weighted { clusters, total }),
        Err(_) => Err(path.error(format!(
            "the weights add up to {total}, at most {} is allowed",
            u32::MAX
        ))),
    }
}
