use super::super::hpack::Decoder;
use super::*;

const LIMITS: Limits = Limits {
    max_bytes: 1024,
    max_count: 10,
};

fn feed(reader: &mut HeadReader, section: Section, fields: &[(&str, &str)]) {
    reader.begin(section, LIMITS);
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "one byte of length");
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    let mut decoder = Decoder::new(4096);
    decoder.begin();
    let taken = decoder.decode(&block, |f| reader.field(f)).expect("decodes");
    assert_eq!(taken, block.len());
}

const BASE: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/a?b"),
    (":authority", "shop"),
];

fn request(extra: &[(&str, &str)]) -> (HeadReader, Result<Asked, HeadError>) {
    let mut reader = HeadReader::default();
    feed(&mut reader, Section::Request, &[BASE, extra].concat());
    let result = reader.finish_request(false);
    (reader, result)
}

fn with(name: &str, value: Option<&str>) -> Result<Asked, HeadError> {
    let mut fields: Vec<(&str, &str)> = BASE.iter().copied().filter(|(n, _)| *n != name).collect();
    if let Some(value) = value {
        fields.insert(0, (name, value));
    }
    let mut reader = HeadReader::default();
    feed(&mut reader, Section::Request, &fields);
    reader.finish_request(false)
}

#[test]
fn a_request() {
    let (reader, result) = request(&[
        ("cookie", "a=1"),
        ("x-a", " spaced \t"),
        ("cookie", "b=2"),
        ("te", "trailers"),
        ("expect", "100-continue"),
        ("content-type", "application/grpc"),
    ]);
    assert_eq!(result.map(|asked| asked.expect_continue), Ok(true));
    let head = &reader.request;
    assert_eq!(
        (head.method_text(), head.target(), head.host()),
        ("GET", "/a?b", "shop")
    );
    assert_eq!(head.scheme, Scheme::Https);
    assert!(head.grpc);
    assert_eq!(head.fields.get_known(Known::Cookie), Some(&b"a=1; b=2"[..]));
    assert_eq!(head.fields.get(b"x-a"), Some(&b"spaced"[..]));
    assert!(!head.fields.has_known(Known::Expect));
}

#[test]
fn malformed_requests() {
    for (extra, cause) in [
        (&[("x-a", "1"), (":path", "/b")][..], "pseudo_field_order"),
        (&[(":path", "/b")], "repeated_pseudo_field"),
        (&[(":status", "200")], "pseudo_field"),
        (&[(":protocol", "websocket")], "pseudo_field"),
        (&[("X-A", "1")], "invalid_field"),
        (&[("x-a", "1\n2")], "invalid_field"),
        (&[("connection", "close")], "connection_field"),
        (&[("transfer-encoding", "chunked")], "connection_field"),
        (&[("upgrade", "h2c")], "connection_field"),
        (&[("te", "gzip")], "te"),
        (&[("content-length", "1"), ("content-length", "1")], "content_length"),
        (&[("content-length", "-1")], "content_length"),
    ] {
        assert_eq!(request(extra).1, Err(HeadError::Malformed(cause)), "{extra:?}");
    }
    for (name, value, cause) in [
        (":method", None, "missing_pseudo_field"),
        (":scheme", None, "missing_pseudo_field"),
        (":path", None, "missing_pseudo_field"),
        (":path", Some(""), "path"),
        (":scheme", Some("1"), "scheme"),
        (":method", Some("CONNECT"), "missing_pseudo_field"),
    ] {
        assert_eq!(with(name, value), Err(HeadError::Malformed(cause)), "{name} {value:?}");
    }
    let mut reader = HeadReader::default();
    feed(
        &mut reader,
        Section::Request,
        &[BASE, &[("content-length", "5")]].concat(),
    );
    assert_eq!(reader.finish_request(true), Err(HeadError::Malformed("content_length")));
    let tunnel = [(":method", "CONNECT"), (":authority", "h:1"), ("content-length", "5")];
    feed(&mut reader, Section::Request, &tunnel);
    assert_eq!(
        reader.finish_request(false),
        Err(HeadError::Malformed("content_length"))
    );
    feed(&mut reader, Section::Request, &tunnel[..2]);
    assert_eq!(reader.finish_request(false), Ok(Asked::default()));
}

/// A request where `:protocol` may stand, with these fields in place of those of the same name.
fn extended(fields: &[(&str, &str)], left_out: &[&str]) -> (HeadReader, Result<Asked, HeadError>) {
    let mut all = vec![
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat"),
        (":authority", "shop"),
    ];
    for (name, value) in fields {
        match all.iter_mut().find(|(n, _)| n == name) {
            Some(field) => field.1 = value,
            None => all.push((name, value)),
        }
    }
    all.retain(|(name, _)| !left_out.contains(name));
    let mut reader = HeadReader::new(true);
    feed(&mut reader, Section::Request, &all);
    let result = reader.finish_request(false);
    (reader, result)
}

#[test]
fn an_extended_connect_is_an_upgrade() {
    let (reader, result) = extended(&[("expect", "100-continue"), ("sec-websocket-version", "13")], &[]);
    let asked = Asked {
        expect_continue: false,
        upgrade: true,
    };
    assert_eq!(result, Ok(asked));
    let head = &reader.request;
    assert_eq!(
        (head.method, head.method_text(), head.target(), head.host()),
        (Method::Get, "GET", "/chat", "shop")
    );
    assert_eq!(head.fields.get_known(Known::Upgrade), Some(&b"websocket"[..]));
    // And back.
    let mut block = Vec::new();
    encode_request(head, true, &mut Encoder::new(&mut block, false));
    let mut decoder = Decoder::new(4096);
    decoder.begin();
    let mut fields = Vec::new();
    decoder
        .decode(&block, |f| fields.push((f.name.to_vec(), f.value.to_vec())))
        .expect("decodes");
    let fields: Vec<String> = fields
        .iter()
        .map(|(name, value)| format!("{} {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)))
        .collect();
    assert_eq!(
        fields,
        [
            ":method CONNECT",
            ":protocol websocket",
            ":scheme https",
            ":path /chat",
            ":authority shop",
            "sec-websocket-version 13"
        ]
    );
}

#[test]
fn extended_connects_that_are_none() {
    for (fields, left_out, cause) in [
        (&[(":method", "GET")][..], &[][..], "protocol_without_connect"),
        (&[], &[":method"], "protocol_without_connect"),
        (&[], &[":scheme"], "missing_pseudo_field"),
        (&[], &[":path"], "missing_pseudo_field"),
        (&[], &[":authority"], "missing_pseudo_field"),
        (&[(":protocol", "")], &[], "protocol"),
        (&[(":protocol", "websocket, h2c")], &[], "protocol"),
        (&[(":path", "")], &[], "path"),
        (&[("content-length", "0")], &[], "content_length"),
        (&[("upgrade", "websocket")], &[], "connection_field"),
    ] {
        let (_, result) = extended(fields, left_out);
        assert_eq!(
            result,
            Err(HeadError::Malformed(cause)),
            "{fields:?} without {left_out:?}"
        );
    }
    let (_, star) = extended(&[(":path", "*")], &[]);
    assert_eq!(star, Err(refused("http2.invalid_path")));
}

#[test]
fn requests_that_are_answered() {
    for (name, value, details) in [
        (":method", "", "http2.invalid_method"),
        (":method", "G E", "http2.invalid_method"),
        (":method", "post", "http2.invalid_method"),
        (":path", "*", "http2.invalid_path"),
        (":path", "a", "http2.invalid_path"),
        (":path", "/a#b", "http2.invalid_path"),
        (":path", "/a b", "http2.invalid_path"),
        (":path", "/\u{e9}", "http2.invalid_path"),
        (":authority", "a b", "invalid_host"),
        (":authority", "user@shop", "invalid_host"),
        (":authority", "", "missing_host_header"),
    ] {
        assert_eq!(with(name, Some(value)), Err(refused(details)), "{name} {value}");
    }
    assert_eq!(with(":authority", None), Err(refused("missing_host_header")));
    let many: Vec<(&str, &str)> = std::iter::repeat_n(("x-a", "1"), 11).collect();
    assert_eq!(
        request(&many).1,
        Err(HeadError::Refused(Failure::Protocol(H1Error::TooMany)))
    );
    let long = "v".repeat(120);
    let large: Vec<(&str, &str)> = std::iter::repeat_n(("x-a", &*long), 9).collect();
    assert_eq!(
        request(&large).1,
        Err(HeadError::Refused(Failure::Protocol(H1Error::TooLarge)))
    );
    assert_eq!(
        request(&[("expect", "miracles")]).1,
        Err(HeadError::Refused(Failure::Protocol(H1Error::Expectation)))
    );
}

#[test]
fn hosts() {
    let mut reader = HeadReader::default();
    feed(
        &mut reader,
        Section::Request,
        &[(":method", "GET"), (":scheme", "http"), (":path", "/"), ("host", "old")],
    );
    assert_eq!(reader.finish_request(true), Ok(Asked::default()));
    assert_eq!(reader.request.host(), "old");
    let (reader, result) = request(&[("host", "other")]);
    assert_eq!(result, Ok(Asked::default()));
    assert_eq!(reader.request.host(), "shop", "the pseudo-header field decides");
    assert!(!reader.request.fields.has_known(Known::Host));
}

#[test]
fn responses_and_trailers() {
    for (fields, result) in [
        (&[(":status", "200")][..], Ok(())),
        (&[(":status", "999")], Ok(())),
        (&[], Err("status")),
        (&[(":status", "20")], Err("status")),
        (&[(":status", "+20")], Err("status")),
        (&[(":status", "099")], Err("status")),
        (&[(":status", "101")], Err("status")),
        (&[(":status", "200"), (":path", "/")], Err("pseudo_field")),
        (&[(":status", "200"), ("connection", "close")], Err("connection_field")),
        (&[(":status", "200"), ("content-length", "a")], Err("content_length")),
    ] {
        let mut reader = HeadReader::default();
        feed(&mut reader, Section::Response, fields);
        assert_eq!(reader.finish_response(), result, "{fields:?}");
    }
    for (fields, result) in [
        (&[("grpc-status", "0")][..], Ok(1)),
        (&[], Ok(0)),
        (&[(":path", "/")], Err("pseudo_field")),
        (&[("X", "/")], Err("invalid_field")),
    ] {
        let mut reader = HeadReader::default();
        feed(&mut reader, Section::Trailers, fields);
        let found = reader.finish_trailers().map(|t| t.map_or(0, |t| t.len()));
        assert_eq!(found, result, "{fields:?}");
    }
    let mut reader = HeadReader::default();
    let many: Vec<(&str, &str)> = std::iter::repeat_n(("x-a", "1"), 11).collect();
    feed(&mut reader, Section::Trailers, &many);
    assert_eq!(reader.finish_trailers().err(), Some("header_overflow"));
}
