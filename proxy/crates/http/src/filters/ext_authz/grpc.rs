//! Authorization servers that are asked by gRPC (`envoy.service.auth.v3.Authorization`).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::UNIX_EPOCH;

use heddle_api::envoy::config::core::v3 as api;
use heddle_api::envoy::service::auth::v3 as pb;
use heddle_config::filters::ext_authz::ExtAuthz as Config;
use heddle_config::snapshot::GrpcTarget;
use heddle_matching::Metadata;
use heddle_net::ConnectionInfo;
use pb::attribute_context as attributes;
use prost_types::Timestamp;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::decision::{Allowed, Change, Decision, Denied, How};
use super::{Call, Content, MAX_ANSWER, is_one_of, metadata, told};
use crate::body::BodyLength;
use crate::callout::grpc::{GrpcError, unary};
use crate::head::{Fields, Known, RequestHead};

pub(super) const METHOD: &str = "/envoy.service.auth.v3.Authorization/Check";

/// How many milliseconds the server took, beside what it said.
const DURATION: &str = "ext_authz_duration";

/// Asks whether a request may pass. The second result is what is to be the filter's dynamic metadata.
///
/// # Errors
/// There is no answer.
pub(super) async fn ask(
    call: &Call<'_>,
    config: &Config,
    target: &GrpcTarget,
    context: HashMap<String, String>,
    content: Option<&Content>,
) -> Result<(Decision, Map<String, Value>), GrpcError> {
    let request = check_request(call, config, context, content);
    let begun = Instant::now();
    let answer: pb::CheckResponse = unary(call.env.worker, target, METHOD, &request, MAX_ANSWER).await?;
    let mut said = said(&answer);
    let decision = decide(answer).unwrap_or(Decision::Invalid);
    if matches!(decision, Decision::Allowed(_)) {
        add_duration(&mut said, begun);
    }
    Ok((decision, said))
}

/// What the server wants to be dynamic metadata.
pub(super) fn said(answer: &pb::CheckResponse) -> Map<String, Value> {
    let said = answer.dynamic_metadata.as_ref();
    said.map(metadata::of_struct).unwrap_or_default()
}

/// How long the server took stands beside what it said, if it said anything.
pub(super) fn add_duration(said: &mut Map<String, Value>, begun: Instant) {
    if !said.is_empty() {
        let took = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        said.insert(DURATION.to_owned(), took.into());
    }
}

fn check_request(
    call: &Call<'_>,
    config: &Config,
    context: HashMap<String, String>,
    content: Option<&Content>,
) -> pb::CheckRequest {
    let (exchange, connection) = (&*call.exchange, call.connection());
    let request = &exchange.request;
    let service = request.fields.get_known_text(Known::DownstreamServiceCluster);
    let since = exchange.start.duration_since(UNIX_EPOCH).unwrap_or_default();
    let attributes = pb::AttributeContext {
        source: Some(attributes::Peer {
            service: service.unwrap_or_default().to_owned(),
            ..source(connection, config.peer_certificate)
        }),
        destination: Some(destination(connection)),
        request: Some(attributes::Request {
            time: Some(Timestamp {
                seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanos: i32::try_from(since.subsec_nanos()).unwrap_or_default(),
            }),
            http: Some(http_request(call, config, request, content)),
        }),
        context_extensions: context,
        tls_session: tls_session(connection, config.tls_session),
        metadata_context: Some(shown_metadata(&config.metadata_namespaces, request.metadata.as_deref())),
        route_metadata_context: Some(api::Metadata::default()),
    };
    pb::CheckRequest {
        attributes: Some(attributes),
    }
}

/// Who connects.
pub(super) fn source(connection: &ConnectionInfo, certificate: bool) -> attributes::Peer {
    let principal = connection.peer.as_deref().map(|p| {
        let names = [p.uri_sans.first(), p.dns_sans.first()];
        names.into_iter().flatten().next().unwrap_or(&p.subject).clone()
    });
    attributes::Peer {
        address: Some(address(connection.remote)),
        principal: principal.unwrap_or_default(),
        certificate: match &connection.peer_certificate {
            Some(pem) if certificate => url_encoded(pem),
            _ => String::new(),
        },
        ..attributes::Peer::default()
    }
}

/// To whom.
pub(super) fn destination(connection: &ConnectionInfo) -> attributes::Peer {
    attributes::Peer {
        address: Some(address(connection.destination)),
        principal: connection.local_identity.as_deref().unwrap_or_default().to_owned(),
        ..attributes::Peer::default()
    }
}

/// What is said of TLS, if it is `shown`.
pub(super) fn tls_session(connection: &ConnectionInfo, shown: bool) -> Option<attributes::TlsSession> {
    (shown && connection.tls_version.is_some()).then(|| attributes::TlsSession {
        sni: connection.sni.as_deref().unwrap_or_default().to_owned(),
    })
}

/// A certificate in PEM with whatever else is in there than letters, digits and dashes escaped, as the API wants it.
fn url_encoded(pem: &str) -> String {
    let mut out = String::with_capacity(pem.len() + pem.len() / 8);
    for c in pem.chars() {
        match c {
            '\n' => out.push_str("%0A"),
            ' ' => out.push_str("%20"),
            '+' => out.push_str("%2B"),
            '/' => out.push_str("%2F"),
            '=' => out.push_str("%3D"),
            c => out.push(c),
        }
    }
    out
}

/// What filters have learned, of these namespaces.
pub(super) fn shown_metadata(namespaces: &[Box<str>], metadata: Option<&Metadata>) -> api::Metadata {
    let shown = |name: &str| Some((name.to_owned(), metadata::to_struct(metadata?.namespace(name)?)));
    api::Metadata {
        filter_metadata: namespaces.iter().filter_map(|name| shown(name)).collect(),
        ..api::Metadata::default()
    }
}

fn http_request(
    call: &Call<'_>,
    config: &Config,
    request: &RequestHead,
    content: Option<&Content>,
) -> attributes::HttpRequest {
    let allowed = |name: &str| config.allowed.as_ref().is_none_or(|allowed| is_one_of(allowed, name));
    let shown = |name: &str| allowed(name) && !is_one_of(&config.disallowed, name);
    let fields = told(request, &config.disallowed, allowed);
    let mut headers: HashMap<String, String> = fields
        .iter()
        .map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), clean(value)))
        .collect();
    let pseudo = [
        (":authority", request.host()),
        (":method", request.method_text()),
        (":path", request.target()),
        (":scheme", request.scheme.as_str()),
    ];
    let pseudo = pseudo.iter().filter(|(name, value)| shown(name) && !value.is_empty());
    headers.extend(pseudo.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let mut body = Vec::new();
    if let Some(content) = content {
        body = content.bytes.to_vec();
        let partial = String::from_utf8_lossy(content.partial_text()).into_owned();
        headers.insert(String::from_utf8_lossy(super::PARTIAL_BODY).into_owned(), partial);
    }
    // Of a body that is shown in part only, all that is known to come.
    let size = match call.request_length() {
        BodyLength::Known(n) if content.is_some() => n,
        _ => body.len() as u64,
    };
    let as_bytes = content.is_some_and(|c| c.as_bytes);
    let (body, raw_body) = match as_bytes {
        true => (String::new(), body),
        false => (clean(&body), Vec::new()),
    };
    attributes::HttpRequest {
        id: call.env.worker.random().u64(..).to_string(),
        method: request.method_text().to_owned(),
        headers,
        path: request.target().to_owned(),
        host: request.host().to_owned(),
        scheme: request.scheme.as_str().to_owned(),
        size: i64::try_from(size).unwrap_or(i64::MAX),
        protocol: request.protocol.as_str().to_owned(),
        body,
        raw_body,
        ..attributes::HttpRequest::default()
    }
}

/// Text of what may not be; Envoy too has an exclamation mark for each byte that is none.
fn clean(value: &[u8]) -> String {
    let mut out = String::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        out.push_str(chunk.valid());
        out.extend(chunk.invalid().iter().map(|_| '!'));
    }
    out
}

fn address(address: SocketAddr) -> api::Address {
    use api::address::Address;
    use api::socket_address::PortSpecifier;
    api::Address {
        address: Some(Address::SocketAddress(api::SocketAddress {
            address: address.ip().to_string(),
            port_specifier: Some(PortSpecifier::PortValue(u32::from(address.port()))),
            ..api::SocketAddress::default()
        })),
    }
}

/// None when the server asks for what cannot be.
fn decide(answer: pb::CheckResponse) -> Option<Decision> {
    use pb::check_response::HttpResponse;
    let ok = answer.status.is_none_or(|status| status.code == 0);
    Some(match (ok, answer.http_response) {
        (true, Some(HttpResponse::OkResponse(response))) => Decision::Allowed(Box::new(allow(&response)?)),
        (true, _) => Decision::Allowed(Box::default()),
        (false, Some(HttpResponse::ErrorResponse(_))) => Decision::Failed,
        (false, Some(HttpResponse::DeniedResponse(response))) => deny(response)?,
        (false, _) => Decision::Denied(Box::new(Denied {
            status: 403,
            headers: Fields::new(),
            body: bytes::Bytes::new(),
        })),
    })
}

fn allow(response: &pb::OkHttpResponse) -> Option<Allowed> {
    let set = response.query_parameters_to_set.iter();
    Some(Allowed {
        request: changes(&response.headers, on_request)?,
        remove: response
            .headers_to_remove
            .iter()
            .map(|name| name.to_ascii_lowercase().into_bytes())
            .collect(),
        response: changes(&response.response_headers_to_add, on_response)?,
        query_set: set.map(|p| (p.key.clone(), p.value.clone())).collect(),
        query_remove: response.query_parameters_to_remove.clone(),
    })
}

fn deny(response: pb::DeniedHttpResponse) -> Option<Decision> {
    let mut headers = Fields::new();
    for change in changes(&response.headers, |_| Some(How::Add))? {
        change.apply(&mut headers);
    }
    let status = response.status.map_or(0, |status| status.code);
    Some(Decision::Denied(Box::new(Denied {
        status: match u16::try_from(status) {
            Ok(status) if (200..600).contains(&status) => status,
            _ => 403,
        },
        headers,
        body: response.body.into(),
    })))
}

fn changes(
    options: &[api::HeaderValueOption],
    how: impl Fn(&api::HeaderValueOption) -> Option<How>,
) -> Option<Vec<Change>> {
    let changes = options.iter().map(|option| {
        let header = option.header.as_ref()?;
        let value = match header.value.as_bytes() {
            [] => &header.raw_value[..],
            value => value,
        };
        Change::new(header.key.as_bytes(), value, how(option)?)
    });
    changes.collect()
}

/// Of `append_action` Envoy knows nothing here.
#[expect(deprecated, reason = "what servers say, as Envoy reads it")]
fn on_request(option: &api::HeaderValueOption) -> Option<How> {
    Some(match option.append {
        Some(true) => How::Join,
        _ => How::Set,
    })
}

#[expect(deprecated, reason = "servers still say `append`")]
fn on_response(option: &api::HeaderValueOption) -> Option<How> {
    use api::header_value_option::HeaderAppendAction as Action;
    Some(match (option.append, Action::try_from(option.append_action).ok()?) {
        (Some(true), _) | (None, Action::AppendIfExistsOrAdd) => How::Add,
        (Some(false), _) | (None, Action::OverwriteIfExistsOrAdd) => How::Set,
        (None, Action::AddIfAbsent) => How::AddIfAbsent,
        (None, Action::OverwriteIfExists) => How::SetIfPresent,
    })
}
