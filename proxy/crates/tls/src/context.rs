//! Contexts: everything about TLS that is the same for all connections of a filter chain or a cluster.

use std::sync::Arc;

use boring::pkey::{Id, PKey, PKeyRef, Private};
use boring::ssl::{
    AlpnError, Ssl, SslContext, SslContextBuilder, SslMethod, SslSessionCacheMode, SslVerifyMode, SslVersion,
};
use boring::x509::X509;
use bytes::BytesMut;
use heddle_keys::{PrivateKeyProvider, SoftwareProvider};
use heddle_net::{ConnectionInfo, KeyShareGroup, TransportProtocol};
use tokio::net::TcpStream;

use crate::certificate::{self, CertificateInfo};
use crate::credential;
use crate::error::{HandshakeError, HandshakeErrorKind, TlsConfigError};
use crate::handshake::{self, Connected};
use crate::params::{ClientParams, KeyPair, ServerParams, TlsVersion, Trust};
use crate::san::{SanKind, SanMatcher};
use crate::stream::Stream;
use crate::tickets::{self, SessionTickets};
use crate::unwrapped::{self, Side};
use crate::verify;

/// TLS 1.2 suites by default: forward secrecy and AEAD only, AES-128 or ChaCha20 as the client prefers.
pub(crate) const DEFAULT_CIPHERS: &str = "[ECDHE-ECDSA-AES128-GCM-SHA256|ECDHE-ECDSA-CHACHA20-POLY1305]:\
    [ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305]:\
    ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384";
/// Groups by default: hybrid post-quantum first.
const DEFAULT_CURVES: [&str; 3] = ["X25519MLKEM768", "X25519", "P-256"];
/// TLS 1.3 suites in our order (RFC 8446 §B.4). AES-128 first: a third cheaper than AES-256, and BoringSSL would follow
/// the client's order otherwise.
const TLS13_CIPHERS: [u16; 3] = [0x1301, 0x1302, 0x1303];

/// A downstream TLS context. Shared by all workers.
pub struct ServerContext {
    context: SslContext,
    certificates: Vec<CertificateInfo>,
    providers: Providers,
    trusted: Vec<CertificateInfo>,
    local_identity: Option<Arc<str>>,
    verifies: bool,
    /// Matchers of client certificates' DNS names; empty when none are asked for.
    dns: Vec<SanMatcher>,
}

/// An upstream TLS context. Shared by all workers.
pub struct ClientContext {
    context: SslContext,
    certificates: Vec<CertificateInfo>,
    providers: Providers,
    trusted: Vec<CertificateInfo>,
    local_identity: Option<Arc<str>>,
    verifies: bool,
    sni: Option<Box<str>>,
}

impl std::fmt::Debug for ServerContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerContext")
            .field("certificates", &self.certificates)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ClientContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientContext")
            .field("certificates", &self.certificates)
            .field("sni", &self.sni)
            .finish_non_exhaustive()
    }
}

impl ServerContext {
    /// Checks the parameters and makes a context.
    ///
    /// # Errors
    /// [`TlsConfigError`] names the parameter that cannot work.
    pub fn new(params: &ServerParams) -> Result<Self, TlsConfigError> {
        if params.certificates.is_empty() {
            return Err(TlsConfigError::NoCertificate);
        }
        if params.require_client_certificate && params.trust.is_none() {
            return Err(TlsConfigError::RequiresTrust);
        }
        let mut builder = SslContextBuilder::new(SslMethod::tls()).map_err(engine("context"))?;
        tune(
            &mut builder,
            params.min_version,
            params.max_version,
            &params.cipher_suites,
            &params.curves,
        )?;
        let (certificates, providers) = install_certificates(&mut builder, &params.certificates)?;
        if !providers.is_empty() {
            credential::exchange_ahead(&mut builder, exchanges(params));
        }
        let mut trusted = Vec::new();
        match &params.trust {
            Some(trust) => {
                let mode = if params.require_client_certificate {
                    SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT
                } else {
                    SslVerifyMode::PEER
                };
                trusted = install_trust(&mut builder, trust, mode)?;
            }
            None => builder.set_verify(SslVerifyMode::NONE),
        }
        // Resumption in memory is per process and gains nothing next to tickets; tickets with client certificates would
        // let a peer back in that the rotated trust bundle no longer accepts.
        builder.set_session_cache_mode(SslSessionCacheMode::OFF);
        let tickets = match (&params.session_tickets, &params.trust) {
            (SessionTickets::Given(_), Some(_)) => return Err(TlsConfigError::TicketKeysWithTrust),
            (_, Some(_)) => &SessionTickets::Off,
            (tickets, None) => tickets,
        };
        tickets::install(&mut builder, tickets, &certificates)?;
        if !params.alpn.is_empty() {
            wire_alpn(&params.alpn)?;
            let ours = params.alpn.clone();
            builder.set_alpn_select_callback(move |_, theirs| select_alpn(&ours, theirs).ok_or(AlpnError::NOACK));
        }
        Ok(Self {
            context: builder.build(),
            local_identity: first_uri(&certificates),
            certificates,
            providers,
            trusted,
            verifies: params.trust.is_some(),
            dns: params
                .trust
                .iter()
                .flat_map(|trust| &trust.sans)
                .filter(|matcher| matcher.kind() == SanKind::Dns)
                .cloned()
                .collect(),
        })
    }

    /// Whether a client with this DNS name in its certificate may still come in, as far as names decide it.
    pub fn accepts_dns(&self, name: &str) -> bool {
        self.dns.is_empty() || self.dns.iter().any(|matcher| matcher.matches(name))
    }

    /// The certificates served, leaf of each chain first.
    pub fn certificates(&self) -> &[CertificateInfo] {
        &self.certificates
    }

    /// The roots that client certificates are verified with.
    pub fn trusted(&self) -> &[CertificateInfo] {
        &self.trusted
    }

    /// The first URI subject alternative name of the first certificate: who this side claims to be.
    pub fn local_identity(&self) -> Option<&Arc<str>> {
        self.local_identity.as_ref()
    }

    /// Performs the server's handshake. `already_read` is what listener filters took from the socket. Fills `info`'s
    /// `peer`, `alpn`, `tls_version`, `local_identity`, `transport`, and `sni` when no inspector did. The caller bounds
    /// the time by dropping the future.
    ///
    /// # Errors
    /// [`HandshakeError`]; the alert due has been sent and the socket is closed.
    pub async fn accept(
        &self,
        tcp: TcpStream,
        already_read: BytesMut,
        info: &mut ConnectionInfo,
    ) -> Result<Stream, HandshakeError> {
        let ssl = connection(&self.context, self.verifies, Side::Server, &self.providers)?;
        let stream = handshake::run(ssl, tcp, already_read).await?;
        let agreed = handshake::agreed(&stream, self.verifies);
        info.transport = TransportProtocol::Tls;
        info.alpn = agreed.alpn;
        info.peer = agreed.peer;
        info.tls_version = Some(agreed.tls_version);
        info.local_identity.clone_from(&self.local_identity);
        if info.sni.is_none() {
            info.sni = stream
                .with_ssl(|ssl| {
                    ssl.servername(boring::ssl::NameType::HOST_NAME)
                        .map(str::to_ascii_lowercase)
                })
                .flatten()
                .map(String::into_boxed_str);
        }
        Ok(stream)
    }
}

impl ClientContext {
    /// Checks the parameters and makes a context.
    ///
    /// # Errors
    /// [`TlsConfigError`] names the parameter that cannot work.
    pub fn new(params: &ClientParams) -> Result<Self, TlsConfigError> {
        let mut builder = SslContextBuilder::new(SslMethod::tls()).map_err(engine("context"))?;
        tune(
            &mut builder,
            params.min_version,
            params.max_version,
            &params.cipher_suites,
            &params.curves,
        )?;
        let (certificates, providers) = install_certificates(&mut builder, params.certificate.as_slice())?;
        let mut trusted = Vec::new();
        match &params.trust {
            Some(trust) => trusted = install_trust(&mut builder, trust, SslVerifyMode::PEER)?,
            None => builder.set_verify(SslVerifyMode::NONE),
        }
        builder.set_session_cache_mode(SslSessionCacheMode::OFF);
        if !params.alpn.is_empty() {
            builder
                .set_alpn_protos(&wire_alpn(&params.alpn)?)
                .map_err(engine("alpn_protocols"))?;
        }
        Ok(Self {
            context: builder.build(),
            local_identity: first_uri(&certificates),
            certificates,
            providers,
            trusted,
            verifies: params.trust.is_some(),
            sni: params.sni.as_deref().filter(|s| !s.is_empty()).map(Box::from),
        })
    }

    /// The client certificate's chain; empty without one.
    pub fn certificates(&self) -> &[CertificateInfo] {
        &self.certificates
    }

    /// The roots that server certificates are verified with.
    pub fn trusted(&self) -> &[CertificateInfo] {
        &self.trusted
    }

    /// The first URI subject alternative name of the client certificate.
    pub fn local_identity(&self) -> Option<&Arc<str>> {
        self.local_identity.as_ref()
    }

    /// Performs the client's handshake on a connected socket. `sni` wins over the configured one; `alpn` over the
    /// configured list. The caller bounds the time by dropping the future.
    ///
    /// # Errors
    /// [`HandshakeError`]; the alert due has been sent and the socket is closed.
    pub async fn connect(
        &self,
        tcp: TcpStream,
        sni: Option<&str>,
        alpn: Option<&[&[u8]]>,
    ) -> Result<(Stream, Connected), HandshakeError> {
        let failed = |e: boring::error::ErrorStack| HandshakeError::new(HandshakeErrorKind::Engine(e.to_string()));
        let mut ssl = connection(&self.context, self.verifies, Side::Client, &self.providers)?;
        // RFC 6066 §3: addresses are not server names.
        if let Some(name) = sni
            .or(self.sni.as_deref())
            .filter(|n| n.parse::<std::net::IpAddr>().is_err())
        {
            ssl.set_hostname(name).map_err(failed)?;
        }
        if let Some(protocols) = alpn {
            let list =
                wire_alpn(protocols).map_err(|e| HandshakeError::new(HandshakeErrorKind::Engine(e.to_string())))?;
            ssl.set_alpn_protos(&list).map_err(failed)?;
        }
        let stream = handshake::run(ssl, tcp, BytesMut::new()).await?;
        let agreed = handshake::agreed(&stream, self.verifies);
        Ok((stream, agreed))
    }
}

fn connection(
    context: &SslContext,
    verifies: bool,
    side: Side,
    providers: &[Arc<dyn PrivateKeyProvider>],
) -> Result<Ssl, HandshakeError> {
    let mut ssl = Ssl::new(context).map_err(|e| HandshakeError::new(HandshakeErrorKind::Engine(e.to_string())))?;
    unwrapped::prepare(&mut ssl, side);
    credential::prepare(&mut ssl, side, providers);
    if verifies {
        verify::arm(&mut ssl);
    }
    Ok(ssl)
}

fn engine(field: &'static str) -> impl Fn(boring::error::ErrorStack) -> TlsConfigError {
    move |e| TlsConfigError::Engine {
        field,
        reason: e.to_string(),
    }
}

fn version(version: TlsVersion) -> SslVersion {
    match version {
        TlsVersion::V1_2 => SslVersion::TLS1_2,
        TlsVersion::V1_3 => SslVersion::TLS1_3,
    }
}

/// Versions, suites and groups.
fn tune(
    builder: &mut SslContextBuilder,
    min: Option<TlsVersion>,
    max: Option<TlsVersion>,
    ciphers: &[String],
    curves: &[String],
) -> Result<(), TlsConfigError> {
    let min = min.unwrap_or(TlsVersion::V1_2);
    let max = max.unwrap_or(TlsVersion::V1_3);
    if min > max {
        return Err(TlsConfigError::VersionRange);
    }
    builder
        .set_min_proto_version(Some(version(min)))
        .map_err(engine("tls_minimum_protocol_version"))?;
    builder
        .set_max_proto_version(Some(version(max)))
        .map_err(engine("tls_maximum_protocol_version"))?;
    if ciphers.is_empty() {
        builder
            .set_strict_cipher_list(DEFAULT_CIPHERS)
            .map_err(engine("cipher_suites"))?;
    } else {
        // One by one first, so that the error can name the one that is wrong.
        for cipher in ciphers {
            builder
                .set_strict_cipher_list(cipher)
                .map_err(|_| TlsConfigError::UnknownCipher(cipher.clone()))?;
        }
        builder
            .set_strict_cipher_list(&ciphers.join(":"))
            .map_err(engine("cipher_suites"))?;
    }
    if curves.is_empty() {
        builder
            .set_curves_list(&DEFAULT_CURVES.join(":"))
            .map_err(engine("ecdh_curves"))?;
    } else {
        for curve in curves {
            builder
                .set_curves_list(curve)
                .map_err(|_| TlsConfigError::UnknownCurve(curve.clone()))?;
        }
        builder
            .set_curves_list(&curves.join(":"))
            .map_err(engine("ecdh_curves"))?;
    }
    unwrapped::set_tls13_ciphers(builder, &TLS13_CIPHERS).map_err(engine("cipher_suites"))
}

/// Those of the groups that have an exchange of X25519 in them; none where TLS 1.3 is not spoken.
fn exchanges(params: &ServerParams) -> Vec<KeyShareGroup> {
    if params.max_version == Some(TlsVersion::V1_2) {
        return Vec::new();
    }
    if params.curves.is_empty() {
        return DEFAULT_CURVES.into_iter().filter_map(KeyShareGroup::named).collect();
    }
    params
        .curves
        .iter()
        .filter_map(|curve| KeyShareGroup::named(curve))
        .collect()
}

/// Providers that handshakes have to wait for.
type Providers = Vec<Arc<dyn PrivateKeyProvider>>;

/// Loads chains and keys, and returns what they say and who holds the keys that BoringSSL does not.
fn install_certificates(
    builder: &mut SslContextBuilder,
    pairs: &[KeyPair],
) -> Result<(Vec<CertificateInfo>, Providers), TlsConfigError> {
    let (mut infos, mut providers) = (Vec::new(), Vec::new());
    for (index, pair) in pairs.iter().enumerate() {
        let field = format!("certificates[{index}]");
        let chain = certificate::read_chain(&pair.chain_pem, &format!("{field}.certificate_chain"))?;
        let provider: Arc<dyn PrivateKeyProvider> = match &pair.provider {
            Some(provider) => Arc::clone(provider),
            None => Arc::new(read_key(&pair.key_pem, &format!("{field}.private_key"))?),
        };
        check_key(provider.key(), chain.first(), &field)?;
        credential::add(builder, &chain, &provider).map_err(engine("certificates"))?;
        if !provider.is_direct() {
            providers.push(provider);
        }
        infos.extend(chain.iter().map(|c| CertificateInfo::of(c)));
    }
    Ok((infos, providers))
}

fn read_key(pem: &[u8], field: &str) -> Result<SoftwareProvider, TlsConfigError> {
    PKey::private_key_from_pem(pem)
        .map(SoftwareProvider::new)
        .map_err(|e| TlsConfigError::BadPem {
            field: field.to_owned(),
            reason: e.to_string(),
        })
}

fn check_key(key: &PKeyRef<Private>, leaf: Option<&X509>, field: &str) -> Result<(), TlsConfigError> {
    let Some(leaf) = leaf else { return Ok(()) };
    let unsupported = |reason: &str| {
        Err(TlsConfigError::UnsupportedKey {
            field: field.to_owned(),
            reason: reason.to_owned(),
        })
    };
    let public = leaf.public_key().map_err(engine("certificates"))?;
    if !public.public_eq(key) {
        return Err(TlsConfigError::KeyMismatch {
            field: field.to_owned(),
            subject: CertificateInfo::of(leaf).subject,
        });
    }
    match key.id() {
        Id::RSA if key.bits() < 2048 => unsupported("RSA keys under 2048 bits are refused; use 2048 bits or more"),
        Id::RSA | Id::EC | Id::ED25519 => Ok(()),
        _ => unsupported("only RSA, ECDSA (P-256, P-384, P-521) and Ed25519 keys can serve TLS"),
    }
}

fn install_trust(
    builder: &mut SslContextBuilder,
    trust: &Trust,
    mode: SslVerifyMode,
) -> Result<Vec<CertificateInfo>, TlsConfigError> {
    let (store, acceptance) = verify::prepare(trust, "validation_context")?;
    builder.set_cert_store(store);
    builder.set_verify_callback(mode, verify::callback(acceptance));
    let pems = std::iter::once(&trust.roots_pem)
        .filter(|_| trust.trust_domains.is_empty())
        .chain(trust.trust_domains.iter().map(|d| &d.roots_pem));
    let mut infos = Vec::new();
    for pem in pems {
        let roots = certificate::read_chain(pem, "validation_context")?;
        infos.extend(roots.iter().map(|c| CertificateInfo::of(c)));
    }
    Ok(infos)
}

fn first_uri(certificates: &[CertificateInfo]) -> Option<Arc<str>> {
    certificates
        .first()
        .and_then(|c| c.uri_sans.first())
        .map(|uri| Arc::from(uri.as_str()))
}

/// The ALPN list as it stands on the wire (RFC 7301 §3.1).
fn wire_alpn<P: AsRef<[u8]>>(protocols: &[P]) -> Result<Vec<u8>, TlsConfigError> {
    let mut wire = Vec::new();
    for protocol in protocols {
        let name = protocol.as_ref();
        match u8::try_from(name.len()) {
            Ok(length) if length > 0 => {
                wire.push(length);
                wire.extend_from_slice(name);
            }
            _ => {
                return Err(TlsConfigError::BadAlpn(String::from_utf8_lossy(name).into_owned()));
            }
        }
    }
    Ok(wire)
}

/// Our first protocol that the client offers. `theirs` is the wire list, checked by BoringSSL.
fn select_alpn<'a>(ours: &[Box<[u8]>], theirs: &'a [u8]) -> Option<&'a [u8]> {
    ours.iter().find_map(|wanted| {
        let mut rest = theirs;
        while let Some((length, tail)) = rest.split_first() {
            let name = tail.get(..usize::from(*length))?;
            if name == wanted.as_ref() {
                return Some(name);
            }
            rest = tail.get(usize::from(*length)..)?;
        }
        None
    })
}
