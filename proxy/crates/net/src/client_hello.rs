//! Reading the ClientHello without taking part in the handshake (Envoy's `tls_inspector`): which server name and which
//! protocols does the client ask for, and is it TLS at all.

/// Most bytes looked at before the connection is called too large: Envoy's `max_client_hello_size`.
pub const MAX_CLIENT_HELLO: usize = 64 * 1024;

/// Content type of handshake records, RFC 8446 §5.1.
const HANDSHAKE: u8 = 22;
/// Handshake type, RFC 8446 §4.
const CLIENT_HELLO: u8 = 1;
/// Record header: type, version, length.
const RECORD_HEADER: usize = 5;
/// Most payload of one plaintext record, RFC 8446 §5.1.
const MAX_RECORD: usize = 1 << 14;
/// Extension numbers, RFC 6066 §3 and RFC 7301 §3.1.
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;

/// What was found in a ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// Host name asked for, lower case.
    pub server_name: Option<Box<str>>,
    /// ALPN values in the client's order; empty without the extension.
    pub alpn: Vec<Box<[u8]>>,
}

/// What is known after looking at the bytes so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inspection {
    /// It may be TLS; more bytes are needed.
    NeedMore,
    /// The bytes are not the beginning of a TLS handshake, or are a broken one.
    NotTls,
    /// TLS; the ClientHello is complete.
    Tls(ClientHello),
    /// Still incomplete after [`MAX_CLIENT_HELLO`] bytes: close the connection.
    TooLarge,
}

/// Reads a ClientHello as its bytes arrive. Work is linear in the bytes, however they are split.
#[derive(Debug, Default)]
pub struct ClientHelloInspector {
    /// Bytes of the input that are whole records and have been taken.
    position: usize,
    /// The handshake message put together from the records so far.
    message: Vec<u8>,
}

impl ClientHelloInspector {
    /// An inspector for a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at all bytes received so far: each call must be given the earlier bytes again, with new ones after them.
    pub fn inspect(&mut self, received: &[u8]) -> Inspection {
        // What lies beyond the bound does not count, or the answer would depend on how much one read brings.
        let received = received.get(..MAX_CLIENT_HELLO).unwrap_or(received);
        loop {
            let rest = received.get(self.position..).unwrap_or_default();
            // Tell plain protocols apart at their first byte: a server-first client must not wait for a whole header.
            if rest.first().is_some_and(|t| *t != HANDSHAKE) || rest.get(1).is_some_and(|major| *major != 3) {
                return Inspection::NotTls;
            }
            let Some((header, body)) = rest.split_at_checked(RECORD_HEADER) else {
                return self.more(received);
            };
            let length = match header {
                [_, _, _, high, low] => usize::from(u16::from_be_bytes([*high, *low])),
                _ => return Inspection::NotTls,
            };
            // Zero-length handshake records are forbidden (RFC 8446 §5.1) and would cost a byte-counting attacker nothing.
            if length == 0 || length > MAX_RECORD {
                return Inspection::NotTls;
            }
            let Some(payload) = body.get(..length) else {
                return self.more(received);
            };
            self.message.extend_from_slice(payload);
            self.position += RECORD_HEADER + length;
            match self.message.split_at_checked(4) {
                Some(([kind, a, b, c], hello)) => {
                    if *kind != CLIENT_HELLO {
                        return Inspection::NotTls;
                    }
                    let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
                    if length > MAX_CLIENT_HELLO {
                        return Inspection::TooLarge;
                    }
                    if let Some(hello) = hello.get(..length) {
                        return parse(hello).map_or(Inspection::NotTls, Inspection::Tls);
                    }
                }
                _ => {
                    if self.message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
                        return Inspection::NotTls;
                    }
                }
            }
        }
    }

    fn more(&self, received: &[u8]) -> Inspection {
        if received.len() >= MAX_CLIENT_HELLO {
            Inspection::TooLarge
        } else {
            Inspection::NeedMore
        }
    }
}

/// Takes fields off the front of a message; every step may find that the bytes end too early.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<usize> {
        self.take(1)?.first().map(|b| usize::from(*b))
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take(2).and_then(|b| b.try_into().ok()).map(u16::from_be_bytes)
    }

    /// A vector with a one-byte length.
    pub(crate) fn vector8(&mut self) -> Option<Reader<'a>> {
        let length = self.u8()?;
        self.take(length).map(Reader)
    }

    /// A vector with a two-byte length.
    pub(crate) fn vector16(&mut self) -> Option<Reader<'a>> {
        let length = self.u16()?;
        self.take(usize::from(length)).map(Reader)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Parses the body of a ClientHello, RFC 8446 §4.1.2. None when it is malformed.
fn parse(body: &[u8]) -> Option<ClientHello> {
    let mut reader = Reader(body);
    reader.take(2 + 32)?; // legacy_version, random
    reader.vector8()?; // legacy_session_id
    reader.vector16()?; // cipher_suites
    reader.vector8()?; // legacy_compression_methods
    let mut hello = ClientHello::default();
    if reader.is_empty() {
        return Some(hello); // TLS 1.2 without extensions
    }
    let mut extensions = reader.vector16()?;
    if !reader.is_empty() {
        return None;
    }
    while !extensions.is_empty() {
        let kind = extensions.u16()?;
        let data = extensions.vector16()?;
        match kind {
            SERVER_NAME if hello.server_name.is_none() => hello.server_name = server_name(data)?,
            ALPN if hello.alpn.is_empty() => hello.alpn = protocols(data)?,
            // A repeated extension is an error (RFC 8446 §4.2): the TLS engine might read the other one.
            SERVER_NAME | ALPN => return None,
            _ => {}
        }
    }
    Some(hello)
}

/// RFC 6066 §3. The outer None means malformed.
fn server_name(mut data: Reader<'_>) -> Option<Option<Box<str>>> {
    let mut list = data.vector16()?;
    let kind = list.u8()?;
    let name = list.vector16()?.0;
    if kind != 0 || !list.is_empty() || !data.is_empty() {
        return None;
    }
    // A DNS name has at most 255 bytes (RFC 1035 §2.3.4). Anything but printable ASCII cannot be one, and would let a
    // client write control bytes into logs.
    if name.is_empty() || name.len() > 255 || !name.iter().all(u8::is_ascii_graphic) {
        return None;
    }
    let mut name = std::str::from_utf8(name).ok()?.to_owned();
    name.make_ascii_lowercase();
    Some(Some(name.into_boxed_str()))
}

/// RFC 7301 §3.1.
fn protocols(mut data: Reader<'_>) -> Option<Vec<Box<[u8]>>> {
    let mut list = data.vector16()?;
    let mut protocols = Vec::new();
    while !list.is_empty() {
        let name = list.vector8()?.0;
        if name.is_empty() {
            return None;
        }
        protocols.push(Box::from(name));
    }
    (data.is_empty() && !protocols.is_empty()).then_some(protocols)
}

#[cfg(test)]
mod tests;
