//! Listeners.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::chain::Chains;
use super::tls::TlsSpec;
use super::{Result, access_log, address, balance, bytes, duration_or, enumeration, keepalive, metadata, pb};
use crate::path::Path;
use crate::snapshot::{Digest, Listener, ListenerFilter, TlsKey, TrafficDirection};

/// The metadata by which a listener has others discovered on demand.
const ON_DEMAND: &str = "heddle.on_demand";

/// The longest that a connection may wait for a listener.
const MAX_ON_DEMAND: Duration = Duration::from_secs(60);

/// A listener with what it needs from elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct ListenerParts {
    pub(crate) listener: Arc<Listener>,
    /// Route configurations asked for through RDS.
    pub(crate) routes: BTreeSet<Arc<str>>,
    pub(crate) tls: Vec<(TlsKey, TlsSpec)>,
    /// Clusters that routes in place name and that must exist (`validate_clusters`), with the place.
    pub(crate) clusters: Vec<(Arc<str>, String)>,
}

/// `Listener`.
pub(crate) fn listener(config: &pb::listener::Listener, path: &Path<'_>) -> Result<ListenerParts> {
    if config.name.is_empty() {
        return Err(path.field("name").error("must not be empty"));
    }
    if config.enable_reuse_port == Some(false) {
        let remedy = "remove it: every worker has a listening socket of its own";
        return Err(path.field("enable_reuse_port").unsupported("false", remedy));
    }
    let mut addresses = address::listening(config.address.as_ref(), &path.field("address"))?;
    for (i, more) in config.additional_addresses.iter().enumerate() {
        let here = path.item("additional_addresses", i);
        for more in address::listening(more.address.as_ref(), &here.field("address"))? {
            if addresses.contains(&more) {
                return Err(here.field("address").error(format!("{more} stands there twice")));
            }
            addresses.push(more);
        }
    }
    let mut chains = Chains::new(&config.name);
    let filter_chains = chains.decode_all(&config.filter_chains, path)?;
    let default_filter_chain = match &config.default_filter_chain {
        Some(chain) => Some(chains.decode_default(chain, &path.field("default_filter_chain"))?),
        None => None,
    };
    if filter_chains.is_empty() && default_filter_chain.is_none() {
        return Err(path
            .field("filter_chains")
            .error("must not be empty; give at least one filter chain"));
    }
    let direction = match enumeration(config.traffic_direction, &path.field("traffic_direction"))? {
        pb::core::TrafficDirection::Unspecified => TrafficDirection::Unspecified,
        pb::core::TrafficDirection::Inbound => TrafficDirection::Inbound,
        pb::core::TrafficDirection::Outbound => TrafficDirection::Outbound,
    };
    let here = path.field("listener_filters_timeout");
    let use_original_dst = config.use_original_dst.unwrap_or(false);
    let mut listener_filters = config
        .listener_filters
        .iter()
        .enumerate()
        .map(|(i, f)| listener_filter(f, &path.item("listener_filters", i)))
        .collect::<Result<Vec<_>>>()?;
    // Like Envoy (ListenerImpl::buildOriginalDstListenerFilter): whoever is to use the original destination has it
    // restored without saying so. Istio's virtualOutbound relies on it.
    if use_original_dst && !listener_filters.contains(&ListenerFilter::OriginalDst) {
        listener_filters.insert(0, ListenerFilter::OriginalDst);
    }
    let listener = Listener {
        name: config.name.as_str().into(),
        addresses,
        bind: config.bind_to_port.unwrap_or(true),
        use_original_dst,
        direction,
        listener_filters,
        listener_filters_timeout: duration_or(
            config.listener_filters_timeout.as_ref(),
            Duration::from_secs(15),
            &here,
        )?,
        continue_on_timeout: config.continue_on_listener_filters_timeout,
        filter_chains,
        default_filter_chain,
        buffer_limit: config.per_connection_buffer_limit_bytes.map_or(1 << 20, bytes),
        backlog: config.tcp_backlog_size.unwrap_or(1024),
        keepalive: match &config.tcp_keepalive {
            Some(options) => keepalive::tcp(options, &path.field("tcp_keepalive"))?,
            None => None,
        },
        balance: balance::connections(config, path)?,
        max_connections: None,
        ignore_global_connection_limit: config.ignore_global_conn_limit,
        bypass_overload_manager: config.bypass_overload_manager,
        on_demand: on_demand(config, path)?,
        access_logs: access_log::access_logs(&config.access_log, path)?,
        frame: Some(frame(config)),
    };
    Ok(ListenerParts {
        listener: Arc::new(listener),
        routes: chains.routes,
        tls: chains.tls,
        clusters: chains.clusters,
    })
}

/// How long connections wait for listeners that are discovered on demand.
fn on_demand(config: &pb::listener::Listener, path: &Path<'_>) -> Result<Option<Duration>> {
    let Some(fields) = metadata::filter(config.metadata.as_ref(), ON_DEMAND) else {
        return Ok(None);
    };
    let here = path.field("metadata");
    let filters = here.field("filter_metadata");
    let place = filters.field(ON_DEMAND);
    if config.use_original_dst != Some(true) {
        return Err(place.error("needs use_original_dst: listeners are asked for by the original destination"));
    }
    let timeout = fields
        .fields
        .get("timeout")
        .and_then(metadata::text)
        .and_then(|text| text.strip_suffix('s')?.parse::<f64>().ok())
        .filter(|seconds| *seconds > 0.0 && *seconds <= MAX_ON_DEMAND.as_secs_f64())
        .map(Duration::from_secs_f64);
    match timeout {
        Some(timeout) => Ok(Some(timeout)),
        None => Err(place
            .field("timeout")
            .error("must be a time in seconds, above 0s and at most 60s, such as \"5s\"")),
    }
}

/// A digest of what is not a filter chain; as with those, metadata makes no difference.
fn frame(config: &pb::listener::Listener) -> Digest {
    let mut frame = config.clone();
    frame.filter_chains.clear();
    frame.default_filter_chain = None;
    frame.metadata = None;
    Sha256::digest(frame.encode_to_vec()).into()
}

fn listener_filter(filter: &pb::listener::ListenerFilter, path: &Path<'_>) -> Result<ListenerFilter> {
    use pb::listener::listener_filter::ConfigType;
    let here = path.field("typed_config");
    let Some(ConfigType::TypedConfig(any)) = &filter.config_type else {
        return Err(here.error("must be set"));
    };
    match heddle_api::message_name(&any.type_url) {
        "envoy.extensions.filters.listener.original_dst.v3.OriginalDst" => Ok(ListenerFilter::OriginalDst),
        "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector" => Ok(ListenerFilter::TlsInspector),
        other => Err(here.unsupported(other, "use original_dst or tls_inspector")),
    }
}
