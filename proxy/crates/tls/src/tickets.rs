//! Session tickets under keys that are given: who has the same keys resumes what another began.

use std::fmt;
use std::sync::Arc;

use boring::error::ErrorStack;
use boring::hash::{Hasher, MessageDigest};
use boring::hmac::HmacCtxRef;
use boring::rand::rand_bytes;
use boring::ssl::{SslContextBuilder, SslOptions, TicketKeyCallbackResult as Outcome};
use boring::symm::{Cipher, CipherCtxRef};
use zeroize::ZeroizeOnDrop;

use crate::certificate::CertificateInfo;
use crate::error::TlsConfigError;

const NAME: usize = 16;
const SECRET: usize = 32;
type Iv = [u8; 16];

/// Whether a server gives out session tickets (RFC 5077; RFC 8446 §4.6.1), and under whose keys.
#[derive(Clone, Debug, Default)]
pub enum SessionTickets {
    /// None are given out and none are taken.
    #[default]
    Off,
    /// Under keys that the context draws and renews: good at each of its workers, until the context is made anew.
    OwnKeys,
    /// Under the first of these keys; a ticket under any of them is taken, and replaced where it is not the first's.
    /// At least one.
    Given(Arc<[TicketKey]>),
}

/// One of `session_ticket_keys`: a name that tickets bear, and secrets for HMAC-SHA-256 and AES-256 in CBC mode (RFC 5077 §4).
#[derive(Clone, PartialEq, Eq, ZeroizeOnDrop)]
pub struct TicketKey {
    name: [u8; NAME],
    mac: [u8; SECRET],
    cipher: [u8; SECRET],
}

impl TicketKey {
    /// Bytes of a key.
    pub const LENGTH: usize = NAME + SECRET + SECRET;

    /// Reads a key as Envoy does: 16 bytes of name, 32 for HMAC, 32 for AES. `None` for any other length.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (name, rest) = bytes.split_first_chunk()?;
        let (mac, rest) = rest.split_first_chunk()?;
        let cipher = rest.try_into().ok()?;
        Some(Self {
            name: *name,
            mac: *mac,
            cipher,
        })
    }

    fn seal(&self, name: &mut [u8; NAME], iv: &mut Iv, cipher: &mut CipherCtxRef, mac: &mut HmacCtxRef) -> Sealed {
        *name = self.name;
        rand_bytes(iv)?;
        cipher.init_encrypt(&Cipher::aes_256_cbc(), &self.cipher, iv)?;
        mac.init(&self.mac, &MessageDigest::sha256())
    }

    fn open(&self, iv: &Iv, cipher: &mut CipherCtxRef, mac: &mut HmacCtxRef) -> Sealed {
        cipher.init_decrypt(&Cipher::aes_256_cbc(), &self.cipher, iv)?;
        mac.init(&self.mac, &MessageDigest::sha256())
    }
}

type Sealed = Result<(), ErrorStack>;

impl fmt::Debug for TicketKey {
    /// The secrets are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKey")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Sets what tickets a context gives out and takes. `certificates` are all that it shows, in order: a session that began
/// under other names is not resumed, whoever has the key.
pub(crate) fn install(
    builder: &mut SslContextBuilder,
    tickets: &SessionTickets,
    certificates: &[CertificateInfo],
) -> Result<(), TlsConfigError> {
    let keys = match tickets {
        SessionTickets::Off => {
            builder.set_options(SslOptions::NO_TICKET);
            return Ok(());
        }
        SessionTickets::OwnKeys => return Ok(()),
        SessionTickets::Given(keys) if keys.is_empty() => return Err(TlsConfigError::NoTicketKey),
        SessionTickets::Given(keys) => Arc::clone(keys),
    };
    names(certificates)
        .and_then(|digest| builder.set_session_id_context(&digest))
        .map_err(|e| TlsConfigError::Engine {
            field: "session_ticket_keys",
            reason: e.to_string(),
        })?;
    // SAFETY: where the outcome is that a ticket is made or taken, name and IV were written (or read) and both contexts
    // set, by `seal` and `open`.
    unsafe {
        builder.set_ticket_key_callback(move |_, name, iv, cipher, mac, is_new| {
            if is_new {
                return outcome(keys[0].seal(name, iv, cipher, mac), Outcome::Success);
            }
            match keys.iter().position(|key| key.name == *name) {
                None => Outcome::Noop,
                Some(0) => outcome(keys[0].open(iv, cipher, mac), Outcome::Success),
                Some(older) => outcome(keys[older].open(iv, cipher, mac), Outcome::DecryptSuccessRenew),
            }
        });
    }
    Ok(())
}

fn outcome(done: Sealed, good: Outcome) -> Outcome {
    match done {
        Ok(()) => good,
        // BoringSSL's memory or randomness failed.
        Err(_) => Outcome::Error,
    }
}

/// A digest of who the certificates are for and by whom, which their renewal does not change.
fn names(certificates: &[CertificateInfo]) -> Result<[u8; 32], ErrorStack> {
    let mut hasher = Hasher::new(MessageDigest::sha256())?;
    for certificate in certificates {
        let single = [certificate.subject.clone(), certificate.issuer.clone()];
        for list in [
            &single[..],
            &certificate.uri_sans,
            &certificate.dns_sans,
            &certificate.ip_sans,
        ] {
            // Lengths keep one list of names from reading like another.
            hasher.update(&list.len().to_be_bytes())?;
            for name in list {
                hasher.update(&name.len().to_be_bytes())?;
                hasher.update(name.as_bytes())?;
            }
        }
    }
    let digest = hasher.finish()?;
    let mut out = [0; 32];
    out.copy_from_slice(&digest);
    Ok(out)
}
