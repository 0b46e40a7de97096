//! Where messages begin and end: lengths, connection options, offers to upgrade, prefaces, trailers, and answers that are
//! cut short.

mod harness;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use harness::*;
use heddle_config::snapshot::*;
use tokio::io::AsyncWriteExt;

fn h1(name: &str) -> Cluster {
    cluster(name, UpstreamHttp::Http1)
}

/// A server that answers every connection's requests with the bytes given and closes after the first.
async fn says(answer: &'static [u8]) -> (std::net::SocketAddr, Rc<Cell<usize>>) {
    let requests = Rc::new(Cell::new(0));
    let count = Rc::clone(&requests);
    let address = server(move |mut client, _| {
        let count = Rc::clone(&count);
        async move {
            if client.request().await.is_some() {
                count.set(count.get() + 1);
                client.tcp.write_all(answer).await.expect("send");
            }
        }
    })
    .await;
    (address, requests)
}

async fn to_echo() -> (Proxy, Log) {
    let (up, log) = echo().await;
    (Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await, log)
}

#[test]
fn lengths_have_one_form() {
    run(async {
        let (proxy, log) = to_echo().await;
        for (length, expected) in [
            ("10", 200),
            ("010", 400),
            ("00", 400),
            ("+10", 400),
            ("10,10", 400),
            ("0x0a", 400),
            ("1 0", 400),
            (" \t10 \t", 200),
        ] {
            let raw = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length:{length}\r\n\r\n0123456789");
            assert_eq!(proxy.ask(&raw).await.status, expected, "{length:?}");
        }
        assert!(
            log.borrow()
                .iter()
                .all(|seen| seen.header("content-length") == Some("10"))
        );
        assert_eq!(log.borrow().len(), 2);
        assert_eq!(
            proxy.metric("heddle_http1_protocol_error_total", "invalid_content_length"),
            5
        );
        let (up, _) = says(b"HTTP/1.1 200 OK\r\ncontent-length: 02\r\n\r\nhi").await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.status, 502);
    });
}

#[test]
fn connection_names_few_fields() {
    run(async {
        let (proxy, log) = to_echo().await;
        let naming = |n: usize| {
            let names: Vec<_> = (0..n).map(|i| format!("x{i}")).collect();
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, {}\r\nx0: 1\r\nx15: 1\r\ny: 1\r\n\r\n",
                names.join(",")
            )
        };
        assert_eq!(proxy.ask(&naming(16)).await.status, 200);
        assert_eq!(proxy.ask(&naming(17)).await.status, 400);
        assert_eq!(proxy.ask(&naming(8000)).await.status, 400);
        let seen = &log.borrow()[0];
        assert_eq!(
            (seen.header("x0"), seen.header("x15"), seen.header("y")),
            (None, None, Some("1"))
        );
        assert_eq!(
            proxy.metric("heddle_http1_protocol_error_total", "too_many_connection_options"),
            2
        );
    });
}

const H2C: &str = "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n";

#[test]
fn an_offer_of_h2c_is_ignored() {
    run(async {
        let (proxy, log) = to_echo().await;
        let get = format!("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n{H2C}\r\n");
        let post = format!("POST / HTTP/1.1\r\nHost: a\r\nUpgrade: H2C\r\n{H2C}Content-Length: 4\r\n\r\nbody");
        let mut client = proxy.connect().await;
        for (raw, body) in [(&get, "ok"), (&post, "body"), (&get, "ok")] {
            client.send(raw).await;
            let answer = client.answer().await.expect("answer");
            assert_eq!((answer.status, answer.text().as_str()), (200, body));
        }
        for seen in log.borrow().iter() {
            for name in ["upgrade", "connection", "http2-settings"] {
                assert_eq!(seen.header(name), None, "{seen:?}");
            }
        }
        // Beside others: those are judged alone, all of them.
        for (offer, expected) in [("h2c, other", 403), ("websocket, other", 403), ("h2c, websocket", 200)] {
            let raw = format!("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: {offer}\r\n{H2C}\r\n");
            assert_eq!(proxy.ask(&raw).await.status, expected, "{offer}");
        }
        assert_eq!(
            log.borrow().last().expect("request").header("upgrade"),
            Some("websocket")
        );
        // Configured, it is an upgrade like others.
        let (up, log) = echo().await;
        let mut manager = manager(to("c"));
        manager.upgrades.push("h2c".to_owned());
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        assert_eq!(proxy.ask(&get).await.status, 200);
        assert_eq!(log.borrow()[0].header("upgrade"), Some("h2c"));
    });
}

#[test]
fn a_wrong_preface_is_an_error_of_http2() {
    run(async {
        let (proxy, log) = to_echo().await;
        for wrong in ["XX\r\n\r\n", "SM\r\nXX", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"] {
            let mut client = proxy.connect().await;
            client.send("PRI * HTTP/2.0\r\n\r\n").await;
            client.send(wrong).await;
            let rest = client.rest().await;
            assert!(!rest.starts_with(b"HTTP/1"), "{wrong:?}: {rest:?}");
        }
        assert_eq!(proxy.metric("envoy_http_downstream_cx_http2_total", ""), 3);
        assert_eq!(proxy.metric("envoy_http_downstream_cx_protocol_error", ""), 3);
        assert!(log.borrow().is_empty());
    });
}

#[test]
fn trailers_that_are_not_listed_are_dropped_and_counted() {
    run(async {
        let up = server(|mut client, _| async move {
            while client.request().await.is_some() {
                client
                    .send(
                        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nx-checksum: 1\r\n\
                         x-role: admin\r\nset-cookie: a=b\r\nContent-Length: 3\r\n\r\n",
                    )
                    .await;
            }
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx-checksum: 1\r\n\
                       Authorization: me\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n";
        let answer = proxy.ask(request).await;
        assert_eq!(answer.trailers, [("x-checksum".to_owned(), "1".to_owned())]);
        assert_eq!(proxy.metric("heddle_http_trailers_dropped_total", "test"), 5);
    });
}

#[test]
fn too_many_trailers_are_an_error() {
    run(async {
        let (proxy, log) = to_echo().await;
        let many: String = (0..200).map(|i| format!("x{i}: y\r\n")).collect();
        let large = format!("x: {}\r\n", "y".repeat(70_000));
        for (trailers, cause) in [(many, "too_many_headers"), (large, "headers_too_large")] {
            let raw = format!(
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n{trailers}\r\n"
            );
            assert_eq!(proxy.ask(&raw).await.status, 431, "{cause}");
            assert_eq!(proxy.metric("heddle_http1_protocol_error_total", cause), 1);
        }
        assert!(log.borrow().is_empty());
        // In an answer: the client learns that it is not whole.
        let up = server(|mut client, _| async move {
            client.request().await;
            let many: String = (0..200).map(|i| format!("x{i}: y\r\n")).collect();
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n";
            client.send(&format!("{head}{many}\r\n")).await;
            client.rest().await;
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let rest = String::from_utf8(client.rest().await).expect("text");
        assert!(
            rest.starts_with("HTTP/1.1 200") && rest.ends_with("\r\n\r\n1\r\nx\r\n"),
            "{rest}"
        );
        assert_eq!(proxy.metric("envoy_cluster_upstream_cx_protocol_error", "c"), 1);
    });
}

#[test]
fn an_answer_cut_short_is_passed_on_as_far_as_it_came() {
    run(async {
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
        for (answer, end) in [
            (&b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"[..], "\r\n\r\n"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello", "\r\n\r\nhello"),
            (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "\r\n\r\n"),
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
                "\r\n\r\n5\r\nhello\r\n",
            ),
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhe",
                "\r\n\r\n2\r\nhe\r\n",
            ),
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
                "\r\n\r\n5\r\nhello\r\n",
            ),
            (
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
                "\r\n\r\n5\r\nhello\r\n",
            ),
        ] {
            let said = String::from_utf8_lossy(answer);
            let (up, requests) = says(answer).await;
            let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
            // Also where the connection was kept: that is where clients ask again.
            let mut client = proxy.connect().await;
            client.send(post).await;
            let rest = String::from_utf8(client.rest().await).expect("text");
            assert!(rest.starts_with("HTTP/1.1 200 OK\r\n"), "{said}: {rest}");
            assert!(rest.ends_with(end), "{said}: {rest}");
            assert_eq!(requests.get(), 1, "{said}");
            assert_eq!(proxy.metric("envoy_http_downstream_rq_tx_reset", ""), 1, "{said}");
            let malformed = i64::from(answer.ends_with(b"zz\r\n"));
            assert_eq!(
                proxy.metric("envoy_cluster_upstream_cx_protocol_error", "c"),
                malformed,
                "{said}"
            );
        }
        for (answer, expected) in [
            (&b""[..], 503),
            (b"HTTP/1.1 200 OK\r\ncontent-le", 503),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n", 503),
            (b"HTTP", 503),
        ] {
            let (up, requests) = says(answer).await;
            let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
            let answer = proxy.ask(post).await;
            assert_eq!((answer.status, requests.get()), (expected, 1));
        }
    });
}

#[test]
fn what_can_never_be_an_answer_is_not_waited_for() {
    run(async {
        for garbage in [
            &b"\0"[..],
            b"SSH-2.0-x",
            b"HTTP/2",
            b"HTTP/1,",
            b"http/1.1 200",
            b" HTTP/1.1 200 OK",
        ] {
            let up = server(move |mut client, _| async move {
                client.request().await;
                client.tcp.write_all(garbage).await.expect("send");
                client.rest().await;
            })
            .await;
            let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
            let begun = std::time::Instant::now();
            let answer = proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert_eq!(answer.status, 502, "{garbage:?}");
            assert!(begun.elapsed() < Duration::from_secs(10), "the route waits 15 seconds");
            assert_eq!(proxy.metric("envoy_cluster_upstream_cx_protocol_error", "c"), 1);
        }
        // A head in pieces is still one.
        let up = server(|mut client, _| async move {
            client.request().await;
            for piece in [&b"H"[..], b"TTP/", b"1.1", b" 200 OK\r", b"\ncontent-length: 0\r\n\r\n"] {
                client.tcp.write_all(piece).await.expect("send");
                tokio::task::yield_now().await;
            }
            client.rest().await;
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        assert_eq!(proxy.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.status, 200);
    });
}

/// A server whose second and later requests on a connection get `fate` instead of an answer. Counts what it was asked.
async fn once_then(fate: &'static [u8]) -> (std::net::SocketAddr, Rc<Cell<usize>>) {
    let requests = Rc::new(Cell::new(0));
    let count = Rc::clone(&requests);
    let address = server(move |mut client, connection| {
        let count = Rc::clone(&count);
        async move {
            let mut first = true;
            while client.request().await.is_some() {
                count.set(count.get() + 1);
                if connection == 1 && !first {
                    client.tcp.write_all(fate).await.expect("send");
                    return;
                }
                first = false;
                client.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            }
        }
    })
    .await;
    (address, requests)
}

/// RFC 9110 section 9.2.2: what is not idempotent is not sent again unless the upstream did nothing with it, or the
/// configuration says so.
#[test]
fn requests_are_repeated_only_where_that_is_safe() {
    run(async {
        let resets = RetryOn {
            reset: true,
            ..RetryOn::default()
        };
        let connects = RetryOn {
            connect_failure: true,
            refused_stream: true,
            reset_before_request: true,
            ..RetryOn::default()
        };
        let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
        let empty = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
        let patch = "PATCH / HTTP/1.1\r\nHost: a\r\n\r\n";
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for (second, retry, fate, status, asked) in [
            // A kept connection that was closed: only what is safe moves.
            (get, None, &b""[..], 200, 3),
            (post, None, b"", 503, 2),
            (empty, None, b"", 503, 2),
            (patch, None, b"", 503, 2),
            (post, Some(connects), b"", 503, 2),
            (post, Some(resets), b"", 200, 3),
            // Half a head is a word: it was at work.
            (get, None, b"HTTP/1.1 2", 503, 2),
            (post, None, b"HTTP/1.1 2", 503, 2),
            (post, Some(connects), b"HTTP/1.1 2", 503, 2),
            (post, None, b"garbage", 502, 2),
        ] {
            let said = format!("{second:?} {retry:?} {}", String::from_utf8_lossy(fate));
            let (up, requests) = once_then(fate).await;
            let mut action = route_action("c");
            action.retry = retry.map(|on| Arc::new(retry_policy(on, 2)));
            let routes = table(vec![route("/", Action::Route(Box::new(action)))]);
            let proxy = Proxy::start(manager(routes), vec![(h1("c"), vec![up])]).await;
            assert_eq!(proxy.ask(get).await.status, 200);
            assert_eq!(proxy.ask(second).await.status, status, "{said}");
            assert_eq!(requests.get(), asked, "{said}");
        }
    });
}

/// The time of one try is up: the upstream may be at work, so the policy must cover resets or server errors.
#[test]
fn a_try_that_took_too_long_is_repeated_only_by_policy() {
    run(async {
        for (on, asked) in [
            (
                RetryOn {
                    connect_failure: true,
                    refused_stream: true,
                    reset_before_request: true,
                    ..RetryOn::default()
                },
                1,
            ),
            (
                RetryOn {
                    server_error: true,
                    ..RetryOn::default()
                },
                2,
            ),
        ] {
            let requests = Rc::new(Cell::new(0));
            let count = Rc::clone(&requests);
            let up = server(move |mut client, _| {
                let count = Rc::clone(&count);
                async move {
                    while client.request().await.is_some() {
                        count.set(count.get() + 1);
                    }
                }
            })
            .await;
            let mut action = route_action("c");
            action.retry = Some(Arc::new(RetryPolicy {
                per_try_timeout: Duration::from_millis(100),
                ..retry_policy(on, 1)
            }));
            let routes = table(vec![route("/", Action::Route(Box::new(action)))]);
            let proxy = Proxy::start(manager(routes), vec![(h1("c"), vec![up])]).await;
            let answer = proxy
                .ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
                .await;
            assert_eq!((answer.status, requests.get()), (504, asked), "{on:?}");
        }
    });
}

/// An HTTP/2 server that went away, or reset the stream, and does not say that it left the request alone.
#[test]
fn streams_that_may_have_been_processed_are_not_sent_again() {
    run(async {
        const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
        // GOAWAY, NO_ERROR, with the first stream among those that were taken.
        const GOAWAY: &[u8] = &[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        // RST_STREAM of the first stream, CANCEL.
        const CANCEL: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8];
        const HEADERS: u8 = 1;
        for frame in [GOAWAY, CANCEL] {
            let asked = Rc::new(Cell::new(0));
            let count = Rc::clone(&asked);
            let up = server(move |mut client, _| {
                let count = Rc::clone(&count);
                async move {
                    let mut seen = Vec::new();
                    // Frames behind the preface, until the request's head is there.
                    let has_head = |seen: &[u8]| {
                        let mut rest = seen.get(24..).unwrap_or_default();
                        while let Some((head, behind)) = rest.split_at_checked(9) {
                            if head[3] == HEADERS {
                                return true;
                            }
                            let length = usize::from(head[1]) << 8 | usize::from(head[2]);
                            rest = behind.get(length..).unwrap_or_default();
                        }
                        false
                    };
                    while !has_head(&seen) {
                        let mut block = [0; 4096];
                        match tokio::io::AsyncReadExt::read(&mut client.tcp, &mut block).await {
                            Ok(n @ 1..) => seen.extend_from_slice(&block[..n]),
                            _ => return,
                        }
                    }
                    count.set(count.get() + 1);
                    let _ = client.tcp.write_all(&[SETTINGS, frame].concat()).await;
                    let _ = client.tcp.shutdown().await;
                    client.rest().await;
                }
            })
            .await;
            let proxy = Proxy::start(manager(to("c")), vec![(cluster("c", UpstreamHttp::Http2), vec![up])]).await;
            let answer = proxy
                .ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
                .await;
            assert_eq!((answer.status, asked.get()), (503, 1), "{frame:?}");
        }
    });
}
