//! A client's request head. What is accepted is written again and must mean the same to the next reader.
#![no_main]

use heddle_fuzz::{head_end, is_one_line, request_bytes};
use heddle_http::parse::{Framing, Known, Method, RequestHead, parse_request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(end) = head_end(bytes) else { return };
    let raw = &bytes[..end];
    let mut head = RequestHead::default();
    let strict = parse_request(raw, false, &mut head);
    let result = parse_request(raw, true, &mut head);
    if let Ok(facts) = strict {
        assert_eq!(
            result,
            Ok(facts),
            "permission for HTTP/1.0 changes nothing for HTTP/1.1"
        );
    }
    let Ok(facts) = result else { return };

    // Nothing in the head may become another line, another field, or another message.
    assert!(!head.method_text().is_empty());
    assert!(
        head.target().bytes().all(|b| b.is_ascii_graphic()),
        "{:?}",
        head.target()
    );
    assert!(head.host().bytes().all(|b| b.is_ascii_graphic()), "{:?}", head.host());
    for (known, name, value) in head.fields.iter() {
        assert!(!name.is_empty() && !name.iter().any(u8::is_ascii_uppercase));
        assert_eq!(known, Known::of(name));
        assert!(is_one_line(value), "{value:?}");
    }
    for hop in [
        Known::Host,
        Known::Connection,
        Known::TransferEncoding,
        Known::KeepAlive,
        Known::ProxyConnection,
    ] {
        assert!(!head.fields.has_known(hop), "{hop:?} ends here");
    }
    // At most the colon's blank more than what came, for each field.
    let size = head.fields.byte_size();
    assert!(size <= raw.len() + head.fields.len(), "{size} bytes from {}", raw.len());

    let host = head.host();
    if host.is_empty() {
        return; // HTTP/1.0 alone may leave it out; the router answers for it.
    }
    let name = host.rsplit_once(':').map_or(host, |(name, port)| {
        assert!(
            port.ends_with(']') || port.is_empty() || port.parse::<u16>().is_ok(),
            "port of {host:?}"
        );
        name
    });
    assert!(!name.is_empty(), "a port without a host: {host:?}");
    let target = if head.method == Method::Connect {
        assert!(
            host.rsplit_once(':')
                .is_some_and(|(_, port)| port.parse::<u16>().is_ok()),
            "{host:?}"
        );
        host
    } else {
        head.target()
    };

    let mut out = request_bytes(&head, target);
    if facts.framing == Framing::Chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    if facts.expect_continue {
        out.extend_from_slice(b"expect: 100-continue\r\n");
    }
    if facts.upgrade {
        out.extend_from_slice(b"connection: upgrade\r\n");
    }
    out.extend_from_slice(b"\r\n");
    assert_eq!(head_end(&out), Some(out.len()), "one head");
    let mut again = RequestHead::default();
    let facts_again =
        parse_request(&out, false, &mut again).unwrap_or_else(|e| panic!("{e}: {:?}", String::from_utf8_lossy(&out)));
    assert_eq!(facts_again.framing, facts.framing);
    assert_eq!(facts_again.expect_continue, facts.expect_continue);
    assert_eq!(facts_again.upgrade, facts.upgrade);
    assert_eq!(again.method_text(), head.method_text());
    assert_eq!((again.target(), again.host()), (head.target(), head.host()));
    assert!(again.fields.iter().eq(head.fields.iter()));
});
