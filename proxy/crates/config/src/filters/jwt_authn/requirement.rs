//! What requests must have.

use heddle_api::envoy::extensions::filters::http::jwt_authn::v3 as pb;
use heddle_jwt::Audiences;

use super::Provider;
use crate::decode::Result;
use crate::path::Path;

/// `JwtRequirement`.
#[derive(Clone, Debug)]
pub enum Requirement {
    /// Not set: nothing is asked for.
    Nothing,
    /// `provider_name`, `provider_and_audiences`: a token of this provider.
    Provider {
        /// By its place in the filter's providers.
        provider: usize,
        /// In place of the provider's own audiences.
        audiences: Option<Audiences>,
    },
    /// `requires_any`.
    Any {
        /// Those that are no `allow_…`; never empty.
        of: Vec<Requirement>,
        /// What is let through when none of them holds.
        allow: Allow,
    },
    /// `requires_all`.
    All(Vec<Requirement>),
    /// `allow_missing`, `allow_missing_or_failed` by itself: tokens of any provider are verified.
    Allow(Allow),
}

/// What is let through without a good token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allow {
    /// Nothing.
    #[default]
    Nothing,
    /// `allow_missing`: requests without a token.
    Missing,
    /// `allow_missing_or_failed`: every request.
    MissingOrFailed,
}

pub(super) fn decode(config: &pb::JwtRequirement, providers: &[Provider], path: &Path<'_>) -> Result<Requirement> {
    use pb::jwt_requirement::RequiresType;
    let provider = |name: &str, path: &Path<'_>| {
        let found = providers.iter().position(|p| *p.name == *name);
        found.ok_or_else(|| path.error(format!("{name:?} is not in providers")))
    };
    Ok(match &config.requires_type {
        None => Requirement::Nothing,
        Some(RequiresType::ProviderName(name)) => Requirement::Provider {
            provider: provider(name, &path.field("provider_name"))?,
            audiences: None,
        },
        Some(RequiresType::ProviderAndAudiences(both)) => {
            let here = path.field("provider_and_audiences");
            let audiences = both.audiences.iter().map(String::as_str);
            Requirement::Provider {
                provider: provider(&both.provider_name, &here.field("provider_name"))?,
                audiences: (!both.audiences.is_empty()).then(|| Audiences::new(audiences)),
            }
        }
        Some(RequiresType::RequiresAny(list)) => {
            let here = path.field("requires_any");
            any(each(&list.requirements, providers, &here)?)
        }
        Some(RequiresType::RequiresAll(list)) => {
            let here = path.field("requires_all");
            Requirement::All(each(&list.requirements, providers, &here)?)
        }
        Some(RequiresType::AllowMissing(_)) => Requirement::Allow(Allow::Missing),
        Some(RequiresType::AllowMissingOrFailed(_)) => Requirement::Allow(Allow::MissingOrFailed),
        Some(_) => return Err(path.error("this kind of requirement is not implemented; use another")),
    })
}

fn each(configs: &[pb::JwtRequirement], providers: &[Provider], path: &Path<'_>) -> Result<Vec<Requirement>> {
    let configs = configs.iter().enumerate();
    configs
        .map(|(i, config)| decode(config, providers, &path.item("requirements", i)))
        .collect()
}

/// The most lenient `allow_…` of a list says what becomes of requests that meet nothing else in it.
fn any(list: Vec<Requirement>) -> Requirement {
    let mut allow = Allow::Nothing;
    let mut of = Vec::with_capacity(list.len());
    for requirement in list {
        match requirement {
            Requirement::Allow(another) => allow = allow.max(another),
            other => of.push(other),
        }
    }
    if of.is_empty() {
        return Requirement::Allow(allow);
    }
    Requirement::Any { of, allow }
}
