//! `envoy.filters.http.rbac`.

use std::sync::Arc;

use heddle_matching::rbac::Policies;
use prost_types::Any;

use super::Kind;
use crate::check::fields::{Message, message};
use crate::decode::{self, Result, pb, unpack};
use crate::path::Path;

/// `envoy.extensions.filters.http.rbac.v3.RBAC`.
#[derive(Debug, Default)]
pub struct Rbac {
    /// What is allowed, and what would be by the shadow rules.
    pub policies: Arc<Policies>,
}

/// `envoy.extensions.filters.http.rbac.v3.RBACPerRoute`.
#[derive(Debug, Default)]
pub struct RbacPerRoute {
    /// In place of the filter's own; none lets everything pass.
    pub policies: Option<Arc<Policies>>,
}

impl Kind for Rbac {
    const TYPE: &'static str = "envoy.extensions.filters.http.rbac.v3.RBAC";
    const ROUTE_TYPE: &'static str = "envoy.extensions.filters.http.rbac.v3.RBACPerRoute";
    const MESSAGES: &'static [Message] = &[
        message(
            Self::TYPE,
            &["rules", "rules_stat_prefix", "shadow_rules", "shadow_rules_stat_prefix"],
        ),
        message(Self::ROUTE_TYPE, &["rbac"]),
    ];
    type Route = RbacPerRoute;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        let policies = decode::rbac::http(&unpack(any, path)?, path)?;
        Ok(Self { policies })
    }

    fn decode_route(any: &Any, path: &Path<'_>) -> Result<RbacPerRoute> {
        let config: pb::http_rbac::RbacPerRoute = unpack(any, path)?;
        let here = path.field("rbac");
        let policies = config.rbac.as_ref().map(|rbac| decode::rbac::http(rbac, &here));
        Ok(RbacPerRoute {
            policies: policies.transpose()?,
        })
    }
}
