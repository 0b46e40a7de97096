//! What the WebSocket handshake of HTTP/1.1 has and the one of HTTP/2 has not (RFC 6455 section 4, RFC 8441 section 5.1):
//! a key, and the answer to it. A request that changes the version on its way gets what its next hop expects.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use boring::sha::Sha1;

use crate::body::StreamError;
use crate::h1::H1Error;
use crate::head::{Fields, Known, Protocol, RequestHead, ResponseHead};

const KEY: &[u8] = b"sec-websocket-key";
const ACCEPT: &[u8] = b"sec-websocket-accept";

/// What is hashed behind the key (RFC 6455 section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The answer to a key.
fn accept(key: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(GUID);
    STANDARD.encode(hash.finish())
}

fn asks_for_websocket(request: &RequestHead) -> bool {
    request
        .fields
        .get_known(Known::Upgrade)
        .is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
}

/// The key of our own for a client that has none, with the answer that it must get.
#[derive(Debug)]
pub(super) struct Key {
    text: String,
    accept: String,
}

impl Key {
    /// A key when an HTTP/1.1 upstream needs one and the client's version has none. What an HTTP/1.1 client sends without
    /// a key goes as it came: the server decides about it. `nonce` is random; it is no secret.
    pub(super) fn for_request(request: &RequestHead, nonce: impl FnOnce() -> u128) -> Option<Self> {
        let has_none = request.protocol == Protocol::Http2 && request.fields.get(KEY).is_none();
        if !has_none || !asks_for_websocket(request) {
            return None;
        }
        let text = STANDARD.encode(nonce().to_be_bytes());
        let accept = accept(text.as_bytes());
        Some(Self { text, accept })
    }

    /// Writes it as a header line.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(KEY);
        out.extend_from_slice(b": ");
        out.extend_from_slice(self.text.as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    /// Takes the answer out of a response that accepts.
    ///
    /// # Errors
    /// It is another one or none: what answered is no WebSocket server (RFC 6455 section 4.1).
    pub(super) fn check(&self, response: &mut ResponseHead) -> Result<(), StreamError> {
        if response.fields.get(ACCEPT) != Some(self.accept.as_bytes()) {
            return Err(StreamError::H1(H1Error::StartLine));
        }
        response.fields.remove(ACCEPT);
        Ok(())
    }
}

/// The answer that an HTTP/1.1 client waits for.
pub(super) fn accept_of(request: &RequestHead) -> Option<String> {
    let key = request.fields.get(KEY).filter(|_| asks_for_websocket(request))?;
    Some(accept(key))
}

/// Gives the client that answer where its upstream has not, which knew no key.
pub(super) fn add_missing(response: &mut Fields, accept: &str) {
    if response.get(ACCEPT).is_none() {
        response.push(ACCEPT, accept.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(protocol: Protocol, fields: &[(&str, &str)]) -> RequestHead {
        let mut head = RequestHead {
            protocol,
            ..Default::default()
        };
        for (name, value) in fields {
            head.fields.push(name.as_bytes(), value.as_bytes());
        }
        head
    }

    #[test]
    fn the_answer_of_the_rfc() {
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn a_key_is_made_where_there_is_none() {
        let key = Key::for_request(&request(Protocol::Http2, &[("upgrade", "WebSocket")]), || 1).expect("a key");
        let mut line = Vec::new();
        key.write(&mut line);
        assert_eq!(line, b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAQ==\r\n");
        let mut right = ResponseHead::default();
        right
            .fields
            .push(ACCEPT, accept(b"AAAAAAAAAAAAAAAAAAAAAQ==").as_bytes());
        assert_eq!(key.check(&mut right), Ok(()));
        assert!(right.fields.get(ACCEPT).is_none());
        let mut wrong = ResponseHead::default();
        assert!(key.check(&mut wrong).is_err(), "none");
        wrong.fields.push(ACCEPT, accept(b"other").as_bytes());
        assert!(key.check(&mut wrong).is_err(), "another");
        for (protocol, other) in [
            (
                Protocol::Http2,
                &[("upgrade", "websocket"), ("sec-websocket-key", "x")][..],
            ),
            (Protocol::Http2, &[("upgrade", "foo")]),
            (Protocol::Http2, &[]),
            (Protocol::Http11, &[("upgrade", "websocket")]),
        ] {
            assert!(
                Key::for_request(&request(protocol, other), || 1).is_none(),
                "{protocol:?} {other:?}"
            );
        }
    }

    #[test]
    fn an_answer_is_made_where_there_is_none() {
        let asked = request(
            Protocol::Http11,
            &[
                ("upgrade", "websocket"),
                ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ],
        );
        let made = accept_of(&asked).expect("an answer");
        let mut response = Fields::default();
        add_missing(&mut response, &made);
        assert_eq!(response.get(ACCEPT), Some(&b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="[..]));
        add_missing(&mut response, "another");
        assert_eq!(response.len(), 1, "what the upstream says stays");
        for other in [
            &[("upgrade", "websocket")][..],
            &[("upgrade", "foo"), ("sec-websocket-key", "x")],
        ] {
            assert_eq!(accept_of(&request(Protocol::Http11, other)), None, "{other:?}");
        }
    }
}
