//! Secrets, and the TLS contexts that are made anew with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::apply::{checked, same_name};
use super::{Builder, NeedsTls, SharedContexts, Slot, StoredSecret};
use crate::decode::{self, SecretRef, SecretValue, pb};
use crate::error::{ConfigErrors, Refused};
use crate::path::Path;
use crate::resource::{Resource, ResourceKind, SecretSource, Update};

impl Builder {
    /// New secrets rebuild the contexts of everything that uses them. What cannot use them keeps the contexts that it has, and
    /// the refusal names the secrets; others use them all the same.
    pub(super) fn apply_secrets(&mut self, update: Update, from_bootstrap: bool, refused: &mut Refused) {
        let new = self.take_secrets(update, from_bootstrap, refused);
        let mut uses = NewSecrets {
            new,
            shared: &mut self.shared,
            secrets: &self.state.secrets,
            refused,
        };
        self.changed |= uses.rebuild(&mut self.state.listeners);
        self.changed |= uses.rebuild(&mut self.state.clusters);
    }

    /// Takes the secrets that can be used at all. Returns the names of those that are new.
    fn take_secrets(&mut self, update: Update, from_bootstrap: bool, refused: &mut Refused) -> BTreeSet<SecretRef> {
        let mut new = BTreeSet::new();
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
            let stored = self.state.secrets.get(&wanted);
            if stored.is_some_and(|s| s.raw.body == resource.body) {
                continue;
            }
            let path = Path::resource(ResourceKind::Secret.plural(), &resource.name);
            match decode_secret(&resource, &path) {
                Ok(value) => {
                    self.serial += 1;
                    let stored = StoredSecret {
                        raw: resource,
                        value,
                        serial: self.serial,
                    };
                    self.state.secrets.insert(wanted.clone(), Arc::new(stored));
                    new.insert(wanted);
                }
                Err(e) => refused.add(resource.name, e),
            }
        }
        new
    }
}

/// Secrets that have come, and what it takes to make contexts of them.
struct NewSecrets<'s> {
    new: BTreeSet<SecretRef>,
    shared: &'s mut SharedContexts,
    secrets: &'s BTreeMap<SecretRef, Arc<StoredSecret>>,
    refused: &'s mut Refused,
}

impl NewSecrets<'_> {
    /// Makes the contexts anew in which one of them is used. True when there is such a context.
    fn rebuild<P: NeedsTls + Clone>(&mut self, slots: &mut BTreeMap<Arc<str>, Slot<P>>) -> bool {
        let mut any = false;
        for held in slots.values_mut().flat_map(Slot::versions_mut) {
            let wanted = held.parts.tls().iter().flat_map(|(_, spec)| spec.secrets());
            let new: Vec<SecretRef> = wanted.filter(|name| self.new.contains(name)).collect();
            if new.is_empty() {
                continue;
            }
            let lookup = |wanted: &SecretRef| self.secrets.get(wanted).map(|s| (&s.value, s.serial));
            match self.shared.build(held.parts.tls(), lookup) {
                Ok(contexts) => {
                    Arc::make_mut(held).contexts = contexts;
                    any = true;
                }
                Err(e) => new.iter().for_each(|secret| self.refused.add(&*secret.name, e.clone())),
            }
        }
        any
    }
}

fn decode_secret(resource: &Resource, path: &Path<'_>) -> Result<SecretValue, ConfigErrors> {
    let config: pb::tls::Secret = checked(ResourceKind::Secret, resource, path)?;
    same_name(&resource.name, &config.name, path)?;
    Ok(decode::secret(&config, path)?)
}
