//! `layered_runtime`: the keys that mean something here.

use std::collections::HashMap;
use std::time::Duration;

use crate::decode::{self, pb};
use crate::error::ConfigError;
use crate::path::Path;
use crate::snapshot::Runtime;

/// What static layers say. Later layers win.
#[derive(Debug, Default)]
pub(super) struct Layers {
    pub(super) runtime: Runtime,
    /// `envoy.resource_limits.listener.<name>.connection_limit`.
    pub(super) connection_limits: HashMap<String, u64>,
}

/// Reads the static layers. Expressions are bounded by their compiled size, so `re2.max_program_size` makes no
/// difference; other keys that are not known are refused.
pub(super) fn layers(config: Option<&pb::bootstrap::LayeredRuntime>, path: &Path<'_>) -> Result<Layers, ConfigError> {
    use pb::bootstrap::runtime_layer::LayerSpecifier;
    let mut out = Layers::default();
    for (i, layer) in config.iter().flat_map(|c| &c.layers).enumerate() {
        let here = path.item("layers", i);
        let Some(LayerSpecifier::StaticLayer(fields)) = &layer.layer_specifier else {
            continue;
        };
        let here = here.field("static_layer");
        let mut keys = Vec::new();
        flatten("", &decode::struct_to_json(fields), &mut keys);
        for (key, value) in keys {
            let here = here.field(&key);
            let listener = key
                .strip_prefix("envoy.resource_limits.listener.")
                .and_then(|rest| rest.strip_suffix(".connection_limit"));
            match (key.as_str(), listener) {
                (_, Some(name)) => {
                    out.connection_limits.insert(name.to_owned(), number(&value, &here)?);
                }
                ("overload.global_downstream_max_connections", _) => {
                    out.runtime.max_downstream_connections = Some(number(&value, &here)?);
                }
                ("overload.premature_reset_total_stream_count", _) => {
                    out.runtime.premature_resets.total_streams = number(&value, &here)?;
                }
                ("overload.premature_reset_min_stream_lifetime_seconds", _) => {
                    out.runtime.premature_resets.min_stream_lifetime = Duration::from_secs(number(&value, &here)?);
                }
                (key, _) if key.starts_with("re2.max_program_size.") => {}
                _ => return Err(here.error("this runtime key is not implemented; remove it")),
            }
        }
    }
    Ok(out)
}

/// A whole number, which Istio's templates write as text.
fn number(value: &serde_json::Value, path: &Path<'_>) -> Result<u64, ConfigError> {
    let text = || value.as_str().and_then(|text| text.parse().ok());
    value
        .as_u64()
        .or_else(text)
        .ok_or_else(|| path.error("must be a whole number"))
}

fn flatten(prefix: &str, value: &serde_json::Value, out: &mut Vec<(String, serde_json::Value)>) {
    match value {
        serde_json::Value::Object(members) => {
            for (name, member) in members {
                let key = if prefix.is_empty() {
                    name.clone()
                } else {
                    format!("{prefix}.{name}")
                };
                flatten(&key, member, out);
            }
        }
        leaf => out.push((prefix.to_owned(), leaf.clone())),
    }
}
