//! Method, target and authority of a request, checked alike for both codecs.

use heddle_simd::{CHUNK, Chunk};

use super::request::Method;

/// Why a method or a target is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Not a token (RFC 9110 section 5.6.2), or a registered method in other letters: methods are case-sensitive, but
    /// not every server behind knows that. `PRI` belongs to the preface of HTTP/2 (RFC 9113 section 3.4).
    #[error("invalid method")]
    Method,
    /// Neither a path nor the `*` of `OPTIONS`, or with characters that have no place in a URI.
    #[error("invalid request target")]
    Target,
}

/// The methods of IANA's HTTP Method Registry, and `PURGE`.
const REGISTERED: &[&str] = &[
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

/// Whether a byte may stand in a token (RFC 9110 section 5.6.2).
pub(crate) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

/// The bits of the first bytes of a chunk.
#[inline]
pub(crate) fn first_bits(count: usize) -> u16 {
    ((1_u32 << count.min(CHUNK)) - 1) as u16
}

/// Whether each byte is one of `common`, which looks at many at once, or one that is `allowed`.
#[inline]
fn all(bytes: &[u8], common: impl Fn(Chunk) -> u16, allowed: impl Fn(u8) -> bool) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(rest.len().min(CHUNK));
        if first_bits(part.len()) & !common(Chunk::at(rest, 0)) != 0 && !part.iter().all(|b| allowed(*b)) {
            return false;
        }
        rest = behind;
    }
    true
}

/// Letters, digits, hyphens and dots.
#[inline]
fn letters_and_digits(chunk: Chunk) -> u16 {
    chunk.within(b'a', b'z') | chunk.within(b'A', b'Z') | chunk.within(b'-', b'.') | chunk.within(b'0', b'9')
}

/// Whether this is a token.
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, letters_and_digits, is_token_byte)
}

/// The kind of a method token.
///
/// # Errors
/// [`TargetError::Method`].
pub fn check_method(token: &[u8]) -> Result<Method, TargetError> {
    let method = Method::of(token);
    if method != Method::Other {
        return Ok(method);
    }
    let valid = is_token(token);
    // Registered names are in capitals, so only one with small letters can differ from one in nothing else.
    let other_letters = token.iter().any(u8::is_ascii_lowercase)
        && REGISTERED
            .iter()
            .any(|name| name.as_bytes().eq_ignore_ascii_case(token));
    if !valid || other_letters || token == b"PRI" {
        return Err(TargetError::Method);
    }
    Ok(method)
}

/// Checks the target of a request other than `CONNECT`: HTTP/1.1's origin form and asterisk form, HTTP/2's `:path`
/// (RFC 9112 section 3.2, RFC 9113 section 8.3.1). A fragment never travels (RFC 9110 section 7.1).
///
/// # Errors
/// [`TargetError::Target`].
pub fn check_target(method: Method, target: &[u8]) -> Result<(), TargetError> {
    let form = match target {
        [b'/', ..] => method != Method::Connect,
        b"*" => method == Method::Options,
        _ => false,
    };
    if form && all(target, |chunk| chunk.within(b'!', b'~') & !chunk.equal(b'#'), |_| false) {
        Ok(())
    } else {
        Err(TargetError::Target)
    }
}

/// Whether an authority names its port, as that of `CONNECT` must (RFC 9112 section 3.2.3). The colons of an IPv6 address
/// alone are none.
pub(crate) fn has_port(authority: &[u8]) -> bool {
    authority
        .rsplit(|b| *b == b':')
        .next()
        .is_some_and(|port| !port.is_empty() && port.len() < authority.len() && port.iter().all(u8::is_ascii_digit))
}

/// `host [":" port]` of RFC 3986 without user information. A port without a host names nobody (RFC 9110 section 4.2.1).
/// Empty is accepted: HTTP/1.0 and `Host:` may leave it out, which the caller judges.
pub(crate) fn is_authority(bytes: &[u8]) -> bool {
    // Nearly all are a name or an IPv4 address of less than a chunk, with or without a port.
    let others = !letters_and_digits(Chunk::at(bytes, 0)) & first_bits(bytes.len());
    if bytes.len() <= CHUNK && others == 0 {
        return true;
    }
    let (host, port) = if bytes.first() == Some(&b'[') {
        let Some(end) = memchr::memchr(b']', bytes) else {
            return false;
        };
        let (host, rest) = bytes.split_at(end + 1);
        let inside = host.get(1..host.len() - 1).unwrap_or_default();
        if inside.is_empty()
            || !inside
                .iter()
                .all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.' | b'%'))
        {
            return false;
        }
        match rest.split_first() {
            None => return true,
            Some((b':', port)) => (&b""[..], port),
            Some(_) => return false,
        }
    } else {
        let at = match others.trailing_zeros() as usize {
            at if bytes.get(at) == Some(&b':') => Some(at),
            _ => memchr::memchr(b':', bytes),
        };
        match at {
            Some(0) => return false,
            Some(at) => (
                bytes.get(..at).unwrap_or_default(),
                bytes.get(at + 1..).unwrap_or_default(),
            ),
            None => (bytes, &b""[..]),
        }
    };
    // reg-name: unreserved, sub-delims and percent signs.
    let host_ok = host.len() == others.trailing_zeros() as usize
        || all(host, letters_and_digits, |b| {
            b.is_ascii_alphanumeric()
                || matches!(
                    b,
                    b'-' | b'.'
                        | b'_'
                        | b'~'
                        | b'%'
                        | b'!'
                        | b'$'
                        | b'&'
                        | b'\''
                        | b'('
                        | b')'
                        | b'*'
                        | b'+'
                        | b','
                        | b';'
                        | b'='
                )
        });
    let port_ok = port.is_empty()
        || port.len() <= 5
            && port.iter().all(u8::is_ascii_digit)
            && port.iter().fold(0, |n, digit| n * 10 + u32::from(digit - b'0')) <= u32::from(u16::MAX);
    host_ok && port_ok
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods() {
        for (token, kind) in [
            ("GET", Method::Get),
            ("POST", Method::Post),
            ("PATCH", Method::Other),
            ("PROPFIND", Method::Other),
            ("REFRESH", Method::Other),
            ("refresh", Method::Other),
            ("x-1!~", Method::Other),
        ] {
            assert_eq!(check_method(token.as_bytes()), Ok(kind), "{token}");
        }
        for bad in [
            "",
            "post",
            "Post",
            "pOST",
            "get",
            "connect",
            "propfind",
            "Version-Control",
            "purge",
            "PRI",
            "pri",
            "PO ST",
            "POST\t",
            "GET/",
            "P(",
            "PÖST",
        ] {
            assert_eq!(check_method(bad.as_bytes()), Err(TargetError::Method), "{bad:?}");
        }
        for name in REGISTERED.iter().filter(|n| **n != "PRI") {
            assert!(check_method(name.as_bytes()).is_ok(), "{name}");
            assert!(check_method(name.to_lowercase().as_bytes()).is_err(), "{name}");
        }
    }

    #[test]
    fn targets() {
        for (method, target) in [
            (Method::Get, "/"),
            (Method::Get, "/a?b=c&d=/../%zz;[]"),
            (Method::Options, "*"),
            (Method::Options, "/x"),
            (Method::Other, "//x\\y"),
        ] {
            assert_eq!(check_target(method, target.as_bytes()), Ok(()), "{target}");
        }
        for (method, target) in [
            (Method::Get, "*"),
            (Method::Other, "*"),
            (Method::Options, "**"),
            (Method::Get, ""),
            (Method::Get, "a"),
            (Method::Get, "?a"),
            (Method::Get, "/a#b"),
            (Method::Get, "/a?b#c"),
            (Method::Get, "/a b"),
            (Method::Get, "/a\u{e9}"),
            (Method::Get, "/a\x7f"),
            (Method::Get, "http://h/"),
            (Method::Connect, "/"),
        ] {
            assert_eq!(
                check_target(method, target.as_bytes()),
                Err(TargetError::Target),
                "{method:?} {target:?}"
            );
        }
    }

    #[test]
    fn ports_have_sixteen_bits() {
        for port in 0..=100_000_u32 {
            let valid = port <= u32::from(u16::MAX);
            assert_eq!(is_authority(format!("h:{port}").as_bytes()), valid, "{port}");
            assert_eq!(is_authority(format!("[::1]:{port:05}").as_bytes()), valid, "{port}");
        }
        for (authority, valid) in [("h:", true), ("h:000001", false), ("h:+1", false), ("h:1a", false)] {
            assert_eq!(is_authority(authority.as_bytes()), valid, "{authority}");
        }
    }
}
