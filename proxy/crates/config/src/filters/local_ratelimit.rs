//! `envoy.filters.http.local_ratelimit`.

mod bucket;

use std::sync::Arc;
use std::time::Duration;

use heddle_api::envoy::extensions::common::ratelimit::v3 as common;
use heddle_api::envoy::extensions::filters::http::local_ratelimit::v3 as pb;
use heddle_api::envoy::r#type::v3 as types;
use prost_types::Any;

pub use bucket::TokenBucket;

use super::Kind;
use crate::check::fields::{Message, message};
use crate::decode::{Result, duration, enumeration, fraction, headers, rate_limit, required, unpack};
use crate::path::Path;
use crate::snapshot::{Fraction, HeaderOps, RateLimit};

/// Shortest `fill_interval`, as in Envoy.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// `envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit`, of the filter or of a route.
#[derive(Debug)]
pub struct LocalRateLimit {
    /// `stat_prefix`.
    pub stat_prefix: Arc<str>,
    /// `status`, 429 by default and for what is no error.
    pub status: u16,
    /// The buckets.
    pub limiter: Limiter,
    /// `filter_enabled`: which requests are looked at; none by default.
    pub enabled: Fraction,
    /// `filter_enforced`: which of those above the limit are refused; none by default.
    pub enforced: Fraction,
    /// `request_headers_to_add_when_not_enforced`.
    pub request_headers: HeaderOps,
    /// `response_headers_to_add`.
    pub response_headers: HeaderOps,
    /// `rate_limits`; empty means those of the route.
    pub rate_limits: Vec<RateLimit>,
    /// `stage`: of the route's rate limits, those with this number.
    pub stage: u32,
    /// `vh_rate_limits`: when the virtual host's rate limits count besides the route's.
    pub virtual_host: VirtualHostLimits,
    /// `local_rate_limit_per_downstream_connection`: each connection has buckets of its own.
    pub per_connection: bool,
    /// `enable_x_ratelimit_headers`.
    pub x_ratelimit_headers: bool,
    /// `rate_limited_as_resource_exhausted`: gRPC calls are answered `RESOURCE_EXHAUSTED`, not `UNAVAILABLE`.
    pub resource_exhausted: bool,
}

/// `envoy.extensions.common.ratelimit.v3.VhRateLimitsOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VirtualHostLimits {
    /// When the route has none.
    #[default]
    Override,
    /// Always.
    Include,
    /// Never.
    Ignore,
}

/// Buckets: one for all requests, and one for each descriptor.
#[derive(Debug, Default)]
pub struct Limiter {
    /// `token_bucket`.
    pub default: Option<TokenBucket>,
    /// `descriptors`, the slowest to fill first.
    pub descriptors: Vec<Descriptor>,
    /// `always_consume_default_token_bucket`, default true: also of requests that a descriptor matches.
    pub always_default: bool,
}

/// `envoy.extensions.common.ratelimit.v3.LocalRateLimitDescriptor`.
#[derive(Debug)]
pub struct Descriptor {
    /// Keys and values, all of which a request's descriptor must have, in this order.
    pub entries: Vec<(Box<str>, Box<str>)>,
    /// Its bucket.
    pub bucket: TokenBucket,
}

impl Limiter {
    /// The same with full buckets.
    #[must_use]
    pub fn fresh(&self) -> Self {
        let descriptors = self.descriptors.iter().map(|d| Descriptor {
            entries: d.entries.clone(),
            bucket: d.bucket.fresh(),
        });
        Self {
            default: self.default.as_ref().map(TokenBucket::fresh),
            descriptors: descriptors.collect(),
            always_default: self.always_default,
        }
    }
}

impl Kind for LocalRateLimit {
    const TYPE: &'static str = "envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";
    const ROUTE_TYPE: &'static str = Self::TYPE;
    const MESSAGES: &'static [Message] = &[
        message(
            "envoy.extensions.common.ratelimit.v3.LocalRateLimitDescriptor",
            &["entries", "token_bucket"],
        ),
        message(
            "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry",
            &["key", "value"],
        ),
        message(
            Self::TYPE,
            &[
                "always_consume_default_token_bucket",
                "descriptors",
                "enable_x_ratelimit_headers",
                "filter_enabled",
                "filter_enforced",
                "local_rate_limit_per_downstream_connection",
                "rate_limited_as_resource_exhausted",
                "rate_limits",
                "request_headers_to_add_when_not_enforced",
                "response_headers_to_add",
                "stage",
                "stat_prefix",
                "status",
                "token_bucket",
                "vh_rate_limits",
            ],
        ),
        message(
            "envoy.type.v3.TokenBucket",
            &["fill_interval", "max_tokens", "tokens_per_fill"],
        ),
    ];
    type Route = Self;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        let config: pb::LocalRateLimit = unpack(any, path)?;
        let mut descriptors = Vec::with_capacity(config.descriptors.len());
        for (i, one) in config.descriptors.iter().enumerate() {
            let here = path.item("descriptors", i);
            let one = descriptor(one, &here)?;
            if descriptors.iter().any(|d: &Descriptor| d.entries == one.entries) {
                return Err(here.error("stands there twice"));
            }
            descriptors.push(one);
        }
        // The strictest first, so that a request that it refuses takes nothing from the others.
        descriptors.sort_by(|a, b| a.bucket.rate().total_cmp(&b.bucket.rate()));
        let here = path.field("token_bucket");
        let version: common::XRateLimitHeadersRfcVersion =
            enumeration(config.enable_x_ratelimit_headers, &path.field("enable_x_ratelimit_headers"))?;
        Ok(Self {
            stat_prefix: config.stat_prefix.as_str().into(),
            status: status(config.status.as_ref(), &path.field("status"))?,
            limiter: Limiter {
                default: config.token_bucket.as_ref().map(|b| bucket(b, &here)).transpose()?,
                descriptors,
                always_default: config.always_consume_default_token_bucket.unwrap_or(true),
            },
            enabled: fraction::runtime(
                config.filter_enabled.as_ref(),
                Fraction::default(),
                &path.field("filter_enabled"),
            )?,
            enforced: fraction::runtime(
                config.filter_enforced.as_ref(),
                Fraction::default(),
                &path.field("filter_enforced"),
            )?,
            request_headers: additions(
                &config.request_headers_to_add_when_not_enforced,
                "request_headers_to_add_when_not_enforced",
                path,
            )?,
            response_headers: additions(&config.response_headers_to_add, "response_headers_to_add", path)?,
            rate_limits: rate_limit::rate_limits(&config.rate_limits, path)?,
            stage: config.stage,
            virtual_host: match enumeration(config.vh_rate_limits, &path.field("vh_rate_limits"))? {
                common::VhRateLimitsOptions::Override => VirtualHostLimits::Override,
                common::VhRateLimitsOptions::Include => VirtualHostLimits::Include,
                common::VhRateLimitsOptions::Ignore => VirtualHostLimits::Ignore,
            },
            per_connection: config.local_rate_limit_per_downstream_connection,
            x_ratelimit_headers: version == common::XRateLimitHeadersRfcVersion::DraftVersion03,
            resource_exhausted: config.rate_limited_as_resource_exhausted,
        })
    }

    fn decode_route(any: &Any, path: &Path<'_>) -> Result<Self> {
        let config = Self::decode(any, path)?;
        if config.limiter.default.is_none() {
            return Err(path.field("token_bucket").error("must be set where a route is limited"));
        }
        Ok(config)
    }
}

fn additions(
    list: &[heddle_api::envoy::config::core::v3::HeaderValueOption],
    name: &str,
    path: &Path<'_>,
) -> Result<HeaderOps> {
    headers::operations(list, &[], name, "", path)
}

/// Envoy answers 429 when what is given is no error.
fn status(config: Option<&types::HttpStatus>, path: &Path<'_>) -> Result<u16> {
    let Some(config) = config else { return Ok(429) };
    let code = enumeration::<types::StatusCode>(config.code, &path.field("code"))?;
    Ok(match u16::try_from(code as i32) {
        Ok(code) if code >= 400 => code,
        _ => 429,
    })
}

fn bucket(config: &types::TokenBucket, path: &Path<'_>) -> Result<TokenBucket> {
    let here = path.field("fill_interval");
    let interval = duration(Some(required(config.fill_interval.as_ref(), &here)?), &here)?.unwrap_or_default();
    if interval < MIN_INTERVAL {
        return Err(here.error("must be at least 0.05s"));
    }
    let per_fill = f64::from(config.tokens_per_fill.unwrap_or(1));
    Ok(TokenBucket::new(config.max_tokens, per_fill / interval.as_secs_f64()))
}

fn descriptor(config: &common::LocalRateLimitDescriptor, path: &Path<'_>) -> Result<Descriptor> {
    let mut entries = Vec::with_capacity(config.entries.len());
    for (i, entry) in config.entries.iter().enumerate() {
        if entry.value.is_empty() {
            let here = path.item("entries", i);
            return Err(here
                .field("value")
                .unsupported("an empty value, which stands for any", "give the value"));
        }
        entries.push((entry.key.as_str().into(), entry.value.as_str().into()));
    }
    let here = path.field("token_bucket");
    Ok(Descriptor {
        entries,
        bucket: bucket(required(config.token_bucket.as_ref(), &here)?, &here)?,
    })
}
