//! Filter chains: matches, TLS and network filters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use heddle_net::TransportProtocol;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::tls::{self, TlsSpec};
use super::{Result, address, hcm, metadata, network_ext_authz, pb, positive, rbac, tcp_proxy, unpack};
use crate::error::ConfigError;
use crate::path::Path;
use crate::snapshot::{Digest, FilterChain, FilterChainMatch, NetworkFilter, RouteSource, TlsKey};

/// A digest of what makes a difference: metadata makes none, and its maps have no order.
fn identity(config: &pb::listener::FilterChain) -> Digest {
    let telling = pb::listener::FilterChain {
        metadata: None,
        ..config.clone()
    };
    Sha256::digest(telling.encode_to_vec()).into()
}

/// Decodes the chains of one listener and gathers what they need.
pub(super) struct Chains {
    listener: String,
    pub(super) routes: BTreeSet<Arc<str>>,
    pub(super) tls: Vec<(TlsKey, TlsSpec)>,
    pub(super) clusters: Vec<(Arc<str>, String)>,
}

impl Chains {
    pub(super) fn new(listener: &str) -> Self {
        Self {
            listener: listener.to_owned(),
            routes: BTreeSet::new(),
            tls: Vec::new(),
            clusters: Vec::new(),
        }
    }

    /// `filter_chains`, no two of which may match the same connections.
    pub(super) fn decode_all(
        &mut self,
        configs: &[pb::listener::FilterChain],
        path: &Path<'_>,
    ) -> Result<Vec<FilterChain>> {
        let mut out: Vec<FilterChain> = Vec::with_capacity(configs.len());
        for (i, config) in configs.iter().enumerate() {
            let here = path.item("filter_chains", i);
            let label = if config.name.is_empty() {
                i.to_string()
            } else {
                format!("{i}/{}", config.name)
            };
            let chain = self.decode(config, &label, &here)?;
            if let Some(other) = out.iter().position(|earlier| overlap(&earlier.matches, &chain.matches)) {
                return Err(here.field("filter_chain_match").error(format!(
                    "matches the same connections as filter_chains[{other}]; make them differ in one criterion"
                )));
            }
            out.push(chain);
        }
        Ok(out)
    }

    /// `default_filter_chain`.
    pub(super) fn decode_default(
        &mut self,
        config: &pb::listener::FilterChain,
        path: &Path<'_>,
    ) -> Result<FilterChain> {
        if config
            .filter_chain_match
            .as_ref()
            .is_some_and(|m| *m != Default::default())
        {
            return Err(path
                .field("filter_chain_match")
                .error("has no meaning on the default filter chain; remove it"));
        }
        self.decode(config, "default", path)
    }

    fn decode(&mut self, config: &pb::listener::FilterChain, label: &str, path: &Path<'_>) -> Result<FilterChain> {
        let matches = match &config.filter_chain_match {
            Some(m) => chain_match(m, &path.field("filter_chain_match"))?,
            None => FilterChainMatch::default(),
        };
        let tls = match &config.transport_socket {
            Some(socket) => tls::downstream(socket, path)?.map(|spec| {
                let key = TlsKey::from(format!("listener/{}/{label}", self.listener));
                self.tls.push((key.clone(), spec));
                key
            }),
            None => None,
        };
        let here = path.field("transport_socket_connect_timeout");
        let timeout = config.transport_socket_connect_timeout.as_ref();
        Ok(FilterChain {
            name: config.name.as_str().into(),
            matches,
            tls,
            handshake_timeout: positive(timeout, Duration::from_secs(15), &here)?,
            filters: self.filters(&config.filters, path)?,
            identity: Some(identity(config)),
        })
    }

    fn filters(&mut self, configs: &[pb::listener::Filter], path: &Path<'_>) -> Result<Vec<NetworkFilter>> {
        let mut out = Vec::with_capacity(configs.len());
        for (i, config) in configs.iter().enumerate() {
            let here = path.item("filters", i);
            let filter = self.filter(config, &here)?;
            let is_last = i + 1 == configs.len();
            match (is_terminal(&filter), is_last) {
                (true, false) => {
                    return Err(here.error(format!(
                        "{:?} ends the chain, so it must be the last filter",
                        config.name
                    )));
                }
                (false, true) => {
                    return Err(here.error(format!(
                        "{:?} cannot be the last filter; end the chain with tcp_proxy or http_connection_manager",
                        config.name
                    )));
                }
                _ => out.push(filter),
            }
        }
        if out.is_empty() {
            let problem = "must not be empty; end the chain with tcp_proxy or http_connection_manager";
            return Err(path.field("filters").error(problem));
        }
        // The name that sni_cluster found is handed to a TCP proxy; nothing else looks at it.
        let sni = out.iter().position(|f| matches!(f, NetworkFilter::SniCluster));
        if let Some(i) = sni
            && !matches!(out.last(), Some(NetworkFilter::TcpProxy(_)))
        {
            return Err(path
                .item("filters", i)
                .error("sni_cluster needs a tcp_proxy at the end of the chain"));
        }
        Ok(out)
    }

    fn filter(&mut self, config: &pb::listener::Filter, path: &Path<'_>) -> Result<NetworkFilter> {
        use pb::listener::filter::ConfigType;
        let here = path.field("typed_config");
        let Some(ConfigType::TypedConfig(any)) = &config.config_type else {
            return Err(here.error("must be set"));
        };
        match heddle_api::message_name(&any.type_url) {
            "envoy.extensions.filters.network.rbac.v3.RBAC" => {
                Ok(NetworkFilter::Rbac(rbac::network(&unpack(any, &here)?, &here)?))
            }
            "envoy.extensions.filters.network.ext_authz.v3.ExtAuthz" => Ok(NetworkFilter::ExtAuthz(Arc::new(
                network_ext_authz::ext_authz(&unpack(any, &here)?, &here)?,
            ))),
            "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy" => Ok(NetworkFilter::TcpProxy(Arc::new(
                tcp_proxy::tcp_proxy(&unpack(any, &here)?, &here)?,
            ))),
            "envoy.extensions.filters.network.sni_cluster.v3.SniCluster" => Ok(NetworkFilter::SniCluster),
            "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager" => {
                let (manager, clusters) = hcm::manager(&unpack(any, &here)?, &here)?;
                if let RouteSource::Rds(name) = &manager.routes {
                    self.routes.insert(name.clone());
                }
                self.clusters.extend(clusters);
                Ok(NetworkFilter::Http(Arc::new(manager)))
            }
            _ => match typed_struct(any, &here)? {
                Some(inner) if inner == "stats.PluginConfig" => Ok(NetworkFilter::IstioStats),
                Some(inner) => Err(here.field("type_url").unsupported(&inner, "remove the filter")),
                None => Err(here.unsupported(heddle_api::message_name(&any.type_url), "remove the filter")),
            },
        }
    }
}

fn is_terminal(filter: &NetworkFilter) -> bool {
    matches!(filter, NetworkFilter::TcpProxy(_) | NetworkFilter::Http(_))
}

/// The message name inside a `TypedStruct`, whose value must be empty: the filters that are configured this way have
/// no settings that Heddle implements. `None` when `any` is something else.
pub(super) fn typed_struct(any: &prost_types::Any, path: &Path<'_>) -> Result<Option<String>> {
    let (type_url, value) = match heddle_api::message_name(&any.type_url) {
        "udpa.type.v1.TypedStruct" => {
            let inner: heddle_api::udpa::r#type::v1::TypedStruct = unpack(any, path)?;
            (inner.type_url, inner.value)
        }
        "xds.type.v3.TypedStruct" => {
            let inner: heddle_api::xds::r#type::v3::TypedStruct = unpack(any, path)?;
            (inner.type_url, inner.value)
        }
        _ => return Ok(None),
    };
    if let Some(value) = value.filter(|v| !v.fields.is_empty()) {
        let names = metadata::struct_to_json(&value);
        let first = names
            .as_object()
            .and_then(|m| m.keys().next().cloned())
            .unwrap_or_default();
        return Err(path.field("value").field(&first).error("not implemented; remove it"));
    }
    Ok(Some(heddle_api::message_name(&type_url).to_owned()))
}

fn chain_match(config: &pb::listener::FilterChainMatch, path: &Path<'_>) -> Result<FilterChainMatch> {
    let ranges = |list: &[pb::core::CidrRange], name: &str| {
        list.iter()
            .enumerate()
            .map(|(i, r)| address::cidr(r, &path.item(name, i)))
            .collect::<Result<Vec<_>>>()
    };
    let destination_port = match config.destination_port {
        None => None,
        Some(port) => match u16::try_from(port) {
            Ok(port) if port > 0 => Some(port),
            _ => {
                return Err(path
                    .field("destination_port")
                    .error(format!("{port} is not between 1 and 65535")));
            }
        },
    };
    let transport_protocol = match config.transport_protocol.as_str() {
        "" => None,
        "tls" => Some(TransportProtocol::Tls),
        "raw_buffer" => Some(TransportProtocol::RawBuffer),
        other => {
            return Err(path
                .field("transport_protocol")
                .unsupported(format!("{other:?}"), "use tls or raw_buffer"));
        }
    };
    let names = config.server_names.iter().enumerate();
    Ok(FilterChainMatch {
        destination_port,
        destination: ranges(&config.prefix_ranges, "prefix_ranges")?,
        server_names: names
            .map(|(i, n)| server_name(n, &path.item("server_names", i)))
            .collect::<Result<_>>()?,
        transport_protocol,
        application_protocols: config.application_protocols.clone(),
        source: ranges(&config.source_prefix_ranges, "source_prefix_ranges")?,
    })
}

fn server_name(name: &str, path: &Path<'_>) -> std::result::Result<String, ConfigError> {
    let name = name.to_ascii_lowercase();
    let rest = name.strip_prefix("*.").unwrap_or(&name);
    match rest {
        "" => Err(path.error(format!("{name:?} is not a server name"))),
        _ if rest.contains('*') => Err(path.error(format!(
            "{name:?}: a star may only stand for the whole first label, as in *.example.com"
        ))),
        _ => Ok(name),
    }
}

/// Whether some connection is matched by both with equal precedence in every criterion: then the order would decide,
/// and Envoy refuses such listeners.
fn overlap(a: &FilterChainMatch, b: &FilterChainMatch) -> bool {
    fn shared<T: PartialEq>(a: &[T], b: &[T]) -> bool {
        (a.is_empty() && b.is_empty()) || a.iter().any(|x| b.contains(x))
    }
    a.destination_port == b.destination_port
        && a.transport_protocol == b.transport_protocol
        && shared(&a.destination, &b.destination)
        && shared(&a.server_names, &b.server_names)
        && shared(&a.application_protocols, &b.application_protocols)
        && shared(&a.source, &b.source)
}
