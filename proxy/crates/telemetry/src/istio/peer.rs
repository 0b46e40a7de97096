//! Who is at the other end: workload names from metadata exchange, endpoint metadata or the SPIFFE identity.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use prost::Message as _;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

/// Longest `x-envoy-peer-metadata` header that is looked at, in bytes. Istio's are below 2 KiB.
pub const MAX_HEADER: usize = 16 * 1024;

/// Longest name kept, in bytes; Kubernetes names have 253 at most.
const MAX_NAME: usize = 253;

/// Names of a workload. Empty fields are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerMetadata {
    /// Workload, such as a deployment's name.
    pub workload: String,
    /// Its namespace.
    pub namespace: String,
    /// Canonical service (`service.istio.io/canonical-name`).
    pub canonical_service: String,
    /// Canonical revision (`service.istio.io/canonical-revision`).
    pub canonical_revision: String,
    /// Label `app`.
    pub app: String,
    /// Label `version`.
    pub version: String,
    /// Cluster that it runs in.
    pub cluster: String,
}

fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_NAME)].to_owned()
}

impl PeerMetadata {
    /// Whether nothing is known.
    pub fn is_unknown(&self) -> bool {
        *self == Self::default()
    }

    /// From a node's metadata (`node.metadata` of the bootstrap).
    pub fn from_node(metadata: &serde_json::Value) -> Self {
        let text = |key: &str| {
            metadata
                .get(key)
                .and_then(|v| v.as_str())
                .map(bounded)
                .unwrap_or_default()
        };
        let labels = metadata.get("LABELS");
        let label = |key: &str| {
            labels
                .and_then(|l| l.get(key))
                .and_then(|v| v.as_str())
                .map(bounded)
                .unwrap_or_default()
        };
        let peer = Self {
            workload: text("WORKLOAD_NAME"),
            namespace: text("NAMESPACE"),
            canonical_service: label("service.istio.io/canonical-name"),
            canonical_revision: label("service.istio.io/canonical-revision"),
            app: label("app"),
            version: label("version"),
            cluster: text("CLUSTER_ID"),
        };
        peer.completed()
    }

    /// From an endpoint's `workload` metadata: `name;namespace;canonical name;canonical revision;cluster`.
    pub fn from_endpoint(workload: &str) -> Self {
        let mut parts = workload.split(';').map(bounded);
        let mut next = || parts.next().unwrap_or_default();
        let peer = Self {
            workload: next(),
            namespace: next(),
            canonical_service: next(),
            canonical_revision: next(),
            cluster: next(),
            ..Self::default()
        };
        peer.completed()
    }

    /// What a SPIFFE identity tells: the namespace of `spiffe://domain/ns/NAMESPACE/sa/ACCOUNT`.
    pub fn from_spiffe(identity: &str) -> Self {
        let mut parts = identity.strip_prefix("spiffe://").unwrap_or("").split('/').skip(1);
        let namespace = match (parts.next(), parts.next()) {
            (Some("ns"), Some(namespace)) => bounded(namespace),
            _ => String::new(),
        };
        Self {
            namespace,
            ..Self::default()
        }
    }

    /// What can be told of a workload that has not introduced itself: the endpoint's `workload` metadata, and what its
    /// certificate proves (the SPIFFE identity, and the cluster that issued it). An endpoint behind another cluster's
    /// gateway says no more than `;;;;cluster`, as in Istio, where the gateway may stand for any workload.
    pub fn derived(endpoint: Option<&str>, identity: Option<&str>, cluster: Option<&str>) -> Self {
        let mut peer = endpoint.map(Self::from_endpoint).unwrap_or_default();
        if let Some(identity) = identity
            && peer.namespace.is_empty()
        {
            peer.namespace = Self::from_spiffe(identity).namespace;
        }
        if let Some(cluster) = cluster {
            peer.cluster = bounded(cluster);
        }
        peer
    }

    /// From the value of `x-envoy-peer-metadata`. None when it is not what Istio's proxies send: a peer may send
    /// anything, so this is never trusted for more than labels.
    pub fn from_header(value: &str) -> Option<Self> {
        if value.len() > MAX_HEADER {
            return None;
        }
        let bytes = STANDARD.decode(value).or_else(|_| STANDARD_NO_PAD.decode(value)).ok()?;
        let fields = Struct::decode(bytes.as_slice()).ok()?;
        let text = |fields: &Struct, key: &str| match fields.fields.get(key).and_then(|v| v.kind.as_ref()) {
            Some(Kind::StringValue(text)) => bounded(text),
            _ => String::new(),
        };
        let none = Struct::default();
        let labels = match fields.fields.get("LABELS").and_then(|v| v.kind.as_ref()) {
            Some(Kind::StructValue(labels)) => labels,
            _ => &none,
        };
        let peer = Self {
            workload: text(&fields, "WORKLOAD_NAME"),
            namespace: text(&fields, "NAMESPACE"),
            canonical_service: text(labels, "service.istio.io/canonical-name"),
            canonical_revision: text(labels, "service.istio.io/canonical-revision"),
            app: text(labels, "app"),
            version: text(labels, "version"),
            cluster: text(&fields, "CLUSTER_ID"),
        };
        (!peer.is_unknown()).then(|| peer.completed())
    }

    /// The value to send as `x-envoy-peer-metadata`. Made once, not per request.
    pub fn to_header(&self) -> String {
        let text = |text: &str| Value {
            kind: Some(Kind::StringValue(text.to_owned())),
        };
        let of = |pairs: &[(&str, &str)]| Struct {
            fields: pairs
                .iter()
                .filter(|(_, value)| !value.is_empty())
                .map(|(key, value)| ((*key).to_owned(), text(value)))
                .collect(),
        };
        let labels = of(&[
            ("app", &self.app),
            ("version", &self.version),
            ("service.istio.io/canonical-name", &self.canonical_service),
            ("service.istio.io/canonical-revision", &self.canonical_revision),
        ]);
        let mut fields = of(&[
            ("WORKLOAD_NAME", &self.workload),
            ("NAMESPACE", &self.namespace),
            ("CLUSTER_ID", &self.cluster),
        ]);
        fields.fields.insert(
            "LABELS".to_owned(),
            Value {
                kind: Some(Kind::StructValue(labels)),
            },
        );
        STANDARD.encode(fields.encode_to_vec())
    }

    /// Istio's fallbacks: the canonical service is the workload, its revision `latest`; app and version follow them.
    fn completed(mut self) -> Self {
        let or = |field: &mut String, fallback: &str| {
            if field.is_empty() {
                fallback.clone_into(field);
            }
        };
        or(&mut self.canonical_service, &self.workload);
        if !self.canonical_service.is_empty() {
            or(&mut self.canonical_revision, "latest");
            or(&mut self.app, &self.canonical_service);
            or(&mut self.version, &self.canonical_revision);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trip() {
        let peer = PeerMetadata {
            workload: "cart-v1".into(),
            namespace: "shop".into(),
            canonical_service: "cart".into(),
            canonical_revision: "v1".into(),
            app: "cart".into(),
            version: "v1".into(),
            cluster: "cluster1".into(),
        };
        assert_eq!(PeerMetadata::from_header(&peer.to_header()), Some(peer));
    }

    #[test]
    fn hostile_headers() {
        for value in ["", "%%%", "AAAA", "CgA=", &"A".repeat(MAX_HEADER + 4)] {
            assert_eq!(
                PeerMetadata::from_header(value),
                None,
                "{}",
                &value[..value.len().min(10)]
            );
        }
        let long = PeerMetadata {
            workload: "ä".repeat(500),
            ..PeerMetadata::default()
        };
        let read = PeerMetadata::from_header(&long.to_header()).expect("metadata");
        assert_eq!(read.workload, "ä".repeat(126));
    }

    #[test]
    fn endpoint_node_and_identity() {
        let peer = PeerMetadata::from_endpoint("cart-v1;shop;cart;v1;c1");
        assert_eq!(
            (peer.workload.as_str(), peer.app.as_str(), peer.version.as_str()),
            ("cart-v1", "cart", "v1")
        );
        assert_eq!(peer.cluster, "c1");
        let node = serde_json::json!({"WORKLOAD_NAME": "w", "NAMESPACE": "n", "LABELS": {"app": "a"}});
        let peer = PeerMetadata::from_node(&node);
        assert_eq!(
            (peer.canonical_service.as_str(), peer.canonical_revision.as_str()),
            ("w", "latest")
        );
        assert_eq!(peer.app, "a");
        assert_eq!(
            PeerMetadata::from_spiffe("spiffe://td/ns/shop/sa/cart").namespace,
            "shop"
        );
        assert!(PeerMetadata::from_spiffe("spiffe://td/other").is_unknown());
    }

    #[test]
    fn behind_a_gateway() {
        let cart = Some("spiffe://td/ns/shop/sa/cart");
        let names = |peer: PeerMetadata| [peer.workload, peer.namespace, peer.canonical_service, peer.cluster];
        let gateway = Some(";;;;c2");
        assert_eq!(names(PeerMetadata::derived(gateway, None, None)), ["", "", "", "c2"]);
        assert_eq!(
            names(PeerMetadata::derived(gateway, cart, None)),
            ["", "shop", "", "c2"]
        );
        // A certificate proves what metadata only says.
        assert_eq!(
            names(PeerMetadata::derived(gateway, cart, Some("c3"))),
            ["", "shop", "", "c3"]
        );
        assert_eq!(
            names(PeerMetadata::derived(Some("w;n;s;v1;c1"), cart, Some("c1"))),
            ["w", "n", "s", "c1"]
        );
        assert_eq!(
            names(PeerMetadata::derived(None, cart, Some("c1"))),
            ["", "shop", "", "c1"]
        );
        assert!(PeerMetadata::derived(None, None, None).is_unknown());
    }
}
