//! An upstream's response head. What is accepted is written again and must mean the same to the client.
#![no_main]

use heddle_fuzz::{head_end, is_one_line, written};
use heddle_http::parse::{Framing, Known, Method, Protocol, ResponseHead, parse_response};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(end) = head_end(bytes) else { return };
    let raw = &bytes[..end];
    let mut head = ResponseHead::default();
    for method in [Method::Get, Method::Head, Method::Connect] {
        if parse_response(raw, method, &mut head).is_err() {
            continue;
        }
        assert!((100..=999).contains(&head.status));
        for (known, name, value) in head.fields.iter() {
            assert!(!name.is_empty() && !name.iter().any(u8::is_ascii_uppercase));
            assert_eq!(known, Known::of(name));
            assert!(is_one_line(value), "{value:?}");
        }
        for hop in [
            Known::Connection,
            Known::TransferEncoding,
            Known::KeepAlive,
            Known::ProxyConnection,
        ] {
            assert!(!head.fields.has_known(hop), "{hop:?} ends here");
        }
        assert!(head.fields.byte_size() <= raw.len() + head.fields.len());
        let tunnel = head.status == 101 || (method == Method::Connect && (200..300).contains(&head.status));
        let bodiless = method == Method::Head || head.status < 200 || matches!(head.status, 204 | 304);
        match head.framing {
            Framing::UntilClose => assert!(!head.keep_alive, "the connection is the body"),
            Framing::Length(n) => assert!(n > 0 && !tunnel && !bodiless),
            Framing::Chunked => assert!(head.protocol == Protocol::Http11 && !tunnel && !bodiless),
            Framing::None => assert!(!tunnel),
        }

        let mut out = format!("HTTP/1.1 {} \r\n", head.status).into_bytes();
        out.extend(written(&head.fields));
        if head.framing == Framing::Chunked {
            out.extend_from_slice(b"transfer-encoding: chunked\r\n");
        }
        out.extend_from_slice(b"\r\n");
        assert_eq!(head_end(&out), Some(out.len()), "one head");
        let mut again = ResponseHead::default();
        parse_response(&out, method, &mut again).unwrap_or_else(|e| panic!("{e}: {:?}", String::from_utf8_lossy(&out)));
        assert_eq!((again.status, again.framing), (head.status, head.framing));
        assert!(again.fields.iter().eq(head.fields.iter()));
    }
});
