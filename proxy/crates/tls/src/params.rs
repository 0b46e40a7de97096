//! What a TLS context is made from. Names follow `envoy.extensions.transport_sockets.tls.v3`.

use std::fmt;
use std::sync::Arc;

use heddle_keys::PrivateKeyProvider;

use crate::san::SanMatcher;
use crate::tickets::SessionTickets;

/// A certificate chain and where its private key is.
#[derive(Clone, Default)]
pub struct KeyPair {
    /// `certificate_chain`: PEM, the leaf first.
    pub chain_pem: Vec<u8>,
    /// `private_key`: PEM (PKCS#8, PKCS#1 or SEC 1), not encrypted. Not read when `provider` is set, which has the key.
    pub key_pem: Vec<u8>,
    /// `private_key_provider`; none means that BoringSSL holds the key itself.
    pub provider: Option<Arc<dyn PrivateKeyProvider>>,
}

impl fmt::Debug for KeyPair {
    /// Never shows the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair")
            .field("chain_pem", &String::from_utf8_lossy(&self.chain_pem))
            .field("key_pem", &"[redacted]")
            .field("provider", &self.provider.as_ref().map(|p| p.name()))
            .finish()
    }
}

/// One SPIFFE trust domain with its own roots (`SPIFFECertValidatorConfig.trust_domains`).
#[derive(Clone, Debug, Default)]
pub struct TrustDomain {
    /// Name, such as `cluster.local`.
    pub name: String,
    /// PEM of the roots that may vouch for identities of this trust domain, and for no other.
    pub roots_pem: Vec<u8>,
}

/// What makes a peer's certificate acceptable (`CertificateValidationContext`).
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// `trusted_ca`: PEM of the roots. May be empty only when `trust_domains` is not.
    pub roots_pem: Vec<u8>,
    /// `match_typed_subject_alt_names`: at least one must match; empty means that any name will do.
    pub sans: Vec<SanMatcher>,
    /// When not empty, the leaf must carry exactly one URI name, of one of these trust domains, and its chain must end
    /// in that trust domain's roots. `roots_pem` is not used then.
    pub trust_domains: Vec<TrustDomain>,
}

/// A protocol version that can be negotiated. Older ones are refused by configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2.
    V1_2,
    /// TLS 1.3.
    V1_3,
}

/// `DownstreamTlsContext`.
#[derive(Clone, Debug, Default)]
pub struct ServerParams {
    /// `tls_certificates`: at least one; several must differ in key type (RSA and ECDSA), the client's signature
    /// algorithms choose.
    pub certificates: Vec<KeyPair>,
    /// Validation of client certificates; none means that no certificate is asked for.
    pub trust: Option<Trust>,
    /// `require_client_certificate`. Without it a client may come without certificate, but a wrong one is refused.
    pub require_client_certificate: bool,
    /// `alpn_protocols` in order of preference; a client without a common one is served without ALPN, as Envoy does.
    pub alpn: Vec<Box<[u8]>>,
    /// `tls_minimum_protocol_version`, default TLS 1.2.
    pub min_version: Option<TlsVersion>,
    /// `tls_maximum_protocol_version`, default TLS 1.3.
    pub max_version: Option<TlsVersion>,
    /// `cipher_suites` of TLS 1.2, BoringSSL names; empty means [`crate::context::DEFAULT_CIPHERS`].
    pub cipher_suites: Vec<String>,
    /// `ecdh_curves`; empty means X25519MLKEM768, X25519, P-256.
    pub curves: Vec<String>,
    /// `session_ticket_keys`, `disable_stateless_session_resumption`. Where client certificates are asked for none are given out,
    /// since a resumed session would outlive a rotated trust bundle, and keys are refused.
    pub session_tickets: SessionTickets,
}

/// `UpstreamTlsContext`.
#[derive(Clone, Debug, Default)]
pub struct ClientParams {
    /// Client certificate, if the server may ask for one.
    pub certificate: Option<KeyPair>,
    /// Validation of the server's certificate; none means no validation at all, as Envoy's default.
    pub trust: Option<Trust>,
    /// `sni`, used when the caller of [`crate::ClientContext::connect`] names none.
    pub sni: Option<String>,
    /// `alpn_protocols` offered, unless the caller overrides them.
    pub alpn: Vec<Box<[u8]>>,
    /// `tls_minimum_protocol_version`, default TLS 1.2.
    pub min_version: Option<TlsVersion>,
    /// `tls_maximum_protocol_version`, default TLS 1.3.
    pub max_version: Option<TlsVersion>,
    /// `cipher_suites` of TLS 1.2; empty means the default.
    pub cipher_suites: Vec<String>,
    /// `ecdh_curves`; empty means the default.
    pub curves: Vec<String>,
}
