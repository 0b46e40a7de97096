//! TLS contexts, made once per distinct specification and secrets.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

use heddle_tls::ClientContext;

use crate::decode::{Identity, SecretRef, SecretValue, TlsContext, TlsSpec};
use crate::error::ConfigError;
use crate::snapshot::TlsKey;

/// A secret's value with a number that tells its versions apart.
pub(super) type Versioned<'s> = (&'s SecretValue, u64);

/// Client contexts by specification and secret versions. In a mesh most clusters differ in server name only, but
/// gateways and subsets repeat each other, and a context costs tens of kilobytes. Server contexts are not shared:
/// sessions belong to one filter chain.
#[derive(Clone, Default)]
pub(super) struct SharedContexts {
    clients: HashMap<(Identity, Vec<u64>), Weak<ClientContext>>,
    /// Size at which dead entries are swept out.
    sweep_at: usize,
}

impl SharedContexts {
    /// Contexts for all of `specs`; `None` while a secret is missing.
    pub(super) fn build<'s>(
        &mut self,
        specs: &[(TlsKey, TlsSpec)],
        secret: impl Fn(&SecretRef) -> Option<Versioned<'s>>,
    ) -> Result<Option<BTreeMap<TlsKey, TlsContext>>, ConfigError> {
        let mut out = BTreeMap::new();
        for (key, spec) in specs {
            match self.one(spec, &secret)? {
                Some(context) => drop(out.insert(key.clone(), context)),
                None => return Ok(None),
            }
        }
        Ok(Some(out))
    }

    fn one<'s>(
        &mut self,
        spec: &TlsSpec,
        secret: &impl Fn(&SecretRef) -> Option<Versioned<'s>>,
    ) -> Result<Option<TlsContext>, ConfigError> {
        let serials: Option<Vec<u64>> = spec
            .secrets()
            .iter()
            .map(|s| secret(s).map(|(_, serial)| serial))
            .collect();
        let Some(serials) = serials else { return Ok(None) };
        let place = (spec.identity(), serials);
        if let Some(shared) = self.clients.get(&place).and_then(Weak::upgrade) {
            return Ok(Some(TlsContext::Client(shared)));
        }
        let built = spec.build(|s| secret(s).map(|(value, _)| value))?;
        if let Some(TlsContext::Client(context)) = &built {
            if self.clients.len() >= self.sweep_at {
                self.clients.retain(|_, weak| weak.strong_count() > 0);
                self.sweep_at = 64 + 2 * self.clients.len();
            }
            self.clients.insert(place, Arc::downgrade(context));
        }
        Ok(built)
    }
}
