//! Message heads: from decoded fields to ours and back (RFC 9113 section 8).

use super::hpack::{Encoder, Field};
use crate::failure::Failure;
use crate::h1::{H1Error, Limits};
use crate::head::{
    Fields, Known, Method, Protocol, RequestHead, ResponseHead, Scheme, Span, check_method, check_target, is_authority,
    is_token, parse_length, take_expectation,
};

/// What a request's head says besides its fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The client waits for `100 Continue`.
    pub(crate) expect_continue: bool,
    /// It was an extended CONNECT (RFC 8441). It is a GET with the protocol in `upgrade` now, as over HTTP/1.1 and as in
    /// Envoy, so that policies and routes see the same request by either way.
    pub(crate) upgrade: bool,
}

/// Why a head is not passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeadError {
    /// Malformed (section 8.1.1): the stream is reset. The word is for the counter.
    Malformed(&'static str),
    /// Well-formed, and answered with this.
    Refused(Failure),
}

/// What a block of fields is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Section {
    Request,
    Response,
    Trailers,
    /// Of a stream that is closed or refused: decoded for the table's sake and thrown away.
    #[default]
    Discarded,
}

/// Fields that say how an HTTP/1 connection is used; a message that holds one is malformed (section 8.2.2).
fn connection_specific(known: Known) -> bool {
    matches!(
        known,
        Known::Connection | Known::KeepAlive | Known::ProxyConnection | Known::TransferEncoding | Known::Upgrade
    )
}

/// What a section has held so far.
#[derive(Debug, Default)]
struct Seen {
    method: bool,
    path: bool,
    scheme: bool,
    authority: bool,
    /// `:protocol` (RFC 8441 section 4).
    protocol: Option<Span>,
    status: bool,
    /// A field that is no pseudo-header field.
    regular: bool,
    /// The last `host`, and how many there were.
    host: Option<Span>,
    hosts: u32,
    malformed: Option<&'static str>,
    /// Names and values, and four bytes each for what stands around them in HTTP/1.1.
    bytes: usize,
    /// Without pseudo-header fields.
    count: usize,
}

/// Collects the fields of one section. One per connection, used again for each section.
#[derive(Debug, Default)]
pub(crate) struct HeadReader {
    section: Section,
    pub(crate) request: RequestHead,
    pub(crate) response: ResponseHead,
    pub(crate) trailers: Fields,
    cookies: Vec<u8>,
    seen: Seen,
    limits: Option<Limits>,
    /// SETTINGS_ENABLE_CONNECT_PROTOCOL was offered.
    allow_connect: bool,
}

impl HeadReader {
    /// Bytes of the section that is being read, and of what is left of the one before.
    pub(super) fn held(&self) -> usize {
        let fields = [&self.request.fields, &self.response.fields, &self.trailers];
        fields.map(Fields::held).iter().sum::<usize>() + self.cookies.len()
    }

    /// `allow_connect`: requests may have `:protocol`.
    pub(crate) fn new(allow_connect: bool) -> Self {
        Self {
            allow_connect,
            ..Self::default()
        }
    }

    /// Begins a section. Nothing above `limits` is kept.
    pub(crate) fn begin(&mut self, section: Section, limits: Limits) {
        self.section = section;
        match section {
            Section::Request => {
                self.request.clear();
                self.request.protocol = Protocol::Http2;
            }
            Section::Response => {
                self.response.clear();
                self.response.protocol = Protocol::Http2;
            }
            Section::Trailers => self.trailers.clear(),
            Section::Discarded => {}
        }
        self.cookies.clear();
        self.seen = Seen::default();
        self.limits = Some(limits);
    }

    fn overflow(&self) -> Option<H1Error> {
        let limits = self.limits?;
        if self.seen.bytes > limits.max_bytes {
            Some(H1Error::TooLarge)
        } else if self.seen.count > limits.max_count {
            Some(H1Error::TooMany)
        } else {
            None
        }
    }

    /// Takes a field.
    pub(crate) fn field(&mut self, field: Field<'_>) {
        if self.section == Section::Discarded || self.seen.malformed.is_some() {
            return;
        }
        self.seen.bytes += field.name.len() + field.value.len() + 4;
        if !field.valid {
            self.seen.malformed = Some("invalid_field");
            return;
        }
        if let Some(name) = field.name.strip_prefix(b":") {
            if self.overflow().is_none() {
                self.pseudo(name, field.value);
            }
            return;
        }
        self.seen.regular = true;
        self.seen.count += 1;
        if self.overflow().is_some() {
            return;
        }
        if connection_specific(field.known) {
            self.seen.malformed = Some("connection_field");
            return;
        }
        // White space around a value is no part of it (RFC 9110 section 5.5): what is matched and what is forwarded
        // must not differ by it.
        let value = field.value.trim_ascii();
        match (self.section, field.known) {
            (_, Known::Te) if !value.eq_ignore_ascii_case(b"trailers") => self.seen.malformed = Some("te"),
            (_, Known::Http2Settings) => {}
            (Section::Request, Known::Cookie) => {
                // Crumbs are joined (section 8.2.3).
                if !self.cookies.is_empty() {
                    self.cookies.extend_from_slice(b"; ");
                }
                self.cookies.extend_from_slice(value);
            }
            (Section::Request, Known::Host) => {
                self.seen.hosts += 1;
                self.seen.host = Some(self.request.fields.store(value));
            }
            (Section::Request, known) => self.request.fields.push_parsed(known, field.name, value),
            (Section::Response, Known::Host) => {}
            (Section::Response, known) => self.response.fields.push_parsed(known, field.name, value),
            (Section::Trailers, known) => self.trailers.push_parsed(known, field.name, value),
            (Section::Discarded, _) => {}
        }
    }

    fn pseudo(&mut self, name: &[u8], value: &[u8]) {
        let again = |seen: &mut bool| std::mem::replace(seen, true);
        if self.seen.regular {
            self.seen.malformed = Some("pseudo_field_order");
            return;
        }
        let repeated = match (self.section, name) {
            (Section::Request, b"method") => {
                self.request.method = Method::of(value);
                self.request.method_token = self.request.fields.store(value);
                again(&mut self.seen.method)
            }
            (Section::Request, b"path") => {
                self.request.path = self.request.fields.store(value);
                again(&mut self.seen.path)
            }
            (Section::Request, b"scheme") => {
                if value.eq_ignore_ascii_case(b"https") {
                    self.request.scheme = Scheme::Https;
                }
                let valid = value.first().is_some_and(u8::is_ascii_alphabetic)
                    && value
                        .iter()
                        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
                if !valid {
                    self.seen.malformed = Some("scheme");
                }
                again(&mut self.seen.scheme)
            }
            (Section::Request, b"authority") => {
                self.request.authority = self.request.fields.store(value);
                again(&mut self.seen.authority)
            }
            (Section::Request, b"protocol") if self.allow_connect => {
                let protocol = self.request.fields.store(value);
                self.seen.protocol.replace(protocol).is_some()
            }
            (Section::Response, b"status") => {
                match value {
                    [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
                        let digit = |d: &u8| u16::from(d - b'0');
                        self.response.status = digit(a) * 100 + digit(b) * 10 + digit(c);
                    }
                    _ => self.seen.malformed = Some("status"),
                }
                again(&mut self.seen.status)
            }
            _ => {
                self.seen.malformed = Some("pseudo_field");
                return;
            }
        };
        if repeated {
            self.seen.malformed = Some("repeated_pseudo_field");
        }
    }

    /// The request is whole, in `self.request`.
    ///
    /// # Errors
    /// [`HeadError`].
    pub(crate) fn finish_request(&mut self, end_stream: bool) -> Result<Asked, HeadError> {
        if let Some(cause) = self.seen.malformed {
            return Err(HeadError::Malformed(cause));
        }
        if let Some(error) = self.overflow() {
            return Err(HeadError::Refused(Failure::Protocol(error)));
        }
        let connect = self.request.method == Method::Connect;
        let upgrade = self.seen.protocol;
        if upgrade.is_some() && !connect {
            return Err(HeadError::Malformed("protocol_without_connect"));
        }
        let complete = match (connect, upgrade) {
            (true, None) => self.seen.authority && !self.seen.path && !self.seen.scheme,
            (true, Some(_)) => self.seen.authority && self.seen.path && self.seen.scheme,
            (false, _) => self.seen.path && self.seen.scheme,
        };
        if !self.seen.method || !complete {
            return Err(HeadError::Malformed("missing_pseudo_field"));
        }
        let head = &mut self.request;
        if !self.seen.authority
            && let Some(host) = self.seen.host
        {
            if self.seen.hosts > 1 {
                return Err(refused("http2.duplicate_host"));
            }
            head.authority = host;
        }
        if let Some(protocol) = upgrade {
            // It is written to HTTP/1.1 as the one protocol that is offered.
            let protocol = head.fields.slice(protocol).to_vec();
            if !is_token(&protocol) {
                return Err(HeadError::Malformed("protocol"));
            }
            head.set_method("GET");
            head.fields.push_known(Known::Upgrade, &protocol);
        }
        if check_method(head.fields.slice(head.method_token)).is_err() {
            return Err(refused("http2.invalid_method"));
        }
        if head.authority.is_empty() {
            return Err(refused("missing_host_header"));
        }
        if !is_authority(head.fields.slice(head.authority)) {
            return Err(refused("invalid_host"));
        }
        if !connect || upgrade.is_some() {
            let target = head.fields.slice(head.path);
            if target.is_empty() {
                return Err(HeadError::Malformed("path"));
            }
            if check_target(head.method, target).is_err() {
                return Err(refused("http2.invalid_path"));
            }
        }
        if !self.cookies.is_empty() {
            head.fields.push_known(Known::Cookie, &self.cookies);
        }
        let length = single_content_length(&head.fields).map_err(|cause| {
            self.seen.malformed = Some(cause);
            HeadError::Malformed(cause)
        })?;
        if connect && length.is_some() {
            // It has no content (RFC 9110 section 9.3.6). A server that refuses the tunnel would wait for it, and take the
            // beginning of the next request on the connection for it.
            return Err(HeadError::Malformed("content_length"));
        }
        if end_stream && length.is_some_and(|n| n > 0) {
            // Towards HTTP/1.1 the announced length would frame whatever comes next.
            return Err(HeadError::Malformed("content_length"));
        }
        let expects = take_expectation(&mut head.fields).map_err(|e| HeadError::Refused(Failure::Protocol(e)))?;
        head.classify();
        Ok(Asked {
            expect_continue: expects && !end_stream && upgrade.is_none(),
            upgrade: upgrade.is_some(),
        })
    }

    /// The response is whole, in `self.response`.
    ///
    /// # Errors
    /// A word for the counter.
    pub(crate) fn finish_response(&mut self) -> Result<(), &'static str> {
        if let Some(cause) = self.seen.malformed {
            return Err(cause);
        }
        if self.overflow().is_some() {
            return Err("header_overflow");
        }
        // RFC 9113 section 8.6: there is no switching of protocols.
        if !self.seen.status || self.response.status == 101 {
            return Err("status");
        }
        let head = &mut self.response;
        if head.status < 200 || head.status == 204 {
            // RFC 9110 section 8.6: no content-length here.
            head.fields.remove_known(Known::ContentLength);
        }
        single_content_length(&head.fields)?;
        Ok(())
    }

    /// The trailers are whole; none when nothing was in them.
    ///
    /// # Errors
    /// A word for the counter.
    pub(crate) fn finish_trailers(&mut self) -> Result<Option<Fields>, &'static str> {
        if let Some(cause) = self.seen.malformed {
            return Err(cause);
        }
        if self.overflow().is_some() {
            return Err("header_overflow");
        }
        Ok((!self.trailers.is_empty()).then(|| std::mem::take(&mut self.trailers)))
    }
}

fn refused(details: &'static str) -> HeadError {
    HeadError::Refused(Failure::BadRequest(details))
}

/// `content-length`, refused when repeated or malformed: towards HTTP/1.1 it would frame the body.
fn single_content_length(fields: &Fields) -> Result<Option<u64>, &'static str> {
    let mut lengths = fields.all_known(Known::ContentLength);
    let Some(first) = lengths.next() else {
        return Ok(None);
    };
    if lengths.next().is_some() {
        return Err("content_length");
    }
    parse_length(first).map(Some).map_err(|_| "content_length")
}

/// The announced length of a body; none when there is none, or it is no number.
pub(crate) fn content_length(fields: &Fields) -> Option<u64> {
    fields
        .get_known(Known::ContentLength)
        .and_then(|v| parse_length(v).ok())
}

/// Encodes fields; what cannot stand in HTTP/2 is left out.
pub(super) fn encode_fields(fields: &Fields, encoder: &mut Encoder<'_>) {
    for (known, name, value) in fields.iter() {
        if connection_specific(known)
            || matches!(known, Known::Http2Settings | Known::Host)
            || (known == Known::Te && value != b"trailers")
        {
            continue;
        }
        encoder.field(known, name, value);
    }
}

/// Encodes a request head; one that asks for an upgrade as an extended CONNECT (RFC 8441 section 4).
pub(super) fn encode_request(head: &RequestHead, upgrade: bool, encoder: &mut Encoder<'_>) {
    if upgrade {
        encoder.method(b"CONNECT");
        encoder.protocol(head.fields.get_known(Known::Upgrade).unwrap_or_default());
    } else {
        encoder.method(head.method_text().as_bytes());
    }
    if upgrade || head.method != Method::Connect {
        encoder.scheme(head.scheme == Scheme::Https);
        let target = head.target();
        encoder.path(if target.is_empty() { b"/" } else { target.as_bytes() });
    }
    encoder.authority(head.host().as_bytes());
    encode_fields(&head.fields, encoder);
}

/// Encodes a response head. An upgrade is accepted by 200 (RFC 8441 section 4): 101 is not there in HTTP/2.
pub(super) fn encode_response(head: &ResponseHead, encoder: &mut Encoder<'_>) {
    encoder.status(if head.status == 101 { 200 } else { head.status });
    encode_fields(&head.fields, encoder);
}

#[cfg(test)]
mod tests;
