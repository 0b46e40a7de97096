//! `envoy.filters.http.cors`.

use heddle_api::envoy::extensions::filters::http::cors::v3 as pb;
use heddle_matching::StringMatcher;
use prost_types::Any;

use super::Kind;
use crate::check::fields::{Message, message};
use crate::decode::{Result, fraction, matcher, unpack};
use crate::path::Path;
use crate::snapshot::Fraction;

/// `envoy.extensions.filters.http.cors.v3.Cors`, which has no settings: policies are the routes'.
#[derive(Debug, Default)]
pub struct Cors;

/// `envoy.extensions.filters.http.cors.v3.CorsPolicy`. A setting that is not there is looked for around it: route,
/// virtual host, table.
#[derive(Debug)]
pub struct CorsPolicy {
    /// `allow_origin_string_match`.
    pub origins: Vec<StringMatcher>,
    /// `allow_methods`, as sent; `*` is what was asked for.
    pub methods: Box<str>,
    /// `allow_headers`, as sent; `*` is what was asked for.
    pub headers: Box<str>,
    /// `expose_headers`, as sent.
    pub expose: Box<str>,
    /// `max_age`, as sent.
    pub max_age: Box<str>,
    /// `allow_credentials`.
    pub credentials: Option<bool>,
    /// `allow_private_network_access`.
    pub private_network: Option<bool>,
    /// `forward_not_matching_preflights`, default true.
    pub forward_preflights: Option<bool>,
    /// `filter_enabled`, default all requests.
    pub enabled: Fraction,
    /// `shadow_enabled`: origins are only counted; default none.
    pub shadow: Fraction,
}

impl Kind for Cors {
    const TYPE: &'static str = "envoy.extensions.filters.http.cors.v3.Cors";
    const ROUTE_TYPE: &'static str = "envoy.extensions.filters.http.cors.v3.CorsPolicy";
    const MESSAGES: &'static [Message] = &[
        message(Self::TYPE, &[]),
        message(
            Self::ROUTE_TYPE,
            &[
                "allow_credentials",
                "allow_headers",
                "allow_methods",
                "allow_origin_string_match",
                "allow_private_network_access",
                "expose_headers",
                "filter_enabled",
                "forward_not_matching_preflights",
                "max_age",
                "shadow_enabled",
            ],
        ),
    ];
    type Route = CorsPolicy;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        let pb::Cors {} = unpack(any, path)?;
        Ok(Self)
    }

    fn decode_route(any: &Any, path: &Path<'_>) -> Result<CorsPolicy> {
        let config: pb::CorsPolicy = unpack(any, path)?;
        let origins = config.allow_origin_string_match.iter().enumerate();
        for (name, value) in [
            ("allow_methods", &config.allow_methods),
            ("allow_headers", &config.allow_headers),
            ("expose_headers", &config.expose_headers),
            ("max_age", &config.max_age),
        ] {
            if value.bytes().any(|b| matches!(b, b'\r' | b'\n' | 0)) {
                return Err(path.field(name).error("holds NUL, CR or LF"));
            }
        }
        Ok(CorsPolicy {
            origins: origins
                .map(|(i, m)| matcher::string(m, &path.item("allow_origin_string_match", i)))
                .collect::<Result<_>>()?,
            methods: config.allow_methods.into(),
            headers: config.allow_headers.into(),
            expose: config.expose_headers.into(),
            max_age: config.max_age.into(),
            credentials: config.allow_credentials,
            private_network: config.allow_private_network_access,
            forward_preflights: config.forward_not_matching_preflights,
            enabled: fraction::runtime(
                config.filter_enabled.as_ref(),
                Fraction::ALL,
                &path.field("filter_enabled"),
            )?,
            shadow: fraction::runtime(
                config.shadow_enabled.as_ref(),
                Fraction::default(),
                &path.field("shadow_enabled"),
            )?,
        })
    }
}
