//! Unary gRPC calls (gRPC over HTTP/2).

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};
use heddle_config::snapshot::GrpcTarget;
use prost::Message;

use super::{Answer, Callout, CalloutError};
use crate::head::{Fields, Known, Protocol, RequestHead};
use crate::worker::HttpWorker;

/// What stands in front of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Why there is no message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GrpcError {
    /// There is no whole answer.
    #[error("{0}")]
    Callout(#[from] CalloutError),
    /// The answer is not one of gRPC, or not one message; what is wrong with it.
    #[error("{0}")]
    Malformed(&'static str),
    /// The server's status, other than OK.
    #[error("gRPC status {0}")]
    Status(u32),
}

/// Calls a method, such as `/package.Service/Method`, and waits for its answer of at most `limit` bytes.
///
/// # Errors
/// There is no message, or its status is not OK.
pub(crate) async fn unary<A: Message + Default>(
    worker: &Rc<HttpWorker>,
    target: &GrpcTarget,
    method: &str,
    request: &impl Message,
    limit: usize,
) -> Result<A, GrpcError> {
    let callout = Callout {
        cluster: target.cluster.clone(),
        request: head(target, method),
        body: frame(request),
        timeout: target.timeout,
        limit,
        retry: target.retry.clone(),
    };
    let answer = super::send(worker, callout).await?;
    message(&answer)
}

fn head(target: &GrpcTarget, method: &str) -> RequestHead {
    let mut head = RequestHead {
        protocol: Protocol::Http2,
        ..RequestHead::default()
    };
    head.set_method("POST");
    head.set_target(method);
    head.set_host(&target.authority);
    head.fields.push_known(Known::Te, b"trailers");
    if !target.timeout.is_zero() {
        // Eight digits at most; a hundred million milliseconds are more than a day.
        let ms = target.timeout.as_millis().min(99_999_999);
        head.fields.push_known(Known::GrpcTimeout, format!("{ms}m").as_bytes());
    }
    head.fields.push_known(Known::ContentType, b"application/grpc");
    for (name, value) in &target.metadata {
        head.fields.push(name.as_bytes(), value.as_bytes());
    }
    head
}

fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // A buffer that grows has always room.
    let _ = message.encode(&mut frame);
    frame.freeze()
}

fn message<A: Message + Default>(answer: &Answer) -> Result<A, GrpcError> {
    if answer.head.status != 200 {
        return Err(GrpcError::Malformed("its HTTP status is not 200"));
    }
    let status = |fields: &Fields| {
        fields
            .get_known_text(Known::GrpcStatus)
            .map(|s| s.parse::<u32>().unwrap_or(2))
    };
    let status = answer
        .trailers
        .as_ref()
        .and_then(status)
        .or_else(|| status(&answer.head.fields));
    match status {
        Some(0) => {}
        Some(status) => return Err(GrpcError::Status(status)),
        None => return Err(GrpcError::Malformed("it has no gRPC status")),
    }
    let Some((prefix, body)) = answer.body.split_first_chunk::<PREFIX>() else {
        return Err(GrpcError::Malformed("it has no message"));
    };
    let [compressed, length @ ..] = *prefix;
    if compressed != 0 {
        return Err(GrpcError::Malformed("its message is compressed"));
    }
    if u64::from(u32::from_be_bytes(length)) != body.len() as u64 {
        return Err(GrpcError::Malformed("it is not one message"));
    }
    A::decode(body).map_err(|_| GrpcError::Malformed("its message cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::ResponseHead;

    fn answer(body: &'static [u8], trailers: &[(&str, &str)]) -> Answer {
        let mut fields = Fields::new();
        for (name, value) in trailers {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        Answer {
            head: ResponseHead {
                status: 200,
                ..ResponseHead::default()
            },
            body: Bytes::from_static(body),
            trailers: Some(fields),
        }
    }

    #[test]
    fn messages_come_back() {
        let text = "hello".to_owned();
        let framed = frame(&text);
        assert_eq!(framed.get(..PREFIX), Some(&[0, 0, 0, 0, 7][..]));
        let mut good = answer(b"", &[("grpc-status", "0")]);
        good.body = framed;
        assert_eq!(message::<String>(&good), Ok(text));
    }

    #[test]
    fn what_is_no_message() {
        const OK: &[(&str, &str)] = &[("grpc-status", "0")];
        /// Body, trailers, what is wrong.
        type Row = (&'static [u8], &'static [(&'static str, &'static str)], GrpcError);
        let table: &[Row] = &[
            (b"", OK, GrpcError::Malformed("it has no message")),
            (b"\0\0\0\0", OK, GrpcError::Malformed("it has no message")),
            (b"\x01\0\0\0\0", OK, GrpcError::Malformed("its message is compressed")),
            (b"\0\0\0\0\x01", OK, GrpcError::Malformed("it is not one message")),
            (
                b"\0\0\0\0\0\0\0\0\0\0",
                OK,
                GrpcError::Malformed("it is not one message"),
            ),
            (
                b"\0\xff\xff\xff\xff\x0a",
                OK,
                GrpcError::Malformed("it is not one message"),
            ),
            (
                b"\0\0\0\0\x01\x0a",
                OK,
                GrpcError::Malformed("its message cannot be read"),
            ),
            (b"\0\0\0\0\0", &[], GrpcError::Malformed("it has no gRPC status")),
            (b"", &[("grpc-status", "14")], GrpcError::Status(14)),
            (b"", &[("grpc-status", "x")], GrpcError::Status(2)),
        ];
        for (body, trailers, error) in table {
            assert_eq!(
                message::<String>(&answer(body, trailers)).as_ref(),
                Err(error),
                "{body:?}"
            );
        }
    }
}
