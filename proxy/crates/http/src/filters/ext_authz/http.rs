//! Authorization servers that are asked by HTTP: by the head of the request itself.

use bytes::Bytes;
use heddle_config::filters::ext_authz::{ExtAuthz as Config, HttpService, PathChange};

use super::decision::{Allowed, Change, Decision, Denied, How, is_framing};
use super::{Call, Content, MAX_ANSWER, is_one_of, told};
use crate::callout::{self, Answer, Callout, CalloutError};
use crate::head::{Fields, Known, Method, RequestHead, Scheme};

/// Names of fields that the upstream is not to get.
const HEADERS_TO_REMOVE: &[u8] = b"x-envoy-auth-headers-to-remove";

/// Asks whether a request may pass.
///
/// # Errors
/// There is no whole answer.
pub(super) async fn ask(
    call: &Call<'_>,
    config: &Config,
    service: &HttpService,
    content: Option<&Content>,
) -> Result<Decision, CalloutError> {
    let request = &call.exchange.request;
    if request.method == Method::Connect {
        // To ask by the same method would be to ask for a tunnel.
        return Ok(Decision::Failed);
    }
    let callout = Callout {
        cluster: service.target.cluster.clone(),
        request: head(request, config, service, content),
        body: content.map(|c| c.bytes.clone()).unwrap_or_default(),
        timeout: service.target.timeout,
        limit: MAX_ANSWER,
        retry: service.target.retry.clone(),
    };
    let answer = callout::send(call.env.worker, callout).await?;
    Ok(decide(service, answer))
}

fn head(request: &RequestHead, config: &Config, service: &HttpService, content: Option<&Content>) -> RequestHead {
    let mut head = RequestHead::default();
    head.set_method(request.method_text());
    match &service.path {
        PathChange::Same => head.set_target(request.target()),
        PathChange::Prefix(prefix) => head.set_target(&format!("{prefix}{}", request.target())),
        PathChange::Override(path) => head.set_target(path),
    }
    head.set_host(request.host());
    if service.target.https {
        head.scheme = Scheme::Https;
    }
    let length = content.map_or(0, |c| c.bytes.len());
    head.fields.push_number(Known::ContentLength, length as u64);
    let allowed =
        |name: &str| name == "authorization" || config.allowed.as_ref().is_some_and(|allowed| is_one_of(allowed, name));
    for (name, value) in told(request, &config.disallowed, allowed) {
        if !is_framing(Known::of(name)) {
            head.fields.push(name, &value);
        }
    }
    if let Some(content) = content {
        head.fields.push(super::PARTIAL_BODY, content.partial_text());
    }
    for (name, value) in &service.headers_to_add {
        head.fields.set(name.as_bytes(), value.as_bytes());
    }
    head
}

fn decide(service: &HttpService, answer: Answer) -> Decision {
    let Answer { head, body, .. } = answer;
    match head.status {
        500.. => Decision::Failed,
        200 => allow(service, &head.fields).map_or(Decision::Invalid, |allowed| Decision::Allowed(Box::new(allowed))),
        status => deny(service, status, &head.fields, body),
    }
}

/// None when the server asks for what cannot be.
fn allow(service: &HttpService, fields: &Fields) -> Option<Allowed> {
    let mut allowed = Allowed::default();
    for value in fields.all(HEADERS_TO_REMOVE) {
        let names = value.split(|b| *b == b',').map(<[u8]>::trim_ascii);
        allowed
            .remove
            .extend(names.filter(|n| !n.is_empty()).map(<[u8]>::to_ascii_lowercase));
    }
    let lists = [(&service.upstream, How::Set), (&service.upstream_append, How::Add)];
    for (list, how) in lists {
        for (name, value) in named(fields, |name| is_one_of(list, name)) {
            allowed.request.push(Change::new(name, value, how)?);
        }
    }
    for (name, value) in named(fields, |name| is_one_of(&service.client_on_success, name)) {
        allowed.response.push(Change::new(name, value, How::Add)?);
    }
    Some(allowed)
}

fn deny(service: &HttpService, status: u16, fields: &Fields, body: Bytes) -> Decision {
    let shown = |name: &str| match &service.client {
        None => true,
        Some(list) => matches!(name, "www-authenticate" | "location") || is_one_of(list, name),
    };
    let mut headers = Fields::new();
    for (name, value) in named(fields, shown) {
        headers.push(name, value);
    }
    Decision::Denied(Box::new(Denied { status, headers, body }))
}

/// Fields of these names, but for what says where the answer ends.
fn named(fields: &Fields, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().filter_map(move |(known, name, value)| {
        let text = std::str::from_utf8(name).ok()?;
        (!is_framing(known) && name != HEADERS_TO_REMOVE && wanted(text)).then_some((name, value))
    })
}
