//! Who issues tokens.

use std::sync::Arc;
use std::time::Duration;

use heddle_api::envoy::extensions::filters::http::jwt_authn::v3 as pb;
use heddle_jwt::{Audiences, KeySet};
use heddle_matching::StringMatcher;

use super::Extractor;
use crate::decode::{Result, data_source, duration, headers, matcher, positive, required, service};
use crate::path::Path;
use crate::snapshot::HttpTarget;

/// Most verified tokens that a cache may be configured to keep, per provider and worker.
const MAX_CACHED_TOKENS: u32 = 10_000;

/// How long fetched keys are good where nothing is said.
const CACHE_DURATION: Duration = Duration::from_secs(600);

/// Pause after a fetch ahead that failed where nothing is said.
const FAILED_REFETCH: Duration = Duration::from_secs(1);

/// `JwtProvider`.
#[derive(Debug)]
pub struct Provider {
    /// Its name in `providers`.
    pub name: Box<str>,
    /// `issuer`; empty means any.
    pub issuer: Box<str>,
    /// `audiences`.
    pub audiences: Audiences,
    /// `subjects`.
    pub subjects: Option<StringMatcher>,
    /// `require_expiration` and `max_lifetime`.
    pub expiration: Expiration,
    /// Where its keys come from.
    pub keys: Keys,
    /// Where its tokens are.
    pub extractor: Extractor,
    /// `forward`: the token stays in the request.
    pub forward: bool,
    /// `forward_payload_header`, lower case.
    pub payload_header: Option<Box<str>>,
    /// `pad_forward_payload_header`.
    pub pad_payload_header: bool,
    /// `payload_in_metadata`: the key of the claims in the filter's namespace.
    pub payload_in_metadata: Option<Box<str>>,
    /// `normalize_payload_in_metadata.space_delimited_claims`: texts that become lists there.
    pub space_delimited_claims: Vec<Box<str>>,
    /// `header_in_metadata`: the key of the JOSE header there.
    pub header_in_metadata: Option<Box<str>>,
    /// `clock_skew_seconds`, 60 by default.
    pub clock_skew: u64,
    /// `claim_to_headers`: the claim's path, and the field in lower case.
    pub claim_to_headers: Vec<(Vec<Box<str>>, Box<str>)>,
    /// `clear_route_cache`: a field or metadata written has the route chosen again.
    pub clear_route_cache: bool,
    /// `jwt_cache_config`: how many verified tokens are kept, and up to which length; none keeps no tokens.
    pub cache: Option<(usize, usize)>,
}

/// What a token must say of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiration {
    /// Nothing.
    Optional,
    /// `require_expiration`.
    Required,
    /// `max_lifetime`: it ends, and in less than this.
    Within(Duration),
}

/// Where keys come from.
#[derive(Debug)]
pub enum Keys {
    /// `local_jwks`.
    Local(Arc<KeySet>),
    /// `remote_jwks`.
    Remote(Arc<RemoteJwks>),
}

/// `RemoteJwks`.
#[derive(Debug, PartialEq, Eq)]
pub struct RemoteJwks {
    /// `http_uri` and `retry_policy`.
    pub service: HttpTarget,
    /// `cache_duration`, ten minutes by default.
    pub cache_duration: Duration,
    /// `async_fetch`: keys are fetched ahead, and stay good until others have come. How long after a failure they are
    /// fetched again (`failed_refetch_duration`, one second by default).
    pub refetch: Option<Duration>,
}

pub(super) fn decode(name: &str, config: &pb::JwtProvider, path: &Path<'_>) -> Result<Provider> {
    use pb::jwt_provider::JwksSourceSpecifier;
    let keys = match required(config.jwks_source_specifier.as_ref(), path)? {
        JwksSourceSpecifier::LocalJwks(source) => {
            let here = path.field("local_jwks");
            let keys = KeySet::parse(&data_source(source, &here)?).map_err(|e| here.error(e.to_string()))?;
            Keys::Local(Arc::new(keys))
        }
        JwksSourceSpecifier::RemoteJwks(config) => {
            Keys::Remote(Arc::new(remote(config, &path.field("remote_jwks"))?))
        }
    };
    for (i, header) in config.from_headers.iter().enumerate() {
        headers::removable(&header.name, &path.item("from_headers", i).field("name"))?;
    }
    let mut claims = Vec::with_capacity(config.claim_to_headers.len());
    for (i, claim) in config.claim_to_headers.iter().enumerate() {
        let here = path.item("claim_to_headers", i);
        if claim.claim_name.is_empty() {
            return Err(here.field("claim_name").error("must not be empty"));
        }
        let names = claim.claim_name.split('.').map(Box::from);
        claims.push((names.collect(), headers::settable(&claim.header_name, &here.field("header_name"))?));
    }
    let expiration = match duration(config.max_lifetime.as_ref(), &path.field("max_lifetime"))? {
        Some(most) => Expiration::Within(most),
        None if config.require_expiration => Expiration::Required,
        None => Expiration::Optional,
    };
    let some = |text: &str| (!text.is_empty()).then(|| Box::from(text));
    let normalize = config.normalize_payload_in_metadata.as_ref();
    Ok(Provider {
        name: name.into(),
        issuer: config.issuer.as_str().into(),
        audiences: Audiences::new(config.audiences.iter().map(String::as_str)),
        subjects: match &config.subjects {
            Some(m) => Some(matcher::string(m, &path.field("subjects"))?),
            None => None,
        },
        expiration,
        keys,
        extractor: Extractor::new(&[config]),
        forward: config.forward,
        payload_header: match config.forward_payload_header.as_str() {
            "" => None,
            name => Some(headers::settable(name, &path.field("forward_payload_header"))?),
        },
        pad_payload_header: config.pad_forward_payload_header,
        payload_in_metadata: some(&config.payload_in_metadata),
        space_delimited_claims: normalize
            .map(|n| n.space_delimited_claims.iter().map(|c| c.as_str().into()).collect())
            .unwrap_or_default(),
        header_in_metadata: some(&config.header_in_metadata),
        clock_skew: match config.clock_skew_seconds {
            0 => 60,
            seconds => u64::from(seconds),
        },
        claim_to_headers: claims,
        clear_route_cache: config.clear_route_cache,
        cache: match &config.jwt_cache_config {
            None => None,
            Some(cache) => Some(self::cache(cache, &path.field("jwt_cache_config"))?),
        },
    })
}

fn remote(config: &pb::RemoteJwks, path: &Path<'_>) -> Result<RemoteJwks> {
    Ok(RemoteJwks {
        service: service::http(config.http_uri.as_ref(), "http_uri", config.retry_policy.as_ref(), path)?,
        cache_duration: positive(
            config.cache_duration.as_ref(),
            CACHE_DURATION,
            &path.field("cache_duration"),
        )?,
        refetch: match &config.async_fetch {
            None => None,
            Some(fetch) => Some(positive(
                fetch.failed_refetch_duration.as_ref(),
                FAILED_REFETCH,
                &path.field("async_fetch").field("failed_refetch_duration"),
            )?),
        },
    })
}

/// Envoy keeps 100 tokens of up to 4 KiB where nothing else is said.
fn cache(config: &pb::JwtCacheConfig, path: &Path<'_>) -> Result<(usize, usize)> {
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    let size = or(config.jwt_cache_size, 100);
    if size > MAX_CACHED_TOKENS {
        return Err(path.field("jwt_cache_size").error(format!("must be at most {MAX_CACHED_TOKENS}")));
    }
    let bytes = crate::decode::bytes;
    Ok((bytes(size), bytes(or(config.jwt_max_token_size, 4096))))
}
