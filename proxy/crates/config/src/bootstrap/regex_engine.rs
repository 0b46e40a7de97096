//! `default_regex_engine`: who finds the regular expressions of rules and routes.

use heddle_matching::RegexEngine;

use crate::decode::{Result, pb, required, unpack};
use crate::path::Path;

/// Envoy's name of the engine, and of its configuration, which has no fields.
const HYPERSCAN: &str = "envoy.regex_engines.hyperscan";
const MESSAGE: &str = "envoy.extensions.regex_engines.hyperscan.v3alpha.Hyperscan";

/// The engine, whose library is loaded.
pub(super) fn engine(config: &pb::core::TypedExtensionConfig, path: &Path<'_>) -> Result<RegexEngine> {
    if config.name != HYPERSCAN {
        let remedy = "use envoy.regex_engines.hyperscan, or remove default_regex_engine";
        return Err(path.field("name").unsupported(&config.name, remedy));
    }
    let here = path.field("typed_config");
    let any = required(config.typed_config.as_ref(), &here)?;
    match heddle_api::message_name(&any.type_url) {
        MESSAGE => unpack::<pb::hyperscan::Hyperscan>(any, &here)?,
        other => {
            return Err(here.unsupported(
                other,
                "use Hyperscan of envoy.extensions.regex_engines.hyperscan.v3alpha",
            ));
        }
    };
    RegexEngine::open_hyperscan().map_err(|unavailable| {
        path.error(format!(
            "{unavailable}, or remove default_regex_engine to have the portable engine find all expressions"
        ))
    })
}
