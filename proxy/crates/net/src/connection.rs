//! Facts about one accepted connection, gathered as it is set up and read by matchers, filters and logs.

use std::net::SocketAddr;
use std::sync::Arc;

/// What carries the bytes of a connection, in Envoy's words (`transport_protocol` of a filter chain match).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TransportProtocol {
    /// Not TLS, as far as the listener filters could tell.
    #[default]
    RawBuffer,
    /// The connection began with a TLS ClientHello.
    Tls,
}

impl TransportProtocol {
    /// The value used in `FilterChainMatch.transport_protocol`: `raw_buffer` or `tls`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RawBuffer => "raw_buffer",
            Self::Tls => "tls",
        }
    }
}

/// The verified identity of a TLS peer. Exists only after its certificate chain was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerIdentity {
    /// URI subject alternative names, such as `spiffe://cluster.local/ns/shop/sa/cart`.
    pub uri_sans: Vec<String>,
    /// DNS subject alternative names.
    pub dns_sans: Vec<String>,
    /// E-mail subject alternative names.
    pub email_sans: Vec<String>,
    /// IP subject alternative names, in canonical text form.
    pub ip_sans: Vec<String>,
    /// The subject in RFC 2253 form.
    pub subject: String,
    /// Lower-case hex SHA-256 of the leaf certificate's DER form (`Hash=` of X-Forwarded-Client-Cert).
    pub sha256: String,
    /// Common name of the certificate's issuer; Heddle's intermediates carry their cluster's name there.
    pub issuer: String,
}

impl PeerIdentity {
    /// The cluster that vouches for this identity: `c1` of the DNS name `c1.clusters.<trust domain>`, or
    /// `<membership>.c1.clusters.<trust domain>`, where the trust domain is that of the SPIFFE identity beside it and a
    /// membership has 32 hexadecimal digits. Heddle's authorities are constrained to the name of their own cluster (RFC
    /// 5280 §4.2.1.10), so none can put another's here. None without such a name, or when it is not in lower case.
    pub fn cluster(&self) -> Option<&str> {
        let (cluster, _) = self.cluster_and_name()?;
        (!cluster.bytes().any(|b| b.is_ascii_uppercase())).then_some(cluster)
    }

    /// The DNS name that [`PeerIdentity::cluster`] is read from, in lower case: verifiers compare it without regard to
    /// case, so its spelling is the peer's choice.
    pub fn cluster_name(&self) -> Option<String> {
        self.cluster_and_name().map(|(_, name)| name.to_ascii_lowercase())
    }

    fn cluster_and_name(&self) -> Option<(&str, &str)> {
        let (domain, _) = self.uri_sans.first()?.strip_prefix("spiffe://")?.split_once('/')?;
        self.dns_sans.iter().find_map(|name| {
            let below = before(before(name, domain)?, ".clusters.")?;
            let cluster = match below.split_once('.') {
                Some((membership, cluster)) if is_membership(membership) => cluster,
                Some(_) => return None,
                None => below,
            };
            (!cluster.is_empty() && !cluster.contains('.')).then_some((cluster, name.as_str()))
        })
    }
}

/// What stands before the end of a DNS name, if it ends so.
fn before<'n>(name: &'n str, end: &str) -> Option<&'n str> {
    let (start, rest) = name.split_at_checked(name.len().checked_sub(end.len())?)?;
    rest.eq_ignore_ascii_case(end).then_some(start)
}

fn is_membership(label: &str) -> bool {
    label.len() == 32 && label.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Facts about one downstream connection. Filled by accept, listener filters and the TLS handshake, then shared.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// Address the peer dialled, before any redirect (equals the socket's own address without capture).
    pub destination: SocketAddr,
    /// The socket's own address.
    pub local: SocketAddr,
    /// The peer's address (after PROXY protocol, when that is on).
    pub remote: SocketAddr,
    /// Server name of the ClientHello, lower case.
    pub sni: Option<Box<str>>,
    /// ALPN values offered in the ClientHello, in order.
    pub offered_alpn: Vec<Box<[u8]>>,
    /// ALPN value agreed on in the handshake.
    pub alpn: Option<Box<[u8]>>,
    /// What the listener filters detected.
    pub transport: TransportProtocol,
    /// The peer's identity, when it presented a certificate that was verified.
    pub peer: Option<Arc<PeerIdentity>>,
    /// The certificate of `peer` in PEM, where a filter asks for it.
    pub peer_certificate: Option<Box<str>>,
    /// Identity that this side presented (first URI subject alternative name), for `By=` and `%DOWNSTREAM_LOCAL_URI_SAN%`.
    pub local_identity: Option<Arc<str>>,
    /// Negotiated TLS version (`TLSv1.3`), when TLS was terminated here.
    pub tls_version: Option<&'static str>,
}

impl ConnectionInfo {
    /// A plain connection about which nothing else is known yet.
    pub fn plain(local: SocketAddr, remote: SocketAddr) -> Self {
        Self {
            destination: local,
            local,
            remote,
            sni: None,
            offered_alpn: Vec::new(),
            alpn: None,
            transport: TransportProtocol::RawBuffer,
            peer: None,
            peer_certificate: None,
            local_identity: None,
            tls_version: None,
        }
    }

    /// Where the peer wanted to go, when a redirect brought it here.
    pub fn original_destination(&self) -> Option<SocketAddr> {
        (self.destination != self.local).then_some(self.destination)
    }

    /// The peer's first URI subject alternative name, which is its SPIFFE identity in a mesh.
    pub fn principal(&self) -> Option<&str> {
        self.peer.as_ref().and_then(|p| p.uri_sans.first()).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_is_that_of_the_trust_domain() {
        let cluster = |uri: &str, dns: &[&str]| {
            let identity = PeerIdentity {
                uri_sans: vec![uri.to_owned()],
                dns_sans: dns.iter().map(|n| (*n).to_owned()).collect(),
                ..PeerIdentity::default()
            };
            identity.cluster().map(str::to_owned)
        };
        let cart = "spiffe://acme.demo/ns/shop/sa/cart";
        assert_eq!(cluster(cart, &["c1.clusters.acme.demo"]).as_deref(), Some("c1"));
        assert_eq!(
            cluster(cart, &["cart.shop", "c2.clusters.acme.demo"]).as_deref(),
            Some("c2")
        );
        let joined = "0123456789abcdef0123456789abcdef.c3.clusters.acme.demo";
        let account = format!("cart.shop.{joined}");
        assert_eq!(cluster(cart, &[joined, &account]).as_deref(), Some("c3"));
        assert_eq!(cluster(cart, &[&account, joined]).as_deref(), Some("c3"));
        assert_eq!(
            cluster(cart, &["cart.shop.c1.clusters.acme.demo", "c1.clusters.acme.demo"]).as_deref(),
            Some("c1")
        );
        for names in [
            &[account.as_str()][..],
            &["x0123456789abcdef0123456789abcde.c3.clusters.acme.demo"],
            &["0123456789abcdef0123456789abcdef.clusters.acme.demo."],
            &["C1.clusters.acme.demo"],
            &["c1.clusters.other.demo"],
            &[".clusters.acme.demo"],
            &["a.b.clusters.acme.demo"],
            &["c1.acme.demo"],
            &[],
        ] {
            assert_eq!(cluster(cart, names), None, "{names:?}");
        }
        assert_eq!(cluster("https://acme.demo/x", &["c1.clusters.acme.demo"]), None);
        assert_eq!(PeerIdentity::default().cluster(), None);
    }

    /// A peer that writes its cluster's name in another way is of the same cluster all the same.
    #[test]
    fn the_name_of_the_cluster_has_no_case() {
        let name = |dns: &str| {
            let identity = PeerIdentity {
                uri_sans: vec!["spiffe://td/ns/shop/sa/cart".to_owned()],
                dns_sans: vec![dns.to_owned()],
                ..PeerIdentity::default()
            };
            identity.cluster_name()
        };
        for dns in ["c1.clusters.td", "C1.clusters.td", "c1.Clusters.TD"] {
            assert_eq!(name(dns).as_deref(), Some("c1.clusters.td"), "{dns}");
        }
        let joined = "0123456789ABCDEF0123456789abcdef.c3.clusters.td";
        assert_eq!(name(joined), Some(joined.to_ascii_lowercase()));
        assert_eq!(name("ü.clusters.td").as_deref(), Some("ü.clusters.td"));
        assert_eq!(name("clusters.td"), None);
    }
}
