//! Heads between our form and the `http` crate's, which `h2` speaks.

use http::header::{HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};

use crate::body::StreamError;
use crate::h1::{is_authority, parse_length};
use crate::head::{Fields, Known, Method, Protocol, RequestHead, ResponseHead, Scheme};

/// Fields that HTTP/2 forbids (RFC 9113 section 8.2.2) or carries elsewhere.
fn forbidden(known: Known) -> bool {
    matches!(
        known,
        Known::Connection
            | Known::KeepAlive
            | Known::ProxyConnection
            | Known::TransferEncoding
            | Known::Upgrade
            | Known::Http2Settings
            | Known::Host
    )
}

/// Our fields as a header map; what cannot stand in HTTP/2 is left out.
pub(crate) fn map_of(fields: &Fields) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(fields.len());
    for (known, name, value) in fields.iter() {
        if forbidden(known) || (known == Known::Te && value != b"trailers") {
            continue;
        }
        let name = if known == Known::Other {
            HeaderName::from_bytes(name)
        } else {
            Ok(HeaderName::from_static(known.name()))
        };
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            map.append(name, value);
        }
    }
    map
}

/// A header map as our fields. Cookie crumbs are joined (RFC 9113 section 8.2.3).
pub(crate) fn fields_of(map: &HeaderMap, fields: &mut Fields) {
    let mut cookies = None::<Vec<u8>>;
    for (name, value) in map {
        if *name == http::header::COOKIE {
            match &mut cookies {
                None => cookies = Some(value.as_bytes().to_vec()),
                Some(all) => {
                    all.extend_from_slice(b"; ");
                    all.extend_from_slice(value.as_bytes());
                }
            }
            continue;
        }
        fields.push(name.as_str().as_bytes(), value.as_bytes());
    }
    if let Some(cookies) = cookies {
        fields.push_known(Known::Cookie, &cookies);
    }
    fields.remove_where(|k| forbidden(k) && k != Known::Host);
}

/// Reads a request head.
///
/// # Errors
/// Details for the log, when the head cannot be forwarded in good conscience.
pub(crate) fn request_from(parts: &http::request::Parts, head: &mut RequestHead) -> Result<(), &'static str> {
    head.clear();
    head.protocol = Protocol::Http2;
    head.set_method(parts.method.as_str());
    fields_of(&parts.headers, &mut head.fields);
    let host = match parts.uri.authority() {
        Some(authority) => authority.as_str().to_owned(),
        None => {
            let mut hosts = head.fields.all_known(Known::Host);
            let host = hosts
                .next()
                .and_then(|h| std::str::from_utf8(h).ok())
                .unwrap_or_default()
                .to_owned();
            if hosts.next().is_some() {
                return Err("http2.duplicate_host");
            }
            host
        }
    };
    head.fields.remove_known(Known::Host);
    if host.is_empty() {
        return Err("missing_host_header");
    }
    if !is_authority(host.as_bytes()) {
        return Err("invalid_host");
    }
    head.set_host(&host);
    if parts.uri.scheme_str() == Some("https") {
        head.scheme = Scheme::Https;
    }
    if head.method != Method::Connect {
        let target = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let target = if target == "/" && head.method == Method::Options && parts.uri.path() == "*" {
            "*"
        } else {
            target
        };
        if !(target.starts_with('/') || target == "*") || target.bytes().any(|b| !b.is_ascii_graphic() || b == b'#') {
            return Err("http2.invalid_path");
        }
        head.set_target(target);
    }
    single_length(&head.fields)?;
    head.fields.remove_known(Known::Expect);
    head.classify();
    Ok(())
}

/// `content-length`, refused when repeated or malformed: towards HTTP/1.1 it would frame the body.
fn single_length(fields: &Fields) -> Result<Option<u64>, &'static str> {
    let mut lengths = fields.all_known(Known::ContentLength);
    let Some(first) = lengths.next() else {
        return Ok(None);
    };
    if lengths.next().is_some() {
        return Err("http2.repeated_content_length");
    }
    parse_length(first)
        .map(Some)
        .map_err(|_| "http2.invalid_content_length")
}

/// The announced length of a body.
pub(crate) fn length_of(fields: &Fields) -> Option<u64> {
    fields
        .get_known(Known::ContentLength)
        .and_then(|v| parse_length(v).ok())
}

/// Writes a request head. `tls` says what the scheme is on the wire.
pub(crate) fn request_to(head: &RequestHead) -> Result<Request<()>, StreamError> {
    let method = http::Method::from_bytes(head.method_text().as_bytes()).map_err(|_| StreamError::H2)?;
    let authority = Authority::try_from(head.host()).map_err(|_| StreamError::H2)?;
    let mut uri = Uri::builder().authority(authority);
    if head.method != Method::Connect {
        let target = if head.target().is_empty() { "/" } else { head.target() };
        uri = uri.scheme(head.scheme.as_str()).path_and_query(target);
    }
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri.build().map_err(|_| StreamError::H2)?;
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = map_of(&head.fields);
    Ok(request)
}

/// Reads a response head.
pub(crate) fn response_from(parts: &http::response::Parts, head: &mut ResponseHead) -> Result<(), StreamError> {
    head.clear();
    head.protocol = Protocol::Http2;
    head.status = parts.status.as_u16();
    fields_of(&parts.headers, &mut head.fields);
    head.fields.remove_known(Known::Host);
    if head.status < 200 || head.status == 204 {
        // RFC 9110 section 8.6: no content-length here.
        head.fields.remove_known(Known::ContentLength);
    }
    single_length(&head.fields).map_err(|_| StreamError::H2)?;
    Ok(())
}

/// Writes a response head.
pub(crate) fn response_to(head: &ResponseHead) -> Result<Response<()>, StreamError> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.status).map_err(|_| StreamError::H2)?;
    *response.version_mut() = Version::HTTP_2;
    *response.headers_mut() = map_of(&head.fields);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(request: Request<()>) -> http::request::Parts {
        request.into_parts().0
    }

    #[test]
    fn a_request_survives_both_ways() {
        let request = Request::builder()
            .method("POST")
            .uri("https://shop.example:8443/a?b=c")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .header("te", "trailers")
            .header("content-type", "application/grpc")
            .body(())
            .expect("request");
        let mut head = RequestHead::default();
        request_from(&parts(request), &mut head).expect("valid");
        assert_eq!(
            (head.method_text(), head.target(), head.host()),
            ("POST", "/a?b=c", "shop.example:8443")
        );
        assert!(head.grpc);
        assert_eq!(head.fields.get_known(Known::Cookie), Some(&b"a=1; b=2"[..]));
        let back = request_to(&head).expect("valid");
        assert_eq!(back.uri(), "https://shop.example:8443/a?b=c");
        assert_eq!(back.headers()["te"], "trailers");
    }

    #[test]
    fn what_cannot_be_forwarded_is_refused() {
        let check = |request: Request<()>| request_from(&parts(request), &mut RequestHead::default());
        let get = || Request::builder().uri("http://h/");
        assert_eq!(
            check(
                get()
                    .header("content-length", "5")
                    .header("content-length", "6")
                    .body(())
                    .expect("ok")
            ),
            Err("http2.repeated_content_length")
        );
        assert_eq!(
            check(get().header("content-length", "+5").body(()).expect("ok")),
            Err("http2.invalid_content_length")
        );
        assert_eq!(
            check(Request::builder().uri("/").body(()).expect("ok")),
            Err("missing_host_header")
        );
        assert_eq!(
            check(Request::builder().uri("http://user@h/").body(()).expect("ok")),
            Err("invalid_host")
        );
    }

    #[test]
    fn connection_fields_do_not_reach_http2() {
        let mut head = ResponseHead {
            status: 200,
            ..ResponseHead::default()
        };
        head.fields.push(b"connection", b"close");
        head.fields.push(b"x-a", b"1");
        let response = response_to(&head).expect("valid");
        assert_eq!(response.headers().len(), 1);
    }
}
