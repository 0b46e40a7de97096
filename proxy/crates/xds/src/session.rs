//! The protocol of one discovery stream, without a network.

use std::collections::{BTreeMap, BTreeSet};

use heddle_api::envoy::config::core::v3::Node;
use heddle_api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use heddle_api::google::rpc::{ResourceInfo, Status};
use heddle_config::{Refusal, Resource, ResourceKind, SecretSource, Update};
use prost::Message;
use prost_types::Any;

/// gRPC's INVALID_ARGUMENT: the code of a NACK.
const INVALID_ARGUMENT: i32 = 3;

/// The client feature of a proxy that asks for the listeners of all destinations that it has connections for.
const ON_DEMAND: &str = "heddle.on_demand";

/// Longest error text in a NACK; controllers keep it in a status.
const MAX_ERROR: usize = 4096;

/// Most refused resources that a NACK names, and bytes of their names. When there are more it names none, and the server takes all
/// to be refused.
const MAX_NAMED: usize = 1000;
const MAX_NAMED_BYTES: usize = 256 << 10;

/// What became of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is in force.
    Taken,
    /// It is in force but for the resources that the refusal names: what was there of them stays.
    TakenBut(Refusal),
    /// Nothing of it is in force, for this reason.
    Refused(String),
}

/// What a stream should ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Kinds of which everything is asked for.
    pub wildcard: BTreeSet<ResourceKind>,
    /// Kinds that are asked for by name. Names of a kind that everything is asked for of are asked for besides: the server
    /// answers each, also one that it has nothing for.
    pub names: BTreeMap<ResourceKind, BTreeSet<String>>,
    /// Listeners are asked for by the destinations of connections: the next stream says so, in the node's client features.
    pub on_demand: bool,
}

/// A response that waits for its verdict.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// What it changes.
    pub update: Update,
    nonce: String,
    type_url: String,
}

#[derive(Debug, Default)]
struct Subscription {
    wildcard: bool,
    wanted: BTreeSet<String>,
    /// What the server has been told on this stream; `None` before the first request.
    told: Option<BTreeSet<String>>,
    /// Versions of what was accepted, kept over streams.
    versions: BTreeMap<String, String>,
}

impl Subscription {
    fn is_needed(&self) -> bool {
        // A first request without names would mean "everything".
        self.wildcard || !self.wanted.is_empty()
    }
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    source: SecretSource,
    node: Node,
    connected: bool,
    introduced: bool,
    subscriptions: BTreeMap<ResourceKind, Subscription>,
}

impl Session {
    /// A session that is not connected. `source` is where the secrets of this stream come from.
    pub fn new(source: SecretSource, node: Node) -> Self {
        Self {
            source,
            node,
            connected: false,
            introduced: false,
            subscriptions: BTreeMap::new(),
        }
    }

    /// A new stream is open: what to send on it, kinds in the order in which they depend on each other.
    pub fn connected(&mut self) -> Vec<DeltaDiscoveryRequest> {
        self.connected = true;
        self.introduced = false;
        for subscription in self.subscriptions.values_mut() {
            subscription.told = None;
        }
        self.pending()
    }

    /// The stream is gone. Versions stay: the next one begins with them.
    pub fn disconnected(&mut self) {
        self.connected = false;
    }

    /// Other things are wanted: what to send, which is nothing while there is no stream.
    pub fn want(&mut self, wanted: &Wanted) -> Vec<DeltaDiscoveryRequest> {
        self.node.client_features.retain(|feature| feature != ON_DEMAND);
        if wanted.on_demand {
            self.node.client_features.push(ON_DEMAND.to_owned());
        }
        for kind in &wanted.wildcard {
            self.subscriptions.entry(*kind).or_default().wildcard = true;
        }
        for (kind, names) in &wanted.names {
            let subscription = self.subscriptions.entry(*kind).or_default();
            if !subscription.wildcard {
                subscription.versions.retain(|name, _| names.contains(name));
            }
            subscription.wanted.clone_from(names);
        }
        self.pending()
    }

    /// A response has come. `Err` is the NACK for one that nobody asked for.
    pub fn response(&self, response: DeltaDiscoveryResponse) -> Result<Incoming, Box<DeltaDiscoveryRequest>> {
        let kind = ResourceKind::from_type_url(&response.type_url);
        let Some(kind) = kind.filter(|k| self.subscriptions.get(k).is_some_and(|s| s.told.is_some())) else {
            let problem = format!("{:?} was not asked for on this stream", response.type_url);
            return Err(Box::new(nack(response.type_url, response.nonce, &problem, Vec::new())));
        };
        // A resource without a body is a heartbeat: it says that nothing has changed.
        let resources = response.resources.into_iter().filter_map(|r| {
            Some(Resource {
                name: r.name,
                version: r.version,
                body: r.resource?,
            })
        });
        let source = if kind == ResourceKind::Secret {
            self.source.clone()
        } else {
            SecretSource::Ads
        };
        let update = Update {
            kind,
            source,
            resources: resources.collect(),
            removed: response.removed_resources,
        };
        Ok(Incoming {
            update,
            nonce: response.nonce,
            type_url: response.type_url,
        })
    }

    /// The answer to a response: the ACK or NACK. Versions are those of what is in force, so that the server knows on the next
    /// stream, too, what the proxy has. What was refused of a response may be in force in part, such as a route table without a
    /// virtual host: it has no version that the server knows, and is sent again then, or removed.
    pub fn answer(&mut self, incoming: Incoming, verdict: &Verdict) -> DeltaDiscoveryRequest {
        let Incoming {
            update,
            nonce,
            type_url,
        } = incoming;
        let error = match verdict {
            Verdict::Taken => None,
            Verdict::TakenBut(refusal) => Some((refusal.to_string(), details(&type_url, refusal))),
            Verdict::Refused(problem) => Some((problem.clone(), Vec::new())),
        };
        let refused = |name: &String| matches!(verdict, Verdict::TakenBut(refusal) if refusal.names().contains(name));
        let subscription = self.subscriptions.entry(update.kind).or_default();
        if !matches!(verdict, Verdict::Refused(_)) {
            for name in update.removed.iter().filter(|name| !refused(name)) {
                subscription.versions.remove(name);
            }
            for resource in update.resources {
                // What was unsubscribed meanwhile is not reported on the next stream.
                if subscription.wildcard || subscription.wanted.contains(&resource.name) {
                    let version = if refused(&resource.name) {
                        String::new()
                    } else {
                        resource.version
                    };
                    subscription.versions.insert(resource.name, version);
                }
            }
        }
        match error {
            Some((problem, details)) => nack(type_url, nonce, &problem, details),
            None => DeltaDiscoveryRequest {
                type_url,
                response_nonce: nonce,
                ..DeltaDiscoveryRequest::default()
            },
        }
    }

    /// Requests that bring what the server has been told up to what is wanted.
    fn pending(&mut self) -> Vec<DeltaDiscoveryRequest> {
        let mut out = Vec::new();
        if !self.connected {
            return out;
        }
        for (kind, subscription) in &mut self.subscriptions {
            let mut request = DeltaDiscoveryRequest {
                type_url: kind.type_url(),
                ..DeltaDiscoveryRequest::default()
            };
            match &subscription.told {
                None if !subscription.is_needed() => continue,
                None => {
                    // Names beside everything, which then has to be said.
                    let everything = (subscription.wildcard && !subscription.wanted.is_empty()).then(|| "*".to_owned());
                    request.resource_names_subscribe = everything
                        .into_iter()
                        .chain(subscription.wanted.iter().cloned())
                        .collect();
                    request.initial_resource_versions = subscription.versions.clone().into_iter().collect();
                }
                Some(told) if *told == subscription.wanted => continue,
                Some(told) => {
                    request.resource_names_subscribe = subscription.wanted.difference(told).cloned().collect();
                    request.resource_names_unsubscribe = told.difference(&subscription.wanted).cloned().collect();
                }
            }
            subscription.told = Some(subscription.wanted.clone());
            if !std::mem::replace(&mut self.introduced, true) {
                request.node = Some(self.node.clone());
            }
            out.push(request);
        }
        out
    }
}

/// The refused resources for programs to read, one `google.rpc.ResourceInfo` each.
fn details(type_url: &str, refusal: &Refusal) -> Vec<Any> {
    let bytes: usize = refusal.names().iter().map(String::len).sum();
    if refusal.names().len() > MAX_NAMED || bytes > MAX_NAMED_BYTES {
        return Vec::new();
    }
    let one = |name: &String| Any {
        type_url: format!("{}google.rpc.ResourceInfo", heddle_api::TYPE_URL_PREFIX),
        value: ResourceInfo {
            resource_type: type_url.to_owned(),
            resource_name: name.clone(),
            ..ResourceInfo::default()
        }
        .encode_to_vec(),
    };
    refusal.names().iter().map(one).collect()
}

fn nack(type_url: String, nonce: String, problem: &str, details: Vec<Any>) -> DeltaDiscoveryRequest {
    let mut message = problem.to_owned();
    if message.len() > MAX_ERROR {
        let end = (0..=MAX_ERROR)
            .rev()
            .find(|i| message.is_char_boundary(*i))
            .unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
    DeltaDiscoveryRequest {
        type_url,
        response_nonce: nonce,
        error_detail: Some(Status {
            code: INVALID_ARGUMENT,
            message,
            details,
        }),
        ..DeltaDiscoveryRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_api::envoy::service::discovery::v3::Resource as Sent;
    use heddle_config::{Bootstrap, Builder, Options};

    fn session() -> Session {
        Session::new(
            SecretSource::Ads,
            Node {
                id: "n".into(),
                ..Node::default()
            },
        )
    }

    fn wanted(wildcard: &[ResourceKind], names: &[(ResourceKind, &[&str])]) -> Wanted {
        Wanted {
            wildcard: wildcard.iter().copied().collect(),
            names: names
                .iter()
                .map(|(k, n)| (*k, n.iter().map(|s| (*s).to_owned()).collect()))
                .collect(),
            on_demand: false,
        }
    }

    fn response(
        kind: ResourceKind,
        nonce: &str,
        resources: &[(&str, &str)],
        removed: &[&str],
    ) -> DeltaDiscoveryResponse {
        DeltaDiscoveryResponse {
            type_url: kind.type_url(),
            nonce: nonce.into(),
            resources: resources
                .iter()
                .map(|(name, version)| Sent {
                    name: (*name).into(),
                    version: (*version).into(),
                    resource: Some(prost_types::Any {
                        type_url: kind.type_url(),
                        value: Vec::new(),
                    }),
                    ..Sent::default()
                })
                .collect(),
            removed_resources: removed.iter().map(|s| (*s).to_owned()).collect(),
            ..DeltaDiscoveryResponse::default()
        }
    }

    fn kinds(requests: &[DeltaDiscoveryRequest]) -> Vec<ResourceKind> {
        requests
            .iter()
            .filter_map(|r| ResourceKind::from_type_url(&r.type_url))
            .collect()
    }

    use ResourceKind::{Cluster, Endpoints, Listener, Route, Secret};

    #[test]
    fn first_requests_come_in_order_and_the_node_once() {
        let mut s = session();
        assert!(
            s.want(&wanted(&[Listener, Cluster], &[(Route, &["r"]), (Endpoints, &["e"])]))
                .is_empty()
        );
        let requests = s.connected();
        assert_eq!(kinds(&requests), [Cluster, Endpoints, Listener, Route]);
        let with_node: Vec<bool> = requests.iter().map(|r| r.node.is_some()).collect();
        assert_eq!(with_node, [true, false, false, false]);
        assert!(requests[0].resource_names_subscribe.is_empty(), "wildcard");
        assert_eq!(requests[1].resource_names_subscribe, ["e"]);
    }

    #[test]
    fn a_kind_without_names_is_not_asked_for() {
        let mut s = session();
        s.connected();
        assert!(s.want(&wanted(&[], &[(Endpoints, &[]), (Secret, &[])])).is_empty());
    }

    #[test]
    fn changes_of_names_are_told_as_differences() {
        let mut s = session();
        s.connected();
        s.want(&wanted(&[], &[(Endpoints, &["a", "b"])]));
        let requests = s.want(&wanted(&[], &[(Endpoints, &["b", "c"])]));
        assert_eq!(requests.len(), 1);
        assert_eq!(requests[0].resource_names_subscribe, ["c"]);
        assert_eq!(requests[0].resource_names_unsubscribe, ["a"]);
        assert!(s.want(&wanted(&[], &[(Endpoints, &["b", "c"])])).is_empty());
    }

    #[test]
    fn names_beside_everything_are_told() {
        let mut s = session();
        s.connected();
        let first = s.want(&wanted(&[Listener], &[]));
        assert!(first[0].resource_names_subscribe.is_empty(), "everything");
        let incoming = s
            .response(response(Listener, "1", &[("l", "1")], &[]))
            .expect("asked for");
        s.answer(incoming, &Verdict::Taken);
        let more = s.want(&wanted(&[Listener], &[(Listener, &["10.0.0.1_80"])]));
        assert_eq!(more[0].resource_names_subscribe, ["10.0.0.1_80"]);
        s.disconnected();
        let again = s.connected();
        assert_eq!(again[0].resource_names_subscribe, ["*", "10.0.0.1_80"]);
        assert_eq!(
            again[0].initial_resource_versions,
            [("l".to_owned(), "1".to_owned())].into(),
            "what everything brought is known still"
        );
    }

    #[test]
    fn a_proxy_that_asks_on_demand_says_so_on_its_next_stream() {
        let mut s = session();
        let demanding = Wanted {
            on_demand: true,
            ..wanted(&[Listener], &[])
        };
        s.want(&wanted(&[Listener], &[]));
        let features = |requests: &[DeltaDiscoveryRequest]| requests[0].node.clone().expect("a node").client_features;
        assert!(features(&s.connected()).is_empty());
        assert!(s.want(&demanding).is_empty(), "nothing to send on this one");
        s.disconnected();
        assert_eq!(features(&s.connected()), ["heddle.on_demand"]);
        s.want(&wanted(&[Listener], &[]));
        s.disconnected();
        assert!(features(&s.connected()).is_empty());
    }

    #[test]
    fn ack_carries_the_nonce_and_nothing_else() {
        let mut s = session();
        s.want(&wanted(&[Cluster], &[]));
        s.connected();
        let incoming = s
            .response(response(Cluster, "n1", &[("c", "1")], &[]))
            .expect("asked for");
        assert_eq!(incoming.update.resources[0].name, "c");
        let ack = s.answer(incoming, &Verdict::Taken);
        assert_eq!((ack.response_nonce.as_str(), ack.error_detail), ("n1", None));
    }

    /// What a proxy refuses of clusters that are no messages.
    fn refused(names: &[&str]) -> Refusal {
        let bootstrap = Bootstrap::parse(["{}"], &Options::default()).expect("a bootstrap");
        let mut builder = Builder::new(&bootstrap, Box::new(|_| Ok(()))).expect("a builder");
        let wrong = |name: &&str| Resource {
            name: (*name).to_owned(),
            version: "1".into(),
            body: Any {
                type_url: Cluster.type_url(),
                value: vec![0xff],
            },
        };
        builder
            .apply(Update {
                kind: Cluster,
                source: SecretSource::Ads,
                resources: names.iter().map(wrong).collect(),
                removed: Vec::new(),
            })
            .expect_err("refused")
    }

    #[test]
    fn a_nack_names_what_was_refused_and_the_rest_counts_as_accepted() {
        let mut s = session();
        s.want(&wanted(&[Cluster], &[]));
        s.connected();
        let first = response(Cluster, "1", &[("x", "1"), ("y", "1"), ("z", "1")], &[]);
        let incoming = s.response(first).expect("asked for");
        s.answer(incoming, &Verdict::Taken);
        let second = response(Cluster, "2", &[("w", "2"), ("x", "2"), ("y", "2")], &["z"]);
        let incoming = s.response(second).expect("asked for");
        let nack = s.answer(incoming, &Verdict::TakenBut(refused(&["w", "x"])));
        let error = nack.error_detail.expect("a NACK");
        assert!(error.message.starts_with("clusters[w]: "), "{}", error.message);
        let named = error.details.iter().map(|any| {
            assert_eq!(any.type_url, "type.googleapis.com/google.rpc.ResourceInfo");
            ResourceInfo::decode(any.value.as_slice()).expect("a ResourceInfo")
        });
        let named: Vec<_> = named.map(|info| (info.resource_type, info.resource_name)).collect();
        assert_eq!(named, ["w", "x"].map(|name| (Cluster.type_url(), name.to_owned())));
        let known = s.connected()[0].initial_resource_versions.clone();
        let in_force = [("w", ""), ("x", ""), ("y", "2")].map(|(name, version)| (name.to_owned(), version.to_owned()));
        assert_eq!(known, in_force.into());
    }

    #[test]
    fn a_nack_of_very_many_names_none() {
        let names: Vec<String> = (0..=MAX_NAMED).map(|i| format!("c{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let kind = Cluster.type_url();
        assert_eq!(details(&kind, &refused(&names[1..])).len(), MAX_NAMED);
        assert!(details(&kind, &refused(&names)).is_empty());
        let long = "n".repeat(MAX_NAMED_BYTES);
        assert_eq!(details(&kind, &refused(&[&long])).len(), 1);
        assert!(details(&kind, &refused(&[&long, "n"])).is_empty());
    }

    #[test]
    fn a_new_stream_begins_with_accepted_versions_only() {
        let mut s = session();
        s.want(&wanted(&[Cluster], &[(Endpoints, &["a", "b"])]));
        s.connected();
        for (nonce, resources, removed, good) in [
            ("1", vec![("x", "1"), ("y", "1")], vec![], true),
            ("2", vec![("x", "2")], vec![], false),
            ("3", vec![], vec!["y"], true),
        ] {
            let incoming = s
                .response(response(Cluster, nonce, &resources, &removed))
                .expect("asked for");
            if good {
                drop(s.answer(incoming, &Verdict::Taken))
            } else {
                drop(s.answer(incoming, &Verdict::Refused("no".to_owned())))
            }
        }
        let incoming = s
            .response(response(Endpoints, "4", &[("a", "7"), ("b", "7")], &[]))
            .expect("asked for");
        s.answer(incoming, &Verdict::Taken);
        s.disconnected();
        assert!(
            s.want(&wanted(&[Cluster], &[(Endpoints, &["b"])])).is_empty(),
            "no stream"
        );
        let requests = s.connected();
        assert!(requests[0].node.is_some(), "a new stream begins with the node");
        assert_eq!(
            requests[0].initial_resource_versions,
            [("x".to_owned(), "1".to_owned())].into()
        );
        assert_eq!(requests[1].resource_names_subscribe, ["b"]);
        assert_eq!(
            requests[1].initial_resource_versions,
            [("b".to_owned(), "7".to_owned())].into()
        );
    }

    #[test]
    fn nack_says_why_within_bounds() {
        let mut s = session();
        s.want(&wanted(&[Listener], &[]));
        s.connected();
        let incoming = s
            .response(response(Listener, "n", &[("l", "1")], &[]))
            .expect("asked for");
        let nack = s.answer(incoming, &Verdict::Refused("é".repeat(MAX_ERROR)));
        let detail = nack.error_detail.expect("a reason");
        assert_eq!((nack.response_nonce.as_str(), detail.code), ("n", INVALID_ARGUMENT));
        assert!(detail.message.len() <= MAX_ERROR + '…'.len_utf8());
    }

    #[test]
    fn what_was_not_asked_for_is_refused() {
        let mut s = session();
        s.want(&wanted(&[Cluster], &[]));
        s.connected();
        let nack = s
            .response(response(Listener, "n", &[], &[]))
            .expect_err("not asked for");
        assert!(
            nack.error_detail
                .expect("a reason")
                .message
                .contains("was not asked for")
        );
        let other = DeltaDiscoveryResponse {
            type_url: "a/b.C".into(),
            nonce: "m".into(),
            ..Default::default()
        };
        assert_eq!(s.response(other).expect_err("unknown").response_nonce, "m");
    }

    #[test]
    fn heartbeats_change_nothing() {
        let mut s = session();
        s.want(&wanted(&[Cluster], &[]));
        s.connected();
        let mut beat = response(Cluster, "n", &[("c", "1")], &[]);
        beat.resources[0].resource = None;
        assert!(s.response(beat).expect("asked for").update.resources.is_empty());
    }
}
