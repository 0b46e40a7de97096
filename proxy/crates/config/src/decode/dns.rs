//! How names of STRICT_DNS clusters are resolved.

use std::time::Duration;

use super::{Result, duration, duration_or, enumeration, pb, required};
use crate::path::Path;
use crate::snapshot::{Dns, DnsFamily};

/// `dns_lookup_family`, `dns_refresh_rate`, `respect_dns_ttl`, `dns_failure_refresh_rate`, `dns_jitter`.
#[expect(
    deprecated,
    reason = "Envoy 1.35 moves these into an extension, but accepts them and Istio writes them"
)]
pub(super) fn dns(config: &pb::cluster::Cluster, path: &Path<'_>) -> Result<Dns> {
    use pb::cluster::cluster::DnsLookupFamily as Family;
    let family = match enumeration(config.dns_lookup_family, &path.field("dns_lookup_family"))? {
        Family::Auto => DnsFamily::V6Preferred,
        Family::V4Preferred => DnsFamily::V4Preferred,
        Family::V4Only => DnsFamily::V4Only,
        Family::V6Only => DnsFamily::V6Only,
        Family::All => DnsFamily::All,
    };
    let refresh = duration_or(
        config.dns_refresh_rate.as_ref(),
        Duration::from_secs(5),
        &path.field("dns_refresh_rate"),
    )?;
    let failure = match &config.dns_failure_refresh_rate {
        None => (refresh, refresh),
        Some(rate) => {
            let here = path.field("dns_failure_refresh_rate");
            let base = here.field("base_interval");
            let base = duration_or(
                Some(required(rate.base_interval.as_ref(), &base)?),
                Duration::ZERO,
                &base,
            )?;
            // Ten times the base, as Envoy.
            let most = duration(rate.max_interval.as_ref(), &here.field("max_interval"))?;
            let most = most.unwrap_or(base.saturating_mul(10));
            if most < base {
                return Err(here.field("max_interval").error("must not be below base_interval"));
            }
            (base, most)
        }
    };
    Ok(Dns {
        family,
        refresh,
        respect_ttl: config.respect_dns_ttl,
        failure,
        jitter: duration_or(config.dns_jitter.as_ref(), Duration::ZERO, &path.field("dns_jitter"))?,
    })
}
