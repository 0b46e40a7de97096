//! Role-based access control, for HTTP and for connections.

use std::sync::Arc;

use heddle_matching::MetadataMatcher;
use heddle_matching::rbac::{Action, Permission, Policies, Policy, Principal, Rules, SanMatcher, SanType};

use super::{Result, address, enumeration, matcher, pb, required, unpack};
use crate::path::Path;

/// `envoy.filters.http.rbac`.
pub(crate) fn http(config: &pb::http_rbac::Rbac, path: &Path<'_>) -> Result<Arc<Policies>> {
    Ok(Arc::new(Policies {
        rules: optional(config.rules.as_ref(), &path.field("rules"))?,
        shadow_rules: optional(config.shadow_rules.as_ref(), &path.field("shadow_rules"))?,
        stat_prefix: config.rules_stat_prefix.as_str().into(),
        shadow_stat_prefix: config.shadow_rules_stat_prefix.as_str().into(),
    }))
}

/// `envoy.filters.network.rbac`.
pub(super) fn network(config: &pb::network_rbac::Rbac, path: &Path<'_>) -> Result<Arc<Policies>> {
    use pb::network_rbac::rbac::EnforcementType;
    let kind: EnforcementType = enumeration(config.enforcement_type, &path.field("enforcement_type"))?;
    if kind != EnforcementType::OneTimeOnFirstByte {
        return Err(path
            .field("enforcement_type")
            .unsupported("CONTINUOUS", "use ONE_TIME_ON_FIRST_BYTE"));
    }
    Ok(Arc::new(Policies {
        rules: optional(config.rules.as_ref(), &path.field("rules"))?,
        shadow_rules: optional(config.shadow_rules.as_ref(), &path.field("shadow_rules"))?,
        stat_prefix: config.stat_prefix.as_str().into(),
        shadow_stat_prefix: config.shadow_rules_stat_prefix.as_str().into(),
    }))
}

fn optional(config: Option<&pb::rbac::Rbac>, path: &Path<'_>) -> Result<Option<Rules>> {
    config.map(|c| rules(c, path)).transpose()
}

fn rules(config: &pb::rbac::Rbac, path: &Path<'_>) -> Result<Rules> {
    let action = match enumeration(config.action, &path.field("action"))? {
        pb::rbac::rbac::Action::Allow => Action::Allow,
        pb::rbac::rbac::Action::Deny => Action::Deny,
        pb::rbac::rbac::Action::Log => Action::Log,
    };
    let mut names: Vec<_> = config.policies.keys().collect();
    names.sort();
    let policies = names
        .into_iter()
        .filter_map(|name| Some((name, config.policies.get(name)?)));
    let policies = policies.map(|(name, value)| policy(name, value, &path.key("policies", name)));
    let policies = policies.collect::<Result<_>>()?;
    // What is logged of expressions says where they stand.
    let _span = tracing::info_span!("rules", %path).entered();
    Ok(Rules::new(action, policies))
}

fn policy(name: &str, config: &pb::rbac::Policy, path: &Path<'_>) -> Result<Policy> {
    Ok(Policy {
        name: name.into(),
        permissions: permissions(&config.permissions, "permissions", path)?.into(),
        principals: principals(&config.principals, "principals", path)?.into(),
    })
}

fn permissions(list: &[pb::rbac::Permission], field: &str, path: &Path<'_>) -> Result<Vec<Permission>> {
    list.iter()
        .enumerate()
        .map(|(i, p)| permission(p, &path.item(field, i)))
        .collect()
}

#[expect(deprecated, reason = "`metadata` is still accepted, as Envoy does")]
fn permission(config: &pb::rbac::Permission, path: &Path<'_>) -> Result<Permission> {
    use pb::rbac::permission::Rule;
    Ok(match required(config.rule.as_ref(), path)? {
        Rule::Any(true) => Permission::Any,
        Rule::Any(false) => return Err(path.field("any").error("must be true")),
        Rule::AndRules(set) => Permission::And(permissions(&set.rules, "rules", &path.field("and_rules"))?.into()),
        Rule::OrRules(set) => Permission::Or(permissions(&set.rules, "rules", &path.field("or_rules"))?.into()),
        Rule::NotRule(inner) => Permission::Not(Box::new(permission(inner, &path.field("not_rule"))?)),
        Rule::Header(h) => Permission::Header(matcher::header(h, &path.field("header"))?),
        Rule::UrlPath(p) => Permission::UrlPath(url_path(p, &path.field("url_path"))?),
        Rule::DestinationIp(r) => Permission::DestinationIp(address::match_cidr(r, &path.field("destination_ip"))?),
        Rule::DestinationPort(port) => Permission::DestinationPort(
            u16::try_from(*port).map_err(|_| path.field("destination_port").error(format!("{port} is above 65535")))?,
        ),
        Rule::DestinationPortRange(range) => {
            let here = path.field("destination_port_range");
            match (u32::try_from(range.start), u32::try_from(range.end)) {
                (Ok(start), Ok(end)) if start < end && end <= 65_536 => Permission::DestinationPortRange(start..end),
                _ => return Err(here.error(format!("{}..{} is not a range of ports", range.start, range.end))),
            }
        }
        Rule::RequestedServerName(m) => {
            Permission::RequestedServerName(matcher::string(m, &path.field("requested_server_name"))?)
        }
        Rule::Metadata(m) => Permission::Metadata(matcher::metadata(m, &path.field("metadata"))?),
        Rule::SourcedMetadata(m) => Permission::Metadata(sourced_metadata(m, &path.field("sourced_metadata"))?),
        _ => return Err(path.error("this kind of permission is not implemented; use another")),
    })
}

fn principals(list: &[pb::rbac::Principal], field: &str, path: &Path<'_>) -> Result<Vec<Principal>> {
    list.iter()
        .enumerate()
        .map(|(i, p)| principal(p, &path.item(field, i)))
        .collect()
}

#[expect(deprecated, reason = "`source_ip` and `metadata` are still accepted, as Envoy does")]
fn principal(config: &pb::rbac::Principal, path: &Path<'_>) -> Result<Principal> {
    use pb::rbac::principal::Identifier;
    Ok(match required(config.identifier.as_ref(), path)? {
        Identifier::Any(true) => Principal::Any,
        Identifier::Any(false) => return Err(path.field("any").error("must be true")),
        Identifier::AndIds(set) => Principal::And(principals(&set.ids, "ids", &path.field("and_ids"))?.into()),
        Identifier::OrIds(set) => Principal::Or(principals(&set.ids, "ids", &path.field("or_ids"))?.into()),
        Identifier::NotId(inner) => Principal::Not(Box::new(principal(inner, &path.field("not_id"))?)),
        Identifier::Authenticated(a) => {
            let here = path.field("authenticated");
            let name = a.principal_name.as_ref();
            Principal::Authenticated(
                name.map(|m| matcher::string(m, &here.field("principal_name")))
                    .transpose()?,
            )
        }
        Identifier::SourceIp(r) => Principal::DirectRemoteIp(address::match_cidr(r, &path.field("source_ip"))?),
        Identifier::DirectRemoteIp(r) => {
            Principal::DirectRemoteIp(address::match_cidr(r, &path.field("direct_remote_ip"))?)
        }
        Identifier::RemoteIp(r) => Principal::RemoteIp(address::match_cidr(r, &path.field("remote_ip"))?),
        Identifier::Header(h) => Principal::Header(matcher::header(h, &path.field("header"))?),
        Identifier::UrlPath(p) => Principal::UrlPath(url_path(p, &path.field("url_path"))?),
        Identifier::Metadata(m) => Principal::Metadata(matcher::metadata(m, &path.field("metadata"))?),
        Identifier::SourcedMetadata(m) => Principal::Metadata(sourced_metadata(m, &path.field("sourced_metadata"))?),
        Identifier::Custom(c) => custom(c, &path.field("custom"))?,
        _ => return Err(path.error("this kind of principal is not implemented; use another")),
    })
}

/// Metadata of the request, which is the default; that of the route is not read.
fn sourced_metadata(config: &pb::rbac::SourcedMetadata, path: &Path<'_>) -> Result<MetadataMatcher> {
    let here = path.field("metadata_source");
    match enumeration(config.metadata_source, &here)? {
        pb::rbac::MetadataSource::Dynamic => {}
        pb::rbac::MetadataSource::Route => return Err(here.unsupported("ROUTE", "use DYNAMIC")),
    }
    let here = path.field("metadata_matcher");
    matcher::metadata(required(config.metadata_matcher.as_ref(), &here)?, &here)
}

/// A principal that is an extension.
fn custom(config: &pb::core::TypedExtensionConfig, path: &Path<'_>) -> Result<Principal> {
    let here = path.field("typed_config");
    let any = required(config.typed_config.as_ref(), &here)?;
    match heddle_api::message_name(&any.type_url) {
        "envoy.extensions.rbac.principals.mtls_authenticated.v3.Config" => {
            let config: pb::mtls_authenticated::Config = unpack(any, &here)?;
            match (&config.san_matcher, config.any_validated_client_certificate) {
                // The matcher goes before the flag, as in Envoy.
                (Some(m), _) => Ok(Principal::MtlsAuthenticated(Some(san(m, &here.field("san_matcher"))?))),
                (None, true) => Ok(Principal::MtlsAuthenticated(None)),
                (None, false) => Err(here.error("one of san_matcher, any_validated_client_certificate must be set")),
            }
        }
        other => Err(here.unsupported(other, "use envoy.rbac.principals.mtls_authenticated")),
    }
}

fn san(config: &pb::tls::SubjectAltNameMatcher, path: &Path<'_>) -> Result<SanMatcher> {
    use pb::tls::subject_alt_name_matcher::SanType as Kind;
    let here = path.field("san_type");
    let kind = match enumeration(config.san_type, &here)? {
        Kind::Uri => SanType::Uri,
        Kind::Dns => SanType::Dns,
        Kind::Email => SanType::Email,
        Kind::IpAddress => SanType::IpAddress,
        other => return Err(here.unsupported(other.as_str_name(), "use URI, DNS, IP_ADDRESS or EMAIL")),
    };
    let here = path.field("matcher");
    let matcher = matcher::string(required(config.matcher.as_ref(), &here)?, &here)?;
    Ok(SanMatcher::new(kind, matcher))
}

fn url_path(config: &pb::matcher::PathMatcher, path: &Path<'_>) -> Result<heddle_matching::PathMatcher> {
    let pb::matcher::path_matcher::Rule::Path(m) = required(config.rule.as_ref(), path)?;
    Ok(matcher::string(m, &path.field("path"))?.into())
}
