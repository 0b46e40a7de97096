//! Certificate authorities for tests. Keys are made anew each time; nothing here is for production.

use boring::asn1::{Asn1Integer, Asn1Time};
use boring::bn::{BigNum, MsbOption};
use boring::ec::{EcGroup, EcKey};
use boring::hash::MessageDigest;
use boring::nid::Nid;
use boring::pkey::{PKey, Private};
use boring::rsa::Rsa;
use boring::x509::extension::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAlternativeName, SubjectKeyIdentifier,
};
use boring::x509::{X509, X509Extension, X509Name};

use crate::params::KeyPair;

/// A certificate authority, root or intermediate.
pub struct Authority {
    certificate: X509,
    key: PKey<Private>,
    /// PEM of the intermediates between this authority and its root, this one first; empty for a root.
    chain: Vec<u8>,
}

/// What a leaf certificate is made for.
#[derive(Clone, Debug)]
pub struct Leaf<'a> {
    /// URI subject alternative names.
    pub uris: &'a [&'a str],
    /// DNS subject alternative names.
    pub dns: &'a [&'a str],
    /// Begin of validity, seconds from now.
    pub from: i64,
    /// End of validity, seconds from now.
    pub until: i64,
    /// RSA-2048 instead of ECDSA P-256.
    pub rsa: bool,
}

impl Default for Leaf<'_> {
    fn default() -> Self {
        Self {
            uris: &[],
            dns: &[],
            from: -60,
            until: 3600,
            rsa: false,
        }
    }
}

fn now() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |d| d.as_secs() as i64)
}

fn ec_key() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).expect("P-256 exists");
    PKey::from_ec_key(EcKey::generate(&group).expect("key")).expect("key")
}

fn name(common_name: &str) -> X509Name {
    let mut name = X509Name::builder().expect("name");
    name.append_entry_by_text("CN", common_name).expect("name");
    name.build()
}

fn builder(
    common_name: &str,
    issuer: Option<&X509>,
    key: &PKey<Private>,
    from: i64,
    until: i64,
) -> boring::x509::X509Builder {
    let mut builder = X509::builder().expect("builder");
    builder.set_version(2).expect("version");
    let mut serial = BigNum::new().expect("number");
    serial.rand(120, MsbOption::MAYBE_ZERO, false).expect("random");
    builder
        .set_serial_number(&Asn1Integer::from_bn(&serial).expect("serial"))
        .expect("serial");
    let subject = name(common_name);
    builder.set_subject_name(&subject).expect("subject");
    builder
        .set_issuer_name(issuer.map_or(&*subject, |i| i.subject_name()))
        .expect("issuer");
    builder
        .set_not_before(&Asn1Time::from_unix(now() + from).expect("time"))
        .expect("time");
    builder
        .set_not_after(&Asn1Time::from_unix(now() + until).expect("time"))
        .expect("time");
    builder.set_pubkey(key).expect("key");
    builder
}

fn append_issuer_key(b: &mut boring::x509::X509Builder, issuer: &Authority) {
    let key = AuthorityKeyIdentifier::new()
        .keyid(true)
        .build(&b.x509v3_context(Some(&issuer.certificate), None));
    b.append_extension(&key.expect("extension")).expect("extension");
}

impl Authority {
    /// A root.
    pub fn root(common_name: &str) -> Self {
        Self::make(common_name, None, None)
    }

    /// An intermediate under this authority.
    pub fn intermediate(&self, common_name: &str) -> Self {
        Self::make(common_name, Some(self), None)
    }

    /// An intermediate that may issue this DNS name and those below it, and no other (RFC 5280 §4.2.1.10), as the
    /// intermediates of a mesh's clusters are.
    pub fn constrained(&self, common_name: &str, dns: &str) -> Self {
        Self::make(common_name, Some(self), Some(dns))
    }

    fn make(common_name: &str, parent: Option<&Self>, permitted_dns: Option<&str>) -> Self {
        let key = ec_key();
        let mut b = builder(common_name, parent.map(|p| &p.certificate), &key, -3600, 86_400);
        let constraints = BasicConstraints::new().critical().ca().build().expect("extension");
        b.append_extension(&constraints).expect("extension");
        let usage = KeyUsage::new()
            .critical()
            .key_cert_sign()
            .crl_sign()
            .build()
            .expect("extension");
        b.append_extension(&usage).expect("extension");
        // As Go's x509 package does it: authorities of the same name are told apart by their keys.
        let own = SubjectKeyIdentifier::new().build(&b.x509v3_context(parent.map(|p| &*p.certificate), None));
        b.append_extension(&own.expect("extension")).expect("extension");
        if let Some(parent) = parent {
            append_issuer_key(&mut b, parent);
        }
        if let Some(dns) = permitted_dns {
            // The crate has no builder for this extension.
            #[allow(deprecated)]
            let names = X509Extension::new_nid(
                None,
                None,
                Nid::NAME_CONSTRAINTS,
                &format!("critical,permitted;DNS:{dns}"),
            );
            b.append_extension(&names.expect("extension")).expect("extension");
        }
        b.sign(parent.map_or(&key, |p| &p.key), MessageDigest::sha256())
            .expect("signs");
        let certificate = b.build();
        let mut chain = Vec::new();
        if let Some(parent) = parent {
            chain.extend(certificate.to_pem().expect("pem"));
            chain.extend_from_slice(&parent.chain);
        }
        Self {
            certificate,
            key,
            chain,
        }
    }

    /// This authority's certificate as PEM.
    pub fn pem(&self) -> Vec<u8> {
        self.certificate.to_pem().expect("pem")
    }

    /// Issues a leaf certificate with its chain and key.
    pub fn issue(&self, leaf: &Leaf<'_>) -> KeyPair {
        let key = if leaf.rsa {
            PKey::from_rsa(Rsa::generate(2048).expect("rsa")).expect("key")
        } else {
            ec_key()
        };
        let mut b = builder("leaf", Some(&self.certificate), &key, leaf.from, leaf.until);
        if !leaf.uris.is_empty() || !leaf.dns.is_empty() {
            let mut names = SubjectAlternativeName::new();
            leaf.uris.iter().for_each(|u| {
                names.uri(u);
            });
            leaf.dns.iter().for_each(|d| {
                names.dns(d);
            });
            let names = names
                .build(&b.x509v3_context(Some(&self.certificate), None))
                .expect("extension");
            b.append_extension(&names).expect("extension");
        }
        let usage = ExtendedKeyUsage::new()
            .server_auth()
            .client_auth()
            .build()
            .expect("extension");
        b.append_extension(&usage).expect("extension");
        append_issuer_key(&mut b, self);
        b.sign(&self.key, MessageDigest::sha256()).expect("signs");
        let mut chain_pem = b.build().to_pem().expect("pem");
        chain_pem.extend_from_slice(&self.chain);
        KeyPair {
            chain_pem,
            key_pem: key.private_key_to_pem_pkcs8().expect("pem"),
            provider: None,
        }
    }

    /// Issues a leaf for one SPIFFE identity.
    pub fn spiffe(&self, uri: &str) -> KeyPair {
        self.issue(&Leaf {
            uris: &[uri],
            ..Leaf::default()
        })
    }
}
