//! `typed_per_filter_config`.

use std::collections::HashMap;
use std::sync::Arc;

use prost_types::Any;

use super::{Result, pb, required, unpack};
use crate::filters::RouteFilterConfig;
use crate::path::Path;
use crate::snapshot::RouteFilters;

const WRAPPER: &str = "envoy.config.route.v3.FilterConfig";

/// The filters that one table configures, by the places that they get in its [`RouteFilters`].
#[derive(Default)]
pub(super) struct Slots {
    names: Vec<(Arc<str>, Option<RouteFilterConfig>)>,
    by_name: HashMap<Arc<str>, usize>,
    disables: bool,
}

impl Slots {
    /// Name by place, with an example of what is said to the filter; none where it is only switched on or off.
    pub(super) fn into_names(self) -> Vec<(Arc<str>, Option<RouteFilterConfig>)> {
        self.names
    }

    /// Whether a filter was switched off anywhere.
    pub(super) fn disables(&self) -> bool {
        self.disables
    }

    /// What one level says, below what the levels around it say.
    pub(super) fn level(
        &mut self,
        configs: &HashMap<String, Any>,
        around: &Arc<RouteFilters>,
        path: &Path<'_>,
    ) -> Result<Arc<RouteFilters>> {
        if configs.is_empty() {
            return Ok(Arc::clone(around));
        }
        let mut level = RouteFilters::clone(around);
        // Sorted, so that the same document gives the same error.
        let mut entries: Vec<_> = configs.iter().collect();
        entries.sort_by_key(|(name, _)| *name);
        for (name, any) in entries {
            let here = path.key("typed_per_filter_config", name);
            let (config, disabled) = entry(any, &here)?;
            let slot = self.slot(name, config.as_ref(), &here)?;
            self.disables |= disabled;
            level.say(slot, config, disabled);
        }
        Ok(Arc::new(level))
    }

    fn slot(&mut self, name: &str, config: Option<&RouteFilterConfig>, path: &Path<'_>) -> Result<usize> {
        let Some(slot) = self.by_name.get(name).copied() else {
            let name: Arc<str> = name.into();
            let slot = self.names.len();
            self.by_name.insert(Arc::clone(&name), slot);
            self.names.push((name, config.cloned()));
            return Ok(slot);
        };
        if let (Some((_, known)), Some(config)) = (self.names.get_mut(slot), config) {
            let known = known.get_or_insert_with(|| config.clone());
            if !known.is_like(config) {
                return Err(path.error("has another type than for this filter elsewhere in the table"));
            }
        }
        Ok(slot)
    }
}

/// The configuration, if there is one, and whether the filter is switched off.
fn entry(any: &Any, path: &Path<'_>) -> Result<(Option<RouteFilterConfig>, bool)> {
    if heddle_api::message_name(&any.type_url) != WRAPPER {
        return Ok((Some(RouteFilterConfig::decode(any, path)?), false));
    }
    let wrapper: pb::route::FilterConfig = unpack(any, path)?;
    if wrapper.disabled {
        return Ok((None, true));
    }
    let here = path.field("config");
    let inner = required(wrapper.config.as_ref(), &here)?;
    Ok((Some(RouteFilterConfig::decode(inner, &here)?), false))
}
