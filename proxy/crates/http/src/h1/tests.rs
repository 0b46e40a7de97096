//! Tables of requests and responses, good and hostile.

use super::start_line::{RequestLine, StatusLine};
use super::*;
use crate::head::{Fields, Framing, Known, Method, Protocol, RequestHead, ResponseHead};

const LIMITS: Limits = Limits {
    max_bytes: 8192,
    max_count: 100,
};

fn request(raw: &str) -> Result<(RequestHead, RequestFacts), H1Error> {
    let end = HeadScan::default()
        .advance(raw.as_bytes(), LIMITS)?
        .ok_or(H1Error::Incomplete)?;
    let mut head = RequestHead::default();
    let facts = parse_request(&raw.as_bytes()[..end], true, &mut head)?;
    Ok((head, facts))
}

fn response(raw: &str, method: Method) -> Result<ResponseHead, H1Error> {
    let end = HeadScan::default()
        .advance(raw.as_bytes(), LIMITS)?
        .ok_or(H1Error::Incomplete)?;
    let mut head = ResponseHead::default();
    parse_response(&raw.as_bytes()[..end], method, &mut head)?;
    Ok(head)
}

#[test]
fn good_requests() {
    let cases: &[(&str, &str, &str, Framing, bool)] = &[
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "/", "a", Framing::None, true),
        (
            "GET /x?y HTTP/1.1\r\nHost: a:8080\r\nConnection: close\r\n\r\n",
            "/x?y",
            "a:8080",
            Framing::None,
            false,
        ),
        (
            "GET http://b/c HTTP/1.1\r\nHost: a\r\n\r\n",
            "/c",
            "b",
            Framing::None,
            true,
        ),
        (
            "GET HTTP://b?q HTTP/1.1\r\nHost: a\r\n\r\n",
            "/?q",
            "b",
            Framing::None,
            true,
        ),
        ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "*", "a", Framing::None, true),
        (
            "OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n",
            "*",
            "a",
            Framing::None,
            true,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
            "/",
            "a",
            Framing::Length(5),
            true,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
            "/",
            "a",
            Framing::None,
            true,
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n",
            "/",
            "a",
            Framing::Chunked,
            true,
        ),
        ("GET / HTTP/1.0\r\n\r\n", "/", "", Framing::None, false),
        (
            "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
            "/",
            "",
            Framing::None,
            true,
        ),
        (
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
            "",
            "a:443",
            Framing::None,
            true,
        ),
        (
            "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
            "/",
            "[::1]:80",
            Framing::None,
            true,
        ),
    ];
    for (raw, target, host, framing, keep_alive) in cases {
        let (head, facts) = request(raw).unwrap_or_else(|e| panic!("{raw:?}: {e}"));
        assert_eq!(head.target(), *target, "{raw:?}");
        assert_eq!(head.host(), *host, "{raw:?}");
        assert_eq!(facts.framing, *framing, "{raw:?}");
        assert_eq!(facts.keep_alive, *keep_alive, "{raw:?}");
    }
}

#[test]
fn bad_requests() {
    let with = |line: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n");
    let cases: Vec<(String, H1Error)> = vec![
        // Two readings of where the body ends.
        (with("Content-Length: 5\r\nContent-Length: 5"), H1Error::RepeatedLength),
        (with("Content-Length: 5\r\nContent-Length: 6"), H1Error::RepeatedLength),
        (with("Content-Length: 5, 5"), H1Error::RepeatedLength),
        (with("Content-Length: +5"), H1Error::Length),
        (with("Content-Length: -5"), H1Error::Length),
        (with("Content-Length: 0x5"), H1Error::Length),
        (with("Content-Length: 5 5"), H1Error::Length),
        (with("Content-Length:"), H1Error::Length),
        (with("Content-Length: 99999999999999999999"), H1Error::Length),
        (
            with("Content-Length: 5\r\nTransfer-Encoding: chunked"),
            H1Error::LengthAndEncoding,
        ),
        (
            with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
            H1Error::TransferEncoding,
        ),
        (with("Transfer-Encoding: chunked, chunked"), H1Error::TransferEncoding),
        (with("Transfer-Encoding: gzip, chunked"), H1Error::TransferEncoding),
        (with("Transfer-Encoding: chunked, identity"), H1Error::TransferEncoding),
        (with("Transfer-Encoding: identity"), H1Error::UnknownEncoding),
        (with("Transfer-Encoding: xchunked"), H1Error::UnknownEncoding),
        (with("Transfer-Encoding: \x0bchunked"), H1Error::HeaderLine),
        (with("Transfer-Encoding:"), H1Error::TransferEncoding),
        (
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".into(),
            H1Error::TransferEncoding,
        ),
        // Lines that other parsers read differently.
        (with("Transfer-Encoding : chunked"), H1Error::HeaderLine),
        (with("X: a\r\n folded"), H1Error::HeaderLine),
        (with("X: a\r\n\tfolded"), H1Error::HeaderLine),
        (with(" X: a"), H1Error::HeaderLine),
        (with("X"), H1Error::HeaderLine),
        (with(": x"), H1Error::HeaderLine),
        (with("X: a\nY: b"), H1Error::BareNewline),
        (with("X: a\rY: b"), H1Error::HeaderLine),
        (with("X: a\0b"), H1Error::HeaderLine),
        (with("X\0: b"), H1Error::HeaderLine),
        (with("X(y): b"), H1Error::HeaderLine),
        ("GET / HTTP/1.1\nHost: a\n\n".into(), H1Error::BareNewline),
        // Whose request is it?
        ("GET / HTTP/1.1\r\n\r\n".into(), H1Error::MissingHost),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n".into(), H1Error::MissingHost),
        ("GET http://b/ HTTP/1.1\r\n\r\n".into(), H1Error::MissingHost),
        (with("Host: b"), H1Error::Host),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n".into(), H1Error::Host),
        ("GET / HTTP/1.1\r\nHost: user@a\r\n\r\n".into(), H1Error::Host),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".into(), H1Error::Host),
        ("GET / HTTP/1.1\r\nHost: a:b\r\n\r\n".into(), H1Error::Host),
        ("GET / HTTP/1.1\r\nHost: [::1\r\n\r\n".into(), H1Error::Host),
        ("GET / HTTP/1.1\r\nHost: :80\r\n\r\n".into(), H1Error::Host),
        ("GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n".into(), H1Error::Host),
        ("GET http://u@b/ HTTP/1.1\r\nHost: a\r\n\r\n".into(), H1Error::Target),
        // Start lines.
        ("GET /a b HTTP/1.1\r\nHost: a\r\n\r\n".into(), H1Error::Version),
        ("GET /#f HTTP/1.1\r\nHost: a\r\n\r\n".into(), H1Error::Target),
        ("GET a HTTP/1.1\r\nHost: a\r\n\r\n".into(), H1Error::Target),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n".into(), H1Error::Target),
        ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n".into(), H1Error::Target),
        ("GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n".into(), H1Error::Target),
        ("CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n".into(), H1Error::Target),
        ("CONNECT a: HTTP/1.1\r\nHost: a\r\n\r\n".into(), H1Error::Target),
        ("CONNECT [::1] HTTP/1.1\r\nHost: [::1]\r\n\r\n".into(), H1Error::Target),
        ("GET / HTTP/1.2\r\nHost: a\r\n\r\n".into(), H1Error::Version),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(), H1Error::Version),
        ("GET / http/1.1\r\nHost: a\r\n\r\n".into(), H1Error::Version),
        ("G(T / HTTP/1.1\r\nHost: a\r\n\r\n".into(), H1Error::StartLine),
        ("GET  / HTTP/1.1\r\nHost: a\r\n\r\n".into(), H1Error::StartLine),
        // A client must not make us drop fields that say whose the message is.
        (
            with("Connection: close, content-length\r\nContent-Length: 3"),
            H1Error::Connection,
        ),
        (with("Connection: X-Forwarded-Client-Cert"), H1Error::Connection),
        (
            with("Connection: transfer-encoding\r\nTransfer-Encoding: chunked"),
            H1Error::Connection,
        ),
        (with("Expect: something"), H1Error::Expectation),
    ];
    for (raw, error) in cases {
        assert_eq!(request(&raw).err(), Some(error), "{raw:?}");
    }
}

#[test]
fn hop_by_hop_fields_end_here() {
    let (head, facts) = request(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: x-private, Upgrade\r\nX-Private: 1\r\nKeep-Alive: 5\r\n\
         Proxy-Connection: x\r\nUpgrade: websocket\r\nX-Public: 1\r\n\r\n",
    )
    .expect("valid");
    assert!(facts.upgrade);
    assert!(head.fields.get(b"x-private").is_none());
    assert!(!head.fields.has_known(Known::KeepAlive) && !head.fields.has_known(Known::ProxyConnection));
    assert!(head.fields.get(b"x-public").is_some());
    let (_, facts) = request("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n").expect("valid");
    assert!(!facts.upgrade, "without connection: upgrade it is just a field");
}

#[test]
fn limits() {
    let small = Limits {
        max_bytes: 64,
        max_count: 3,
    };
    let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(100));
    assert_eq!(
        HeadScan::default().advance(long.as_bytes(), small),
        Err(H1Error::TooLarge)
    );
    assert_eq!(HeadScan::default().advance(&[b'a'; 64], small), Err(H1Error::TooLarge));
    let many = "G / H\r\na:\r\na:\r\na:\r\na:\r\n";
    assert_eq!(
        HeadScan::default().advance(many.as_bytes(), small),
        Err(H1Error::TooMany)
    );
}

#[test]
fn http_10_needs_permission() {
    let raw = b"GET / HTTP/1.0\r\nHost: a\r\n\r\n";
    let mut head = RequestHead::default();
    assert_eq!(parse_request(raw, false, &mut head), Err(H1Error::Http10));
}

#[test]
fn good_responses() {
    let get = Method::Get;
    let framing = |raw: &str, method| response(raw, method).unwrap_or_else(|e| panic!("{raw:?}: {e}")).framing;
    assert_eq!(
        framing("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", get),
        Framing::Length(5)
    );
    assert_eq!(
        framing("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Method::Head),
        Framing::None
    );
    assert_eq!(
        framing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", get),
        Framing::Chunked
    );
    assert_eq!(framing("HTTP/1.1 200\r\n\r\n", get), Framing::UntilClose);
    assert_eq!(framing("HTTP/1.1 204 No Content\r\n\r\n", get), Framing::None);
    assert_eq!(
        framing("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", get),
        Framing::None
    );
    assert_eq!(framing("HTTP/1.1 103 Early Hints\r\n\r\n", get), Framing::None);
    assert_eq!(framing("HTTP/1.1 101 Switching\r\n\r\n", get), Framing::UntilClose);
    assert!(response("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", get).is_ok_and(|r| r.keep_alive));
    assert!(
        response("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n", get).is_ok_and(|r| !r.keep_alive)
    );
    assert!(response("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", get).is_ok_and(|r| !r.keep_alive));
    assert!(response("HTTP/1.1 200 OK\r\n\r\n", get).is_ok_and(|r| !r.keep_alive));
}

#[test]
fn bad_responses() {
    for (raw, error) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            H1Error::RepeatedLength,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            H1Error::LengthAndEncoding,
        ),
        (
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            H1Error::TransferEncoding,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            H1Error::UnknownEncoding,
        ),
        ("HTTP/1.1 099 Low\r\n\r\n", H1Error::StartLine),
        ("HTTP/1.1 20 Short\r\n\r\n", H1Error::StartLine),
        ("HTTP/2 200 OK\r\n\r\n", H1Error::Version),
        ("HTTP/1.1 200 OK\r\nX : y\r\n\r\n", H1Error::HeaderLine),
        ("HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\r\n", H1Error::HeaderLine),
        ("HTTP/1.1 200 OK\nX: y\n\n", H1Error::BareNewline),
        ("ICY 200 OK\r\n\r\n", H1Error::Version),
    ] {
        assert_eq!(response(raw, Method::Get).err(), Some(error), "{raw:?}");
    }
}

#[test]
fn any_split_finds_the_same_head() {
    let raw = b"GET /x HTTP/1.1\r\nHost: a\r\nX-Long: bbbbbbbbbbbbbbbb\r\n\r\nGET /next HTTP/1.1\r\n";
    let whole = HeadScan::default().advance(raw, LIMITS).expect("valid");
    for step in 1..raw.len() {
        let mut scan = HeadScan::default();
        let mut given = 0;
        let found = loop {
            given = (given + step).min(raw.len());
            if let Some(end) = scan.advance(&raw[..given], LIMITS).expect("valid") {
                break Some(end);
            }
        };
        assert_eq!(found, whole, "steps of {step}");
    }
}

/// Random bytes, and valid heads with random damage, never panic, and a head that is accepted is written in a form
/// that is accepted again and means the same.
#[test]
fn accepted_heads_are_stable() {
    let mut random = fastrand::Rng::with_seed(7);
    let seed: &[u8] = b"POST /path?x=1 HTTP/1.1\r\nHost: shop.example:80\r\nAccept:  a, b \r\nCookie: c=1; d=2\r\n\
        Connection: keep-alive\r\nContent-Length: 12\r\nX-Empty:\r\n\r\n";
    for _ in 0..20_000 {
        let mut raw = seed.to_vec();
        for _ in 0..random.usize(0..4) {
            let at = random.usize(..raw.len());
            match random.u8(..4) {
                0 => raw[at] = random.u8(..),
                1 => {
                    raw.remove(at);
                }
                2 => raw.insert(at, *random.choice(b"\r\n :,\0\t/ch5\x80").expect("not empty")),
                _ => {
                    let from = random.usize(..raw.len());
                    let copy = raw[from..(from + 9).min(raw.len())].to_vec();
                    raw.splice(at..at, copy);
                }
            }
        }
        let Ok(Some(end)) = HeadScan::default().advance(&raw, LIMITS) else {
            continue;
        };
        let mut head = RequestHead::default();
        let Ok(facts) = parse_request(&raw[..end], true, &mut head) else {
            continue;
        };
        let mut out = format!(
            "{} {} HTTP/1.1\r\nhost: {}\r\n",
            head.method_text(),
            head.target(),
            head.host()
        )
        .into_bytes();
        head.fields.write(&mut out);
        match facts.framing {
            Framing::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
            Framing::Length(_) | Framing::None | Framing::UntilClose => {}
        }
        out.extend_from_slice(b"\r\n");
        if head.host().is_empty() {
            continue;
        }
        let mut again = RequestHead::default();
        let facts_again = parse_request(&out, true, &mut again).unwrap_or_else(|e| {
            panic!(
                "{e}: {:?} from {:?}",
                String::from_utf8_lossy(&out),
                String::from_utf8_lossy(&raw)
            )
        });
        assert_eq!(facts_again.framing, facts.framing);
        assert_eq!((again.target(), again.host()), (head.target(), head.host()));
        assert_eq!(again.fields.len(), head.fields.len());
        let mut twice = Vec::new();
        again.fields.write(&mut twice);
        let mut once = Vec::new();
        head.fields.write(&mut once);
        assert_eq!(once, twice);
    }
}

/// What another parser makes of a head: the first line, then names in small letters and values, or what is wrong.
type Read = Result<(String, Vec<(Vec<u8>, Vec<u8>)>), H1Error>;

/// By `httparse`, which is lenient about LF alone: no such head comes to a parser, [`HeadScan`] refuses it.
fn read_by_httparse(raw: &[u8], request: bool) -> Read {
    let mut index = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let wrong = |error| match error {
        httparse::Error::Token | httparse::Error::Status => H1Error::StartLine,
        httparse::Error::Version => H1Error::Version,
        httparse::Error::TooManyHeaders => H1Error::TooMany,
        httparse::Error::NewLine => H1Error::BareNewline,
        _ => H1Error::HeaderLine,
    };
    let (status, line, fields) = if request {
        let mut read = httparse::Request::new(&mut index);
        let status = read.parse(raw).map_err(wrong)?;
        (
            status,
            format!("{:?} {:?} {:?}", read.method, read.path, read.version),
            read.headers,
        )
    } else {
        let mut read = httparse::Response::new(&mut index);
        let status = read.parse(raw).map_err(wrong)?;
        (status, format!("{:?} {:?}", read.version, read.code), read.headers)
    };
    match status {
        httparse::Status::Complete(n) if n == raw.len() => {}
        httparse::Status::Complete(_) => return Err(H1Error::HeaderLine),
        httparse::Status::Partial => return Err(H1Error::StartLine),
    }
    let field = |f: &httparse::Header<'_>| (f.name.to_ascii_lowercase().into_bytes(), f.value.to_vec());
    Ok((line, fields.iter().map(field).collect()))
}

fn read_here(raw: &[u8], request: bool) -> Read {
    let version = |protocol| Some(u8::from(protocol != Protocol::Http10));
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let (line, length) = if request {
        let line = RequestLine::parse(raw)?;
        let parts = (text(line.method), text(line.target), version(line.protocol));
        (format!("{:?} {:?} {:?}", parts.0, parts.1, parts.2), line.length)
    } else {
        let line = StatusLine::parse(raw)?;
        (
            format!("{:?} {:?}", version(line.protocol), Some(line.status)),
            line.length,
        )
    };
    let mut fields = Fields::new();
    fields.load(raw);
    fields.index_lines(length, MAX_FIELDS, |_, _| Ok::<_, H1Error>(true))?;
    let mut written = Vec::new();
    fields.write(&mut written);
    let lines = fields.iter().flat_map(|(_, name, value)| [name, b": ", value, b"\r\n"]);
    assert_eq!(
        written,
        lines.collect::<Vec<_>>().concat(),
        "what is sent on is what was read"
    );
    Ok((
        line,
        fields
            .iter()
            .map(|(_, name, value)| (name.to_vec(), value.to_vec()))
            .collect(),
    ))
}

/// A parser of others, proven by time, reads every head as this one does, and finds the same fault.
#[test]
fn heads_are_read_as_httparse_reads_them() {
    let heads: [(&[u8], bool); 5] = [
        (b"GET /products/1?a=b HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: Mozilla/5.0 (X11)\r\nAccept:*/*\r\n\r\n", true),
        (b"M-SEARCH * HTTP/1.0\r\nX_1-b2!:\t a\tb \t\r\nEmpty:\r\nBlank:  \r\n\r\n", true),
        ("GET /\u{e9} HTTP/1.1\r\nhost: \u{e9}\r\n\r\n".as_bytes(), true),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nSERVER: nginx\r\nSet-Cookie: a=b; c\r\n\r\n", false),
        (b"HTTP/1.0 404\r\nX: y\r\n\r\n", false),
    ];
    let mut random = fastrand::Rng::with_seed(3);
    let special = b"\r\n\t :-/HhZz09_\0\x1f\x20\x7e\x7f\x80\xc3\xa9\xff(";
    let mut accepted = 0;
    for round in 0..200_000 {
        let (head, request) = *random.choice(&heads).expect("a head");
        let mut raw = head.to_vec();
        for _ in 0..round % 4 {
            let at = random.usize(..raw.len());
            let byte = match random.bool() {
                true => *random.choice(special).expect("a byte"),
                false => random.u8(..),
            };
            match random.u8(..3) {
                0 => raw[at] = byte,
                1 => raw.insert(at, byte),
                _ => drop(raw.remove(at)),
            }
        }
        let limits = Limits {
            max_count: MAX_FIELDS,
            ..LIMITS
        };
        let Ok(Some(end)) = HeadScan::default().advance(&raw, limits) else {
            continue;
        };
        let raw = &raw[..end];
        let here = read_here(raw, request);
        // Empty lines before a start line are the connection's affair.
        if raw != b"\r\n" {
            assert_eq!(
                here,
                read_by_httparse(raw, request),
                "{:?}",
                String::from_utf8_lossy(raw)
            );
        }
        accepted += u32::from(here.is_ok());
    }
    assert!(accepted > 50_000, "{accepted} heads");
}

#[test]
fn a_head_has_so_many_lines() {
    for (lines, expected) in [(MAX_FIELDS, Ok(())), (MAX_FIELDS + 1, Err(H1Error::TooMany))] {
        let raw = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(lines));
        let mut head = ResponseHead::default();
        assert_eq!(parse_response(raw.as_bytes(), Method::Get, &mut head), expected);
    }
}
