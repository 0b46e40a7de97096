//! What the connection manager does to a response head before it is sent, and answers of our own.

use bytes::Bytes;
use heddle_config::snapshot::ServerHeader;

use super::{Exchange, HcmRuntime};
use crate::failure::{Failure, grpc_status};
use crate::head::{Fields, Known};
use crate::worker::HttpWorker;

/// The last changes to a response head, whoever made it.
pub(crate) fn finish_head(hcm: &HcmRuntime, worker: &HttpWorker, exchange: &mut Exchange) {
    let start = exchange.start;
    let fields = &mut exchange.response.fields;
    match &hcm.config.server_header {
        ServerHeader::Overwrite(name) => fields.set_known(Known::Server, name.as_bytes()),
        ServerHeader::AppendIfAbsent(name) => {
            if !fields.has_known(Known::Server) {
                fields.push_known(Known::Server, name.as_bytes());
            }
        }
        ServerHeader::PassThrough => {}
    }
    if !fields.has_known(Known::Date) {
        // The request's clock reading serves: a request that takes seconds gets a date that is seconds old at most.
        worker.with_date(start, |date| fields.push_known(Known::Date, date));
    }
    if let Some(via) = &hcm.config.via {
        fields.append_known(Known::Via, b", ", via.as_bytes());
    }
}

/// Makes `exchange.response` the answer to a failure and returns its body. A gRPC client gets a trailers-only answer.
pub(crate) fn local_head(exchange: &mut Exchange, failure: &Failure) -> Bytes {
    let retried = exchange.attempts > 1;
    let body = failure.body(retried);
    exchange.details = failure.details();
    if let Some(flag) = failure.flag() {
        exchange.flag(flag);
    }
    if let Some(reason) = failure.transport_reason() {
        exchange.upstream_failure = Some(reason.to_owned());
    }
    let status = failure.status();
    let response = &mut exchange.response;
    response.clear();
    let fields = &mut response.fields;
    let bytes = if exchange.request.grpc {
        response.status = 200;
        fields.push_known(Known::ContentType, b"application/grpc");
        fields.push_number(Known::GrpcStatus, u64::from(grpc_status(status)));
        if !body.is_empty() {
            fields.push_known(Known::GrpcMessage, percent_encode(&body).as_bytes());
        }
        Bytes::new()
    } else {
        response.status = status;
        if body.is_empty() {
            fields.push_known(Known::ContentLength, b"0");
        } else {
            fields.push_number(Known::ContentLength, body.len() as u64);
            fields.push_known(Known::ContentType, b"text/plain");
        }
        match body {
            std::borrow::Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
            std::borrow::Cow::Owned(text) => Bytes::from(text),
        }
    };
    if *failure == Failure::Overflow {
        response.fields.push_known(Known::Overloaded, b"true");
    }
    bytes
}

/// gRPC's encoding of `grpc-message`: printable ASCII except the percent sign stays.
fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            out.push(byte as char);
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Leaves the trailers that may travel on. Every trailer section passes here, whichever protocols it comes by and leaves
/// by.
pub(crate) fn clean_trailers(hcm: &HcmRuntime, trailers: &mut Fields) {
    let dropped = trailers.remove_forbidden_trailers();
    if dropped > 0 {
        hcm.trailers_dropped.add(dropped as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_messages_are_encoded() {
        assert_eq!(percent_encode("RBAC: access denied"), "RBAC: access denied");
        assert_eq!(percent_encode("50%\n\u{e9}"), "50%25%0A%C3%A9");
    }

    #[test]
    fn a_local_answer_suits_the_client() {
        let mut exchange = Exchange::new(1, None);
        let body = local_head(&mut exchange, &Failure::NoHealthyUpstream);
        assert_eq!(&body[..], b"no healthy upstream");
        assert_eq!(exchange.response.status, 503);
        assert_eq!(exchange.flags.to_string(), "UH");
        exchange.request.grpc = true;
        let body = local_head(
            &mut exchange,
            &Failure::Denied("rbac_access_denied_matched_policy[none]".into()),
        );
        assert!(body.is_empty());
        assert_eq!(exchange.response.status, 200);
        assert_eq!(exchange.response.fields.get_known(Known::GrpcStatus), Some(&b"7"[..]));
        assert_eq!(exchange.details, "rbac_access_denied_matched_policy[none]");
    }
}
