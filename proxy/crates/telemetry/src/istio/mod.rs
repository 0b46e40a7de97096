//! Istio's standard metrics, with its names and labels, so that its dashboards work.

mod peer;
mod request;
mod tcp;

pub use peer::{MAX_HEADER, PeerMetadata};
pub use request::{RequestMetrics, RequestReport, RequestSeries};
pub use tcp::{TcpConnectionMetrics, TcpMetrics, TcpReport};

use std::hash::{BuildHasher, Hash};

/// Most label sets whose handles one worker keeps at hand, and of those of before.
const MAX_CACHED: usize = 4096;

/// Which side of a call reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reporter {
    /// The caller's sidecar, or a gateway.
    Source,
    /// The callee's sidecar.
    Destination,
}

impl Reporter {
    fn label(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
        }
    }
}

/// Both ends of a call, as labels.
#[derive(Clone, Copy, Debug)]
pub struct CallParties<'a> {
    /// The workload at the other end.
    pub peer: &'a PeerMetadata,
    /// Identity of the caller, when mutual TLS told it.
    pub source_principal: Option<&'a str>,
    /// Identity of the callee, when mutual TLS told it.
    pub destination_principal: Option<&'a str>,
    /// Host name of the service called, such as `cart.shop.svc.cluster.local`.
    pub service: &'a str,
    /// Its name, such as `cart`.
    pub service_name: &'a str,
    /// Its namespace.
    pub service_namespace: &'a str,
    /// Whether the connection was mutual TLS; a source reports `unknown`, as Istio does.
    pub mutual_tls: bool,
}

impl CallParties<'_> {
    fn hash_into(&self, hasher: &mut impl std::hash::Hasher) {
        self.peer.hash(hasher);
        self.source_principal.hash(hasher);
        self.destination_principal.hash(hasher);
        self.service.hash(hasher);
        self.service_name.hash(hasher);
        self.service_namespace.hash(hasher);
        self.mutual_tls.hash(hasher);
    }
}

/// [`CallParties`] kept by a cache entry.
#[derive(Debug)]
struct OwnedParties {
    peer: PeerMetadata,
    source_principal: Option<Box<str>>,
    destination_principal: Option<Box<str>>,
    service: Box<str>,
    service_name: Box<str>,
    service_namespace: Box<str>,
    mutual_tls: bool,
}

impl OwnedParties {
    fn of(parties: &CallParties<'_>) -> Self {
        Self {
            peer: parties.peer.clone(),
            source_principal: parties.source_principal.map(Box::from),
            destination_principal: parties.destination_principal.map(Box::from),
            service: parties.service.into(),
            service_name: parties.service_name.into(),
            service_namespace: parties.service_namespace.into(),
            mutual_tls: parties.mutual_tls,
        }
    }

    fn is(&self, parties: &CallParties<'_>) -> bool {
        self.peer == *parties.peer
            && self.source_principal.as_deref() == parties.source_principal
            && self.destination_principal.as_deref() == parties.destination_principal
            && &*self.service == parties.service
            && &*self.service_name == parties.service_name
            && &*self.service_namespace == parties.service_namespace
            && self.mutual_tls == parties.mutual_tls
    }
}

/// Handles by label set, found by one hash of borrowed parts and a comparison; nothing is allocated for a hit. When it is full,
/// those that were asked for least lately make room: half of all.
struct Cache<E> {
    entries: Entries<E>,
    /// Those of before, which stay until as many others have come; what is asked for moves on.
    older: Entries<E>,
    hasher: ahash::RandomState,
    /// Of [`Self::entries`].
    count: usize,
}

type Entries<E> = std::collections::HashMap<u64, Vec<E>, PassThrough>;

impl<E> Default for Cache<E> {
    fn default() -> Self {
        Self {
            entries: Entries::default(),
            older: Entries::default(),
            hasher: ahash::RandomState::new(),
            count: 0,
        }
    }
}

impl<E> Cache<E> {
    fn hash(&self, feed: impl FnOnce(&mut ahash::AHasher)) -> u64 {
        use std::hash::Hasher as _;
        let mut hasher = self.hasher.build_hasher();
        feed(&mut hasher);
        hasher.finish()
    }

    fn get_or_insert(&mut self, hash: u64, is: impl Fn(&E) -> bool, make: impl FnOnce() -> E) -> Option<&E> {
        let found = self.entries.get(&hash).is_some_and(|bucket| bucket.iter().any(&is));
        if !found {
            let older = self.older.get_mut(&hash);
            let entry = older.and_then(|bucket| Some(bucket.swap_remove(bucket.iter().position(&is)?)));
            if self.count >= MAX_CACHED {
                self.older = std::mem::take(&mut self.entries);
                self.count = 0;
            }
            self.count += 1;
            self.entries.entry(hash).or_default().push(entry.unwrap_or_else(make));
        }
        self.entries.get(&hash)?.iter().find(|e| is(e))
    }
}

/// The keys are hashes already.
#[derive(Clone, Copy, Default)]
struct PassThrough;

#[derive(Default)]
struct PassThroughHasher(u64);

impl std::hash::Hasher for PassThroughHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*b);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

impl BuildHasher for PassThrough {
    type Hasher = PassThroughHasher;
    fn build_hasher(&self) -> PassThroughHasher {
        PassThroughHasher::default()
    }
}

/// The labels that all of Istio's metrics have, in Istio's order. `known` stands for `unknown` when empty.
fn base_labels<'a>(
    reporter: Reporter,
    local: &'a PeerMetadata,
    parties: &CallParties<'a>,
    protocol: &'static str,
) -> Vec<(&'static str, &'a str)> {
    let known = |text: &'a str| if text.is_empty() { "unknown" } else { text };
    let (source, destination) = match reporter {
        Reporter::Source => (local, parties.peer),
        Reporter::Destination => (parties.peer, local),
    };
    let security = match (reporter, parties.mutual_tls) {
        (Reporter::Source, _) => "unknown",
        (Reporter::Destination, true) => "mutual_tls",
        (Reporter::Destination, false) => "none",
    };
    vec![
        ("reporter", reporter.label()),
        ("source_workload", known(&source.workload)),
        ("source_canonical_service", known(&source.canonical_service)),
        ("source_canonical_revision", known(&source.canonical_revision)),
        ("source_workload_namespace", known(&source.namespace)),
        ("source_principal", known(parties.source_principal.unwrap_or(""))),
        ("source_app", known(&source.app)),
        ("source_version", known(&source.version)),
        ("source_cluster", known(&source.cluster)),
        ("destination_workload", known(&destination.workload)),
        ("destination_workload_namespace", known(&destination.namespace)),
        (
            "destination_principal",
            known(parties.destination_principal.unwrap_or("")),
        ),
        ("destination_app", known(&destination.app)),
        ("destination_version", known(&destination.version)),
        ("destination_service", known(parties.service)),
        ("destination_canonical_service", known(&destination.canonical_service)),
        ("destination_canonical_revision", known(&destination.canonical_revision)),
        ("destination_service_name", known(parties.service_name)),
        ("destination_service_namespace", known(parties.service_namespace)),
        ("destination_cluster", known(&destination.cluster)),
        ("request_protocol", protocol),
        ("connection_security_policy", security),
    ]
}
