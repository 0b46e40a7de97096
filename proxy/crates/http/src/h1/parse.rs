//! HTTP/1.1 heads from bytes (RFC 9112), strict: what could be read in two ways is refused.

use std::mem::MaybeUninit;

use httparse::Status;

use super::error::H1Error;
use crate::head::{
    Framing, Known, KnownSet, Method, Protocol, RequestHead, ResponseHead, Scheme, Span, TargetError, check_method,
    check_target, has_port, is_authority, parse_length, take_expectation,
};

/// Bounds of one head.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes, start line included.
    pub max_bytes: usize,
    /// Most fields.
    pub max_count: usize,
}

/// Most fields of any configuration; the parser's index lives on the stack.
pub const MAX_FIELDS: usize = 512;

/// Most fields that `connection` may name besides its own options. Envoy stops at ten; each costs a search of the head.
const MAX_CONNECTION_OPTIONS: usize = 16;

/// Searches for the end of a head as bytes arrive, so that every byte is looked at once however it is split.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadScan {
    scanned: usize,
    line_start: usize,
    lines: usize,
}

impl HeadScan {
    /// Looks at what is new in `buf`, which holds the message from its first byte. Returns the head's length once the
    /// empty line that ends it is there.
    ///
    /// # Errors
    /// A line end without CR, too many lines or bytes.
    pub fn advance(&mut self, buf: &[u8], limits: Limits) -> Result<Option<usize>, H1Error> {
        while let Some(at) = next_newline(buf, self.scanned) {
            if at == self.line_start || buf.get(at - 1) != Some(&b'\r') {
                return Err(H1Error::BareNewline);
            }
            let empty = at - 1 == self.line_start;
            self.scanned = at + 1;
            self.line_start = at + 1;
            if at >= limits.max_bytes {
                return Err(H1Error::TooLarge);
            }
            if empty {
                return Ok(Some(at + 1));
            }
            self.lines += 1;
            if self.lines > limits.max_count + 1 {
                return Err(H1Error::TooMany);
            }
        }
        self.scanned = buf.len();
        if buf.len() >= limits.max_bytes {
            Err(H1Error::TooLarge)
        } else {
            Ok(None)
        }
    }
}

/// The first LF of `buf` from `from` on, eight bytes at a time: lines of a head are so short that to begin a vectored
/// search for each costs more than the search.
fn next_newline(buf: &[u8], from: usize) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let mut at = from;
    while let Some(bytes) = buf.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*bytes) ^ (ONES * b'\n' as u64);
        // The lowest bit set is that of the first byte that is zero now.
        let hits = word.wrapping_sub(ONES) & !word & (ONES << 7);
        if hits != 0 {
            return Some(at + hits.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let rest = buf.get(at..)?;
    rest.iter().position(|b| *b == b'\n').map(|n| at + n)
}

/// What a request head says about the message and the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts {
    /// The body.
    pub framing: Framing,
    /// Whether the connection may carry another request.
    pub keep_alive: bool,
    /// `expect: 100-continue`.
    pub expect_continue: bool,
    /// `connection: upgrade` and an `upgrade` field.
    pub upgrade: bool,
}

fn span_of(raw: &[u8], part: &[u8]) -> Span {
    Span::new(
        (part.as_ptr() as usize).saturating_sub(raw.as_ptr() as usize),
        part.len(),
    )
}

impl From<TargetError> for H1Error {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Method => Self::Method,
            TargetError::Target => Self::Target,
        }
    }
}

fn map_error(error: httparse::Error) -> H1Error {
    match error {
        httparse::Error::Token | httparse::Error::Status => H1Error::StartLine,
        httparse::Error::Version => H1Error::Version,
        httparse::Error::TooManyHeaders => H1Error::TooMany,
        httparse::Error::NewLine => H1Error::BareNewline,
        _ => H1Error::HeaderLine,
    }
}

/// Parses one complete request head (with its final empty line).
///
/// # Errors
/// Whatever [`H1Error`] the bytes deserve; `head` is then unusable.
pub fn parse_request(raw: &[u8], accept_http_10: bool, head: &mut RequestHead) -> Result<RequestFacts, H1Error> {
    let mut index = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(raw, &mut index).map_err(map_error)? {
        Status::Complete(n) if n == raw.len() => {}
        Status::Complete(_) => return Err(H1Error::HeaderLine),
        Status::Partial => return Err(H1Error::StartLine),
    }
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(H1Error::StartLine);
    };
    head.clear();
    head.fields.load(raw);
    head.protocol = if version == 0 {
        Protocol::Http10
    } else {
        Protocol::Http11
    };
    if version == 0 && !accept_http_10 {
        return Err(H1Error::Http10);
    }
    head.method = check_method(method.as_bytes())?;
    head.method_token = span_of(raw, method.as_bytes());

    let mut host = None;
    for field in parsed.headers.iter() {
        let name = span_of(raw, field.name.as_bytes());
        if field.name.eq_ignore_ascii_case("host") {
            if host.is_some() {
                return Err(H1Error::Host);
            }
            host = Some(span_of(raw, field.value));
            continue;
        }
        head.fields.index(name, span_of(raw, field.value));
    }
    set_target(head, raw, target)?;
    if head.authority.is_empty() {
        match host {
            Some(host) => head.authority = host,
            None if version == 0 => {}
            None => return Err(H1Error::MissingHost),
        }
    } else if host.is_none() && version != 0 {
        return Err(H1Error::MissingHost);
    }
    let differs = host.is_none_or(|host| host != head.authority);
    if host.is_some_and(|h| !is_authority(head.fields.slice(h)))
        || (differs && !is_authority(head.fields.slice(head.authority)))
    {
        return Err(H1Error::Host);
    }
    if version == 1 && head.authority.is_empty() {
        return Err(H1Error::MissingHost);
    }
    head.classify();

    let connection = take_connection(&mut head.fields)?;
    let framing = match body_framing(&head.fields, head.protocol)? {
        Framing::UntilClose => Framing::None,
        framing => framing,
    };
    head.fields.remove_known(Known::TransferEncoding);
    let expect_continue = take_expectation(&mut head.fields)? && version == 1;
    Ok(RequestFacts {
        framing,
        keep_alive: if version == 1 {
            !connection.close
        } else {
            connection.keep_alive && !connection.close
        },
        expect_continue: expect_continue && framing != Framing::None,
        upgrade: connection.upgrade && head.fields.has_known(Known::Upgrade),
    })
}

/// The four forms of RFC 9112 section 3.2.
fn set_target(head: &mut RequestHead, raw: &[u8], target: &str) -> Result<(), H1Error> {
    let bytes = target.as_bytes();
    if head.method == Method::Connect {
        head.authority = span_of(raw, bytes);
        return if is_authority(bytes) && has_port(bytes) {
            Ok(())
        } else {
            Err(H1Error::Target)
        };
    }
    if matches!(bytes, [b'/', ..] | b"*") {
        check_target(head.method, bytes)?;
        head.path = span_of(raw, bytes);
        return Ok(());
    }
    let rest = if let Some(rest) = strip_prefix_ignore_case(bytes, b"http://") {
        head.scheme = Scheme::Http;
        rest
    } else if let Some(rest) = strip_prefix_ignore_case(bytes, b"https://") {
        head.scheme = Scheme::Https;
        rest
    } else {
        return Err(H1Error::Target);
    };
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if authority.is_empty() || !is_authority(authority) {
        return Err(H1Error::Target);
    }
    head.authority = span_of(raw, authority);
    head.path = match path.first() {
        Some(b'/') => span_of(raw, path),
        None if head.method == Method::Options => head.fields.store(b"*"),
        None => head.fields.store(b"/"),
        Some(_) => {
            let mut whole = Vec::with_capacity(path.len() + 1);
            whole.push(b'/');
            whole.extend_from_slice(path);
            head.fields.store(&whole)
        }
    };
    check_target(head.method, head.fields.slice(head.path))?;
    Ok(())
}

fn strip_prefix_ignore_case<'a>(bytes: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Parses one complete response head that answers a request of this method.
///
/// # Errors
/// Whatever [`H1Error`] the bytes deserve; `head` is then unusable.
pub fn parse_response(raw: &[u8], request: Method, head: &mut ResponseHead) -> Result<(), H1Error> {
    let mut index = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    match httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut parsed, raw, &mut index)
        .map_err(map_error)?
    {
        Status::Complete(n) if n == raw.len() => {}
        Status::Complete(_) => return Err(H1Error::HeaderLine),
        Status::Partial => return Err(H1Error::StartLine),
    }
    let (Some(status), Some(version)) = (parsed.code, parsed.version) else {
        return Err(H1Error::StartLine);
    };
    if !(100..=999).contains(&status) {
        return Err(H1Error::StartLine);
    }
    head.clear();
    head.fields.load(raw);
    head.status = status;
    head.protocol = if version == 0 {
        Protocol::Http10
    } else {
        Protocol::Http11
    };
    for field in parsed.headers.iter() {
        head.fields
            .index(span_of(raw, field.name.as_bytes()), span_of(raw, field.value));
    }
    let connection = take_connection(&mut head.fields)?;
    let framing = body_framing(&head.fields, head.protocol)?;
    head.fields.remove_known(Known::TransferEncoding);
    head.framing = if status == 101 || (request == Method::Connect && (200..300).contains(&status)) {
        Framing::UntilClose
    } else if request == Method::Head || status < 200 || matches!(status, 204 | 304) {
        if status == 204 || status < 200 {
            // RFC 9110 section 8.6: no content-length here.
            head.fields.remove_known(Known::ContentLength);
        }
        Framing::None
    } else {
        framing
    };
    head.keep_alive = head.framing != Framing::UntilClose
        && if version == 1 {
            !connection.close
        } else {
            connection.keep_alive && !connection.close
        };
    Ok(())
}

#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    close: bool,
    keep_alive: bool,
    upgrade: bool,
}

/// Reads and removes `connection` with the fields that it names (RFC 9110 section 7.6.1), and the hop-by-hop fields
/// that older peers send without naming them. `upgrade` and `te` stay for the caller to judge.
fn take_connection(fields: &mut crate::head::Fields) -> Result<Connection, H1Error> {
    let mut found = Connection::default();
    if fields.has_known(Known::Connection) {
        let mut named: smallvec::SmallVec<[smallvec::SmallVec<[u8; 32]>; 4]> = smallvec::SmallVec::new();
        for token in fields
            .all_known(Known::Connection)
            .flat_map(|v| v.split(|b| *b == b','))
            .map(<[u8]>::trim_ascii)
        {
            if token.eq_ignore_ascii_case(b"keep-alive") {
                found.keep_alive = true;
            } else if token.eq_ignore_ascii_case(b"close") {
                found.close = true;
            } else if token.eq_ignore_ascii_case(b"upgrade") {
                found.upgrade = true;
            } else if !token.is_empty() {
                if named.len() == MAX_CONNECTION_OPTIONS {
                    return Err(H1Error::ConnectionOptions);
                }
                named.push(token.iter().map(u8::to_ascii_lowercase).collect());
            }
        }
        for name in &named {
            match Known::of(name) {
                Known::Te | Known::Trailer => {}
                // Dropping these would change what the message is, or whose it is.
                Known::Host
                | Known::ContentLength
                | Known::TransferEncoding
                | Known::ContentType
                | Known::Cookie
                | Known::ForwardedClientCert
                | Known::ForwardedFor
                | Known::ForwardedProto => return Err(H1Error::Connection),
                _ => fields.remove(name),
            }
        }
        fields.remove_known(Known::Connection);
    }
    fields.remove_set(KnownSet::of(&[
        Known::KeepAlive,
        Known::ProxyConnection,
        Known::Http2Settings,
    ]));
    Ok(found)
}

/// RFC 9112 section 6.3. [`Framing::UntilClose`] stands for "nothing was said".
fn body_framing(fields: &crate::head::Fields, protocol: Protocol) -> Result<Framing, H1Error> {
    let mut encodings = fields.all_known(Known::TransferEncoding);
    if let Some(encoding) = encodings.next() {
        if encodings.next().is_some() || protocol == Protocol::Http10 {
            return Err(H1Error::TransferEncoding);
        }
        if fields.has_known(Known::ContentLength) {
            return Err(H1Error::LengthAndEncoding);
        }
        if encoding.eq_ignore_ascii_case(b"chunked") {
            return Ok(Framing::Chunked);
        }
        let chunked_inside = encoding
            .split(|b| *b == b',')
            .any(|c| c.trim_ascii().eq_ignore_ascii_case(b"chunked"));
        return Err(if chunked_inside || encoding.is_empty() {
            H1Error::TransferEncoding
        } else {
            H1Error::UnknownEncoding
        });
    }
    let mut lengths = fields.all_known(Known::ContentLength);
    let Some(length) = lengths.next() else {
        return Ok(Framing::UntilClose);
    };
    if lengths.next().is_some() {
        return Err(H1Error::RepeatedLength);
    }
    match parse_length(length)? {
        0 => Ok(Framing::None),
        n => Ok(Framing::Length(n)),
    }
}

/// Parses a complete trailer section, its final empty line included. What may not stand there is removed where trailers
/// are passed on, for both protocols ([`crate::head::Fields::keep_trailers`]).
///
/// # Errors
/// [`H1Error::Trailers`] when a line does not parse.
pub fn parse_trailers(raw: &[u8], fields: &mut crate::head::Fields) -> Result<(), H1Error> {
    let mut index = [httparse::EMPTY_HEADER; MAX_FIELDS];
    match httparse::parse_headers(raw, &mut index) {
        Ok(Status::Complete((n, headers))) if n == raw.len() => {
            fields.load(raw);
            for field in headers {
                fields.index(span_of(raw, field.name.as_bytes()), span_of(raw, field.value));
            }
            Ok(())
        }
        _ => Err(H1Error::Trailers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newline_is_found_wherever_it_stands() {
        for other in 0..=u8::MAX {
            for length in 0..=24 {
                let mut buf = vec![other; length];
                // None, then one at each place with what a search by words could take for another behind it.
                for at in std::iter::once(None).chain((0..length).map(Some)) {
                    buf.fill(other);
                    if let Some(at) = at {
                        buf[at] = b'\n';
                        if let Some(behind) = buf.get_mut(at + 1) {
                            *behind = 0x0b;
                        }
                    }
                    for from in 0..=length + 1 {
                        let plain = (from..length).find(|at| buf[*at] == b'\n');
                        assert_eq!(next_newline(&buf, from), plain, "{buf:?} from {from}");
                    }
                }
            }
        }
    }

    /// However the bytes of a head arrive, its end is where a plain reader finds it.
    #[test]
    fn a_head_ends_at_the_first_empty_line() {
        let limits = Limits {
            max_bytes: 1 << 16,
            max_count: 1000,
        };
        let mut random = fastrand::Rng::with_seed(2);
        let alphabet = [b'a', b':', b' ', 0x0b, 0x80, 0x8a, 0xff, 0];
        for _ in 0..2_000 {
            let mut head = Vec::new();
            for _ in 0..random.usize(1..6) {
                let line = std::iter::repeat_with(|| *random.choice(&alphabet).expect("a byte"));
                let line: Vec<u8> = line.take(20).collect();
                head.extend_from_slice(&line[..random.usize(1..=20)]);
                head.extend_from_slice(b"\r\n");
            }
            head.extend_from_slice(b"\r\n");
            let end = head.len();
            head.extend_from_slice(b"a body\r\n\r\n");
            let mut scan = HeadScan::default();
            let mut arrived = 0;
            let found = loop {
                arrived = (arrived + random.usize(1..12)).min(head.len());
                match scan.advance(&head[..arrived], limits) {
                    Ok(None) => assert!(arrived < end),
                    found => break found,
                }
            };
            assert_eq!(found.expect("a head"), Some(end));
        }
    }
}
