//! Secrets, and the TLS contexts that are made anew with them.

use std::collections::{BTreeMap, HashMap};
use std::mem::discriminant;
use std::sync::Arc;

use super::apply::{checked, same_name};
use super::{Builder, Held, NeedsTls, SharedContexts, Slot, StoredSecret};
use crate::decode::{self, SecretRef, SecretValue, TlsContext, TlsSpec, pb};
use crate::error::{ConfigError, ConfigErrors, Problems};
use crate::path::Path;
use crate::resource::{Resource, ResourceKind, SecretSource, Update};
use crate::snapshot::TlsKey;

impl Builder {
    /// New secrets rebuild the contexts of everything that uses them. One that what is in force cannot use is refused. What is
    /// warming and cannot use it waits on, and the refusal says so; others use the secret all the same.
    pub(super) fn apply_secrets(&mut self, update: Update, from_bootstrap: bool, refused: &mut Problems) {
        let mut new = self.stage_secrets(update, from_bootstrap, refused);
        loop {
            let mut rebuilding = Rebuilding {
                new: &new,
                kept: &self.state.secrets,
                shared: &mut self.shared,
                unused: Vec::new(),
                spoilt: Vec::new(),
            };
            let listeners = rebuilding.all(&self.state.listeners);
            let clusters = rebuilding.all(&self.state.clusters);
            let Rebuilding { unused, spoilt, .. } = rebuilding;
            if spoilt.is_empty() {
                for (secret, why) in unused {
                    refused.add(&*secret.name, why);
                }
                self.changed |= !(listeners.is_empty() && clusters.is_empty());
                replace(&mut self.state.listeners, listeners);
                replace(&mut self.state.clusters, clusters);
                self.state.secrets.extend(new);
                return;
            }
            // Each round has fewer.
            for (secret, why) in spoilt {
                new.remove(&secret);
                refused.add(&*secret.name, why);
            }
        }
    }

    /// The secrets that are new and can be used at all.
    fn stage_secrets(&mut self, update: Update, from_bootstrap: bool, refused: &mut Problems) -> Secrets {
        let mut new = Secrets::new();
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
                    new.insert(wanted, Arc::new(stored));
                }
                Err(e) => refused.add(resource.name, e),
            }
        }
        new
    }
}

/// Secrets by name.
type Secrets = BTreeMap<SecretRef, Arc<StoredSecret>>;

/// Contexts that new secrets give to listeners or clusters, by name, in the order of [`Slot::versions`]. None: it keeps those that it has.
type Rebuilt = HashMap<Arc<str>, Vec<Option<BTreeMap<TlsKey, TlsContext>>>>;

/// Makes contexts of new secrets.
struct Rebuilding<'s> {
    new: &'s Secrets,
    kept: &'s Secrets,
    shared: &'s mut SharedContexts,
    /// Secrets that something warming cannot use, and why.
    unused: Vec<(SecretRef, ConfigError)>,
    /// Secrets that something cannot use that had contexts of those before them.
    spoilt: Vec<(SecretRef, ConfigError)>,
}

impl Rebuilding<'_> {
    /// The contexts of everything that uses one of them.
    fn all<P: NeedsTls>(&mut self, slots: &BTreeMap<Arc<str>, Slot<P>>) -> Rebuilt {
        let mut out = Rebuilt::new();
        for (name, slot) in slots {
            let mut any = false;
            let versions = slot.versions().map(|held| {
                let contexts = self.one(held);
                any |= contexts.is_some();
                contexts
            });
            let versions: Vec<_> = versions.collect();
            if any {
                out.insert(name.clone(), versions);
            }
        }
        out
    }

    fn one<P: NeedsTls>(&mut self, held: &Held<P>) -> Option<BTreeMap<TlsKey, TlsContext>> {
        let specs = held.parts.tls();
        if !specs.iter().any(|(_, spec)| self.is_touched(spec)) {
            return None;
        }
        let (new, kept) = (self.new, self.kept);
        let lookup = |wanted: &SecretRef| {
            let stored = new.get(wanted).or_else(|| kept.get(wanted));
            stored.map(|s| (&s.value, s.serial))
        };
        if let Ok(contexts) = self.shared.build(specs, lookup) {
            return contexts;
        }
        let has_contexts = held.contexts.is_some();
        for of_one in specs.chunks(1) {
            let Err(why) = self.shared.build(of_one, lookup) else {
                continue;
            };
            let mut blamed: Vec<SecretRef> = of_one.iter().flat_map(|(_, spec)| spec.secrets()).collect();
            blamed.retain(|name| new.contains_key(name));
            // Another kind of secret than it was is to blame, if there is one.
            if has_contexts && blamed.iter().any(|name| self.changes_kind(name)) {
                blamed.retain(|name| self.changes_kind(name));
            }
            let failures = if has_contexts {
                &mut self.spoilt
            } else {
                &mut self.unused
            };
            failures.extend(blamed.into_iter().map(|name| (name, why.clone())));
        }
        None
    }

    fn is_touched(&self, spec: &TlsSpec) -> bool {
        spec.secrets().iter().any(|name| self.new.contains_key(name))
    }

    fn changes_kind(&self, name: &SecretRef) -> bool {
        let kind = |of: &Secrets| of.get(name).map(|secret| discriminant(&secret.value));
        kind(self.new) != kind(self.kept)
    }
}

fn replace<P: Clone>(slots: &mut BTreeMap<Arc<str>, Slot<P>>, rebuilt: Rebuilt) {
    for (name, versions) in rebuilt {
        let Some(slot) = slots.get_mut(&name) else { continue };
        for (held, contexts) in slot.versions_mut().zip(versions) {
            if contexts.is_some() {
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
