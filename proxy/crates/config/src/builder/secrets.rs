//! Secrets, and the TLS contexts that are made anew with them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::apply::{checked, same_name};
use super::{Builder, Held, NeedsTls, SharedContexts, Slot, StoredSecret};
use crate::decode::{self, SecretRef, SecretValue, TlsContext, pb};
use crate::error::{ConfigError, ConfigErrors};
use crate::path::Path;
use crate::resource::{Resource, ResourceKind, SecretSource, Update};
use crate::snapshot::TlsKey;

/// Contexts that a changed secret gives to one listener or cluster, in the order of [`Slot::versions`].
type Rebuilt = HashMap<Arc<str>, Vec<Option<BTreeMap<TlsKey, TlsContext>>>>;

impl Builder {
    /// New secrets rebuild the contexts of everything that uses them; if one cannot be built, the secrets are refused.
    pub(super) fn apply_secrets(&mut self, update: Update, from_bootstrap: bool) -> Result<(), ConfigErrors> {
        let mut findings = Vec::new();
        let mut staged: BTreeMap<SecretRef, Arc<StoredSecret>> = BTreeMap::new();
        let source = if from_bootstrap {
            SecretSource::Static
        } else {
            update.source
        };
        for resource in update.resources {
            let wanted = SecretRef {
                source: source.clone(),
                name: resource.name.as_str().into(),
            };
            if self
                .state
                .secrets
                .get(&wanted)
                .is_some_and(|s| s.raw.body == resource.body)
            {
                continue;
            }
            let path = Path::resource(ResourceKind::Secret.plural(), &resource.name);
            match decode_secret(&resource, &path) {
                Ok(value) => {
                    self.serial += 1;
                    staged.insert(
                        wanted,
                        Arc::new(StoredSecret {
                            raw: resource,
                            value,
                            serial: self.serial,
                        }),
                    );
                }
                Err(e) => findings.extend(e.iter().cloned()),
            }
        }
        ConfigErrors::check(findings)?;
        let lookup = |wanted: &SecretRef| {
            staged
                .get(wanted)
                .or_else(|| self.state.secrets.get(wanted))
                .map(|s| (&s.value, s.serial))
        };
        let mut findings = Vec::new();
        let mut listeners: Rebuilt = HashMap::new();
        let mut clusters: Rebuilt = HashMap::new();
        for (name, slot) in &self.state.listeners {
            rebuild(
                &mut self.shared,
                name,
                slot,
                &staged,
                lookup,
                &mut listeners,
                &mut findings,
            );
        }
        for (name, slot) in &self.state.clusters {
            rebuild(
                &mut self.shared,
                name,
                slot,
                &staged,
                lookup,
                &mut clusters,
                &mut findings,
            );
        }
        ConfigErrors::check(findings)?;
        self.changed |= !(listeners.is_empty() && clusters.is_empty());
        replace(&mut self.state.listeners, listeners);
        replace(&mut self.state.clusters, clusters);
        self.state.secrets.extend(staged);
        Ok(())
    }
}

fn rebuild<'s, P: NeedsTls>(
    shared: &mut SharedContexts,
    name: &Arc<str>,
    slot: &Slot<P>,
    staged: &BTreeMap<SecretRef, Arc<StoredSecret>>,
    lookup: impl Fn(&SecretRef) -> Option<super::contexts::Versioned<'s>> + Copy,
    rebuilt: &mut Rebuilt,
    findings: &mut Vec<ConfigError>,
) {
    let touched = |held: &Held<P>| {
        held.parts
            .tls()
            .iter()
            .flat_map(|(_, spec)| spec.secrets())
            .any(|wanted| staged.contains_key(&wanted))
    };
    if !slot.versions().any(touched) {
        return;
    }
    let mut versions = Vec::new();
    for held in slot.versions() {
        match shared.build(held.parts.tls(), lookup) {
            Ok(contexts) => versions.push(contexts),
            Err(e) => findings.push(e),
        }
    }
    rebuilt.insert(name.clone(), versions);
}

fn replace<P: Clone>(slots: &mut BTreeMap<Arc<str>, Slot<P>>, mut rebuilt: Rebuilt) {
    for (name, slot) in slots {
        if let Some(versions) = rebuilt.remove(name) {
            for (held, contexts) in slot.versions_mut().zip(versions) {
                Arc::make_mut(held).contexts = contexts;
            }
        }
    }
}

fn decode_secret(resource: &Resource, path: &Path<'_>) -> Result<SecretValue, ConfigErrors> {
    let config: pb::tls::Secret = checked(ResourceKind::Secret, resource, path)?;
    same_name(&resource.name, &config.name, path)?;
    Ok(decode::secret(&config, path)?)
}
