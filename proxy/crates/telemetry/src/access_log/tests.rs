use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use heddle_matching::{Metadata, RequestView};
use heddle_net::{ConnectionInfo, PeerIdentity};

use super::*;
use crate::{ResponseFlag, ResponseFlags};

struct Request(&'static [(&'static str, &'static str)]);

impl RequestView for Request {
    fn method(&self) -> &str {
        "GET"
    }
    fn path_and_query(&self) -> &str {
        "/cart?x=1"
    }
    fn authority(&self) -> &str {
        "shop.example"
    }
    fn scheme(&self) -> &str {
        "https"
    }
    fn visit_header<'s>(&'s self, name: &str, see: &mut dyn FnMut(&'s [u8])) {
        let value = match name {
            ":method" => Some(self.method()),
            ":path" => Some(self.path_and_query()),
            ":authority" => Some(self.authority()),
            ":scheme" => Some(self.scheme()),
            _ => self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| *v),
        };
        if let Some(value) = value {
            see(value.as_bytes());
        }
    }
    fn visit_fields<'s>(&'s self, see: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        self.0
            .iter()
            .for_each(|(name, value)| see(name.as_bytes(), value.as_bytes()));
    }
}

struct Headers(&'static [(&'static str, &'static str)]);

impl HeaderView for Headers {
    fn header(&self, name: &str) -> Option<Cow<'_, str>> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).into())
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("address")
}

fn connection() -> ConnectionInfo {
    let mut info = ConnectionInfo::plain(address("10.0.0.1:15006"), address("10.0.0.9:4444"));
    info.destination = address("10.0.0.1:8080");
    info.sni = Some("outbound_.80_._.cart".into());
    info.tls_version = Some("TLSv1.3");
    info.local_identity = Some("spiffe://td/ns/shop/sa/cart".into());
    info.peer = Some(Arc::new(PeerIdentity {
        uri_sans: vec!["spiffe://td/ns/shop/sa/front".into(), "spiffe://td/second".into()],
        subject: "CN=front".into(),
        ..PeerIdentity::default()
    }));
    info
}

fn line(format: &str, context: &LogContext<'_>) -> String {
    let mut out = Vec::new();
    Format::parse_text(format).expect(format).write(context, &mut out);
    String::from_utf8(out).expect("UTF-8")
}

fn with_context<T>(test: impl FnOnce(&LogContext<'_>) -> T) -> T {
    let connection = connection();
    let request = Request(&[
        ("user-agent", "curl/8"),
        ("x-request-id", "id-1"),
        ("evil", "a\nb\u{1b}[0m"),
    ]);
    let response = Headers(&[("x-envoy-upstream-service-time", "5")]);
    let trailers = Headers(&[("grpc-message", "none")]);
    let mut flags = ResponseFlags::NONE;
    flags.set(ResponseFlag::UpstreamConnectionFailure);
    test(&LogContext {
        start: Some(UNIX_EPOCH + Duration::from_millis(1_709_210_096_123)),
        duration: Some(Duration::from_micros(12_900)),
        response_duration: Some(Duration::from_millis(10)),
        connection: Some(&connection),
        remote_ip: Some([203, 0, 113, 7].into()),
        connection_id: 42,
        request: Some(&request),
        response: Some(&response),
        trailers: Some(&trailers),
        protocol: Some("HTTP/1.1"),
        response_code: Some(503),
        response_code_details: Some("upstream reset before response"),
        flags,
        bytes_received: 3,
        bytes_sent: 91,
        upstream_host: Some(address("10.0.0.2:8080")),
        upstream_local: Some(address("127.0.0.6:3333")),
        upstream_cluster: Some("inbound|8080||"),
        upstream_failure: Some("Connection refused"),
        attempts: 2,
        route_name: Some("default"),
        grpc_status: Some(14),
        ..LogContext::default()
    })
}

#[test]
fn istio_line() {
    with_context(|context| {
        assert_eq!(
            line(ISTIO_TEXT, context),
            "[2024-02-29T12:34:56.123Z] \"GET /cart?x=1 HTTP/1.1\" 503 UF upstream_reset_before_response - \
             \"Connection_refused\" 3 91 12 5 \"-\" \"curl/8\" \"id-1\" \"shop.example\" \"10.0.0.2:8080\" inbound|8080|| \
             127.0.0.6:3333 10.0.0.1:8080 203.0.113.7:0 outbound_.80_._.cart default\n"
        );
        assert!(
            line(ENVOY_DEFAULT, context)
                .starts_with("[2024-02-29T12:34:56.123Z] \"GET /cart?x=1 HTTP/1.1\" 503 UF 3 91")
        );
    });
}

#[test]
fn operators() {
    with_context(|context| {
        for (format, expected) in [
            ("plain 100%%", "plain 100%"),
            ("%REQ(X-NOT?USER-AGENT)%", "curl/8"),
            ("%REQ(USER-AGENT):4%", "curl"),
            ("%REQ(X-NOT)%", "-"),
            ("%REQ(EVIL)%", "a\\x0ab\\x1b[0m"),
            ("%TRAILER(GRPC-MESSAGE)%", "none"),
            ("%START_TIME(%Y/%m (x))%", "2024/02 (x)"),
            ("%START_TIME(%s.%3f)%", "1709210096.123"),
            ("%RESPONSE_FLAGS_LONG%", "UpstreamConnectionFailure"),
            ("%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", "203.0.113.7"),
            ("%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%", "10.0.0.9:4444"),
            ("%DOWNSTREAM_LOCAL_PORT%", "8080"),
            (
                "%DOWNSTREAM_PEER_URI_SAN%",
                "spiffe://td/ns/shop/sa/front,spiffe://td/second",
            ),
            ("%DOWNSTREAM_PEER_SUBJECT%", "CN=front"),
            ("%DOWNSTREAM_PEER_DNS_SAN%", "-"),
            ("%DOWNSTREAM_LOCAL_URI_SAN%", "spiffe://td/ns/shop/sa/cart"),
            ("%DOWNSTREAM_TLS_VERSION%", "TLSv1.3"),
            ("%CONNECTION_ID%", "42"),
            ("%RESPONSE_TX_DURATION%", "2"),
            ("%UPSTREAM_REQUEST_ATTEMPT_COUNT%", "2"),
            ("%GRPC_STATUS%", "Unavailable"),
            ("%GRPC_STATUS(SNAKE_STRING)%", "UNAVAILABLE"),
            ("%GRPC_STATUS_NUMBER%", "14"),
            ("%UPSTREAM_CLUSTER%", "inbound|8080||"),
            ("%VIRTUAL_HOST_NAME%", "-"),
        ] {
            assert_eq!(line(format, context), expected, "{format}");
        }
    });
}

#[test]
fn nothing_known() {
    let empty = LogContext::default();
    assert_eq!(
        line(ISTIO_TEXT, &empty),
        "[-] \"- - -\" 0 - - - \"-\" 0 0 - - \"-\" \"-\" \"-\" \"-\" \"-\" - - - - - -\n"
    );
}

#[test]
fn header_values() {
    with_context(|context| {
        let mut out = Vec::new();
        Format::parse_text("%DOWNSTREAM_PEER_DNS_SAN%%PROTOCOL%")
            .expect("format")
            .write_header_value(context, &mut out);
        assert_eq!(out, b"HTTP/1.1");
    });
    assert!(Format::parse_text("constant").expect("format").is_constant());
    assert!(!Format::parse_text("%PROTOCOL%").expect("format").is_constant());
}

#[test]
fn json() {
    let format = serde_json::json!({
        "code": "%RESPONSE_CODE%",
        "path": "%REQ(:PATH)%",
        "both": "%PROTOCOL% %RESPONSE_FLAGS%",
        "quoted": "\"%REQ(EVIL)%\"",
        "missing": "%REQ(X-NOT)%",
        "nested": {"fixed": "a\"b", "n": 7, "list": ["%DURATION%", true]},
    });
    let format = Format::parse_json(&format).expect("format");
    with_context(|context| {
        let mut out = Vec::new();
        format.write(context, &mut out);
        assert_eq!(out.last(), Some(&b'\n'));
        let value: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(
            value,
            serde_json::json!({
                "code": 503,
                "path": "/cart?x=1",
                "both": "HTTP/1.1 UF",
                "quoted": "\"a\\x0ab\\x1b[0m\"",
                "missing": null,
                "nested": {"fixed": "a\"b", "n": 7, "list": [12, true]},
            })
        );
    });
}

#[test]
fn refused() {
    for (format, said) in [
        ("%NOPE%", "operator %NOPE%: this operator is not implemented"),
        (
            "%UPSTREAM_METADATA(a:b)%",
            "operator %UPSTREAM_METADATA(a:b)%: this operator is not implemented",
        ),
        ("%REQ%", "it needs a header's name"),
        ("%REQ()%", "it needs a header's name"),
        ("%REQ(a b)%", "`a b` is not a header's name"),
        ("%PROTOCOL(x)%", "it takes no argument"),
        ("%PROTOCOL:3%", "it takes no length"),
        ("%START_TIME(%Q)%", "the time format has `%Q`"),
        ("%GRPC_STATUS(x)%", "`x` is not CAMEL_STRING"),
        ("100% sure", "`%` at byte 3 begins no operator"),
        ("%protocol%", "begins no operator"),
        ("%PROTOCOL", "begins no operator"),
        ("%REQ(x", "begins no operator"),
        ("%REQ(x):%", "begins no operator"),
    ] {
        let error = Format::parse_text(format).expect_err(format).to_string();
        assert!(error.contains(said), "{format}: {error}");
    }
    assert!(Format::parse_text(&"x".repeat(MAX_FORMAT + 1)).is_err());
    let error = Format::parse_json(&serde_json::json!({"a": {"b": "%NOPE%"}}))
        .expect_err("json")
        .to_string();
    assert_eq!(
        error,
        "json_format field `a.b`: operator %NOPE%: this operator is not implemented"
    );
    assert!(Format::parse_json(&serde_json::json!({"a": null})).is_err());
    assert!(Format::parse_json(&serde_json::json!(["a"])).is_err());
    let deep = (0..40).fold(serde_json::json!("x"), |inner, _| serde_json::json!({ "a": inner }));
    assert!(Format::parse_json(&deep).is_err());
}

#[test]
fn ipv6_addresses() {
    let address = |text: &str| text.parse().expect("address");
    let connection = ConnectionInfo::plain(address("[fd00::2]:15006"), address("[2001:db8::7]:40000"));
    let context = LogContext {
        connection: Some(&connection),
        upstream_host: Some(address("[fd00::3]:8080")),
        upstream_local: Some(address("[::6]:5000")),
        ..LogContext::default()
    };
    for (format, expected) in [
        ("%DOWNSTREAM_REMOTE_ADDRESS%", "[2001:db8::7]:40000"),
        ("%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", "2001:db8::7"),
        ("%DOWNSTREAM_LOCAL_ADDRESS%", "[fd00::2]:15006"),
        ("%UPSTREAM_HOST%", "[fd00::3]:8080"),
        ("%UPSTREAM_LOCAL_ADDRESS%", "[::6]:5000"),
    ] {
        assert_eq!(line(format, &context), expected, "{format}");
    }
}

/// A request of which filters learned something.
struct Learned(Request, Metadata);

impl RequestView for Learned {
    fn method(&self) -> &str {
        self.0.method()
    }
    fn path_and_query(&self) -> &str {
        self.0.path_and_query()
    }
    fn authority(&self) -> &str {
        self.0.authority()
    }
    fn scheme(&self) -> &str {
        self.0.scheme()
    }
    fn visit_header<'s>(&'s self, name: &str, see: &mut dyn FnMut(&'s [u8])) {
        self.0.visit_header(name, see);
    }
    fn visit_fields<'s>(&'s self, see: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        self.0.visit_fields(see);
    }
    fn metadata(&self) -> Option<&Metadata> {
        Some(&self.1)
    }
}

#[test]
fn dynamic_metadata() {
    let mut metadata = Metadata::default();
    let payload = serde_json::json!({"payload": {"sub": "a\nb", "aud": ["x", "y"], "exp": 17, "none": null}});
    metadata
        .merge("jwt.filter", payload.as_object().expect("an object").clone())
        .expect("it fits");
    let request = Learned(Request(&[]), metadata);
    let context = LogContext {
        request: Some(&request),
        ..LogContext::default()
    };
    for (format, expected) in [
        ("%DYNAMIC_METADATA(jwt.filter:payload:sub)%", "a\\x0ab"),
        ("%DYNAMIC_METADATA(jwt.filter:payload:sub):1%", "a"),
        ("%DYNAMIC_METADATA(jwt.filter:payload:aud)%", "[\"x\",\"y\"]"),
        ("%DYNAMIC_METADATA(jwt.filter:payload:exp)%", "17"),
        ("%DYNAMIC_METADATA(jwt.filter:payload:none)%", "-"),
        ("%DYNAMIC_METADATA(jwt.filter:payload:other)%", "-"),
        ("%DYNAMIC_METADATA(other:payload)%", "-"),
        ("%DYNAMIC_METADATA(jwt.filter):11%", "{\"payload\":"),
    ] {
        let mut out = Vec::new();
        Format::parse_text(format).expect(format).write(&context, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), expected, "{format}");
    }
    let json = serde_json::json!({
        "sub": "%DYNAMIC_METADATA(jwt.filter:payload:sub)%",
        "aud": "%DYNAMIC_METADATA(jwt.filter:payload:aud)%",
        "no": "%DYNAMIC_METADATA(jwt.filter:payload:other)%",
    });
    let mut out = Vec::new();
    Format::parse_json(&json).expect("a format").write(&context, &mut out);
    assert_eq!(
        String::from_utf8_lossy(&out),
        "{\"aud\":[\"x\",\"y\"],\"no\":null,\"sub\":\"a\\\\x0ab\"}\n"
    );
    assert!(Format::parse_text("%DYNAMIC_METADATA%").is_err());
}
