//! The discovery streams that the configuration needs, and what each should ask for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use heddle_config::{Bootstrap, Builder, GrpcTarget, ResourceKind, SecretSource};
use heddle_telemetry::Stats;
use heddle_xds::{Backoff, ClientParams, Delivery, Service, Session, StreamStats, Wanted, run};
use tokio::sync::{mpsc, watch};

/// Keeps one stream to the aggregated server, and one to each cluster that secrets are asked from.
pub(crate) struct Discovery {
    node: heddle_api::envoy::config::core::v3::Node,
    targets: HashMap<Arc<str>, GrpcTarget>,
    ads: Option<GrpcTarget>,
    dynamic_clusters: bool,
    dynamic_listeners: bool,
    updates: mpsc::Sender<Delivery>,
    stats: Stats,
    aggregated: Option<watch::Sender<Wanted>>,
    secrets: BTreeMap<Arc<str>, watch::Sender<Wanted>>,
    ask_for_listeners: bool,
    on_demand: BTreeSet<String>,
}

impl Discovery {
    /// No stream is open yet. `stats` belongs to this thread.
    pub(crate) fn new(bootstrap: &Bootstrap, stats: Stats, updates: mpsc::Sender<Delivery>) -> Self {
        Self {
            node: bootstrap.node_message.clone(),
            targets: bootstrap.targets.clone(),
            ads: bootstrap.ads.clone(),
            dynamic_clusters: bootstrap.dynamic_clusters,
            dynamic_listeners: bootstrap.dynamic_listeners,
            updates,
            stats,
            aggregated: None,
            secrets: BTreeMap::new(),
            ask_for_listeners: false,
            on_demand: BTreeSet::new(),
        }
    }

    /// Listeners that are asked for by name from now on, beside all others; see [`Discovery::follow`].
    pub(crate) fn demand(&mut self, listeners: BTreeSet<String>) {
        self.on_demand = listeners;
    }

    /// Brings the streams up to what the configuration refers to now. Listeners are asked for only when the first
    /// clusters are warm, or `hurry` says that it took too long: a listener that comes before its clusters would
    /// answer 503.
    pub(crate) fn follow(&mut self, builder: &Builder, hurry: bool) {
        let subscriptions = builder.subscriptions();
        self.ask_for_listeners |=
            hurry || !self.dynamic_clusters || (builder.has_clusters() && builder.clusters_are_warm());
        let mut secrets = subscriptions.secrets;
        if let Some(target) = self.ads.clone() {
            let mut wanted = Wanted {
                on_demand: builder.is_on_demand(),
                ..Wanted::default()
            };
            if self.dynamic_clusters {
                wanted.wildcard.insert(ResourceKind::Cluster);
            }
            if self.dynamic_listeners && self.ask_for_listeners {
                wanted.wildcard.insert(ResourceKind::Listener);
                wanted.names.insert(ResourceKind::Listener, self.on_demand.clone());
            }
            wanted.names.insert(ResourceKind::Endpoints, subscriptions.endpoints);
            wanted.names.insert(ResourceKind::Route, subscriptions.routes);
            wanted.names.insert(
                ResourceKind::Secret,
                secrets.remove(&SecretSource::Ads).unwrap_or_default(),
            );
            match &self.aggregated {
                Some(stream) => tell(stream, wanted),
                None => self.aggregated = Some(self.open(target, SecretSource::Ads, wanted)),
            }
        }
        let clusters: BTreeMap<Arc<str>, BTreeSet<String>> = secrets
            .into_iter()
            .filter_map(|(source, names)| match source {
                SecretSource::Cluster(cluster) => Some((cluster, names)),
                SecretSource::Ads | SecretSource::Static => None,
            })
            .collect();
        // Dropping the sender ends the stream.
        self.secrets.retain(|cluster, _| clusters.contains_key(cluster));
        for (cluster, names) in clusters {
            let wanted = Wanted {
                names: BTreeMap::from([(ResourceKind::Secret, names)]),
                ..Wanted::default()
            };
            if let Some(stream) = self.secrets.get(&cluster) {
                tell(stream, wanted);
            } else if let Some(target) = self.targets.get(&cluster).cloned() {
                let stream = self.open(target, SecretSource::Cluster(cluster.clone()), wanted);
                self.secrets.insert(cluster, stream);
            }
        }
    }

    fn open(&self, target: GrpcTarget, source: SecretSource, wanted: Wanted) -> watch::Sender<Wanted> {
        let aggregated = source == SecretSource::Ads;
        let (sender, receiver) = watch::channel(wanted);
        tokio::task::spawn_local(run(ClientParams {
            stats: StreamStats::new(&self.stats, &target.cluster, aggregated),
            target,
            service: if aggregated {
                Service::Aggregated
            } else {
                Service::Secrets
            },
            session: Session::new(source, self.node.clone()),
            updates: self.updates.clone(),
            wanted: receiver,
            backoff: Backoff::default(),
        }));
        sender
    }
}

fn tell(stream: &watch::Sender<Wanted>, wanted: Wanted) {
    stream.send_if_modified(|current| {
        let differs = *current != wanted;
        *current = wanted;
        differs
    });
}
