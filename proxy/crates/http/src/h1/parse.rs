//! HTTP/1.1 heads from bytes (RFC 9112), strict: what could be read in two ways is refused.

use heddle_simd::{CHUNK, Chunk};

use super::error::H1Error;
use super::start_line::{RequestLine, StatusLine};
use crate::head::{
    Framing, Known, KnownSet, LineError, Method, Protocol, RequestHead, ResponseHead, Scheme, Span, TargetError,
    check_method, check_target, has_port, is_authority, parse_length, take_expectation,
};

/// Bounds of one head.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes, start line included.
    pub max_bytes: usize,
    /// Most fields.
    pub max_count: usize,
}

/// Most fields of any configuration.
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
        let mut at = self.scanned;
        while at < buf.len() {
            let mut newlines = Chunk::at(buf, at).equal(b'\n');
            while newlines != 0 {
                let newline = at + newlines.trailing_zeros() as usize;
                if self.line_ends(buf, newline, limits)? {
                    return Ok(Some(newline + 1));
                }
                newlines &= newlines - 1;
            }
            at += CHUNK;
        }
        self.scanned = buf.len();
        if buf.len() >= limits.max_bytes {
            Err(H1Error::TooLarge)
        } else {
            Ok(None)
        }
    }

    /// Whether the line that ends with this LF is the empty one.
    #[inline]
    fn line_ends(&mut self, buf: &[u8], newline: usize, limits: Limits) -> Result<bool, H1Error> {
        if newline == self.line_start || buf.get(newline - 1) != Some(&b'\r') {
            return Err(H1Error::BareNewline);
        }
        if newline >= limits.max_bytes {
            return Err(H1Error::TooLarge);
        }
        if newline - 1 == self.line_start {
            return Ok(true);
        }
        self.line_start = newline + 1;
        self.lines += 1;
        if self.lines > limits.max_count + 1 {
            return Err(H1Error::TooMany);
        }
        Ok(false)
    }
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

impl From<LineError> for H1Error {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Malformed => Self::HeaderLine,
            LineError::BareReturn => Self::BareNewline,
            LineError::Incomplete => Self::StartLine,
            LineError::TooMany => Self::TooMany,
        }
    }
}

/// Parses one complete request head (with its final empty line).
///
/// # Errors
/// Whatever [`H1Error`] the bytes deserve; `head` is then unusable.
pub fn parse_request(raw: &[u8], accept_http_10: bool, head: &mut RequestHead) -> Result<RequestFacts, H1Error> {
    let line = RequestLine::parse(raw)?;
    head.clear();
    head.fields.load(raw);
    head.protocol = line.protocol;
    // Before the verdict on the start line: a head that is none at all is that first.
    let mut host = None;
    let mut repeated = false;
    head.fields.index_lines(line.length, MAX_FIELDS, |known, value| {
        if known == Known::Host {
            repeated |= host.replace(value).is_some();
        }
        Ok::<_, H1Error>(known != Known::Host)
    })?;
    let is_http_10 = line.protocol == Protocol::Http10;
    if is_http_10 && !accept_http_10 {
        return Err(H1Error::Http10);
    }
    head.method = check_method(line.method)?;
    head.method_token = span_of(raw, line.method);
    if repeated {
        return Err(H1Error::Host);
    }
    set_target(head, raw, line.target)?;
    if head.authority.is_empty() {
        match host {
            Some(host) => head.authority = host,
            None if is_http_10 => {}
            None => return Err(H1Error::MissingHost),
        }
    } else if host.is_none() && !is_http_10 {
        return Err(H1Error::MissingHost);
    }
    let differs = host.is_none_or(|host| host != head.authority);
    if host.is_some_and(|h| !is_authority(head.fields.slice(h)))
        || (differs && !is_authority(head.fields.slice(head.authority)))
    {
        return Err(H1Error::Host);
    }
    if !is_http_10 && head.authority.is_empty() {
        return Err(H1Error::MissingHost);
    }
    head.classify();

    let connection = take_connection(&mut head.fields)?;
    let framing = match body_framing(&head.fields, head.protocol)? {
        Framing::UntilClose => Framing::None,
        framing => framing,
    };
    head.fields.remove_known(Known::TransferEncoding);
    let expect_continue = take_expectation(&mut head.fields)? && !is_http_10;
    Ok(RequestFacts {
        framing,
        keep_alive: !connection.close && (!is_http_10 || connection.keep_alive),
        expect_continue: expect_continue && framing != Framing::None,
        upgrade: connection.upgrade && head.fields.has_known(Known::Upgrade),
    })
}

/// The four forms of RFC 9112 section 3.2.
fn set_target(head: &mut RequestHead, raw: &[u8], bytes: &[u8]) -> Result<(), H1Error> {
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
    let line = StatusLine::parse(raw)?;
    head.clear();
    head.fields.load(raw);
    head.fields
        .index_lines(line.length, MAX_FIELDS, |_, _| Ok::<_, H1Error>(true))?;
    let status = line.status;
    if status < 100 {
        return Err(H1Error::StartLine);
    }
    head.status = status;
    head.protocol = line.protocol;
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
        && !connection.close
        && (line.protocol == Protocol::Http11 || connection.keep_alive);
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
        // Nothing else is in nearly all of them.
        let whole = |value: &[u8]| value == b"keep-alive" || value.eq_ignore_ascii_case(b"keep-alive");
        if fields.all_known(Known::Connection).all(whole) {
            found.keep_alive = true;
        } else {
            take_options(fields, &mut found)?;
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

/// Reads the options of `connection`, and removes the fields that it names.
fn take_options(fields: &mut crate::head::Fields, found: &mut Connection) -> Result<(), H1Error> {
    let mut named: smallvec::SmallVec<[smallvec::SmallVec<[u8; 32]>; 4]> = smallvec::SmallVec::new();
    let values = fields.all_known(Known::Connection);
    for token in values.flat_map(|v| v.split(|b| *b == b',')).map(<[u8]>::trim_ascii) {
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
    Ok(())
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
    fields.load(raw);
    fields
        .index_lines(0, MAX_FIELDS, |_, _| Ok::<_, LineError>(true))
        .map_err(|_| H1Error::Trailers)
}

#[cfg(test)]
mod tests {
    use super::*;

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
