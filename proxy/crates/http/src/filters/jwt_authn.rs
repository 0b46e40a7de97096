//! `envoy.filters.http.jwt_authn`: requests must have tokens that issuers signed.
//!
//! A requirement is a tree. Each provider in it is asked about every token in the places where its tokens may be; what
//! good tokens say goes into headers at once, as in Envoy, and into metadata when the whole tree was asked.

mod extract;
mod fetch;
mod verify;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use heddle_config::filters::RouteFilterConfig;
use heddle_config::filters::jwt_authn::{JwtAuthn as Config, JwtAuthnPerRoute, Requirement};
use heddle_jwt::{JwtError, Token};
use heddle_telemetry::Counter;

use fetch::Source;

use super::{Call, HttpFilter, Setup, Verdict};
use crate::hcm::Exchange;
use crate::head::{Fields, Known, Method};
use crate::jwks::Fetches;
use crate::local_reply::LocalReply;
use crate::route::select;

/// Where good tokens' claims are.
const NAMESPACE: &str = "envoy.filters.http.jwt_authn";

/// Most bytes of the path in an answer's `www-authenticate`, as in Envoy.
const MAX_REALM_PATH: usize = 256;

/// Verified tokens of a provider, by their text.
type Verified = HashMap<Box<str>, Rc<Token>, ahash::RandomState>;

/// One JWT filter.
pub(crate) struct JwtAuthn {
    config: Arc<Config>,
    /// By provider.
    keys: Vec<Source>,
    fetches: Fetches,
    /// By provider.
    verified: Vec<RefCell<Verified>>,
    allowed: Counter,
    denied: Counter,
    preflights: Counter,
    cache_hits: Counter,
    cache_misses: Counter,
}

impl HttpFilter for JwtAuthn {
    type Config = Config;
    type Route = JwtAuthnPerRoute;
    type State = ();

    fn new(config: &Arc<Config>, setup: &Setup<'_>) -> Self {
        let stats = &setup.worker.stats;
        let labels = [("http_conn_manager_prefix", setup.stat_prefix)];
        let fetches = Fetches {
            succeeded: stats.counter("envoy_http_jwt_authn_jwks_fetch_success", &labels),
            failed: stats.counter("envoy_http_jwt_authn_jwks_fetch_failed", &labels),
            overflow: stats.counter("heddle_http_jwt_authn_jwks_wait_overflow", &labels),
        };
        let providers = config.providers.iter();
        Self {
            keys: providers
                .map(|p| Source::new(&p.keys, setup.worker, &fetches))
                .collect(),
            fetches,
            verified: config.providers.iter().map(|_| RefCell::default()).collect(),
            config: Arc::clone(config),
            allowed: stats.counter("envoy_http_jwt_authn_allowed", &labels),
            denied: stats.counter("envoy_http_jwt_authn_denied", &labels),
            preflights: stats.counter("envoy_http_jwt_authn_cors_preflight_bypassed", &labels),
            cache_hits: stats.counter("envoy_http_jwt_authn_jwt_cache_hit", &labels),
            cache_misses: stats.counter("envoy_http_jwt_authn_jwt_cache_miss", &labels),
        }
    }

    fn route_config(config: &RouteFilterConfig) -> Option<&JwtAuthnPerRoute> {
        match config {
            RouteFilterConfig::JwtAuthn(config) => Some(config),
            _ => None,
        }
    }

    fn on_request(&self, call: &mut Call<'_>, (): &mut ()) -> Verdict {
        self.sanitize(&mut call.exchange.request.fields);
        if self.config.bypass_cors_preflight && is_preflight(call.exchange) {
            self.preflights.inc();
            return self.allow();
        }
        match self.requirement(call) {
            Ok(Some(_)) if self.misses_keys() => {
                call.wait();
                Verdict::Continue
            }
            Ok(Some(requirement)) => self.verify(requirement, call, verify::Brought::default()),
            Ok(None) => self.allow(),
            Err(misconfigured) => misconfigured,
        }
    }

    async fn on_request_waiting(&self, call: &mut Call<'_>, (): &mut ()) -> Verdict {
        match self.requirement(call) {
            Ok(Some(requirement)) => {
                let brought = self.fetch(requirement, call).await;
                self.verify(requirement, call, brought)
            }
            Ok(None) => self.allow(),
            Err(misconfigured) => misconfigured,
        }
    }
}

impl JwtAuthn {
    /// What is asked of a request, if anything is.
    ///
    /// # Errors
    /// The answer to a request whose route asks for a requirement that is not there.
    fn requirement(&self, call: &Call<'_>) -> Result<Option<&Requirement>, Verdict> {
        match call.route_configs::<Self>().first() {
            None => Ok(self.by_rules(call.exchange)),
            Some(JwtAuthnPerRoute::Disabled) => Ok(None),
            Some(JwtAuthnPerRoute::Requirement(name)) => match self.config.named.get(name) {
                None => Err(self.misconfigured(name)),
                requirement => Ok(requirement),
            },
        }
    }

    fn allow(&self) -> Verdict {
        self.allowed.inc();
        Verdict::Continue
    }

    /// Verifies the tokens of a request, with what was fetched for it.
    fn verify(&self, requirement: &Requirement, call: &mut Call<'_>, brought: verify::Brought) -> Verdict {
        let mut found = verify::Found {
            brought,
            ..verify::Found::default()
        };
        // Before tokens are taken out of it.
        let realm = realm(call.exchange);
        let mut result = self.check(requirement, call.exchange, &mut found);
        if !call.merge_metadata(NAMESPACE, found.metadata) && result.is_ok() {
            // Whoever reads the claims would take the request for one without a token.
            result = Err(JwtError::ClaimsTooLarge);
        }
        match result {
            Ok(()) => {
                self.allowed.inc();
                if found.clear_route_cache {
                    call.choose_route();
                }
                Verdict::Continue
            }
            Err(error) => {
                self.denied.inc();
                self.refusal(error, &realm)
            }
        }
    }

    fn by_rules(&self, exchange: &Exchange) -> Option<&Requirement> {
        let request = &exchange.request;
        let path = heddle_matching::RequestView::path(request);
        let headers = heddle_matching::HeaderReadings::of(request);
        let scans = heddle_matching::Scans::none();
        let mut rules = self.config.rules.iter();
        let rule = rules.find(|rule| select::matches(&rule.matches, request, path, &headers, &scans))?;
        self.config.requirement_of(rule)
    }

    /// Takes out what only verified tokens may fill, whatever is asked of the request and also where nothing is: a preflight,
    /// or a route without a requirement. Envoy does so when it comes to ask a provider, so that a client could forge what
    /// those behind it, or none, would have filled.
    fn sanitize(&self, fields: &mut Fields) {
        for name in &self.config.everywhere.sanitize {
            fields.remove_any_spelling(name.as_bytes());
        }
    }

    fn refusal(&self, error: JwtError, realm: &str) -> Verdict {
        let why = error.to_string();
        let mut reply = LocalReply {
            status: match error {
                JwtError::AudienceNotAllowed => 403,
                _ => 401,
            },
            details: details(&why),
            ..LocalReply::default()
        };
        if !self.config.strip_failure_response {
            // RFC 6750 section 3: no error code where there was no token.
            let error = match error {
                JwtError::Missing => "",
                _ => ", error=\"invalid_token\"",
            };
            let challenge = format!("Bearer realm=\"{realm}\"{error}");
            reply.headers.push(b"www-authenticate", challenge.as_bytes());
            reply.body = why.into();
        }
        Verdict::from(reply)
    }

    /// A route asks for a requirement that is not there.
    fn misconfigured(&self, name: &str) -> Verdict {
        self.denied.inc();
        let names: Vec<&str> = self.config.named.keys().map(|name| &**name).collect();
        let why = format!(
            "Wrong requirement_name: {name}. It should be one of [{}]",
            names.join(",")
        );
        Verdict::from(LocalReply {
            status: 403,
            details: details(&why),
            body: match self.config.strip_failure_response {
                true => bytes::Bytes::new(),
                false => format!("Failed JWT authentication: {why}").into(),
            },
            ..LocalReply::default()
        })
    }
}

fn details(why: &str) -> Cow<'static, str> {
    format!("jwt_authn_access_denied{{{}}}", why.replace(' ', "_")).into()
}

/// WHATWG Fetch, "CORS-preflight request".
fn is_preflight(exchange: &Exchange) -> bool {
    let request = &exchange.request;
    let has = |name: &[u8]| request.fields.get(name).is_some_and(|value| !value.is_empty());
    request.method == Method::Options && has(b"origin") && has(b"access-control-request-method")
}

/// The request's URL as the client sent it.
fn realm(exchange: &Exchange) -> String {
    let request = &exchange.request;
    let original = request.fields.get_known_text(Known::OriginalPath);
    let path = original.unwrap_or_else(|| request.target());
    let path = path.get(..path.floor_char_boundary(MAX_REALM_PATH)).unwrap_or_default();
    let scheme = request.fields.get_known_text(Known::ForwardedProto).unwrap_or_default();
    format!("{scheme}://{}{path}", request.host())
}
