//! Choosing a filter chain (`FilterChainMatch`), with an index built once per listener.
//!
//! Envoy's order: destination port, destination address (longest prefix), server name (exact, then the longest
//! wildcard), transport protocol, application protocols, source address (longest prefix). At each step the most
//! specific entry that matches is followed, and a dead end later does not lead back to a less specific one.

mod prefixes;

use std::collections::HashMap;
use std::net::SocketAddr;

use ahash::RandomState;
use heddle_config::snapshot::{FilterChain, FilterChainMatch};
use heddle_net::{ConnectionInfo, TransportProtocol};

use prefixes::Prefixes;

/// Where a chain is found in [`heddle_config::snapshot::Listener`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    /// Position in `filter_chains`.
    Chain(usize),
    /// `default_filter_chain`.
    Default,
}

/// Two chains ask for exactly the same connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SameMatch {
    pub(crate) first: usize,
    pub(crate) second: usize,
}

type Map<K, V> = HashMap<K, V, RandomState>;
/// The last step: where the connection comes from.
type BySource = Prefixes<Option<usize>>;
/// ALPN value, or none for chains that do not ask.
type ByAlpn = Map<Option<Box<[u8]>>, BySource>;
type ByTransport = Map<Option<TransportProtocol>, ByAlpn>;

/// Server names: exact, by wildcard suffix (with its leading dot), and chains that do not ask.
#[derive(Debug, Default)]
struct ByName {
    exact: Map<Box<str>, ByTransport>,
    suffix: Map<Box<str>, ByTransport>,
    any: Option<ByTransport>,
}

/// The index over a listener's chains.
#[derive(Debug, Default)]
pub(crate) struct ChainIndex {
    ports: Map<Option<u16>, Prefixes<ByName>>,
    has_default: bool,
}

impl ChainIndex {
    /// Builds the index. Fails when two chains have the same criteria, since only one of them could ever serve.
    pub(crate) fn new(chains: &[FilterChain], has_default: bool) -> Result<Self, SameMatch> {
        let mut index = Self {
            ports: Map::default(),
            has_default,
        };
        for (position, chain) in chains.iter().enumerate() {
            index.insert(position, &chain.matches)?;
        }
        Ok(index)
    }

    fn insert(&mut self, position: usize, matches: &FilterChainMatch) -> Result<(), SameMatch> {
        let by_address = self.ports.entry(matches.destination_port).or_default();
        for destination in optional(&matches.destination) {
            let by_name = by_address.entry(destination.copied());
            for name in optional(&matches.server_names) {
                let by_transport = by_name.entry(name.map(String::as_str));
                let by_alpn = by_transport.entry(matches.transport_protocol).or_default();
                for protocol in optional(&matches.application_protocols) {
                    let by_source = by_alpn.entry(protocol.map(|p| p.as_bytes().into())).or_default();
                    for source in optional(&matches.source) {
                        let slot = by_source.entry(source.copied());
                        if let Some(first) = *slot {
                            // The same chain may name a value twice; another chain may not.
                            if first != position {
                                return Err(SameMatch {
                                    first,
                                    second: position,
                                });
                            }
                        }
                        *slot = Some(position);
                    }
                }
            }
        }
        Ok(())
    }

    /// The chain for a connection, about which the listener filters have said what they can. `destination` is the
    /// address that the peer dialled.
    pub(crate) fn find(&self, destination: SocketAddr, info: &ConnectionInfo) -> Option<Chosen> {
        self.find_chain(destination, info)
            .map(Chosen::Chain)
            .or(self.has_default.then_some(Chosen::Default))
    }

    fn find_chain(&self, destination: SocketAddr, info: &ConnectionInfo) -> Option<usize> {
        let by_address = self
            .ports
            .get(&Some(destination.port()))
            .or_else(|| self.ports.get(&None))?;
        let by_name = by_address.find(destination.ip())?;
        let by_transport = by_name.find(info.sni.as_deref().unwrap_or_default())?;
        let by_alpn = by_transport
            .get(&Some(info.transport))
            .or_else(|| by_transport.get(&None))?;
        let offered = info.offered_alpn.iter().find_map(|p| by_alpn.get(&Some(p.clone())));
        let by_source = offered.or_else(|| by_alpn.get(&None))?;
        *by_source.find(info.remote.ip())?
    }
}

/// The values asked for, or one none when nothing is asked.
fn optional<T>(values: &[T]) -> impl Iterator<Item = Option<&T>> {
    values
        .is_empty()
        .then_some(None)
        .into_iter()
        .chain(values.iter().map(Some))
}

impl ByName {
    fn entry(&mut self, name: Option<&str>) -> &mut ByTransport {
        let Some(name) = name.map(str::to_ascii_lowercase).filter(|n| !n.is_empty() && n != "*") else {
            return self.any.get_or_insert_default();
        };
        match name.strip_prefix('*') {
            Some(suffix) => self.suffix.entry(suffix.into()).or_default(),
            None => self.exact.entry(name.into_boxed_str()).or_default(),
        }
    }

    fn find(&self, name: &str) -> Option<&ByTransport> {
        if let Some(found) = self.exact.get(name) {
            return Some(found);
        }
        if !self.suffix.is_empty() {
            // From the longest suffix to the shortest; a wildcard stands for at least one character.
            let mut dots = name.match_indices('.').map(|(at, _)| at).filter(|at| *at > 0);
            if let Some(found) = dots.find_map(|at| self.suffix.get(name.get(at..)?)) {
                return Some(found);
            }
        }
        self.any.as_ref()
    }
}

#[cfg(test)]
mod tests;
