//! `envoy.filters.http.cors`: answers browsers' preflights, and says which origins may read an answer (WHATWG Fetch,
//! "CORS protocol").

use std::sync::Arc;

use heddle_config::filters::RouteFilterConfig;
use heddle_config::filters::cors::{Cors as Config, CorsPolicy};
use heddle_telemetry::Counter;

use super::{Call, HttpFilter, RouteConfigs, Setup, Verdict};
use crate::head::{Fields, Method};
use crate::local_reply::LocalReply;

const ALLOW_ORIGIN: &[u8] = b"access-control-allow-origin";
const ALLOW_CREDENTIALS: &[u8] = b"access-control-allow-credentials";

/// One CORS filter.
pub(crate) struct Cors {
    valid: Counter,
    invalid: Counter,
}

/// Of a request whose origin is allowed: what its answer gets.
#[derive(Debug)]
pub(crate) struct Allowed {
    origin: Box<[u8]>,
    policies: RouteConfigs<Cors>,
}

impl HttpFilter for Cors {
    type Config = Config;
    type Route = CorsPolicy;
    type State = Option<Box<Allowed>>;

    fn new(_: &Arc<Config>, setup: &Setup<'_>) -> Self {
        let labels = [("http_conn_manager_prefix", setup.stat_prefix)];
        let stats = &setup.worker.stats;
        Self {
            valid: stats.counter("envoy_http_cors_origin_valid", &labels),
            invalid: stats.counter("envoy_http_cors_origin_invalid", &labels),
        }
    }

    fn route_config(config: &RouteFilterConfig) -> Option<&CorsPolicy> {
        match config {
            RouteFilterConfig::Cors(config) => Some(config),
            _ => None,
        }
    }

    fn on_request(&self, call: &mut Call<'_>, allowed: &mut Self::State) -> Verdict {
        // Routes that answer by themselves have no policy, as in Envoy.
        if call.exchange.selected.as_ref().is_none_or(|s| s.action().is_none()) {
            return Verdict::Continue;
        }
        let policies = call.route_configs::<Self>();
        let Some(first) = policies.first() else {
            return Verdict::Continue;
        };
        let dice = || call.env.worker.dice();
        let enabled = first.enabled.holds(dice);
        if !enabled && !first.shadow.holds(dice) {
            return Verdict::Continue;
        }
        let request = &call.exchange.request;
        let Some(origin) = request.fields.get(b"origin").filter(|o| !o.is_empty()) else {
            return Verdict::Continue;
        };
        let is_allowed = is_allowed(&policies, origin);
        match is_allowed {
            true => self.valid.inc(),
            false => self.invalid.inc(),
        }
        if !enabled {
            return Verdict::Continue;
        }
        let origin: Box<[u8]> = origin.into();
        let preflight =
            request.method == Method::Options && !value(&request.fields, "access-control-request-method").is_empty();
        let forward = || flag(&policies, |p| p.forward_preflights).unwrap_or(true);
        if preflight && (is_allowed || !forward()) {
            let headers = preflight_fields(&policies, &request.fields, is_allowed.then_some(&*origin));
            remember(allowed, is_allowed, origin, policies);
            return Verdict::from(LocalReply {
                status: 200,
                headers,
                details: "cors_response".into(),
                ..LocalReply::default()
            });
        }
        remember(allowed, is_allowed, origin, policies);
        Verdict::Continue
    }

    fn on_response(&self, call: &mut Call<'_>, allowed: &mut Self::State) {
        let Some(allowed) = allowed else { return };
        let fields = &mut call.exchange.response.fields;
        fields.set(ALLOW_ORIGIN, &allowed.origin);
        if flag(&allowed.policies, |p| p.credentials) == Some(true) {
            fields.set(ALLOW_CREDENTIALS, b"true");
        }
        let expose = text(&allowed.policies, |p| &p.expose);
        if !expose.is_empty() {
            fields.set(b"access-control-expose-headers", expose.as_bytes());
        }
    }
}

fn remember(state: &mut Option<Box<Allowed>>, is_allowed: bool, origin: Box<[u8]>, policies: RouteConfigs<Cors>) {
    *state = is_allowed.then(|| Box::new(Allowed { origin, policies }));
}

/// The answer's fields to a preflight.
fn preflight_fields(policies: &RouteConfigs<Cors>, request: &Fields, origin: Option<&[u8]>) -> Fields {
    let mut out = Fields::new();
    if let Some(origin) = origin {
        out.push(ALLOW_ORIGIN, origin);
    }
    if flag(policies, |p| p.credentials) == Some(true) {
        out.push(ALLOW_CREDENTIALS, b"true");
    }
    let asked = |configured: &'static str, asked: &str| (configured, value(request, asked));
    let lists = [
        (
            text(policies, |p| &p.methods),
            asked("access-control-allow-methods", "access-control-request-method"),
        ),
        (
            text(policies, |p| &p.headers),
            asked("access-control-allow-headers", "access-control-request-headers"),
        ),
    ];
    for (configured, (name, asked)) in lists {
        match configured {
            "" => {}
            "*" => out.push(name.as_bytes(), asked),
            list => out.push(name.as_bytes(), list.as_bytes()),
        }
    }
    let max_age = text(policies, |p| &p.max_age);
    if !max_age.is_empty() {
        out.push(b"access-control-max-age", max_age.as_bytes());
    }
    let private = value(request, "access-control-request-private-network") == b"true";
    if private && flag(policies, |p| p.private_network) == Some(true) {
        out.push(b"access-control-allow-private-network", b"true");
    }
    out
}

fn value<'f>(fields: &'f Fields, name: &str) -> &'f [u8] {
    fields.get(name.as_bytes()).unwrap_or_default()
}

/// Of the most specific policy that says something.
fn text(policies: &RouteConfigs<Cors>, of: impl Fn(&CorsPolicy) -> &str) -> &str {
    policies.all().map(of).find(|text| !text.is_empty()).unwrap_or_default()
}

fn flag(policies: &RouteConfigs<Cors>, of: impl Fn(&CorsPolicy) -> Option<bool>) -> Option<bool> {
    policies.all().find_map(of)
}

fn is_allowed(policies: &RouteConfigs<Cors>, origin: &[u8]) -> bool {
    let Some(policy) = policies.all().find(|p| !p.origins.is_empty()) else {
        return false;
    };
    let origin = String::from_utf8_lossy(origin);
    policy.origins.iter().any(|m| m.matches("*") || m.matches(&origin))
}
