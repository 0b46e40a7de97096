//! Request mirroring.

use std::sync::Arc;

use super::route::NamedClusters;
use super::{Result, fraction, pb};
use crate::path::Path;
use crate::snapshot::{Fraction, Mirror, MirrorHost, MirrorTo};

/// `request_mirror_policies` of a route, a virtual host or a table: where there are none, those of what is around it hold.
pub(super) fn policies(
    config: &[pb::route::route_action::RequestMirrorPolicy],
    around: &Arc<[Mirror]>,
    clusters: &mut NamedClusters,
    path: &Path<'_>,
) -> Result<Arc<[Mirror]>> {
    if config.is_empty() {
        return Ok(Arc::clone(around));
    }
    let policies = config.iter().enumerate();
    policies
        .map(|(i, p)| policy(p, clusters, &path.item("request_mirror_policies", i)))
        .collect()
}

fn policy(
    config: &pb::route::route_action::RequestMirrorPolicy,
    clusters: &mut NamedClusters,
    path: &Path<'_>,
) -> Result<Mirror> {
    let to = match (config.cluster.as_str(), config.cluster_header.as_str()) {
        ("", "") => return Err(path.error("needs cluster or cluster_header")),
        (name, "") => {
            let name: Arc<str> = name.into();
            clusters.push((Arc::clone(&name), path.field("cluster").to_string()));
            MirrorTo::Cluster(name)
        }
        ("", header) => MirrorTo::Header(header.to_ascii_lowercase().into()),
        _ => {
            return Err(path
                .field("cluster_header")
                .error("cluster is set too; use one of them"));
        }
    };
    let host = match config.host_rewrite_literal.as_str() {
        "" if config.disable_shadow_host_suffix_append => MirrorHost::Same,
        "" => MirrorHost::Suffixed,
        literal => MirrorHost::Literal(literal.into()),
    };
    let here = path.field("runtime_fraction");
    Ok(Mirror {
        to,
        share: fraction::runtime(config.runtime_fraction.as_ref(), Fraction::ALL, &here)?,
        host,
    })
}
