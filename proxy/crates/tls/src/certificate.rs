//! Reading certificates: identities, and what the admin interface shows.

use boring::asn1::{Asn1Time, Asn1TimeRef};
use boring::hash::MessageDigest;
use boring::nid::Nid;
use boring::x509::{X509, X509NameRef, X509Ref};
use heddle_net::PeerIdentity;

use crate::error::TlsConfigError;
use crate::san::SanKind;

/// Names of one certificate that are read at all; more are cut off (a hostile certificate may hold thousands).
const MAX_NAMES: usize = 256;

/// What `/certs` shows of one certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Subject in RFC 2253 form.
    pub subject: String,
    /// Common name of the issuer.
    pub issuer: String,
    /// URI subject alternative names.
    pub uri_sans: Vec<String>,
    /// DNS subject alternative names.
    pub dns_sans: Vec<String>,
    /// IP subject alternative names.
    pub ip_sans: Vec<String>,
    /// Serial number, lower-case hex.
    pub serial: String,
    /// Begin of validity, seconds since 1970.
    pub not_before: i64,
    /// End of validity, seconds since 1970.
    pub not_after: i64,
}

impl CertificateInfo {
    pub(crate) fn of(certificate: &X509Ref) -> Self {
        let mut info = Self {
            subject: rfc2253(certificate.subject_name()),
            issuer: common_name(certificate.issuer_name()),
            serial: certificate
                .serial_number()
                .to_bn()
                .and_then(|n| n.to_hex_str().map(|h| h.to_ascii_lowercase()))
                .unwrap_or_default(),
            not_before: unix(certificate.not_before()),
            not_after: unix(certificate.not_after()),
            ..Self::default()
        };
        for (kind, name) in names(certificate) {
            match kind {
                SanKind::Uri => info.uri_sans.push(name),
                SanKind::Dns => info.dns_sans.push(name),
                SanKind::Ip => info.ip_sans.push(name),
                SanKind::Email => {}
            }
        }
        info
    }
}

/// The identity in a verified leaf certificate.
pub(crate) fn identity(leaf: &X509Ref) -> PeerIdentity {
    let mut identity = PeerIdentity {
        subject: rfc2253(leaf.subject_name()),
        issuer: common_name(leaf.issuer_name()),
        sha256: leaf
            .digest(MessageDigest::sha256())
            .map(|d| hex(&d))
            .unwrap_or_default(),
        ..PeerIdentity::default()
    };
    for (kind, name) in names(leaf) {
        match kind {
            SanKind::Uri => identity.uri_sans.push(name),
            SanKind::Dns => identity.dns_sans.push(name),
            SanKind::Ip => identity.ip_sans.push(name),
            SanKind::Email => identity.email_sans.push(name),
        }
    }
    identity
}

/// The subject alternative names of a certificate, in order, of the kinds that can be matched.
pub(crate) fn names(certificate: &X509Ref) -> Vec<(SanKind, String)> {
    let Some(names) = certificate.subject_alt_names() else {
        return Vec::new();
    };
    names
        .iter()
        .take(MAX_NAMES)
        .filter_map(|name| {
            if let Some(uri) = name.uri() {
                Some((SanKind::Uri, uri.to_owned()))
            } else if let Some(dns) = name.dnsname() {
                Some((SanKind::Dns, dns.to_owned()))
            } else if let Some(mail) = name.email() {
                Some((SanKind::Email, mail.to_owned()))
            } else {
                name.ipaddress().and_then(ip_text).map(|ip| (SanKind::Ip, ip))
            }
        })
        .collect()
}

fn ip_text(bytes: &[u8]) -> Option<String> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Some(std::net::Ipv4Addr::from(v4).to_string());
    }
    <[u8; 16]>::try_from(bytes)
        .ok()
        .map(|v6| std::net::Ipv6Addr::from(v6).to_string())
}

/// Reads all certificates of a PEM text; `field` names it in errors.
pub(crate) fn read_chain(pem: &[u8], field: &str) -> Result<Vec<X509>, TlsConfigError> {
    let bad = |reason: String| TlsConfigError::BadPem {
        field: field.to_owned(),
        reason,
    };
    let chain = X509::stack_from_pem(pem).map_err(|e| bad(e.to_string()))?;
    if chain.is_empty() {
        return Err(bad("there is no CERTIFICATE block in it".to_owned()));
    }
    Ok(chain)
}

fn rfc2253(name: &X509NameRef) -> String {
    name.print_ex(boring_sys::XN_FLAG_RFC2253).unwrap_or_default()
}

fn common_name(name: &X509NameRef) -> String {
    name.entries_by_nid(Nid::COMMONNAME)
        .next()
        .and_then(|e| e.data().as_utf8().ok().map(|text| text.to_string()))
        .unwrap_or_default()
}

fn unix(time: &Asn1TimeRef) -> i64 {
    let Ok(epoch) = Asn1Time::from_unix(0) else {
        return 0;
    };
    epoch
        .diff(time)
        .map_or(0, |d| i64::from(d.days) * 86_400 + i64::from(d.secs))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
