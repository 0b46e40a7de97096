//! `envoy.filters.http.grpc_web`: gRPC for browsers, which can neither read trailers nor speak HTTP/2 as they like. Their
//! trailers come as a last message in the body, and the body in base64 where a client cannot read bytes (gRPC's
//! PROTOCOL-WEB).

mod stats;
mod text;

use std::rc::Rc;
use std::sync::Arc;

use heddle_config::filters::grpc_web::GrpcWeb as Config;

use super::body::{Step, Transform};
use super::compression::media_type;
use super::{Call, HttpFilter, Setup, Verdict};
use crate::body::{BodyLength, StreamError};
use crate::head::{Fields, Known, ResponseHead, is_grpc};
use crate::local_reply::{grpc_status, percent_encode};
use stats::{Method, MethodStats};
use text::{DecodeText, EncodeText};

const ACCEPT: &[u8] = b"accept";
const ACCEPT_ENCODING: &[u8] = b"grpc-accept-encoding";

const BINARY: &[u8] = b"application/grpc-web";
const BINARY_PROTO: &[u8] = b"application/grpc-web+proto";
const TEXT: &[u8] = b"application/grpc-web-text";
const TEXT_PROTO: &[u8] = b"application/grpc-web-text+proto";

/// Most of a body that is no gRPC that becomes `grpc-message` (Envoy's bound).
const MAX_MESSAGE: usize = 16 * 1024;

/// The flag of the message that holds the trailers.
const TRAILERS: u8 = 0x80;

/// One gRPC-Web filter.
pub(crate) struct GrpcWeb {
    stats: Rc<MethodStats>,
}

/// A request of a browser.
#[derive(Debug)]
pub(crate) struct Browser {
    /// It wants its answer in base64.
    text: bool,
    method: Option<Method>,
}

impl HttpFilter for GrpcWeb {
    type Config = Config;
    type Route = std::convert::Infallible;
    type State = Option<Box<Browser>>;

    fn new(_: &Arc<Config>, setup: &Setup<'_>) -> Self {
        Self {
            stats: Rc::new(MethodStats::new(&setup.worker.stats, setup.stat_prefix)),
        }
    }

    fn on_request(&self, call: &mut Call<'_>, state: &mut Self::State) -> Verdict {
        let request = &mut call.exchange.request;
        let Some(text) = encoding(request.fields.get_known(Known::ContentType)) else {
            return Verdict::Continue;
        };
        *state = Some(Box::new(Browser {
            text: encoding(request.fields.get(ACCEPT)) == Some(true),
            method: Method::of(request.target()),
        }));
        let fields = &mut request.fields;
        fields.set_known(Known::ContentType, b"application/grpc");
        fields.set_known(Known::Te, b"trailers");
        if fields.get(ACCEPT_ENCODING).is_none() {
            fields.push(ACCEPT_ENCODING, b"identity");
        }
        // A stream of messages has no length.
        fields.remove_known(Known::ContentLength);
        request.classify();
        // An answer of the proxy's own is translated like one that is no gRPC.
        call.exchange.plain_replies = true;
        if text {
            call.change_request(Box::new(DecodeText::default()));
        } else {
            call.forget_request_length();
        }
        Verdict::Continue
    }

    fn on_response(&self, call: &mut Call<'_>, state: &mut Self::State) {
        let Some(browser) = state else { return };
        let length = call.response_length();
        let exchange = &mut *call.exchange;
        let counters = self.stats.of(exchange, browser.method.as_ref());
        let response = &mut exchange.response;
        if let Some(counters) = &counters {
            counters.count(&response.fields);
        }
        let translated = is_translated(response, length);
        let fields = &mut response.fields;
        fields.remove_known(Known::ContentLength);
        fields.set_known(Known::ContentType, if browser.text { TEXT_PROTO } else { BINARY_PROTO });
        match (length, translated) {
            (BodyLength::Empty | BodyLength::Tunnel, _) => {}
            // What its status was and its body says becomes a gRPC status in the head.
            (_, false) => call.wait(),
            (_, true) => call.change_response(Box::new(Answer {
                text: browser.text.then(EncodeText::default),
                counters,
            })),
        }
    }

    async fn on_response_waiting(&self, call: &mut Call<'_>, _: &mut Self::State) {
        let held = call.response_body(MAX_MESSAGE).await;
        let response = &mut call.exchange.response;
        let status = grpc_status(response.status);
        let fields = &mut response.fields;
        fields.set_known(Known::GrpcMessage, percent_encode(&held.bytes).as_bytes());
        fields.remove_known(Known::GrpcStatus);
        fields.push_number(Known::GrpcStatus, u64::from(status));
        fields.push_number(Known::ContentLength, 0);
        call.drop_response_body();
    }
}

/// Whether a media type is gRPC-Web's in base64; none where it is not gRPC-Web's. As in Envoy, letter by letter and without
/// parameters.
fn encoding(media: Option<&[u8]>) -> Option<bool> {
    match media? {
        BINARY | BINARY_PROTO => Some(false),
        TEXT | TEXT_PROTO => Some(true),
        _ => None,
    }
}

/// Whether an answer is gRPC, or gRPC-Web already.
fn is_translated(response: &ResponseHead, length: BodyLength) -> bool {
    let fields = &response.fields;
    if length == BodyLength::Empty {
        return fields.has_known(Known::GrpcStatus);
    }
    let media = media_type(fields);
    response.status == 200
        && (fields.get_known(Known::ContentType).is_some_and(is_grpc)
            || [BINARY, BINARY_PROTO]
                .iter()
                .any(|m| media.as_bytes().eq_ignore_ascii_case(m)))
}

/// The body of an answer, with its trailers at its end.
struct Answer {
    text: Option<EncodeText>,
    counters: Option<Rc<stats::Counters>>,
}

impl Transform for Answer {
    fn data(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Step, StreamError> {
        // Of three bytes base64 makes four.
        let taken = input.len().min(super::body::STEP / 4 * 3);
        let input = input.get(..taken).unwrap_or_default();
        match &mut self.text {
            Some(text) => text.messages(input, out),
            None => out.extend_from_slice(input),
        }
        Ok(Step { taken, more: false })
    }

    fn end(&mut self, trailers: &mut Option<Fields>, out: &mut Vec<u8>) -> Result<bool, StreamError> {
        if let Some(text) = &mut self.text {
            text.pad(out);
        }
        let Some(trailers) = trailers.take() else {
            return Ok(true);
        };
        if let Some(counters) = &self.counters {
            counters.count(&trailers);
        }
        let message = trailers_message(&trailers);
        match &mut self.text {
            Some(text) => {
                text.piece(&message, out);
                text.pad(out);
            }
            None => out.extend_from_slice(&message),
        }
        Ok(true)
    }
}

/// Trailers as a message: a line `name:value` each.
fn trailers_message(trailers: &Fields) -> Vec<u8> {
    let mut message = vec![TRAILERS, 0, 0, 0, 0];
    for (_, name, value) in trailers.iter() {
        for part in [name, b":", value, b"\r\n"] {
            message.extend_from_slice(part);
        }
    }
    // The codecs bound a trailer section far below 4 GiB.
    let length = u32::try_from(message.len() - 5).unwrap_or(u32::MAX);
    if let Some(prefix) = message.get_mut(1..5) {
        prefix.copy_from_slice(&length.to_be_bytes());
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: bool, pieces: &[&[u8]], trailers: &[(&str, &str)]) -> Vec<u8> {
        let mut fields = Fields::new();
        for (name, value) in trailers {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        let mut answer = Answer {
            text: text.then(EncodeText::default),
            counters: None,
        };
        let mut out = Vec::new();
        for piece in pieces {
            let step = answer.data(piece, &mut out).expect("it takes all");
            assert_eq!((step.taken, step.more), (piece.len(), false));
        }
        let mut trailers = (!fields.is_empty()).then_some(fields);
        assert_eq!(answer.end(&mut trailers, &mut out), Ok(true));
        assert!(trailers.is_none());
        out
    }

    #[test]
    fn trailers_are_the_last_message() {
        let trailers = [("grpc-status", "5"), ("x-a", "b")];
        assert_eq!(
            answer(false, &[b"\0\0\0\0\x01a"], &trailers),
            b"\0\0\0\0\x01a\x80\0\0\0\x16grpc-status:5\r\nx-a:b\r\n"
        );
        assert_eq!(answer(false, &[b"\0\0\0\0\0"], &[]), b"\0\0\0\0\0");
        // Each message is padded by itself, and so are the trailers.
        let expected = b"AAAAAAFhAAAAAAJiYw==gAAAAA9ncnBjLXN0YXR1czowDQo=";
        let both: &[u8] = b"\0\0\0\0\x01a\0\0\0\0\x02bc";
        let zero = [("grpc-status", "0")];
        assert_eq!(answer(true, &[both], &zero), expected);
        let bytes: Vec<&[u8]> = both.chunks(1).collect();
        assert_eq!(answer(true, &bytes, &zero), expected);
        // What ends within a message is not lost.
        assert_eq!(answer(true, &[b"\0\0\0\0\x05a"], &[]), b"AAAAAAVh");
    }

    #[test]
    fn what_is_translated() {
        let of = |status, media: &str, grpc: bool, length| {
            let mut head = ResponseHead {
                status,
                ..ResponseHead::default()
            };
            head.fields.push(b"content-type", media.as_bytes());
            if grpc {
                head.fields.push(b"grpc-status", b"0");
            }
            is_translated(&head, length)
        };
        for (status, media, grpc, length, wanted) in [
            (200, "application/grpc+proto", false, BodyLength::Unknown, true),
            (200, "application/grpc-web", false, BodyLength::Known(1), true),
            (
                200,
                "Application/GRPC-Web+proto ; a=b",
                false,
                BodyLength::Unknown,
                true,
            ),
            (200, "application/grpc-web-text", false, BodyLength::Unknown, false),
            (500, "application/grpc", true, BodyLength::Unknown, false),
            (200, "text/plain", true, BodyLength::Unknown, false),
            (500, "text/plain", true, BodyLength::Empty, true),
            (200, "application/grpc", false, BodyLength::Empty, false),
        ] {
            assert_eq!(of(status, media, grpc, length), wanted, "{status} {media} {length:?}");
        }
    }
}
