//! Route tables. A virtual host that is wrong leaves the others of its table alone.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use prost::Message;
use prost_reflect::Value;
use prost_types::Any;

use super::apply::{absent, checked, same_name};
use super::order::{HOLD, Table};
use super::{Builder, Stored};
use crate::check;
use crate::decode::{self, pb};
use crate::error::{ConfigError, ConfigErrors, Problems};
use crate::path::Path;
use crate::resource::{Resource, ResourceKind, Update};
use crate::snapshot::RouteTable;

/// What a virtual host answers that is wrong and has no version before it (503): another one of the table, such as that of all
/// domains, is not to answer in its place.
const UNAVAILABLE: u32 = 503;

impl Builder {
    pub(super) fn apply_routes(&mut self, update: Update, refused: &mut Problems) {
        let mut missing = update.removed;
        for resource in update.resources {
            if self
                .newest_routes(&resource.name)
                .is_some_and(|raw| raw.body == resource.body)
            {
                continue;
            }
            let name = resource.name.clone();
            let Some(stored) = self.take_routes(resource, refused) else {
                missing.push(name);
                continue;
            };
            let table = self.state.routes.entry(stored.raw.name.as_str().into()).or_default();
            table.next = Some((Arc::new(stored), self.now + HOLD));
        }
        // The server says that it has no such table, or it was refused. One that is in use stays; one that is waited for will not
        // come, so the listener starts and answers 404, as in Envoy.
        let wanted = self.wanted_routes();
        for name in missing
            .iter()
            .map(|n| Arc::from(n.as_str()))
            .filter(|n| wanted.contains(n))
        {
            self.state.routes.entry(name).or_insert_with_key(|name| {
                let value = Arc::new(RouteTable {
                    name: name.clone(),
                    ..RouteTable::default()
                });
                let stored = Arc::new(Stored {
                    raw: absent(name, ResourceKind::Route),
                    value,
                });
                Table {
                    active: None,
                    next: Some((stored, self.now)),
                }
            });
        }
    }

    fn newest_routes(&self, name: &str) -> Option<&Resource> {
        let newest = self.state.routes.get(name).and_then(Table::newest);
        newest.map(|stored| &stored.raw)
    }

    /// A table, with its virtual hosts that are wrong as they were. None when there is more wrong with it than virtual hosts.
    fn take_routes(&self, resource: Resource, refused: &mut Problems) -> Option<Stored<Arc<RouteTable>>> {
        let stored = |raw, table| Stored {
            raw,
            value: Arc::new(table),
        };
        let why = match self.decode_routes(&resource) {
            Ok(table) => return Some(stored(resource, table)),
            Err(why) => why,
        };
        if let Some((body, why)) = self.with_hosts_as_they_were(&resource) {
            // Of what is in force the body is kept, so that what is wrong is found again when it comes again.
            let mended = Resource {
                body,
                ..resource.clone()
            };
            if let Ok(table) = self.decode_routes(&mended) {
                refused.add(resource.name, why);
                return Some(stored(mended, table));
            }
        }
        refused.add(resource.name, why);
        None
    }

    fn decode_routes(&self, resource: &Resource) -> Result<RouteTable, ConfigErrors> {
        let path = Path::resource(ResourceKind::Route.plural(), &resource.name);
        let config: pb::route::RouteConfiguration = checked(ResourceKind::Route, resource, &path)?;
        same_name(&resource.name, &config.name, &path)?;
        self.table_of(&config, 0..config.virtual_hosts.len(), &path)
    }

    /// The table with these of its virtual hosts.
    fn table_of(
        &self,
        config: &pb::route::RouteConfiguration,
        hosts: Range<usize>,
        path: &Path<'_>,
    ) -> Result<RouteTable, ConfigErrors> {
        let (table, clusters) = decode::route_table(config, hosts, false, path)?;
        self.check_clusters(&clusters)?;
        Ok(table)
    }

    /// The table with each virtual host that is wrong by itself as it was before, or unavailable, and what is wrong. None when there
    /// is no such one, or something else is wrong.
    fn with_hosts_as_they_were(&self, resource: &Resource) -> Option<(Any, ConfigErrors)> {
        let path = Path::resource(ResourceKind::Route.plural(), &resource.name);
        let Any { type_url, value } = &resource.body;
        let mut message = check::decode(type_url, value).ok()?;
        let hosts = std::mem::replace(message.get_field_by_name_mut("virtual_hosts")?, Value::List(Vec::new()));
        let mut findings = Vec::new();
        check::check(&message, &path, &mut findings);
        if !findings.is_empty() {
            return None;
        }
        let mut config = pb::route::RouteConfiguration::decode(value.as_slice()).ok()?;
        let mut wrong = Vec::new();
        for (i, host) in hosts.as_list()?.iter().enumerate() {
            let found = self.wrong_in_host(&config, i, host, &path);
            if !found.is_empty() {
                wrong.push(i);
                findings.extend(found);
            }
        }
        if wrong.is_empty() {
            return None;
        }
        let mut before = self.hosts_before(&resource.name);
        for i in wrong {
            let host = config.virtual_hosts.get_mut(i)?;
            // Its domains are those of now: no other of the table has them, and a request for one of them is its.
            *host = pb::route::VirtualHost {
                domains: host.domains.clone(),
                ..before.remove(&host.name).unwrap_or_else(|| unavailable(&host.name))
            };
        }
        let last = findings.len().min(ConfigErrors::LIMIT - 1);
        findings.insert(last, path.error("its other virtual hosts are in force"));
        let errors = ConfigErrors::check(findings).err()?;
        let body = Any {
            type_url: type_url.clone(),
            value: config.encode_to_vec(),
        };
        Some((body, errors))
    }

    /// What is wrong with the `i`th virtual host.
    fn wrong_in_host(
        &self,
        config: &pb::route::RouteConfiguration,
        i: usize,
        host: &Value,
        path: &Path<'_>,
    ) -> Vec<ConfigError> {
        let mut findings = Vec::new();
        if let Value::Message(host) = host {
            check::check(host, &path.item("virtual_hosts", i), &mut findings);
        }
        if findings.is_empty()
            && let Err(why) = self.table_of(config, i..i + 1, path)
        {
            findings.extend(why.iter().cloned());
        }
        findings
    }

    /// The virtual hosts of the newest version of a table, by name.
    fn hosts_before(&self, table: &str) -> HashMap<String, pb::route::VirtualHost> {
        let raw = self.newest_routes(table);
        let config = raw.and_then(|raw| pb::route::RouteConfiguration::decode(raw.body.value.as_slice()).ok());
        let hosts = config.into_iter().flat_map(|config| config.virtual_hosts);
        hosts.map(|host| (host.name.clone(), host)).collect()
    }
}

/// A virtual host that answers nothing but [`UNAVAILABLE`].
fn unavailable(name: &str) -> pb::route::VirtualHost {
    use pb::route::route::Action;
    use pb::route::route_match::PathSpecifier;
    let route = pb::route::Route {
        r#match: Some(pb::route::RouteMatch {
            path_specifier: Some(PathSpecifier::Prefix("/".to_owned())),
            ..pb::route::RouteMatch::default()
        }),
        action: Some(Action::DirectResponse(pb::route::DirectResponseAction {
            status: UNAVAILABLE,
            body: None,
            ..pb::route::DirectResponseAction::default()
        })),
        ..pb::route::Route::default()
    };
    pb::route::VirtualHost {
        name: name.to_owned(),
        routes: vec![route],
        ..pb::route::VirtualHost::default()
    }
}
