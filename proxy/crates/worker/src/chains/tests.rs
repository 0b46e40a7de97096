use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use heddle_config::snapshot::Cidr;

use super::*;

fn cidr(text: &str) -> Cidr {
    let (address, prefix) = text.split_once('/').expect("range");
    Cidr {
        address: address.parse::<IpAddr>().expect("address"),
        prefix: prefix.parse().expect("prefix"),
    }
}

/// Criteria as `key=value` words: port, dst, sni, transport, alpn, src; lists with commas.
fn criteria(text: &str) -> FilterChainMatch {
    let mut m = FilterChainMatch::default();
    for word in text.split_whitespace() {
        let (key, value) = word.split_once('=').expect("key=value");
        let list = || value.split(',').map(str::to_owned).collect::<Vec<_>>();
        match key {
            "port" => m.destination_port = Some(value.parse().expect("port")),
            "dst" => m.destination = value.split(',').map(cidr).collect(),
            "sni" => m.server_names = list(),
            "transport" => m.transport_protocol = Some(transport(value)),
            "alpn" => m.application_protocols = list(),
            "src" => m.source = value.split(',').map(cidr).collect(),
            other => panic!("{other}"),
        }
    }
    m
}

fn transport(value: &str) -> TransportProtocol {
    if value == "tls" {
        TransportProtocol::Tls
    } else {
        TransportProtocol::RawBuffer
    }
}

fn chains(criteria_of: &[&str]) -> Vec<FilterChain> {
    criteria_of
        .iter()
        .map(|text| FilterChain {
            name: Arc::from(*text),
            matches: criteria(text),
            tls: None,
            handshake_timeout: Duration::ZERO,
            filters: Vec::new(),
            identity: None,
        })
        .collect()
}

/// A connection as `destination key=value...`; keys: sni, transport, alpn, src.
fn find(index: &ChainIndex, connection: &str) -> Option<Chosen> {
    let mut words = connection.split_whitespace();
    let destination: SocketAddr = words.next().expect("destination").parse().expect("address");
    let mut info = ConnectionInfo::plain(destination, "203.0.113.9:5".parse().expect("address"));
    for word in words {
        let (key, value) = word.split_once('=').expect("key=value");
        match key {
            "sni" => info.sni = Some(value.into()),
            "transport" => info.transport = transport(value),
            "alpn" => info.offered_alpn = value.split(',').map(|p| p.as_bytes().into()).collect(),
            "src" => info.remote = SocketAddr::new(value.parse().expect("address"), 5),
            other => panic!("{other}"),
        }
    }
    index.find(destination, &info)
}

fn table(criteria_of: &[&str], cases: &[(&str, Option<usize>)]) {
    let index = ChainIndex::new(&chains(criteria_of), false).expect("index");
    for (connection, expected) in cases {
        assert_eq!(
            find(&index, connection),
            expected.map(Chosen::Chain),
            "{connection} among {criteria_of:?}"
        );
    }
}

#[test]
fn ports_come_first_and_are_final() {
    table(
        &["port=80", "dst=10.0.0.0/8", "port=443 dst=10.0.0.1/32"],
        &[
            ("10.0.0.1:80", Some(0)),
            ("192.0.2.1:80", Some(0)),
            ("10.0.0.1:8080", Some(1)),
            ("10.0.0.1:443", Some(2)),
            // Port 443 has an entry, so the chain without port is not looked at, as in Envoy.
            ("10.0.0.2:443", None),
            ("192.0.2.1:8080", None),
        ],
    );
}

#[test]
fn the_longest_destination_prefix_wins() {
    table(
        &[
            "dst=10.0.0.0/8",
            "dst=10.1.0.0/16",
            "dst=10.1.2.3/32",
            "dst=0.0.0.0/0",
            "dst=2001:db8::/32",
            "dst=2001:db8::1/128",
        ],
        &[
            ("10.9.9.9:1", Some(0)),
            ("10.1.9.9:1", Some(1)),
            ("10.1.2.3:1", Some(2)),
            ("192.0.2.1:1", Some(3)),
            ("[2001:db8::9]:1", Some(4)),
            ("[2001:db8::1]:1", Some(5)),
            ("[2001:db9::1]:1", None),
            ("[::ffff:10.1.2.3]:1", Some(2)),
        ],
    );
}

#[test]
fn server_names_exact_then_longest_wildcard_then_any() {
    table(
        &["sni=a.example.com", "sni=*.example.com", "sni=*.com", ""],
        &[
            ("10.0.0.1:443 sni=a.example.com", Some(0)),
            ("10.0.0.1:443 sni=b.example.com", Some(1)),
            ("10.0.0.1:443 sni=c.b.example.com", Some(1)),
            ("10.0.0.1:443 sni=example.com", Some(2)),
            ("10.0.0.1:443 sni=example.org", Some(3)),
            ("10.0.0.1:443", Some(3)),
            // A wildcard stands for something: the bare suffix is not it.
            ("10.0.0.1:443 sni=.example.com", Some(2)),
        ],
    );
}

#[test]
fn istio_inbound_chains() {
    // As in a sidecar's virtualInbound: mutual TLS by ALPN, other TLS, plaintext, passthrough.
    let inbound = [
        "port=15006",
        "port=8080 transport=tls alpn=istio-http/1.1,istio-h2,istio",
        "port=8080 transport=raw_buffer",
        "transport=tls alpn=istio-http/1.1,istio-h2,istio",
        "transport=raw_buffer",
        "transport=tls",
    ];
    table(
        &inbound,
        &[
            ("10.244.0.5:15006 transport=tls", Some(0)),
            ("10.244.0.5:8080 transport=tls alpn=istio-h2,h2", Some(1)),
            ("10.244.0.5:8080", Some(2)),
            ("10.244.0.5:8080 transport=tls alpn=h2", None),
            ("10.244.0.5:9999 transport=tls alpn=istio", Some(3)),
            ("10.244.0.5:9999 transport=tls alpn=h2", Some(5)),
            ("10.244.0.5:9999", Some(4)),
        ],
    );
}

#[test]
fn transport_is_not_revisited() {
    table(
        &["transport=tls alpn=h2", "alpn=http/1.1"],
        &[
            ("10.0.0.1:1 transport=tls alpn=h2", Some(0)),
            // `tls` has an entry; that chain's ALPN does not fit; the chain without transport is not tried.
            ("10.0.0.1:1 transport=tls alpn=http/1.1", None),
            ("10.0.0.1:1 alpn=http/1.1", Some(1)),
        ],
    );
}

#[test]
fn the_clients_first_known_protocol_decides() {
    table(
        &["alpn=h2", "alpn=http/1.1", ""],
        &[
            ("10.0.0.1:1 alpn=spdy,http/1.1,h2", Some(1)),
            ("10.0.0.1:1 alpn=h2,http/1.1", Some(0)),
            ("10.0.0.1:1 alpn=spdy", Some(2)),
            ("10.0.0.1:1", Some(2)),
        ],
    );
}

#[test]
fn sources_are_last() {
    table(
        &["src=192.0.2.0/24", "src=192.0.2.7/32", "port=80 src=198.51.100.0/24"],
        &[
            ("10.0.0.1:1 src=192.0.2.1", Some(0)),
            ("10.0.0.1:1 src=192.0.2.7", Some(1)),
            ("10.0.0.1:1 src=203.0.113.1", None),
            ("10.0.0.1:80 src=192.0.2.1", None),
            ("10.0.0.1:80 src=198.51.100.4", Some(2)),
        ],
    );
}

#[test]
fn the_default_chain_catches_dead_ends() {
    let index = ChainIndex::new(&chains(&["port=80 transport=tls"]), true).expect("index");
    assert_eq!(find(&index, "10.0.0.1:80"), Some(Chosen::Default));
    assert_eq!(find(&index, "10.0.0.1:81"), Some(Chosen::Default));
    assert_eq!(find(&index, "10.0.0.1:80 transport=tls"), Some(Chosen::Chain(0)));
}

#[test]
fn equal_criteria_are_refused() {
    let refused = |of: &[&str]| ChainIndex::new(&chains(of), false).expect_err("must be refused");
    assert_eq!(refused(&["", ""]), SameMatch { first: 0, second: 1 });
    assert_eq!(
        refused(&["sni=A.example.com", "port=1", "sni=a.EXAMPLE.com"]),
        SameMatch { first: 0, second: 2 }
    );
    assert_eq!(
        refused(&["dst=10.0.0.0/8,10.1.0.0/16", "dst=10.1.0.0/16"]),
        SameMatch { first: 0, second: 1 }
    );
    ChainIndex::new(&chains(&["alpn=h2,h2", "alpn=http/1.1"]), false)
        .expect("a value named twice by one chain is fine");
}
