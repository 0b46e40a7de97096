//! TLS contexts and secrets.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use heddle_matching::{StringMatcher, StringTest};
use heddle_tls::{
    ClientContext, ClientParams, KeyPair, SanKind, SanMatcher, ServerContext, ServerParams, SessionTickets, TicketKey,
    TlsVersion, Trust, TrustDomain,
};
use sha2::{Digest, Sha256};

use super::key_provider::{self, Accelerators};
use super::{Result, enumeration, matcher, pb, required, source, unpack};
use crate::error::ConfigError;
use crate::path::Path;
use crate::resource::SecretSource;

/// Largest file that a `DataSource` may name. A system's whole bundle of public roots has about 250 kB.
const MAX_FILE: u64 = 4 << 20;

/// The name of a secret and where to ask for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SecretRef {
    pub(crate) source: SecretSource,
    pub(crate) name: Arc<str>,
}

/// SHA-256 of a TLS context's specification.
pub(crate) type Identity = [u8; 32];

/// A decoded `Secret`.
#[derive(Clone, Debug)]
pub(crate) enum SecretValue {
    Certificate(KeyPair),
    Validation(Validation),
    TicketKeys(Arc<[TicketKey]>),
}

impl SecretValue {
    /// The field of `Secret` that it is.
    fn field(&self) -> &'static str {
        match self {
            Self::Certificate(_) => "tls_certificate",
            Self::Validation(_) => "validation_context",
            Self::TicketKeys(_) => "session_ticket_keys",
        }
    }

    /// What is wrong where another kind of secret is needed.
    fn mistaken(&self, name: &str, needed: &str) -> String {
        format!("secret {name:?} is a {}, a {needed} is needed", self.field())
    }
}

/// A decoded `CertificateValidationContext`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Validation {
    roots_pem: Option<Vec<u8>>,
    sans: Vec<SanMatcher>,
    trust_domains: Vec<TrustDomain>,
}

/// A TLS context as configured: what it is made from once its secrets are there.
#[derive(Clone, Debug)]
pub(crate) struct TlsSpec {
    role: Role,
    certificates: Vec<KeyPair>,
    certificate_secrets: Vec<SecretRef>,
    validation: Option<Validation>,
    validation_secret: Option<SecretRef>,
    alpn: Vec<Box<[u8]>>,
    min_version: Option<TlsVersion>,
    max_version: Option<TlsVersion>,
    cipher_suites: Vec<String>,
    curves: Vec<String>,
    /// Where it stands, for errors that show only when the secrets are there.
    path: String,
    /// A digest of the message and of the files that it names: equal specifications share one context.
    identity: Identity,
}

#[derive(Clone, Debug)]
enum Role {
    Server {
        require_client_certificate: bool,
        tickets: Tickets,
    },
    Client {
        sni: Option<String>,
    },
}

/// Session tickets of a server.
#[derive(Clone, Debug)]
enum Tickets {
    Configured(SessionTickets),
    /// Under the keys of a secret.
    Secret(SecretRef),
}

/// A context made from a [`TlsSpec`].
#[derive(Clone, Debug)]
pub(crate) enum TlsContext {
    Server(Arc<ServerContext>),
    Client(Arc<ClientContext>),
}

impl TlsSpec {
    /// Secrets that it needs.
    pub(crate) fn secrets(&self) -> BTreeSet<SecretRef> {
        let ticket_keys = match &self.role {
            Role::Server {
                tickets: Tickets::Secret(wanted),
                ..
            } => Some(wanted),
            _ => None,
        };
        self.certificate_secrets
            .iter()
            .chain(&self.validation_secret)
            .chain(ticket_keys)
            .cloned()
            .collect()
    }

    /// Equal for equal specifications.
    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// Makes the context. `Ok(None)` while a secret is missing.
    pub(crate) fn build<'s>(
        &self,
        secret: impl Fn(&SecretRef) -> Option<&'s SecretValue>,
    ) -> Result<Option<TlsContext>> {
        let error = |problem: String| ConfigError::new(self.path.clone(), problem);
        let mut certificates = self.certificates.clone();
        for wanted in &self.certificate_secrets {
            match secret(wanted) {
                None => return Ok(None),
                Some(SecretValue::Certificate(pair)) => certificates.push(pair.clone()),
                Some(other) => return Err(error(other.mistaken(&wanted.name, "tls_certificate"))),
            }
        }
        let mut validation = self.validation.clone();
        if let Some(wanted) = &self.validation_secret {
            match secret(wanted) {
                None => return Ok(None),
                Some(SecretValue::Validation(v)) => validation.get_or_insert_default().merge(v),
                Some(other) => return Err(error(other.mistaken(&wanted.name, "validation_context"))),
            }
        }
        let trust = match validation {
            Some(v) => v.trust().map_err(error)?,
            None => None,
        };
        match &self.role {
            Role::Server {
                require_client_certificate,
                tickets,
            } => {
                let session_tickets = match tickets {
                    Tickets::Configured(tickets) => tickets.clone(),
                    Tickets::Secret(wanted) => match secret(wanted) {
                        None => return Ok(None),
                        Some(SecretValue::TicketKeys(keys)) => SessionTickets::Given(Arc::clone(keys)),
                        Some(other) => return Err(error(other.mistaken(&wanted.name, "session_ticket_keys"))),
                    },
                };
                ServerContext::new(&ServerParams {
                    certificates,
                    trust,
                    require_client_certificate: *require_client_certificate,
                    alpn: self.alpn.clone(),
                    min_version: self.min_version,
                    max_version: self.max_version,
                    cipher_suites: self.cipher_suites.clone(),
                    curves: self.curves.clone(),
                    session_tickets,
                })
                .map(|context| Some(TlsContext::Server(Arc::new(context))))
            }
            Role::Client { sni } => {
                if certificates.len() > 1 {
                    return Err(error("tls_certificates: a client has at most one certificate".into()));
                }
                ClientContext::new(&ClientParams {
                    certificate: certificates.pop(),
                    trust,
                    sni: sni.clone(),
                    alpn: self.alpn.clone(),
                    min_version: self.min_version,
                    max_version: self.max_version,
                    cipher_suites: self.cipher_suites.clone(),
                    curves: self.curves.clone(),
                })
                .map(|context| Some(TlsContext::Client(Arc::new(context))))
            }
        }
        .map_err(|e| error(e.to_string()))
    }
}

impl Validation {
    /// Adds what another one says, as protobuf merges messages: single values replace, lists grow.
    fn merge(&mut self, other: &Self) {
        if other.roots_pem.is_some() {
            self.roots_pem.clone_from(&other.roots_pem);
        }
        self.sans.extend(other.sans.iter().cloned());
        self.trust_domains.extend(other.trust_domains.iter().cloned());
    }

    /// What the TLS engine checks; `None` when nothing is to be checked, as in Envoy.
    fn trust(self) -> std::result::Result<Option<Trust>, String> {
        if self.roots_pem.is_none() && self.trust_domains.is_empty() {
            if !self.sans.is_empty() {
                return Err("match_typed_subject_alt_names without trusted_ca proves nothing; give trusted_ca".into());
            }
            return Ok(None);
        }
        Ok(Some(Trust {
            roots_pem: self.roots_pem.unwrap_or_default(),
            sans: self.sans,
            trust_domains: self.trust_domains,
        }))
    }
}

/// A `transport_socket` on the listening side; `None` for plain bytes.
pub(super) fn downstream(socket: &pb::core::TransportSocket, path: &Path<'_>) -> Result<Option<TlsSpec>> {
    use pb::tls::downstream_tls_context::OcspStaplePolicy;
    let here = path.field("transport_socket");
    let here = here.field("typed_config");
    let Some(any) = config_of(socket, &here)? else {
        return Ok(None);
    };
    match heddle_api::message_name(&any.type_url) {
        "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer" => Ok(None),
        "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext" => {
            let context: pb::tls::DownstreamTlsContext = unpack(any, &here)?;
            let policy: OcspStaplePolicy = enumeration(context.ocsp_staple_policy, &here.field("ocsp_staple_policy"))?;
            if policy != OcspStaplePolicy::LenientStapling {
                return Err(here
                    .field("ocsp_staple_policy")
                    .unsupported(policy.as_str_name(), "remove it"));
            }
            let role = Role::Server {
                require_client_certificate: context.require_client_certificate.unwrap_or(false),
                tickets: tickets(&context, &here)?,
            };
            common(
                required(context.common_tls_context.as_ref(), &here.field("common_tls_context"))?,
                role,
                any,
                &here,
            )
            .map(Some)
        }
        other => Err(here.unsupported(other, "use a TLS or raw_buffer transport socket")),
    }
}

/// A `transport_socket` towards endpoints; `None` for plain bytes.
pub(super) fn upstream(socket: &pb::core::TransportSocket, path: &Path<'_>) -> Result<Option<TlsSpec>> {
    let here = path.field("transport_socket");
    let here = here.field("typed_config");
    let Some(any) = config_of(socket, &here)? else {
        return Ok(None);
    };
    match heddle_api::message_name(&any.type_url) {
        "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer" => Ok(None),
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext" => {
            let context: pb::tls::UpstreamTlsContext = unpack(any, &here)?;
            let role = Role::Client {
                sni: (!context.sni.is_empty()).then(|| context.sni.clone()),
            };
            common(
                required(context.common_tls_context.as_ref(), &here.field("common_tls_context"))?,
                role,
                any,
                &here,
            )
            .map(Some)
        }
        other => Err(here.unsupported(other, "use a TLS or raw_buffer transport socket")),
    }
}

/// The `typed_config`; Envoy lets a raw buffer go without one.
fn config_of<'s>(socket: &'s pb::core::TransportSocket, path: &Path<'_>) -> Result<Option<&'s prost_types::Any>> {
    match &socket.config_type {
        Some(pb::core::transport_socket::ConfigType::TypedConfig(any)) => Ok(Some(any)),
        None if socket.name == "envoy.transport_sockets.raw_buffer" => Ok(None),
        None => Err(path.error("must be set")),
    }
}

fn common(context: &pb::tls::CommonTlsContext, role: Role, any: &prost_types::Any, path: &Path<'_>) -> Result<TlsSpec> {
    use pb::tls::common_tls_context::ValidationContextType as Kind;
    let here = path.field("common_tls_context");
    let mut spec = TlsSpec {
        role,
        certificates: Vec::new(),
        certificate_secrets: Vec::new(),
        validation: None,
        validation_secret: None,
        alpn: context.alpn_protocols.iter().map(|p| p.as_bytes().into()).collect(),
        min_version: None,
        max_version: None,
        cipher_suites: Vec::new(),
        curves: Vec::new(),
        path: here.to_string(),
        identity: Identity::default(),
    };
    for (i, pair) in context.tls_certificates.iter().enumerate() {
        spec.certificates
            .push(certificate(pair, &here.item("tls_certificates", i))?);
    }
    for (i, config) in context.tls_certificate_sds_secret_configs.iter().enumerate() {
        spec.certificate_secrets
            .push(secret_ref(config, &here.item("tls_certificate_sds_secret_configs", i))?);
    }
    match &context.validation_context_type {
        None => {}
        Some(Kind::ValidationContext(v)) => {
            spec.validation = Some(validation(v, &here.field("validation_context"))?);
        }
        Some(Kind::ValidationContextSdsSecretConfig(config)) => {
            spec.validation_secret = Some(secret_ref(config, &here.field("validation_context_sds_secret_config"))?);
        }
        Some(Kind::CombinedValidationContext(combined)) => {
            let here = here.field("combined_validation_context");
            let by_default = combined.default_validation_context.as_ref();
            let by_default = required(by_default, &here.field("default_validation_context"))?;
            spec.validation = Some(validation(by_default, &here.field("default_validation_context"))?);
            let config = combined.validation_context_sds_secret_config.as_ref();
            let config = required(config, &here.field("validation_context_sds_secret_config"))?;
            spec.validation_secret = Some(secret_ref(config, &here.field("validation_context_sds_secret_config"))?);
        }
        Some(_) => return Err(here.error("this kind of validation context is not implemented; use validation_context")),
    }
    if let Some(params) = &context.tls_params {
        let here = here.field("tls_params");
        let (low, high) = ("tls_minimum_protocol_version", "tls_maximum_protocol_version");
        spec.min_version = version(params.tls_minimum_protocol_version, &here.field(low))?;
        spec.max_version = version(params.tls_maximum_protocol_version, &here.field(high))?;
        spec.cipher_suites.clone_from(&params.cipher_suites);
        spec.curves.clone_from(&params.ecdh_curves);
    }
    if matches!(spec.role, Role::Server { .. }) && spec.certificates.is_empty() && spec.certificate_secrets.is_empty() {
        return Err(here.error("a TLS server needs tls_certificates or tls_certificate_sds_secret_configs"));
    }
    // Keys of tickets are not in it: contexts of servers are not shared.
    let mut digest = Sha256::new();
    digest.update(&any.value);
    for pair in &spec.certificates {
        digest.update(&pair.chain_pem);
        digest.update(&pair.key_pem);
    }
    if let Some(v) = &spec.validation {
        let domains = v.trust_domains.iter().map(|d| &d.roots_pem);
        v.roots_pem.iter().chain(domains).for_each(|pem| digest.update(pem));
    }
    spec.identity = digest.finalize().into();
    Ok(spec)
}

fn tickets(context: &pb::tls::DownstreamTlsContext, path: &Path<'_>) -> Result<Tickets> {
    use pb::tls::downstream_tls_context::SessionTicketKeysType as Kind;
    Ok(Tickets::Configured(match &context.session_ticket_keys_type {
        None | Some(Kind::DisableStatelessSessionResumption(false)) => SessionTickets::OwnKeys,
        Some(Kind::DisableStatelessSessionResumption(true)) => SessionTickets::Off,
        Some(Kind::SessionTicketKeys(keys)) => {
            SessionTickets::Given(ticket_keys(keys, &path.field("session_ticket_keys"))?)
        }
        Some(Kind::SessionTicketKeysSdsSecretConfig(config)) => {
            let here = path.field("session_ticket_keys_sds_secret_config");
            return secret_ref(config, &here).map(Tickets::Secret);
        }
    }))
}

/// A `TlsSessionTicketKeys`.
fn ticket_keys(config: &pb::tls::TlsSessionTicketKeys, path: &Path<'_>) -> Result<Arc<[TicketKey]>> {
    if config.keys.is_empty() {
        return Err(path.field("keys").error("must not be empty"));
    }
    let keys = config.keys.iter().enumerate().map(|(i, source)| {
        let here = path.item("keys", i);
        let bytes = data_source(source, &here)?;
        TicketKey::parse(&bytes).ok_or_else(|| {
            here.error(format!(
                "has {} bytes, must have {}: make one with `openssl rand {}`",
                bytes.len(),
                TicketKey::LENGTH,
                TicketKey::LENGTH
            ))
        })
    });
    keys.collect()
}

fn version(number: i32, path: &Path<'_>) -> Result<Option<TlsVersion>> {
    use pb::tls::tls_parameters::TlsProtocol;
    match enumeration(number, path)? {
        TlsProtocol::TlsAuto => Ok(None),
        TlsProtocol::TlSv12 => Ok(Some(TlsVersion::V1_2)),
        TlsProtocol::TlSv13 => Ok(Some(TlsVersion::V1_3)),
        old => Err(path.unsupported(old.as_str_name(), "use TLSv1_2 or TLSv1_3: older versions are broken")),
    }
}

fn secret_ref(config: &pb::tls::SdsSecretConfig, path: &Path<'_>) -> Result<SecretRef> {
    if config.name.is_empty() {
        return Err(path.field("name").error("must not be empty"));
    }
    let source = match &config.sds_config {
        None => SecretSource::Static,
        Some(s) => source::config_source(s, &path.field("sds_config"))?,
    };
    Ok(SecretRef {
        source,
        name: config.name.as_str().into(),
    })
}

fn certificate(pair: &pb::tls::TlsCertificate, path: &Path<'_>) -> Result<KeyPair> {
    let (chain, key) = (path.field("certificate_chain"), path.field("private_key"));
    let chain_pem = data_source(required(pair.certificate_chain.as_ref(), &chain)?, &chain)?;
    let (key_pem, provider) = match &pair.private_key_provider {
        // Envoy: it takes precedence over private_key.
        Some(config) => {
            let here = path.field("private_key_provider");
            let (pem, provider) = key_provider::provider(config, Accelerators::detect(), &here)?;
            (pem, Some(provider))
        }
        None => (data_source(required(pair.private_key.as_ref(), &key)?, &key)?, None),
    };
    Ok(KeyPair {
        chain_pem,
        key_pem,
        provider,
    })
}

fn validation(context: &pb::tls::CertificateValidationContext, path: &Path<'_>) -> Result<Validation> {
    use pb::tls::certificate_validation_context::TrustChainVerification;
    let chain = path.field("trust_chain_verification");
    let how: TrustChainVerification = enumeration(context.trust_chain_verification, &chain)?;
    if how != TrustChainVerification::VerifyTrustChain {
        return Err(chain.unsupported(how.as_str_name(), "remove it"));
    }
    let mut out = Validation::default();
    if let Some(source) = &context.trusted_ca {
        out.roots_pem = Some(data_source(source, &path.field("trusted_ca"))?);
    }
    for (i, san) in context.match_typed_subject_alt_names.iter().enumerate() {
        out.sans
            .push(san_matcher(san, &path.item("match_typed_subject_alt_names", i))?);
    }
    if let Some(custom) = &context.custom_validator_config {
        let here = path.field("custom_validator_config");
        let here = here.field("typed_config");
        let any = required(custom.typed_config.as_ref(), &here)?;
        match heddle_api::message_name(&any.type_url) {
            "envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig" => {
                let spiffe: pb::tls::SpiffeCertValidatorConfig = unpack(any, &here)?;
                for (i, domain) in spiffe.trust_domains.iter().enumerate() {
                    let here = here.item("trust_domains", i);
                    let bundle = here.field("trust_bundle");
                    let roots_pem = data_source(required(domain.trust_bundle.as_ref(), &bundle)?, &bundle)?;
                    if out.trust_domains.iter().any(|d| d.name == domain.name) {
                        return Err(here
                            .field("name")
                            .error(format!("{:?} stands there twice", domain.name)));
                    }
                    out.trust_domains.push(TrustDomain {
                        name: domain.name.clone(),
                        roots_pem,
                    });
                }
            }
            other => return Err(here.unsupported(other, "use the SPIFFE validator or trusted_ca")),
        }
    }
    Ok(out)
}

fn san_matcher(config: &pb::tls::SubjectAltNameMatcher, path: &Path<'_>) -> Result<SanMatcher> {
    use pb::tls::subject_alt_name_matcher::SanType;
    let kind = match enumeration(config.san_type, &path.field("san_type"))? {
        SanType::Uri => SanKind::Uri,
        SanType::Dns => SanKind::Dns,
        SanType::IpAddress => SanKind::Ip,
        SanType::Email => SanKind::Email,
        other => {
            return Err(path
                .field("san_type")
                .unsupported(other.as_str_name(), "use URI, DNS, IP_ADDRESS or EMAIL"));
        }
    };
    let here = path.field("matcher");
    let wanted = required(config.matcher.as_ref(), &here)?;
    let matcher: StringMatcher = matcher::string(wanted, &here)?;
    // Exact DNS names also accept a wildcard certificate, as in Envoy.
    if let (StringTest::Exact(value), false) = (matcher.test(), wanted.ignore_case) {
        return Ok(SanMatcher::exact(kind, value));
    }
    Ok(SanMatcher::new(kind, format!("{:?}", matcher.test()), move |name| {
        matcher.matches(name)
    }))
}

/// A `Secret`.
pub(crate) fn secret(config: &pb::tls::Secret, path: &Path<'_>) -> Result<SecretValue> {
    use pb::tls::secret::Type;
    match &config.r#type {
        Some(Type::TlsCertificate(pair)) => {
            let here = path.field("tls_certificate");
            let pair = certificate(pair, &here)?;
            // A pair that cannot serve is refused when it arrives, not when it is first used.
            ServerContext::new(&ServerParams {
                certificates: vec![pair.clone()],
                ..ServerParams::default()
            })
            .map_err(|e| here.error(e.to_string()))?;
            Ok(SecretValue::Certificate(pair))
        }
        Some(Type::ValidationContext(v)) => {
            let here = path.field("validation_context");
            let v = validation(v, &here)?;
            if let Some(roots_pem) = &v.roots_pem {
                let trust = Trust {
                    roots_pem: roots_pem.clone(),
                    ..Trust::default()
                };
                ClientContext::new(&ClientParams {
                    trust: Some(trust),
                    ..ClientParams::default()
                })
                .map_err(|e| here.error(e.to_string()))?;
            }
            Ok(SecretValue::Validation(v))
        }
        Some(Type::SessionTicketKeys(keys)) => {
            ticket_keys(keys, &path.field("session_ticket_keys")).map(SecretValue::TicketKeys)
        }
        _ => Err(path.error("must be tls_certificate, validation_context or session_ticket_keys")),
    }
}

/// The bytes of a `DataSource`.
pub(crate) fn data_source(source: &pb::core::DataSource, path: &Path<'_>) -> Result<Vec<u8>> {
    use pb::core::data_source::Specifier;
    match &source.specifier {
        Some(Specifier::InlineBytes(b)) => Ok(b.clone()),
        Some(Specifier::InlineString(s)) => Ok(s.clone().into_bytes()),
        Some(Specifier::Filename(name)) => {
            let here = path.field("filename");
            let failed = |e: std::io::Error| here.error(format!("cannot read {name}: {e}"));
            let mut out = Vec::new();
            let file = File::open(name).map_err(failed)?;
            file.take(MAX_FILE + 1).read_to_end(&mut out).map_err(failed)?;
            if out.len() as u64 > MAX_FILE {
                return Err(here.error(format!("{name} is larger than {MAX_FILE} bytes")));
            }
            Ok(out)
        }
        _ => Err(path.error("must be filename, inline_string or inline_bytes")),
    }
}
