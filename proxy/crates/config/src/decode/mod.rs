//! Envoy's messages turned into the types of the snapshot. Every decoder has been preceded by [`crate::check`], so it
//! meets only implemented fields; it refuses single values that are not implemented, and everything inconsistent.

mod access_log;
mod address;
mod balance;
mod chain;
mod cluster;
mod dns;
mod endpoint;
pub(crate) mod fraction;
mod hcm;
pub(crate) mod headers;
mod http2;
mod keepalive;
mod key_provider;
mod listener;
pub(crate) mod matcher;
mod metadata;
mod mirror;
mod network_ext_authz;
mod outlier;
mod per_filter;
pub(crate) mod rate_limit;
pub(crate) mod rbac;
mod retry;
mod route;
mod route_action;
pub(crate) mod service;
mod source;
mod tcp_proxy;
mod tls;

use std::time::Duration;

use prost_types::Any;

use crate::error::ConfigError;
use crate::path::Path;

pub(crate) use address::socket_address;
pub(crate) use cluster::{ClusterParts, cluster};
pub(crate) use endpoint::{load_assignment, locality_name};
pub(crate) use listener::{ListenerParts, listener};
pub use metadata::struct_to_json;
pub(crate) use metadata::value_to_json;
pub(crate) use route::{route_match, route_table};
pub(crate) use source::{api_source, config_source};
pub(crate) use tls::{Identity, SecretRef, SecretValue, TlsContext, TlsSpec, data_source, secret};

/// The API's packages under short names.
pub(crate) mod pb {
    pub(crate) use heddle_api::envoy::config::accesslog::v3 as accesslog;
    pub(crate) use heddle_api::envoy::config::bootstrap::v3 as bootstrap;
    pub(crate) use heddle_api::envoy::config::cluster::v3 as cluster;
    pub(crate) use heddle_api::envoy::config::core::v3 as core;
    pub(crate) use heddle_api::envoy::config::endpoint::v3 as endpoint;
    pub(crate) use heddle_api::envoy::config::listener::v3 as listener;
    pub(crate) use heddle_api::envoy::config::overload::v3 as overload;
    pub(crate) use heddle_api::envoy::config::rbac::v3 as rbac;
    pub(crate) use heddle_api::envoy::config::route::v3 as route;
    pub(crate) use heddle_api::envoy::extensions::access_loggers::file::v3 as file_log;
    pub(crate) use heddle_api::envoy::extensions::access_loggers::stream::v3 as stream_log;
    pub(crate) use heddle_api::envoy::extensions::filters::http::rbac::v3 as http_rbac;
    pub(crate) use heddle_api::envoy::extensions::filters::network::ext_authz::v3 as network_ext_authz;
    pub(crate) use heddle_api::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
    pub(crate) use heddle_api::envoy::extensions::filters::network::rbac::v3 as network_rbac;
    pub(crate) use heddle_api::envoy::extensions::filters::network::tcp_proxy::v3 as tcp_proxy;
    pub(crate) use heddle_api::envoy::extensions::network::connection_balance::dlb::v3alpha as dlb;
    pub(crate) use heddle_api::envoy::extensions::private_key_providers::cryptomb::v3alpha as cryptomb;
    pub(crate) use heddle_api::envoy::extensions::private_key_providers::qat::v3alpha as qat;
    pub(crate) use heddle_api::envoy::extensions::rbac::principals::mtls_authenticated::v3 as mtls_authenticated;
    pub(crate) use heddle_api::envoy::extensions::regex_engines::hyperscan::v3alpha as hyperscan;
    pub(crate) use heddle_api::envoy::extensions::resource_monitors::cgroup_memory::v3 as cgroup_memory;
    pub(crate) use heddle_api::envoy::extensions::resource_monitors::downstream_connections::v3 as connections_monitor;
    pub(crate) use heddle_api::envoy::extensions::resource_monitors::fixed_heap::v3 as fixed_heap;
    pub(crate) use heddle_api::envoy::extensions::transport_sockets::tls::v3 as tls;
    pub(crate) use heddle_api::envoy::extensions::upstreams::http::v3 as upstream_http;
    pub(crate) use heddle_api::envoy::r#type::matcher::v3 as matcher;
    pub(crate) use heddle_api::envoy::r#type::v3 as types;
}

pub(crate) type Result<T> = std::result::Result<T, ConfigError>;

/// Longest duration that is accepted. Longer ones (Istio writes years for "never") are cut to it: timers need no more.
const MAX_DURATION: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A duration, or `None` when it is not set.
pub(crate) fn duration(value: Option<&prost_types::Duration>, path: &Path<'_>) -> Result<Option<Duration>> {
    let Some(value) = value else { return Ok(None) };
    match (u64::try_from(value.seconds), u32::try_from(value.nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Some(Duration::new(seconds, nanos).min(MAX_DURATION))),
        _ => Err(path.error("must be a duration of zero or more")),
    }
}

/// A duration with a default.
pub(crate) fn duration_or(
    value: Option<&prost_types::Duration>,
    default: Duration,
    path: &Path<'_>,
) -> Result<Duration> {
    Ok(duration(value, path)?.unwrap_or(default))
}

/// A duration that is not zero, with a default.
pub(crate) fn positive(value: Option<&prost_types::Duration>, default: Duration, path: &Path<'_>) -> Result<Duration> {
    match duration_or(value, default, path)? {
        Duration::ZERO => Err(path.error("must be above zero")),
        d => Ok(d),
    }
}

/// What must be there.
pub(crate) fn required<'m, T>(value: Option<&'m T>, path: &Path<'_>) -> Result<&'m T> {
    value.ok_or_else(|| path.error("must be set"))
}

/// An enum's value by its number.
pub(crate) fn enumeration<E: TryFrom<i32>>(number: i32, path: &Path<'_>) -> Result<E> {
    E::try_from(number).map_err(|_| path.error(format!("{number} is not a value of this enumeration")))
}

/// Decodes the message inside a `typed_config`.
pub(crate) fn unpack<M: prost::Message + Default>(any: &Any, path: &Path<'_>) -> Result<M> {
    M::decode(any.value.as_slice()).map_err(|e| path.error(format!("not a valid {}: {e}", any.type_url)))
}

/// A byte count that fits this machine.
pub(crate) fn bytes(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
