//! Request heads.

use std::borrow::Cow;
use std::net::IpAddr;

use heddle_matching::{Metadata, RequestView, is_respelled};
use heddle_simd::{CHUNK, Chunk, from_utf8};

use super::fields::{Fields, Span, lossy};
use super::known::Known;

/// Methods that change how a message is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// `GET`.
    #[default]
    Get,
    /// `HEAD`: the answer has no body.
    Head,
    /// `POST`.
    Post,
    /// `OPTIONS`: may have the target `*`.
    Options,
    /// `CONNECT`.
    Connect,
    /// Anything else.
    Other,
}

impl Method {
    /// Of a method token, which is case-sensitive.
    pub fn of(token: &[u8]) -> Self {
        match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"OPTIONS" => Self::Options,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }

    /// Whether asking twice is as good as asking once, of the methods told apart here (RFC 9110 §9.2.1).
    pub fn is_safe(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Options)
    }
}

/// Protocol of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2.
    Http2,
}

impl Protocol {
    /// As access logs print it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

/// URI scheme of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// `http`.
    #[default]
    Http,
    /// `https`.
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

/// A request head. The authority is kept apart from the fields: there is no `host` field.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    /// Header fields without `host`.
    pub fields: Fields,
    /// The method's kind; the token itself is [`RequestHead::method_text`].
    pub method: Method,
    pub(crate) method_token: Span,
    pub(crate) path: Span,
    pub(crate) authority: Span,
    /// Scheme, from the target, `x-forwarded-proto` or the transport.
    pub scheme: Scheme,
    /// Protocol it came by.
    pub protocol: Protocol,
    /// Whether the content type is gRPC's.
    pub grpc: bool,
    /// The client's address, where it differs from the connection's.
    pub remote_ip: Option<IpAddr>,
    /// What filters learned about the request.
    pub metadata: Option<Box<Metadata>>,
}

impl RequestHead {
    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        let Self {
            fields,
            method,
            method_token,
            path,
            authority,
            scheme,
            protocol,
            grpc,
            remote_ip,
            metadata,
        } = self;
        fields.clear();
        *method = Method::Get;
        *method_token = Span::default();
        *path = Span::default();
        *authority = Span::default();
        *scheme = Scheme::Http;
        *protocol = Protocol::Http11;
        *grpc = false;
        *remote_ip = None;
        *metadata = None;
    }

    /// The method token.
    pub fn method_text(&self) -> &str {
        self.fields.text(self.method_token)
    }

    /// Path and query; `*` for `OPTIONS *`, empty for `CONNECT`.
    pub fn target(&self) -> &str {
        self.fields.text(self.path)
    }

    /// Replaces path and query.
    pub fn set_target(&mut self, target: &str) {
        self.path = self.fields.store(target.as_bytes());
    }

    /// Host and optional port.
    pub fn host(&self) -> &str {
        self.fields.text(self.authority)
    }

    /// Replaces host and port.
    pub fn set_host(&mut self, host: &str) {
        self.authority = self.fields.store(host.as_bytes());
    }

    /// Replaces the method.
    pub fn set_method(&mut self, token: &str) {
        self.method = Method::of(token.as_bytes());
        self.method_token = self.fields.store(token.as_bytes());
    }

    /// Notes facts that are asked for often.
    pub(crate) fn classify(&mut self) {
        self.grpc = self.fields.get_known(Known::ContentType).is_some_and(is_grpc);
    }
}

/// `application/grpc`, or that followed by `+` or `;` (gRPC over HTTP/2, "Requests").
pub(crate) fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let Some((head, rest)) = content_type.split_at_checked(GRPC.len()) else {
        return false;
    };
    head.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';'))
}

impl RequestView for RequestHead {
    fn method(&self) -> &str {
        self.method_text()
    }

    fn path_and_query(&self) -> &str {
        self.target()
    }

    fn path(&self) -> &str {
        let target = self.fields.slice(self.path);
        let mut at = 0;
        while at < target.len() {
            let chunk = Chunk::at(target, at);
            let ends = chunk.equal(b'?') | chunk.equal(b'#');
            if ends != 0 {
                return from_utf8(&target[..at + ends.trailing_zeros() as usize]).unwrap_or_default();
            }
            at += CHUNK;
        }
        from_utf8(target).unwrap_or_default()
    }

    fn authority(&self) -> &str {
        self.host()
    }

    fn scheme(&self) -> &str {
        self.scheme.as_str()
    }

    fn remote_ip(&self) -> Option<IpAddr> {
        self.remote_ip
    }

    fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_deref()
    }

    fn visit_header<'s>(&'s self, name: &str, see: &mut dyn FnMut(&'s [u8])) {
        match name {
            ":method" => see(self.fields.slice(self.method_token)),
            ":path" => see(self.fields.slice(self.path)),
            ":authority" | "host" => {
                if !self.authority.is_empty() {
                    see(self.fields.slice(self.authority));
                }
            }
            ":scheme" => see(self.scheme.as_str().as_bytes()),
            _ => self.fields.visit(name.as_bytes(), see),
        }
    }

    fn visit_fields<'s>(&'s self, see: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        self.fields.iter().for_each(|(_, name, value)| see(name, value));
    }

    fn has_respelled(&self) -> bool {
        // Those that are known are parted by `-`.
        self.fields.unknown_names().any(is_respelled)
    }

    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        let value = match name {
            ":method" => self.method_token,
            ":path" => self.path,
            ":authority" | "host" if self.authority.is_empty() => return None,
            ":authority" | "host" => self.authority,
            ":scheme" => return Some(self.scheme.as_str().into()),
            _ => return self.fields.joined(name.as_bytes()),
        };
        Some(lossy(self.fields.slice(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_content_types() {
        for yes in [
            "application/grpc",
            "application/grpc+proto",
            "application/grpc; x=y",
            "Application/GRPC",
        ] {
            assert!(is_grpc(yes.as_bytes()), "{yes}");
        }
        for no in ["application/grpc-web", "application/json", "", "application/grpcx"] {
            assert!(!is_grpc(no.as_bytes()), "{no}");
        }
    }

    #[test]
    fn view_answers_pseudo_headers() {
        let mut head = RequestHead::default();
        head.set_method("GET");
        head.set_target("/a?b");
        head.set_host("h:1");
        head.fields.push(b"x-a", b"1");
        head.fields.push(b"x-a", b"2");
        assert_eq!(RequestView::header(&head, ":path").as_deref(), Some("/a?b"));
        assert_eq!(RequestView::header(&head, ":authority").as_deref(), Some("h:1"));
        assert_eq!(RequestView::header(&head, "x-a").as_deref(), Some("1,2"));
        assert_eq!(RequestView::header(&head, "x-b"), None);
        assert_eq!(RequestView::path(&head), "/a");
        assert_eq!(RequestView::header(&head, ":method").as_deref(), Some("GET"));
        assert_eq!(RequestView::header(&head, ":scheme").as_deref(), Some("http"));
        assert_eq!(RequestView::header(&head, "host").as_deref(), Some("h:1"));
        assert_eq!(RequestView::header(&RequestHead::default(), "host"), None);
        head.fields.push(b"x-c", b"\xff");
        assert_eq!(RequestView::header(&head, "x-c").as_deref(), Some("\u{fffd}"));
    }
}
