//! Deciding inside the handshake whether a peer's certificate is acceptable, so that a bad peer gets an alert.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};

use boring::ex_data::Index;
use boring::hash::MessageDigest;
use boring::ssl::{Ssl, SslRef};
use boring::x509::store::{X509Store, X509StoreBuilder};
use boring::x509::verify::X509VerifyFlags;
use boring::x509::{X509Ref, X509StoreContext, X509StoreContextRef, X509VerifyError};

use crate::certificate;
use crate::error::{TlsConfigError, VerifyFailure};
use crate::params::Trust;
use crate::san::{SanKind, SanMatcher};

/// Where a connection's verdict is kept until the handshake has failed.
static VERDICT: LazyLock<Index<Ssl, OnceLock<VerifyFailure>>> =
    LazyLock::new(|| Ssl::new_ex_index().expect("BoringSSL gives out ex-data indexes as long as there is memory"));

/// Prepares a connection to record why its peer was refused.
pub(crate) fn arm(ssl: &mut SslRef) {
    ssl.set_ex_data(*VERDICT, OnceLock::new());
}

/// Why the peer was refused, if it was.
pub(crate) fn recorded(ssl: &SslRef) -> Option<VerifyFailure> {
    ssl.ex_data(*VERDICT).and_then(OnceLock::get).cloned()
}

/// The checks beyond the chain of signatures.
pub(crate) struct Acceptance {
    sans: Vec<SanMatcher>,
    /// SHA-256 of the roots of each trust domain; empty when trust is not split by domain.
    domains: HashMap<String, Vec<Vec<u8>>>,
}

/// Reads the roots into a store, and the rest into an [`Acceptance`]. `field` is the path for errors.
pub(crate) fn prepare(trust: &Trust, field: &str) -> Result<(X509Store, Arc<Acceptance>), TlsConfigError> {
    let engine = |e: boring::error::ErrorStack| TlsConfigError::Engine {
        field: "trust",
        reason: e.to_string(),
    };
    let mut store = X509StoreBuilder::new().map_err(engine)?;
    // As Envoy: an intermediate in the bundle is a trust anchor of its own.
    store.set_flags(X509VerifyFlags::PARTIAL_CHAIN);
    let mut domains: HashMap<String, Vec<Vec<u8>>> = HashMap::new();
    if trust.trust_domains.is_empty() {
        if trust.roots_pem.is_empty() {
            return Err(TlsConfigError::NoRoots(format!("{field}.trusted_ca")));
        }
        for root in certificate::read_chain(&trust.roots_pem, &format!("{field}.trusted_ca"))? {
            store.add_cert(&root).map_err(engine)?;
        }
    }
    for domain in &trust.trust_domains {
        let path = format!("{field}.trust_domains[{}]", domain.name);
        if domain.roots_pem.is_empty() {
            return Err(TlsConfigError::NoRoots(path));
        }
        let digests = domains.entry(domain.name.clone()).or_default();
        for root in certificate::read_chain(&domain.roots_pem, &path)? {
            digests.push(fingerprint(&root).map_err(engine)?);
            store.add_cert(&root).map_err(engine)?;
        }
    }
    Ok((
        store.build(),
        Arc::new(Acceptance {
            sans: trust.sans.clone(),
            domains,
        }),
    ))
}

fn fingerprint(certificate: &X509Ref) -> Result<Vec<u8>, boring::error::ErrorStack> {
    certificate.digest(MessageDigest::sha256()).map(|d| d.to_vec())
}

/// The verify callback. Every context uses this one function: BoringSSL's callbacks are found by the closure's type,
/// and contexts with closures of different types cannot be exchanged on one connection.
pub(crate) fn callback(
    acceptance: Arc<Acceptance>,
) -> impl Fn(bool, &mut X509StoreContextRef) -> bool + Send + Sync + 'static {
    move |chain_ok, context| {
        let failure = if !chain_ok {
            Some(explain(context))
        } else if context.error_depth() == 0 {
            acceptance.check(context).err()
        } else {
            None
        };
        let Some(failure) = failure else { return true };
        if chain_ok {
            context.set_error(Err(X509VerifyError::APPLICATION_VERIFICATION));
        }
        if let Ok(index) = X509StoreContext::ssl_idx()
            && let Some(verdict) = context.ex_data(index).and_then(|ssl| ssl.ex_data(*VERDICT))
        {
            // Keeps the first reason: later ones follow from it.
            let _ = verdict.set(failure);
        }
        false
    }
}

fn explain(context: &X509StoreContextRef) -> VerifyFailure {
    let Err(error) = context.verify_result() else {
        return VerifyFailure::Invalid("unspecified");
    };
    match error {
        X509VerifyError::CERT_HAS_EXPIRED => VerifyFailure::Expired,
        X509VerifyError::CERT_NOT_YET_VALID => VerifyFailure::NotYetValid,
        X509VerifyError::UNABLE_TO_GET_ISSUER_CERT
        | X509VerifyError::UNABLE_TO_GET_ISSUER_CERT_LOCALLY
        | X509VerifyError::UNABLE_TO_VERIFY_LEAF_SIGNATURE
        | X509VerifyError::DEPTH_ZERO_SELF_SIGNED_CERT
        | X509VerifyError::SELF_SIGNED_CERT_IN_CHAIN
        | X509VerifyError::CERT_SIGNATURE_FAILURE
        | X509VerifyError::CERT_UNTRUSTED => VerifyFailure::Untrusted(error.error_string()),
        other => VerifyFailure::Invalid(other.error_string()),
    }
}

impl Acceptance {
    /// Checks the leaf's names, once its chain has been verified.
    fn check(&self, context: &X509StoreContextRef) -> Result<(), VerifyFailure> {
        let Some(leaf) = context.current_cert() else {
            return Err(VerifyFailure::Invalid("there is no leaf certificate"));
        };
        if self.sans.is_empty() && self.domains.is_empty() {
            return Ok(());
        }
        let names = certificate::names(leaf);
        if !self.domains.is_empty() {
            self.check_trust_domain(context, &names)?;
        }
        let accepted = self.sans.is_empty()
            || self
                .sans
                .iter()
                .any(|m| names.iter().any(|(k, n)| *k == m.kind() && m.matches(n)));
        if accepted {
            Ok(())
        } else {
            Err(VerifyFailure::SanMismatch(list(&names)))
        }
    }

    /// A root may only vouch for identities of its own trust domain (SPIFFE trust domain and bundle, §4).
    fn check_trust_domain(
        &self,
        context: &X509StoreContextRef,
        names: &[(SanKind, String)],
    ) -> Result<(), VerifyFailure> {
        let mut uris = names.iter().filter(|(kind, _)| *kind == SanKind::Uri);
        // An X.509-SVID has exactly one URI name (SPIFFE X.509-SVID §2).
        let (Some((_, uri)), None) = (uris.next(), uris.next()) else {
            return Err(VerifyFailure::SanMismatch(list(names)));
        };
        let domain = uri
            .strip_prefix("spiffe://")
            .and_then(|rest| rest.split('/').next())
            .unwrap_or_default();
        let Some(roots) = self.domains.get(domain) else {
            return Err(VerifyFailure::SanMismatch(list(names)));
        };
        let anchor = context
            .chain()
            .and_then(|chain| chain.iter().next_back())
            .and_then(|anchor| fingerprint(anchor).ok());
        match anchor {
            Some(anchor) if roots.contains(&anchor) => Ok(()),
            _ => Err(VerifyFailure::Untrusted(
                "the chain ends in a root of another trust domain",
            )),
        }
    }
}

/// Names for an error message, bounded: they come from the peer.
fn list(names: &[(SanKind, String)]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<String> = names
        .iter()
        .take(4)
        .map(|(_, n)| n.chars().take(128).collect())
        .collect();
    let more = names.len().saturating_sub(shown.len());
    if more > 0 {
        format!("{} and {more} more", shown.join(", "))
    } else {
        shown.join(", ")
    }
}
