//! `envoy.filters.http.ext_authz`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use heddle_api::envoy::extensions::filters::http::ext_authz::v3 as pb;
use heddle_matching::{MetadataMatcher, StringMatcher};
use prost_types::Any;

use super::Kind;
use crate::check::fields::{Message, NOBODY_READS, message};
use crate::decode::{Result, fraction, headers, matcher, pb as api, required, service, unpack};
use crate::path::Path;
use crate::snapshot::{Fraction, GrpcTarget, HttpTarget};

/// Time for an answer by gRPC unless the service says otherwise, as in Envoy.
const GRPC_TIMEOUT: Duration = Duration::from_millis(200);

/// `envoy.extensions.filters.http.ext_authz.v3.ExtAuthz`.
#[derive(Debug)]
pub struct ExtAuthz {
    /// Whom to ask.
    pub service: Service,
    /// `allowed_headers`: what the server is told of the request's fields, by lower-case name; none means all (gRPC), or
    /// only those that it is always told (HTTP).
    pub allowed: Option<Vec<StringMatcher>>,
    /// `disallowed_headers`: what it is not told.
    pub disallowed: Vec<StringMatcher>,
    /// `with_request_body`.
    pub body: Option<BodySettings>,
    /// `failure_mode_allow`: requests pass when the server cannot be asked.
    pub failure_mode_allow: bool,
    /// `failure_mode_allow_header_add`: the upstream is told so.
    pub failure_header: bool,
    /// `status_on_error`, default 403.
    pub status_on_error: u16,
    /// `clear_route_cache`: the route is chosen again when the server has changed the request.
    pub clear_route_cache: bool,
    /// `filter_enabled`: which requests are checked; default all.
    pub enabled: Fraction,
    /// `filter_enabled_metadata`: which requests are checked, by what filters before have said of them; default all.
    pub enabled_metadata: Option<MetadataMatcher>,
    /// `deny_at_disable`: what becomes of the others; they pass by default.
    pub deny_at_disable: bool,
    /// `metadata_context_namespaces` (gRPC): whose dynamic metadata the server is shown.
    pub metadata_namespaces: Vec<Box<str>>,
    /// `include_tls_session` (gRPC).
    pub tls_session: bool,
    /// `include_peer_certificate` (gRPC): the server is shown the client's certificate, if it was verified.
    pub peer_certificate: bool,
    /// `stat_prefix`.
    pub stat_prefix: Arc<str>,
    /// `charge_cluster_response_stats`, default true: a denial is one of the route's cluster's answers in the statistics.
    pub charge_cluster: bool,
    /// `max_denied_response_body_bytes`: longer bodies are cut; none by default.
    pub max_denied_body: Option<usize>,
}

/// The kind of authorization server.
#[derive(Debug)]
pub enum Service {
    /// `grpc_service`: `envoy.service.auth.v3.Authorization`.
    Grpc(GrpcTarget),
    /// `http_service`.
    Http(Box<HttpService>),
}

/// `envoy.extensions.filters.http.ext_authz.v3.HttpService`.
#[derive(Debug)]
pub struct HttpService {
    /// `server_uri`; of the URI nothing is used, as in Envoy: the request goes by the client's host and path.
    pub target: HttpTarget,
    /// `path_prefix` or `path_override`.
    pub path: PathChange,
    /// `authorization_request.headers_to_add`: names in lower case, and values.
    pub headers_to_add: Vec<(Box<str>, Box<str>)>,
    /// `authorization_response.allowed_upstream_headers`.
    pub upstream: Vec<StringMatcher>,
    /// `authorization_response.allowed_upstream_headers_to_append`.
    pub upstream_append: Vec<StringMatcher>,
    /// `authorization_response.allowed_client_headers`; none means all.
    pub client: Option<Vec<StringMatcher>>,
    /// `authorization_response.allowed_client_headers_on_success`.
    pub client_on_success: Vec<StringMatcher>,
}

/// The path by which an HTTP server is asked.
#[derive(Debug, Default)]
pub enum PathChange {
    /// The request's.
    #[default]
    Same,
    /// `path_prefix` in front of the request's.
    Prefix(Box<str>),
    /// `path_override` instead of it.
    Override(Box<str>),
}

/// `envoy.extensions.filters.http.ext_authz.v3.BufferSettings`.
#[derive(Clone, Copy, Debug)]
pub struct BodySettings {
    /// `max_request_bytes`.
    pub max_bytes: usize,
    /// `allow_partial_message`: the server gets the beginning of a longer body.
    pub partial: bool,
    /// `pack_as_bytes` (gRPC).
    pub as_bytes: bool,
}

/// `envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute`.
#[derive(Debug)]
pub enum ExtAuthzPerRoute {
    /// `disabled`.
    Disabled,
    /// `check_settings`.
    Check(CheckSettings),
}

/// `envoy.extensions.filters.http.ext_authz.v3.CheckSettings`.
#[derive(Debug, Default)]
pub struct CheckSettings {
    /// `context_extensions` (gRPC): the more specific level's value counts.
    pub context: HashMap<String, String>,
    /// `disable_request_body_buffering` and `with_request_body`.
    pub body: BodyOverride,
}

/// What a route says about `with_request_body`.
#[derive(Clone, Copy, Debug, Default)]
pub enum BodyOverride {
    /// Nothing.
    #[default]
    Inherit,
    /// `disable_request_body_buffering`.
    Off,
    /// `with_request_body`.
    On(BodySettings),
}

impl Kind for ExtAuthz {
    const TYPE: &'static str = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthz";
    const ROUTE_TYPE: &'static str = "envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute";
    const MESSAGES: &'static [Message] = &[
        message(
            "envoy.extensions.filters.http.ext_authz.v3.AuthorizationRequest",
            &["allowed_headers", "headers_to_add"],
        ),
        message(
            "envoy.extensions.filters.http.ext_authz.v3.AuthorizationResponse",
            &[
                "allowed_client_headers",
                "allowed_client_headers_on_success",
                "allowed_upstream_headers",
                "allowed_upstream_headers_to_append",
            ],
        ),
        message(
            "envoy.extensions.filters.http.ext_authz.v3.BufferSettings",
            &["allow_partial_message", "max_request_bytes", "pack_as_bytes"],
        ),
        Message {
            name: "envoy.extensions.filters.http.ext_authz.v3.CheckSettings",
            implemented: &[
                "context_extensions",
                "disable_request_body_buffering",
                "with_request_body",
            ],
            ignored: &[("emit_client_span", "concerns trace spans, and tracing is refused")],
            instead: &[],
        },
        Message {
            name: Self::TYPE,
            implemented: &[
                "allowed_headers",
                "charge_cluster_response_stats",
                "clear_route_cache",
                "deny_at_disable",
                "disallowed_headers",
                "failure_mode_allow",
                "failure_mode_allow_header_add",
                "filter_enabled",
                "filter_enabled_metadata",
                "grpc_service",
                "http_service",
                "include_peer_certificate",
                "include_tls_session",
                "max_denied_response_body_bytes",
                "metadata_context_namespaces",
                "stat_prefix",
                "status_on_error",
                "transport_api_version",
                "with_request_body",
            ],
            ignored: &[
                ("emit_client_span", "concerns trace spans, and tracing is refused"),
                ("emit_filter_state_stats", NOBODY_READS),
                ("enforce_response_header_limits", "what is added is always bounded"),
                ("filter_metadata", NOBODY_READS),
                ("typed_metadata_context_namespaces", "no filter here writes typed metadata"),
                ("validate_mutations", "what the server says is always checked"),
            ],
            instead: &[("clear_route_cache_headers", "use clear_route_cache alone")],
        },
        message(Self::ROUTE_TYPE, &["check_settings", "disabled"]),
        message(
            "envoy.extensions.filters.http.ext_authz.v3.HttpService",
            &[
                "authorization_request",
                "authorization_response",
                "path_override",
                "path_prefix",
                "retry_policy",
                "server_uri",
            ],
        ),
    ];
    type Route = ExtAuthzPerRoute;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        let config: pb::ExtAuthz = unpack(any, path)?;
        let version = path.field("transport_api_version");
        if api::core::ApiVersion::try_from(config.transport_api_version) != Ok(api::core::ApiVersion::V3) {
            return Err(version.error("must be V3"));
        }
        let mut allowed = matchers(config.allowed_headers.as_ref(), &path.field("allowed_headers"))?;
        let service = match required(config.services.as_ref(), path)? {
            pb::ext_authz::Services::GrpcService(grpc) => {
                Service::Grpc(service::grpc(grpc, GRPC_TIMEOUT, &path.field("grpc_service"))?)
            }
            pb::ext_authz::Services::HttpService(config) => {
                let here = path.field("http_service");
                Service::Http(Box::new(http_service(config, &mut allowed, &here)?))
            }
        };
        let status = path.field("status_on_error");
        Ok(Self {
            service,
            allowed,
            disallowed: matchers(config.disallowed_headers.as_ref(), &path.field("disallowed_headers"))?
                .unwrap_or_default(),
            body: body(config.with_request_body.as_ref(), &path.field("with_request_body"))?,
            failure_mode_allow: config.failure_mode_allow,
            failure_header: config.failure_mode_allow_header_add,
            status_on_error: match config.status_on_error.as_ref().map(|s| s.code) {
                None => 403,
                Some(code) => match u16::try_from(code) {
                    Ok(code) if (200..600).contains(&code) => code,
                    _ => return Err(status.field("code").error(format!("{code} is not between 200 and 599"))),
                },
            },
            clear_route_cache: config.clear_route_cache,
            enabled: fraction::runtime(
                config.filter_enabled.as_ref(),
                Fraction::ALL,
                &path.field("filter_enabled"),
            )?,
            enabled_metadata: config
                .filter_enabled_metadata
                .as_ref()
                .map(|m| matcher::metadata(m, &path.field("filter_enabled_metadata")))
                .transpose()?,
            deny_at_disable: match &config.deny_at_disable {
                None => false,
                Some(flag) => {
                    let here = path.field("deny_at_disable");
                    *required(flag.default_value.as_ref(), &here.field("default_value"))?
                }
            },
            metadata_namespaces: config
                .metadata_context_namespaces
                .iter()
                .map(|name| name.as_str().into())
                .collect(),
            tls_session: config.include_tls_session,
            peer_certificate: config.include_peer_certificate,
            stat_prefix: config.stat_prefix.as_str().into(),
            charge_cluster: config.charge_cluster_response_stats.unwrap_or(true),
            max_denied_body: match config.max_denied_response_body_bytes {
                0 => None,
                n => Some(crate::decode::bytes(n)),
            },
        })
    }

    fn decode_route(any: &Any, path: &Path<'_>) -> Result<ExtAuthzPerRoute> {
        let config: pb::ExtAuthzPerRoute = unpack(any, path)?;
        match required(config.r#override.as_ref(), path)? {
            pb::ext_authz_per_route::Override::Disabled(true) => Ok(ExtAuthzPerRoute::Disabled),
            pb::ext_authz_per_route::Override::Disabled(false) => Err(path
                .field("disabled")
                .error("must be true; remove it to have requests checked")),
            pb::ext_authz_per_route::Override::CheckSettings(settings) => {
                let here = path.field("check_settings");
                let with = here.field("with_request_body");
                let given = body(settings.with_request_body.as_ref(), &with)?;
                Ok(ExtAuthzPerRoute::Check(CheckSettings {
                    context: settings.context_extensions.clone(),
                    body: match (settings.disable_request_body_buffering, given) {
                        (true, Some(_)) => {
                            return Err(with.error("disable_request_body_buffering is set too; use one of them"));
                        }
                        (true, None) => BodyOverride::Off,
                        (false, Some(body)) => BodyOverride::On(body),
                        (false, None) => BodyOverride::Inherit,
                    },
                }))
            }
        }
    }
}

fn http_service(
    config: &pb::HttpService,
    allowed: &mut Option<Vec<StringMatcher>>,
    path: &Path<'_>,
) -> Result<HttpService> {
    let target = service::http(
        config.server_uri.as_ref(),
        "server_uri",
        config.retry_policy.as_ref(),
        path,
    )?;
    let request = config.authorization_request.as_ref();
    let here = path.field("authorization_request");
    if let Some(request) = request {
        #[expect(deprecated, reason = "where the list stood once is still accepted, as Envoy does")]
        let older = matchers(request.allowed_headers.as_ref(), &here.field("allowed_headers"))?;
        if allowed.is_none() {
            *allowed = older;
        }
    }
    let added = request.map_or(&[][..], |r| &r.headers_to_add).iter().enumerate();
    let headers_to_add = added
        .map(|(i, header)| headers::constant(header, &here.item("headers_to_add", i)))
        .collect::<Result<_>>()?;
    let response = config.authorization_response.clone().unwrap_or_default();
    let here = path.field("authorization_response");
    let list = |config: &Option<_>, name| Ok(matchers(config.as_ref(), &here.field(name))?.unwrap_or_default());
    Ok(HttpService {
        target,
        path: path_change(config, path)?,
        headers_to_add,
        upstream: list(&response.allowed_upstream_headers, "allowed_upstream_headers")?,
        upstream_append: list(
            &response.allowed_upstream_headers_to_append,
            "allowed_upstream_headers_to_append",
        )?,
        client: matchers(
            response.allowed_client_headers.as_ref(),
            &here.field("allowed_client_headers"),
        )?,
        client_on_success: list(
            &response.allowed_client_headers_on_success,
            "allowed_client_headers_on_success",
        )?,
    })
}

fn path_change(config: &pb::HttpService, path: &Path<'_>) -> Result<PathChange> {
    let check = |field: &str, text: &str| match text {
        text if !text.starts_with('/') => Err(path.field(field).error(format!("{text:?} must begin with a slash"))),
        text if !text.bytes().all(|b| b.is_ascii_graphic()) => {
            Err(path.field(field).error(format!("{text:?} holds what no path may")))
        }
        text => Ok(Box::from(text)),
    };
    match (config.path_prefix.as_str(), config.path_override.as_str()) {
        ("", "") => Ok(PathChange::Same),
        (prefix, "") => Ok(PathChange::Prefix(check("path_prefix", prefix)?)),
        ("", path) => Ok(PathChange::Override(check("path_override", path)?)),
        _ => Err(path.field("path_override").error("path_prefix is set too; use one of them")),
    }
}

fn body(config: Option<&pb::BufferSettings>, path: &Path<'_>) -> Result<Option<BodySettings>> {
    let Some(config) = config else { return Ok(None) };
    if config.max_request_bytes == 0 {
        return Err(path.field("max_request_bytes").error("must be above zero"));
    }
    Ok(Some(BodySettings {
        max_bytes: crate::decode::bytes(config.max_request_bytes),
        partial: config.allow_partial_message,
        as_bytes: config.pack_as_bytes,
    }))
}

/// A `ListStringMatcher`; an empty one is as good as none.
fn matchers(config: Option<&api::matcher::ListStringMatcher>, path: &Path<'_>) -> Result<Option<Vec<StringMatcher>>> {
    let patterns = config.map_or(&[][..], |list| &list.patterns);
    if patterns.is_empty() {
        return Ok(None);
    }
    let patterns = patterns.iter().enumerate();
    patterns
        .map(|(i, m)| matcher::string(m, &path.item("patterns", i)))
        .collect::<Result<_>>()
        .map(Some)
}
