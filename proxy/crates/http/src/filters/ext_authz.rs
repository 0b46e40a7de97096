//! `envoy.filters.http.ext_authz`: a server of its own says which requests may pass, and what becomes of the others.

mod connection;
mod decision;
mod grpc;
mod http;
mod metadata;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use heddle_config::filters::RouteFilterConfig;
use heddle_config::filters::ext_authz::{BodyOverride, BodySettings, ExtAuthz as Config, ExtAuthzPerRoute, Service};
use heddle_matching::{MetadataMatcher, StringMatcher};
use heddle_telemetry::{Counter, ResponseFlag};
use serde_json::{Map, Value};

pub use self::connection::NetworkExtAuthz;
use self::decision::{Allowed, Change, Decision, Denied};
use super::body::AtLimit;
use super::{Call, HttpFilter, RouteConfigs, Setup, Verdict};
use crate::h1::MAX_FIELDS;
use crate::head::{Fields, RequestHead};
use crate::local_reply::LocalReply;

/// Where what the server says is kept for those behind.
const NAMESPACE: &str = "envoy.filters.http.ext_authz";

/// Longest answer of an authorization server.
const MAX_ANSWER: usize = 1024 * 1024;

/// Tells the server whether the body that it gets is only the beginning.
const PARTIAL_BODY: &[u8] = b"x-envoy-auth-partial-body";

/// Tells the upstream that nobody has checked the request.
const FAILURE_MODE_ALLOWED: &[u8] = b"x-envoy-auth-failure-mode-allowed";

/// One external authorization filter.
pub(crate) struct ExtAuthz {
    config: Arc<Config>,
    ok: Counter,
    denied: Counter,
    error: Counter,
    disabled: Counter,
    failure_mode_allowed: Counter,
    invalid: Counter,
}

/// What the server is shown of a body.
#[derive(Debug)]
struct Content {
    bytes: Bytes,
    partial: bool,
    as_bytes: bool,
}

impl Content {
    fn partial_text(&self) -> &'static [u8] {
        if self.partial { b"true" } else { b"false" }
    }
}

impl HttpFilter for ExtAuthz {
    type Config = Config;
    type Route = ExtAuthzPerRoute;
    /// What the server adds to the answer.
    type State = Option<Box<[Change]>>;

    fn new(config: &Arc<Config>, setup: &Setup<'_>) -> Self {
        let manager = ("http_conn_manager_prefix", setup.stat_prefix);
        let labels = [manager, ("ext_authz_prefix", &*config.stat_prefix)];
        let labels = if config.stat_prefix.is_empty() {
            &labels[..1]
        } else {
            &labels[..]
        };
        let counter = |name| setup.worker.stats.counter(name, labels);
        Self {
            ok: counter("envoy_http_ext_authz_ok"),
            denied: counter("envoy_http_ext_authz_denied"),
            error: counter("envoy_http_ext_authz_error"),
            disabled: counter("envoy_http_ext_authz_disabled"),
            failure_mode_allowed: counter("envoy_http_ext_authz_failure_mode_allowed"),
            invalid: counter("envoy_http_ext_authz_invalid"),
            config: Arc::clone(config),
        }
    }

    fn route_config(config: &RouteFilterConfig) -> Option<&ExtAuthzPerRoute> {
        match config {
            RouteFilterConfig::ExtAuthz(config) => Some(config),
            _ => None,
        }
    }

    fn on_request(&self, call: &mut Call<'_>, _: &mut Self::State) -> Verdict {
        let route = call.route_configs::<Self>();
        // Where there is no route there is nothing to be authorized for.
        if call.exchange.selected.is_none() || matches!(route.first(), Some(ExtAuthzPerRoute::Disabled)) {
            return Verdict::Continue;
        }
        let metadata = call.exchange.request.metadata.as_deref();
        let meant = |m: &MetadataMatcher| m.matches(metadata);
        if !self.config.enabled.holds(|| call.env.worker.dice())
            || !self.config.enabled_metadata.as_ref().is_none_or(meant)
        {
            self.disabled.inc();
            return match self.config.deny_at_disable {
                true => refusal(self.config.status_on_error, "ext_authz_error"),
                false => Verdict::Continue,
            };
        }
        call.wait();
        Verdict::Continue
    }

    async fn on_request_waiting(&self, call: &mut Call<'_>, state: &mut Self::State) -> Verdict {
        let route = call.route_configs::<Self>();
        let (decision, said) = match self.ask(call, &route).await {
            Ok(answer) => answer,
            Err(too_large) => return Verdict::Reply(too_large),
        };
        if !call.merge_metadata(NAMESPACE, said) {
            // Whoever reads it would take the request for one of which nothing was said.
            return self.invalid();
        }
        match decision {
            Decision::Allowed(allowed) => self.allow(call, *allowed, state),
            Decision::Denied(denied) => self.deny(call, *denied),
            Decision::Invalid => self.invalid(),
            Decision::Failed if self.config.failure_mode_allow => {
                self.error.inc();
                self.failure_mode_allowed.inc();
                if self.config.failure_header {
                    call.exchange.request.fields.push(FAILURE_MODE_ALLOWED, b"true");
                }
                Verdict::Continue
            }
            Decision::Failed => {
                self.error.inc();
                refusal(self.config.status_on_error, "ext_authz_error")
            }
        }
    }

    fn on_response(&self, call: &mut Call<'_>, state: &mut Self::State) {
        let fields = &mut call.exchange.response.fields;
        for change in state.take().unwrap_or_default() {
            if fields.len() < MAX_FIELDS {
                change.apply(fields);
            }
        }
    }
}

impl ExtAuthz {
    /// Asks the server. The error is the answer to a request whose body is too long to be shown to it.
    async fn ask(
        &self,
        call: &mut Call<'_>,
        route: &RouteConfigs<Self>,
    ) -> Result<(Decision, Map<String, Value>), Box<LocalReply>> {
        let config = &*self.config;
        let content = match self.body_settings(route) {
            Some(settings) if call.has_body() => {
                let at_limit = if settings.partial {
                    AtLimit::Stop
                } else {
                    AtLimit::Refuse
                };
                let held = call.body(settings.max_bytes, at_limit).await?;
                let shown = held.bytes.len().min(settings.max_bytes);
                Some(Content {
                    partial: !held.whole || shown < held.bytes.len(),
                    bytes: held.bytes.slice(..shown),
                    as_bytes: settings.as_bytes,
                })
            }
            _ => None,
        };
        let answer = match &config.service {
            Service::Http(service) => {
                let decision = http::ask(call, config, service, content.as_ref()).await;
                decision.ok().map(|decision| (decision, Map::new()))
            }
            Service::Grpc(target) => {
                let context = context(route);
                grpc::ask(call, config, target, context, content.as_ref()).await.ok()
            }
        };
        Ok(answer.unwrap_or_else(|| (Decision::Failed, Map::new())))
    }

    /// The most specific level decides; where it says nothing of bodies, the filter does.
    fn body_settings(&self, route: &RouteConfigs<Self>) -> Option<BodySettings> {
        match route.first() {
            Some(ExtAuthzPerRoute::Check(settings)) => match settings.body {
                BodyOverride::Inherit => self.config.body,
                BodyOverride::Off => None,
                BodyOverride::On(settings) => Some(settings),
            },
            _ => self.config.body,
        }
    }

    fn allow(&self, call: &mut Call<'_>, allowed: Allowed, state: &mut Option<Box<[Change]>>) -> Verdict {
        allowed.apply(&mut call.exchange.request);
        let limits = &call.env.hcm.limits;
        let fields = &call.exchange.request.fields;
        if fields.len() > limits.max_count || fields.byte_size() > limits.max_bytes {
            return self.invalid();
        }
        if self.config.clear_route_cache && allowed.changes_request() {
            call.choose_route();
        }
        if !allowed.response.is_empty() {
            *state = Some(allowed.response.into());
        }
        self.ok.inc();
        Verdict::Continue
    }

    fn deny(&self, call: &Call<'_>, denied: Denied) -> Verdict {
        let Denied {
            status,
            headers,
            mut body,
        } = denied;
        if headers.len() > MAX_FIELDS {
            return self.invalid();
        }
        if let Some(max) = self.config.max_denied_body {
            body.truncate(max);
        }
        self.denied.inc();
        if self.config.charge_cluster
            && let Some(name) = call.exchange.selected.as_ref().and_then(|s| s.cluster())
            && let Some(cluster) = call.env.worker.clusters.get(name)
        {
            cluster.stats().answered(status);
        }
        Verdict::from(LocalReply {
            status,
            headers,
            body,
            details: "ext_authz_denied".into(),
            flag: Some(ResponseFlag::UnauthorizedExternalService),
            ..LocalReply::default()
        })
    }

    /// The server asks for what cannot be.
    fn invalid(&self) -> Verdict {
        self.invalid.inc();
        refusal(500, "ext_authz_invalid")
    }
}

fn refusal(status: u16, details: &'static str) -> Verdict {
    Verdict::from(LocalReply {
        status,
        details: details.into(),
        flag: Some(ResponseFlag::UnauthorizedExternalService),
        ..LocalReply::default()
    })
}

/// What all levels say of the context; the more specific ones count.
fn context(route: &RouteConfigs<ExtAuthz>) -> HashMap<String, String> {
    let mut all = HashMap::new();
    for level in route.all().rev() {
        if let ExtAuthzPerRoute::Check(settings) = level {
            all.extend(settings.context.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
    }
    all
}

/// Whether any of these matches a lower-case name.
fn is_one_of(matchers: &[StringMatcher], name: &str) -> bool {
    matchers.iter().any(|m| m.matches(name))
}

/// The fields of a request that the server is told, the values of a name joined by commas.
fn told<'r>(
    request: &'r RequestHead,
    disallowed: &[StringMatcher],
    allowed: impl Fn(&str) -> bool,
) -> Vec<(&'r [u8], Vec<u8>)> {
    let fields: &Fields = &request.fields;
    let mut out: Vec<(&[u8], Vec<u8>)> = Vec::with_capacity(fields.len());
    for (_, name, value) in fields.iter() {
        if let Some((_, before)) = out.iter_mut().find(|(n, _)| *n == name) {
            before.push(b',');
            before.extend_from_slice(value);
            continue;
        }
        let text = std::str::from_utf8(name).unwrap_or_default();
        if name != PARTIAL_BODY && allowed(text) && !is_one_of(disallowed, text) {
            out.push((name, value.to_vec()));
        }
    }
    out
}
