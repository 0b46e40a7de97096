//! What can go wrong with TLS, who is to blame and what counts it.

use std::io;

use thiserror::Error;

/// Why a context cannot be made from its configuration. Texts name the parameter and the remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsConfigError {
    /// A server context without any certificate.
    #[error("certificates: none given; a TLS server needs at least one certificate chain and private key")]
    NoCertificate,
    /// PEM that cannot be read.
    #[error("{field}: not valid PEM: {reason}; give PEM text with the expected block")]
    BadPem {
        /// Which parameter, such as `certificates[0].chain_pem`.
        field: String,
        /// BoringSSL's reason, or what is missing.
        reason: String,
    },
    /// The private key does not belong to the leaf certificate.
    #[error(
        "{field}: the private key does not match the certificate {subject}; give the key that the leaf was made for"
    )]
    KeyMismatch {
        /// Which key pair, such as `certificates[0]`.
        field: String,
        /// Subject of the leaf.
        subject: String,
    },
    /// A key type or size that cannot serve.
    #[error("{field}: {reason}")]
    UnsupportedKey {
        /// Which key pair.
        field: String,
        /// Why, with a remedy.
        reason: String,
    },
    /// Unknown cipher suite.
    #[error("cipher_suites: {0:?} is not a TLS 1.2 cipher suite that BoringSSL knows")]
    UnknownCipher(String),
    /// Unknown group.
    #[error(
        "ecdh_curves: {0:?} is not a group that BoringSSL knows (for example X25519MLKEM768, X25519, P-256, P-384)"
    )]
    UnknownCurve(String),
    /// ALPN values must be 1 to 255 bytes.
    #[error("alpn_protocols: {0:?} must be 1 to 255 bytes long")]
    BadAlpn(String),
    /// Minimum above maximum.
    #[error("tls_minimum_protocol_version is above tls_maximum_protocol_version")]
    VersionRange,
    /// A trust configuration without roots.
    #[error("{0}: no trusted certificate in it; give at least one root as PEM")]
    NoRoots(String),
    /// `require_client_certificate` without anything to check the certificate with.
    #[error("require_client_certificate is set but there is no validation context; give trusted_ca")]
    RequiresTrust,
    /// Keys for session tickets that are none.
    #[error("session_ticket_keys: none given; give at least one key of 80 bytes, or remove the field")]
    NoTicketKey,
    /// Keys for session tickets where client certificates are verified.
    #[error(
        "session_ticket_keys: no tickets are given out where client certificates are verified, since a resumed session would outlive a change of trusted_ca; remove the keys"
    )]
    TicketKeysWithTrust,
    /// BoringSSL refused for another reason.
    #[error("{field}: BoringSSL refused it: {reason}")]
    Engine {
        /// Which parameter.
        field: &'static str,
        /// BoringSSL's reason.
        reason: String,
    },
}

/// Why a peer's certificate was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyFailure {
    /// The peer sent no certificate though one is required. Counted as `ssl.fail_verify_no_cert`.
    NoCertificate,
    /// The chain does not end in a trusted root. Counted as `ssl.fail_verify_error`.
    Untrusted(&'static str),
    /// A certificate of the chain has expired. Counted as `ssl.fail_verify_error`.
    Expired,
    /// A certificate of the chain is not valid yet. Counted as `ssl.fail_verify_error`.
    NotYetValid,
    /// No subject alternative name is accepted. Counted as `ssl.fail_verify_san`. Holds the names that were presented.
    SanMismatch(String),
    /// Any other finding of the X.509 verification (purpose, constraints, signature). `ssl.fail_verify_error`.
    Invalid(&'static str),
}

impl VerifyFailure {
    /// The name of Envoy's counter under `ssl.`.
    pub fn counter(&self) -> &'static str {
        match self {
            Self::NoCertificate => "fail_verify_no_cert",
            Self::SanMismatch(_) => "fail_verify_san",
            _ => "fail_verify_error",
        }
    }
}

impl std::fmt::Display for VerifyFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoCertificate => f.write_str("the peer presented no certificate"),
            Self::Untrusted(reason) => {
                write!(f, "the peer's chain ends in no trusted root: {reason}")
            }
            Self::Expired => f.write_str("the peer's certificate has expired"),
            Self::NotYetValid => f.write_str("the peer's certificate is not valid yet; compare the clocks"),
            Self::SanMismatch(names) => {
                write!(f, "no subject alternative name of the peer is accepted, it has {names}")
            }
            Self::Invalid(reason) => {
                write!(f, "the peer's certificate is not acceptable: {reason}")
            }
        }
    }
}

/// What kind of failure ended a handshake.
#[derive(Debug)]
#[non_exhaustive]
pub enum HandshakeErrorKind {
    /// The socket failed.
    Io(io::Error),
    /// The peer closed before the handshake was done.
    Closed,
    /// We refused the peer's certificate.
    Verify(VerifyFailure),
    /// The peer refused ours, or anything else of ours, with this alert (RFC 8446 §6).
    PeerAlert(String),
    /// What the peer sent is not TLS at all (an HTTP request, for example).
    NotTls,
    /// The peer broke the protocol, or there is no common version, cipher suite or group. BoringSSL's reason.
    Protocol(String),
    /// The private key provider failed.
    Key(String),
    /// BoringSSL could not set the connection up (memory, for the most part).
    Engine(String),
}

/// A failed handshake. The alert, where one is due, has been sent.
#[derive(Debug, Error)]
#[error("TLS handshake failed: {}", self.describe())]
pub struct HandshakeError {
    /// What happened.
    pub kind: HandshakeErrorKind,
}

impl HandshakeError {
    pub(crate) fn new(kind: HandshakeErrorKind) -> Self {
        Self { kind }
    }

    /// Whether another attempt, perhaps at another endpoint, may go better. Identity and protocol failures do not
    /// heal by trying the same endpoint again.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, HandshakeErrorKind::Io(_) | HandshakeErrorKind::Closed)
    }

    fn describe(&self) -> String {
        match &self.kind {
            HandshakeErrorKind::Io(e) => e.to_string(),
            HandshakeErrorKind::Closed => "the peer closed the connection".to_owned(),
            HandshakeErrorKind::Verify(v) => v.to_string(),
            HandshakeErrorKind::PeerAlert(a) => format!("the peer refused: {a}"),
            HandshakeErrorKind::NotTls => "the peer does not speak TLS".to_owned(),
            HandshakeErrorKind::Protocol(r) => r.clone(),
            HandshakeErrorKind::Key(r) => format!("private key: {r}"),
            HandshakeErrorKind::Engine(r) => format!("engine: {r}"),
        }
    }
}
