//! Endpoints.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::{Result, address, enumeration, metadata, pb, required};
use crate::path::Path;
use crate::snapshot::{Endpoint, EndpointHealth, Locality, LocalityEndpoints};

/// Most endpoints of one cluster. Envoy has no bound; this one is far above what one cluster of a mesh has, and keeps
/// the memory that one message can claim within reason.
const MAX_ENDPOINTS: usize = 200_000;

/// `ClusterLoadAssignment`. With `by_name`, addresses may be host names (STRICT_DNS).
pub(crate) fn load_assignment(
    config: &pb::endpoint::ClusterLoadAssignment,
    by_name: bool,
    path: &Path<'_>,
) -> Result<Vec<LocalityEndpoints>> {
    let mut count = 0;
    let mut out = Vec::with_capacity(config.endpoints.len());
    for (i, group) in config.endpoints.iter().enumerate() {
        let here = path.item("endpoints", i);
        count += group.lb_endpoints.len();
        if count > MAX_ENDPOINTS {
            return Err(here.error(format!("the cluster has more than {MAX_ENDPOINTS} endpoints")));
        }
        out.push(locality(group, by_name, &here)?);
    }
    // Gaps are no fault, as in Envoy: a priority without endpoints takes no load. A service that has endpoints behind
    // another cluster's gateway only has nothing in priority 0.
    Ok(out)
}

fn locality(group: &pb::endpoint::LocalityLbEndpoints, by_name: bool, path: &Path<'_>) -> Result<LocalityEndpoints> {
    let name = group.locality.as_ref();
    let endpoints = group.lb_endpoints.iter().enumerate();
    Ok(LocalityEndpoints {
        locality: name.map(locality_name).unwrap_or_default(),
        priority: group.priority,
        weight: group.load_balancing_weight.unwrap_or(0),
        endpoints: endpoints
            .map(|(i, e)| endpoint(e, by_name, &path.item("lb_endpoints", i)))
            .collect::<Result<_>>()?,
    })
}

/// A `Locality`.
pub(crate) fn locality_name(name: &pb::core::Locality) -> Locality {
    Locality {
        region: name.region.clone(),
        zone: name.zone.clone(),
        sub_zone: name.sub_zone.clone(),
    }
}

fn endpoint(config: &pb::endpoint::LbEndpoint, by_name: bool, path: &Path<'_>) -> Result<Endpoint> {
    use pb::core::HealthStatus;
    let here = path.field("endpoint");
    let inner = match &config.host_identifier {
        Some(pb::endpoint::lb_endpoint::HostIdentifier::Endpoint(e)) => e,
        _ => return Err(here.error("must be set")),
    };
    let health = match enumeration(config.health_status, &path.field("health_status"))? {
        HealthStatus::Unknown | HealthStatus::Healthy => EndpointHealth::Healthy,
        HealthStatus::Degraded => EndpointHealth::Degraded,
        HealthStatus::Unhealthy | HealthStatus::Timeout => EndpointHealth::Unhealthy,
        HealthStatus::Draining => EndpointHealth::Draining,
    };
    let (address, dns_name) = place(inner, by_name, &here.field("address"))?;
    let given = (!inner.hostname.is_empty()).then(|| Arc::from(inner.hostname.as_str()));
    let about = config.metadata.as_ref();
    Ok(Endpoint {
        address,
        hostname: dns_name.or(given),
        weight: config.load_balancing_weight.unwrap_or(1),
        health,
        transport_labels: metadata::filter(about, "envoy.transport_socket_match")
            .map(metadata::labels)
            .unwrap_or_default(),
        workload: metadata::filter(about, "istio")
            .and_then(|m| m.fields.get("workload"))
            .and_then(metadata::text)
            .map(Arc::from),
    })
}

/// The address, or for a host name the port and the name.
fn place(endpoint: &pb::endpoint::Endpoint, by_name: bool, path: &Path<'_>) -> Result<(SocketAddr, Option<Arc<str>>)> {
    let config = required(endpoint.address.as_ref(), path)?;
    if by_name && let Some(pb::core::address::Address::SocketAddress(socket)) = &config.address {
        let here = path.field("socket_address");
        let port = address::tcp_port(socket, &here)?;
        if socket.address.is_empty() {
            return Err(here.field("address").error("must not be empty"));
        }
        return Ok(match socket.address.parse::<IpAddr>() {
            Ok(ip) => (SocketAddr::new(ip, port), None),
            Err(_) => (
                SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
                Some(socket.address.as_str().into()),
            ),
        });
    }
    Ok((address::socket_address(Some(config), path)?, None))
}
