//! The bootstrap document: who this proxy is, its static resources, and where the rest comes from.

mod overload;
mod regex_engine;
mod runtime;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use heddle_matching::RegexEngine;
use prost::Message;
use prost_reflect::{DynamicMessage, Value};
use prost_types::Any;

use crate::check;
use crate::decode::{self, pb};
use crate::error::{ConfigError, ConfigErrors};
use crate::json;
use crate::path::Path;
use crate::resource::{Resource, ResourceKind, SecretSource, Update};
use crate::snapshot::{Node, OverloadManager, Resource as OverloadResource, Runtime, UpstreamHttp, UpstreamTransport};

pub(crate) const BOOTSTRAP: &str = "envoy.config.bootstrap.v3.Bootstrap";

/// What the command line says about the configuration. The environment is not read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `--config-path`: a YAML or JSON file.
    pub path: Option<PathBuf>,
    /// `--config-yaml`: YAML that is merged over the file.
    pub yaml: Option<String>,
    /// `--service-node`: replaces `node.id`.
    pub node_id: Option<String>,
    /// `--service-cluster`: replaces `node.cluster`.
    pub node_cluster: Option<String>,
}

/// Where the admin interface listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// An IP address and port.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// Where a discovery server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetAddress {
    /// An IP address and port, without TLS.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

/// A static cluster that discovery streams can be opened to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcTarget {
    /// The cluster's name.
    pub cluster: Arc<str>,
    /// Its only endpoint.
    pub address: TargetAddress,
    /// `connect_timeout`.
    pub connect_timeout: Duration,
    /// `envoy_grpc.authority`; the cluster's name when not set, as in Envoy.
    pub authority: Option<String>,
}

/// A checked bootstrap document.
#[derive(Debug)]
pub struct Bootstrap {
    /// This proxy.
    pub node: Arc<Node>,
    /// This proxy as it introduces itself to discovery servers.
    pub node_message: pb::core::Node,
    /// The admin interface, if it is wanted.
    pub admin: Option<AdminAddress>,
    /// The aggregated discovery server.
    pub ads: Option<GrpcTarget>,
    /// Whether listeners come from it (`lds_config`).
    pub dynamic_listeners: bool,
    /// Whether clusters come from it (`cds_config`).
    pub dynamic_clusters: bool,
    /// Static clusters that can be called by gRPC, for secrets from a stream of their own.
    pub targets: HashMap<Arc<str>, GrpcTarget>,
    /// What the runtime layers, and the overload manager's monitor of connections, set for all listeners.
    pub runtime: Runtime,
    /// The overload manager, if there is one.
    pub overload: Option<OverloadManager>,
    /// `default_regex_engine`; the portable one when it is not set.
    pub(crate) regex_engine: RegexEngine,
    /// `static_resources`, in the order in which they are applied.
    pub(crate) statics: Vec<Update>,
    /// Runtime keys `envoy.resource_limits.listener.<name>.connection_limit`.
    pub(crate) connection_limits: HashMap<String, u64>,
    /// The document, encoded, for `/config_dump`.
    pub(crate) document: Arc<[u8]>,
}

impl Bootstrap {
    /// Reads, merges and checks what the command line names.
    pub fn load(options: &Options) -> Result<Self, ConfigErrors> {
        let mut texts = Vec::new();
        if let Some(path) = &options.path {
            let text = std::fs::read_to_string(path).map_err(|e| {
                ConfigError::new(
                    "",
                    format!(
                        "cannot read {}: {e}; give a readable file to --config-path",
                        path.display()
                    ),
                )
            })?;
            texts.push(text);
        }
        texts.extend(options.yaml.clone());
        if texts.is_empty() {
            return Err(ConfigError::new("", "no configuration; give --config-path or --config-yaml").into());
        }
        Self::parse(texts.iter().map(String::as_str), options)
    }

    /// Reads documents, of which later ones are merged over earlier ones as protobuf merges messages.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>, options: &Options) -> Result<Self, ConfigErrors> {
        let root = Path::document();
        let mut merged = Vec::new();
        for text in texts {
            let message = json::to_message(BOOTSTRAP, &json::parse(text)?, &root)?;
            // Concatenated encodings decode to the merged message.
            merged.extend(message.encode_to_vec());
        }
        let descriptor = heddle_api::pool()
            .get_message_by_name(BOOTSTRAP)
            .ok_or_else(|| root.error("the API has no bootstrap message"))?;
        let message = DynamicMessage::decode(descriptor, merged.as_slice()).map_err(|e| root.error(e.to_string()))?;
        Self::from_message(message, options)
    }

    fn from_message(message: DynamicMessage, options: &Options) -> Result<Self, ConfigErrors> {
        let root = Path::document();
        let mut findings = Vec::new();
        // Static resources are checked one by one under their names, when they are applied.
        let mut frame = message.clone();
        if let Some(Value::Message(statics)) = frame.get_field_by_name_mut("static_resources") {
            for kind in ["listeners", "clusters", "secrets"] {
                statics.clear_field_by_name(kind);
            }
        }
        check::check(&frame, &root, &mut findings);
        ConfigErrors::check(findings)?;
        let config: pb::bootstrap::Bootstrap = message.transcode_to().map_err(|e| root.error(e.to_string()))?;

        let mut node_message = config.node.clone().unwrap_or_default();
        introduce(&mut node_message, options);
        let statics = config.static_resources.unwrap_or_default();
        let (clusters, targets) = static_clusters(&statics.clusters)?;
        let dynamic = config.dynamic_resources.unwrap_or_default();
        let here = root.field("dynamic_resources");
        let ads = match &dynamic.ads_config {
            Some(api) => Some(ads_target(api, &targets, &here.field("ads_config"))?),
            None => None,
        };
        let dynamic_listeners = from_ads(dynamic.lds_config.as_ref(), ads.is_some(), &here.field("lds_config"))?;
        let dynamic_clusters = from_ads(dynamic.cds_config.as_ref(), ads.is_some(), &here.field("cds_config"))?;
        if ads.is_some() {
            for (name, value) in [("id", &node_message.id), ("cluster", &node_message.cluster)] {
                if value.is_empty() {
                    let node = root.field("node");
                    let option = if name == "id" {
                        "--service-node"
                    } else {
                        "--service-cluster"
                    };
                    return Err(node
                        .field(name)
                        .error(format!("must be set when ads_config is; or give {option}"))
                        .into());
                }
            }
        }
        let regex_engine = match &config.default_regex_engine {
            Some(engine) => regex_engine::engine(engine, &root.field("default_regex_engine"))?,
            None => RegexEngine::default(),
        };
        let layers = runtime::layers(config.layered_runtime.as_ref(), &root.field("layered_runtime"))?;
        let mut runtime = layers.runtime;
        let manager = config.overload_manager.as_ref();
        let overload = manager
            .map(|manager| overload::manager(manager, &root.field("overload_manager")))
            .transpose()?;
        for monitor in overload.iter().flat_map(|manager| &manager.monitors) {
            // As Envoy: the monitor is asked where there is one, whatever the runtime says.
            if let OverloadResource::DownstreamConnections { max } = monitor.resource {
                runtime.max_downstream_connections = Some(max);
            }
        }
        let updates = [
            // The others may name these, so they come first, as in Envoy.
            (
                ResourceKind::Secret,
                statics
                    .secrets
                    .iter()
                    .map(|s| (s.name.clone(), s.encode_to_vec()))
                    .collect(),
            ),
            (ResourceKind::Cluster, clusters),
            (
                ResourceKind::Listener,
                statics
                    .listeners
                    .iter()
                    .map(|l| (l.name.clone(), l.encode_to_vec()))
                    .collect(),
            ),
        ];
        Ok(Self {
            node: Arc::new(node(&node_message)),
            node_message,
            admin: admin(config.admin.as_ref(), &root.field("admin"))?,
            ads,
            dynamic_listeners,
            dynamic_clusters,
            targets,
            statics: updates
                .into_iter()
                .map(|(kind, list)| static_update(kind, list))
                .collect(),
            runtime,
            overload,
            regex_engine,
            connection_limits: layers.connection_limits,
            document: message.encode_to_vec().into(),
        })
    }
}

fn static_update(kind: ResourceKind, resources: Vec<(String, Vec<u8>)>) -> Update {
    let resources = resources.into_iter().enumerate().map(|(i, (name, value))| Resource {
        // Envoy lets a static listener go without a name.
        name: if name.is_empty() && kind == ResourceKind::Listener {
            format!("static-{i}")
        } else {
            name
        },
        version: String::new(),
        body: Any {
            type_url: kind.type_url(),
            value,
        },
    });
    Update {
        kind,
        source: SecretSource::Static,
        resources: resources.collect(),
        removed: Vec::new(),
    }
}

/// What the proxy says of itself.
fn introduce(node: &mut pb::core::Node, options: &Options) {
    if let Some(id) = &options.node_id {
        node.id.clone_from(id);
    }
    if let Some(cluster) = &options.node_cluster {
        node.cluster.clone_from(cluster);
    }
    node.user_agent_name = "heddle".to_owned();
    node.user_agent_version_type = Some(pb::core::node::UserAgentVersionType::UserAgentVersion(
        env!("CARGO_PKG_VERSION").to_owned(),
    ));
}

fn node(message: &pb::core::Node) -> Node {
    Node {
        id: message.id.clone(),
        cluster: message.cluster.clone(),
        metadata: message
            .metadata
            .as_ref()
            .map_or_else(|| serde_json::Value::Object(Default::default()), decode::struct_to_json),
        locality: message.locality.as_ref().map(decode::locality_name).unwrap_or_default(),
    }
}

type NamedBytes = Vec<(String, Vec<u8>)>;

/// Splits the static clusters: every one with a single plain endpoint may be a target of discovery streams; those whose
/// endpoint is a unix socket are nothing else and do not become clusters of the snapshot.
fn static_clusters(
    configs: &[pb::cluster::Cluster],
) -> Result<(NamedBytes, HashMap<Arc<str>, GrpcTarget>), ConfigErrors> {
    let mut clusters = Vec::new();
    let mut targets = HashMap::new();
    for config in configs {
        let path = Path::resource("clusters", &config.name);
        match pipe_of(config) {
            None => {
                if let Some(target) = tcp_target(config, &path) {
                    targets.insert(target.cluster.clone(), target);
                }
                clusters.push((config.name.clone(), config.encode_to_vec()));
            }
            Some(socket) => {
                let target = unix_target(config, socket, &path)?;
                if targets.insert(target.cluster.clone(), target).is_some() {
                    return Err(path.field("name").error("stands there twice").into());
                }
            }
        }
    }
    Ok((clusters, targets))
}

fn only_address(config: &pb::cluster::Cluster) -> Option<&pb::core::address::Address> {
    let [group] = config.load_assignment.as_ref()?.endpoints.as_slice() else {
        return None;
    };
    let [endpoint] = group.lb_endpoints.as_slice() else {
        return None;
    };
    match endpoint.host_identifier.as_ref()? {
        pb::endpoint::lb_endpoint::HostIdentifier::Endpoint(e) => e.address.as_ref()?.address.as_ref(),
        pb::endpoint::lb_endpoint::HostIdentifier::EndpointName(_) => None,
    }
}

fn pipe_of(config: &pb::cluster::Cluster) -> Option<&str> {
    match only_address(config)? {
        pb::core::address::Address::Pipe(pipe) => Some(&pipe.path),
        _ => None,
    }
}

/// A cluster behind a unix socket: checked like any other, with an address in the socket's place.
fn unix_target(config: &pb::cluster::Cluster, socket: &str, path: &Path<'_>) -> Result<GrpcTarget, ConfigErrors> {
    let mut findings = Vec::new();
    match check::decode(&ResourceKind::Cluster.type_url(), &config.encode_to_vec()) {
        Ok(message) => check::check(&message, path, &mut findings),
        Err(problem) => findings.push(path.error(problem)),
    }
    ConfigErrors::check(findings)?;
    let here = path.field("load_assignment");
    if socket.is_empty() || socket.starts_with('@') {
        return Err(here
            .error(format!("pipe {socket:?} is not the path of a unix socket"))
            .into());
    }
    let mut stand_in = config.clone();
    let endpoints = stand_in
        .load_assignment
        .iter_mut()
        .flat_map(|a| &mut a.endpoints)
        .flat_map(|g| &mut g.lb_endpoints);
    for endpoint in endpoints {
        if let Some(pb::endpoint::lb_endpoint::HostIdentifier::Endpoint(e)) = &mut endpoint.host_identifier {
            e.address = Some(loopback());
        }
    }
    let parts = decode::cluster(&stand_in, path)?;
    if !matches!(parts.cluster.transport, UpstreamTransport::Plain) || parts.cluster.http != UpstreamHttp::Http2 {
        let problem = "a cluster behind a unix socket can only carry discovery streams: it needs http2_protocol_options and no TLS";
        return Err(path.error(problem).into());
    }
    Ok(GrpcTarget {
        cluster: parts.cluster.name.clone(),
        address: TargetAddress::Unix(socket.into()),
        connect_timeout: parts.cluster.connect_timeout,
        authority: None,
    })
}

fn loopback() -> pb::core::Address {
    pb::core::Address {
        address: Some(pb::core::address::Address::SocketAddress(pb::core::SocketAddress {
            address: "127.0.0.1".into(),
            port_specifier: Some(pb::core::socket_address::PortSpecifier::PortValue(1)),
            ..Default::default()
        })),
    }
}

/// A cluster with one plain TCP endpoint and HTTP/2. Others are no targets; whether that is wrong shows when one is
/// referred to.
fn tcp_target(config: &pb::cluster::Cluster, path: &Path<'_>) -> Option<GrpcTarget> {
    only_address(config)?;
    let parts = decode::cluster(config, path).ok()?;
    let endpoint = parts.endpoints.as_ref()?.first()?.endpoints.first()?;
    let plain = matches!(parts.cluster.transport, UpstreamTransport::Plain);
    (plain && parts.cluster.http == UpstreamHttp::Http2 && !endpoint.address.ip().is_unspecified()).then(|| {
        GrpcTarget {
            cluster: parts.cluster.name.clone(),
            address: TargetAddress::Tcp(endpoint.address),
            connect_timeout: parts.cluster.connect_timeout,
            authority: None,
        }
    })
}

/// The target that an `ApiConfigSource` names.
fn ads_target(
    api: &pb::core::ApiConfigSource,
    targets: &HashMap<Arc<str>, GrpcTarget>,
    path: &Path<'_>,
) -> Result<GrpcTarget, ConfigError> {
    let (cluster, authority) = decode::api_source(api, path)?;
    let target = targets.get(&cluster).ok_or_else(|| not_a_target(&cluster, path))?;
    Ok(GrpcTarget {
        authority,
        ..target.clone()
    })
}

/// Why a cluster cannot carry discovery streams.
pub(crate) fn not_a_target(cluster: &str, path: &Path<'_>) -> ConfigError {
    path.error(format!(
        "{cluster:?} is no static cluster that can carry a discovery stream; it must stand in static_resources.clusters \
         with one endpoint, a unix socket or an IP address, with http2_protocol_options and without TLS"
    ))
}

fn from_ads(source: Option<&pb::core::ConfigSource>, has_ads: bool, path: &Path<'_>) -> Result<bool, ConfigError> {
    let Some(source) = source else { return Ok(false) };
    match decode::config_source(source, path)? {
        SecretSource::Ads if has_ads => Ok(true),
        SecretSource::Ads => Err(path.error("ads needs dynamic_resources.ads_config")),
        _ => Err(path.error("a stream of its own is not implemented; use ads")),
    }
}

fn admin(config: Option<&pb::bootstrap::Admin>, path: &Path<'_>) -> Result<Option<AdminAddress>, ConfigError> {
    let Some(config) = config else { return Ok(None) };
    #[expect(deprecated, reason = "old bootstraps set it to /dev/null, which is what happens")]
    let old_log = config.access_log_path.as_str();
    if !matches!(old_log, "" | "/dev/null") {
        return Err(path
            .field("access_log_path")
            .error("the admin interface keeps no log; remove it or set /dev/null"));
    }
    for (i, log) in config.access_log.iter().enumerate() {
        let here = path.item("access_log", i);
        let to_null =
            log.config_type
                .as_ref()
                .is_some_and(|pb::accesslog::access_log::ConfigType::TypedConfig(any)| {
                    pb::file_log::FileAccessLog::decode(any.value.as_slice()).is_ok_and(|f| f.path == "/dev/null")
                });
        if !to_null {
            return Err(here.error("the admin interface keeps no log; remove it"));
        }
    }
    let here = path.field("address");
    match config.address.as_ref().and_then(|a| a.address.as_ref()) {
        None => Ok(None),
        Some(pb::core::address::Address::Pipe(pipe)) => Ok(Some(AdminAddress::Unix(pipe.path.clone().into()))),
        Some(_) => decode::socket_address(config.address.as_ref(), &here).map(|a| Some(AdminAddress::Tcp(a))),
    }
}
