//! External authorization, by servers that one should not trust too far.

mod harness;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use harness::*;
use heddle_api::envoy::config::core::v3::{HeaderValue as Header, HeaderValueOption};
use heddle_api::envoy::service::auth::v3 as auth;
use heddle_config::filters::ext_authz::{BodySettings, ExtAuthz, HttpService, PathChange, Service};
use heddle_config::snapshot::*;
use heddle_matching::StringMatcher;
use prost::Message;
use tokio::net::TcpListener;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn settings(service: Service) -> ExtAuthz {
    ExtAuthz {
        service,
        allowed: None,
        disallowed: vec![],
        body: None,
        failure_mode_allow: false,
        failure_header: false,
        status_on_error: 403,
        clear_route_cache: false,
        enabled: Fraction::ALL,
        enabled_metadata: None,
        deny_at_disable: false,
        metadata_namespaces: Vec::new(),
        tls_session: false,
        peer_certificate: false,
        stat_prefix: "".into(),
        charge_cluster: true,
        max_denied_body: None,
    }
}

/// Asks `authz` by HTTP, which may change any field.
fn by_http() -> ExtAuthz {
    settings(Service::Http(Box::new(HttpService {
        target: HttpTarget {
            cluster: "authz".into(),
            host: "authz.example".into(),
            path: "/".into(),
            https: false,
            timeout: Duration::from_millis(300),
            retry: None,
        },
        path: PathChange::Same,
        headers_to_add: vec![],
        upstream: vec![StringMatcher::prefix("")],
        upstream_append: vec![],
        client: None,
        client_on_success: vec![StringMatcher::prefix("")],
    })))
}

fn by_grpc() -> ExtAuthz {
    settings(Service::Grpc(GrpcTarget {
        cluster: "authz".into(),
        authority: "authz.example".into(),
        timeout: Duration::from_millis(500),
        metadata: vec![],
        retry: None,
    }))
}

async fn proxy(settings: ExtAuthz, http: UpstreamHttp, authz: std::net::SocketAddr) -> (Proxy, Log) {
    let (up, log) = echo().await;
    let mut manager = manager(to("c"));
    manager.filters = vec![filter("authz", FilterConfig::ExtAuthz(Arc::new(settings)))];
    let clusters = vec![
        (cluster("c", UpstreamHttp::Http1), vec![up]),
        (cluster("authz", http), vec![authz]),
    ];
    (Proxy::start(manager, clusters).await, log)
}

/// A server that answers each request with these bytes, and then waits or hangs up.
async fn answering(bytes: String, waits: bool) -> std::net::SocketAddr {
    server(move |mut client, _| {
        let bytes = bytes.clone();
        async move {
            while client.request().await.is_some() {
                client.send(&bytes).await;
                if !waits {
                    return;
                }
            }
        }
    })
    .await
}

#[test]
fn a_hostile_server_lets_nobody_pass() {
    run(async {
        let ok = "HTTP/1.1 200 OK\r\n";
        for (bytes, waits) in [
            (String::new(), true),
            (String::new(), false),
            (format!("{ok}content-length: 5\r\n\r\nno"), true),
            (format!("{ok}content-length: 5\r\n\r\nno"), false),
            (format!("{ok}content-length: 1073741824\r\n\r\n"), true),
            (
                format!(
                    "{ok}transfer-encoding: chunked\r\n\r\n200000\r\n{}",
                    "x".repeat(0x20_0000)
                ),
                true,
            ),
            (format!("{ok}x: {}\r\n\r\n", "x".repeat(1 << 20)), true),
            (format!("{ok}x-a: 1\0\r\ncontent-length: 0\r\n\r\n"), true),
            (format!("{ok}content-length: 0\r\ncontent-length: 5\r\n\r\n"), true),
            ("HTTP/1.1 102 Processing\r\n\r\n".repeat(100), true),
            ("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n".to_owned(), true),
        ] {
            let name = bytes.get(..60.min(bytes.len())).unwrap_or_default().to_owned();
            let (proxy, log) = proxy(by_http(), UpstreamHttp::Http1, answering(bytes, waits).await).await;
            let answer = proxy.ask(GET).await;
            assert_eq!((answer.status, answer.text()), (403, String::new()), "{name}");
            assert_eq!(proxy.metric("envoy_http_ext_authz_error", "test"), 1, "{name}");
            proxy.until("envoy_cluster_upstream_rq_active", "authz", 0).await;
            assert!(log.borrow().is_empty(), "{name}");
        }
    });
}

/// A server that may change every field cannot change where a message ends.
#[test]
fn framing_is_not_the_servers() {
    run(async {
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: x-gone\r\nte: trailers\r\nx-user: joe\r\n\
                      x-envoy-auth-headers-to-remove: content-length, host, x-b\r\n\r\n";
        let server = answering(answer.to_owned(), true).await;
        let (proxy, log) = proxy(by_http(), UpstreamHttp::Http1, server).await;
        let request = "POST / HTTP/1.1\r\nHost: a\r\nx-b: 1\r\nContent-Length: 5\r\n\r\nhello";
        let answer = proxy.ask(request).await;
        assert_eq!((answer.status, answer.text()), (200, "hello".to_owned()));
        assert_eq!(answer.header("x-user"), Some("joe"));
        let log = log.borrow();
        assert_eq!(log[0].header("content-length"), Some("5"));
        assert_eq!(log[0].header("host"), Some("a"));
        assert_eq!(log[0].header("x-user"), Some("joe"));
        assert_eq!(log[0].header("x-b"), None);
    });
}

#[test]
fn a_client_that_goes_away_is_not_asked_for() {
    run(async {
        let mut settings = by_http();
        if let Service::Http(service) = &mut settings.service {
            service.target.timeout = Duration::from_secs(3600);
        }
        let (proxy, log) = proxy(settings, UpstreamHttp::Http1, answering(String::new(), true).await).await;
        let mut client = proxy.connect().await;
        client.send(GET).await;
        proxy.until("envoy_cluster_upstream_rq_active", "authz", 1).await;
        drop(client);
        proxy.until("envoy_cluster_upstream_rq_active", "authz", 0).await;
        proxy.until("envoy_http_downstream_rq_active", "test", 0).await;
        assert!(log.borrow().is_empty());
    });
}

#[test]
fn bodies_are_shown() {
    run(async {
        let (authz, asked) = echo().await;
        let mut settings = by_http();
        settings.body = Some(BodySettings {
            max_bytes: 5,
            partial: false,
            as_bytes: false,
        });
        let (proxy, log) = proxy(settings, UpstreamHttp::Http1, authz).await;
        let post = |body: &str| {
            format!(
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        assert_eq!(proxy.ask(&post("hello")).await.text(), "hello");
        assert_eq!(proxy.ask(&post("hello!")).await.status, 413);
        assert_eq!((log.borrow().len(), asked.borrow().len()), (1, 1));
        assert_eq!(asked.borrow()[0].body, b"hello");
        assert_eq!(asked.borrow()[0].header("x-envoy-auth-partial-body"), Some("false"));
    });
}

/// A gRPC server that answers every call with these bytes.
async fn grpc(answer: Bytes) -> std::net::SocketAddr {
    grpc_noting(answer).await.0
}

type Asked = Rc<RefCell<Vec<auth::CheckRequest>>>;

/// The same with what it was asked.
async fn grpc_noting(answer: Bytes) -> (std::net::SocketAddr, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let asked = Asked::default();
    let noted = Rc::clone(&asked);
    tokio::task::spawn_local(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (answer, noted) = (answer.clone(), Rc::clone(&noted));
            tokio::task::spawn_local(async move {
                let Ok(mut connection) = h2::server::handshake(tcp).await else {
                    return;
                };
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let mut body = request.into_body();
                    let noted = Rc::clone(&noted);
                    tokio::task::spawn_local(async move {
                        let mut all = Vec::new();
                        while let Some(Ok(piece)) = body.data().await {
                            all.extend_from_slice(&piece);
                        }
                        let message = all.get(5..).unwrap_or_default();
                        noted.borrow_mut().extend(auth::CheckRequest::decode(message));
                    });
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", "0".parse().expect("value"));
                    let Ok(mut send) = respond.send_response(http::Response::new(()), false) else {
                        return;
                    };
                    let _ = send.send_data(answer.clone(), false);
                    let _ = send.send_trailers(trailers);
                }
            });
        }
    });
    (address, asked)
}

fn frame(message: &impl Message) -> Bytes {
    let bytes = message.encode_to_vec();
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(bytes.len()).expect("length"));
    frame.extend_from_slice(&bytes);
    frame.freeze()
}

fn allowed(name: &str, value: &str) -> Bytes {
    use auth::check_response::HttpResponse;
    frame(&auth::CheckResponse {
        http_response: Some(HttpResponse::OkResponse(auth::OkHttpResponse {
            headers: vec![HeaderValueOption {
                header: Some(Header {
                    key: name.to_owned(),
                    value: value.to_owned(),
                    ..Header::default()
                }),
                ..HeaderValueOption::default()
            }],
            ..auth::OkHttpResponse::default()
        })),
        ..auth::CheckResponse::default()
    })
}

#[test]
fn a_grpc_server_is_not_trusted_either() {
    run(async {
        let large = "x".repeat(100 * 1024);
        for (answer, status, counter) in [
            (allowed("x-user", "joe"), 200, "ok"),
            (allowed("x-user", "joe\r\nx-admin: yes"), 500, "invalid"),
            (allowed("x user", "joe"), 500, "invalid"),
            (allowed("x-user", &large), 500, "invalid"),
            (allowed("x-user", &"x".repeat(2 << 20)), 403, "error"),
            (Bytes::from_static(b"\0\0\0\0\x02\x08"), 403, "error"),
            (Bytes::from_static(b"\x01\0\0\0\0"), 403, "error"),
            (Bytes::new(), 403, "error"),
            (Bytes::from_static(b"\0\0\0\0\0"), 200, "ok"),
        ] {
            let server = grpc(answer).await;
            let (proxy, log) = proxy(by_grpc(), UpstreamHttp::Http2, server).await;
            assert_eq!(proxy.ask(GET).await.status, status, "{counter}");
            assert_eq!(proxy.metric(&format!("envoy_http_ext_authz_{counter}"), "test"), 1);
            assert_eq!(log.borrow().len(), usize::from(status == 200));
            if let Some(seen) = log.borrow().first() {
                assert_eq!(seen.header("x-admin"), None);
            }
        }
    });
}

/// The certificate is shown where that is configured, in the form that the API wants.
#[test]
fn a_clients_certificate_is_shown() {
    run(async {
        for shown in [true, false] {
            let (server, asked) = grpc_noting(Bytes::from_static(b"\0\0\0\0\0")).await;
            let (up, _) = echo().await;
            let config = ExtAuthz {
                peer_certificate: shown,
                ..by_grpc()
            };
            let mut manager = manager(to("c"));
            manager.filters = vec![filter("authz", FilterConfig::ExtAuthz(Arc::new(config)))];
            let clusters = vec![
                (cluster("c", UpstreamHttp::Http1), vec![up]),
                (cluster("authz", UpstreamHttp::Http2), vec![server]),
            ];
            let proxy = Proxy::start_with(manager, clusters, |info| {
                info.peer_certificate = Some("-----BEGIN CERTIFICATE-----\na+/=\n".into());
            })
            .await;
            assert_eq!(proxy.ask(GET).await.status, 200);
            while asked.borrow().is_empty() {
                tokio::task::yield_now().await;
            }
            let source = asked.borrow()[0].attributes.clone().and_then(|a| a.source);
            let certificate = source.map(|s| s.certificate);
            let wanted = if shown {
                "-----BEGIN%20CERTIFICATE-----%0Aa%2B%2F%3D%0A"
            } else {
                ""
            };
            assert_eq!(certificate.as_deref(), Some(wanted));
        }
    });
}
