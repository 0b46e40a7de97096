//! HTTP/1.1 through the proxy, over real sockets.

mod harness;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use harness::*;
use heddle_config::snapshot::*;
use heddle_matching::rbac;
use heddle_net::PeerIdentity;
use tokio::io::AsyncWriteExt;

const GET: &str = "GET /a?b HTTP/1.1\r\nHost: shop\r\nUser-Agent: test\r\n\r\n";

fn h1(name: &str) -> Cluster {
    cluster(name, UpstreamHttp::Http1)
}

#[test]
fn requests_share_connections_and_heads_are_kept() {
    run(async {
        let (up, log) = echo().await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        for _ in 0..3 {
            client.send(GET).await;
            let answer = client.answer().await.expect("answer");
            assert_eq!((answer.status, answer.text().as_str()), (200, "ok"));
            assert_eq!(answer.header("server"), Some("heddle"));
            assert_eq!(answer.header("x-app"), Some("yes"));
            assert!(answer.header("date").is_some() && answer.header("x-envoy-upstream-service-time").is_some());
        }
        let log = log.borrow();
        assert_eq!(log.len(), 3);
        assert!(log.iter().all(|s| s.connection == 1), "one upstream connection");
        let seen = &log[0];
        assert_eq!(seen.line, "GET /a?b HTTP/1.1");
        assert_eq!(seen.header("host"), Some("shop"));
        assert_eq!(seen.header("user-agent"), Some("test"));
        assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
        assert_eq!(seen.header("x-request-id").map(str::len), Some(36));
        assert_eq!(seen.header("x-envoy-expected-rq-timeout-ms"), Some("15000"));
        assert_eq!(proxy.metric("envoy_http_downstream_rq_total", ""), 3);
        assert_eq!(proxy.metric("envoy_http_downstream_rq_xx", "2"), 3);
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_total", "c"), 3);
        assert_eq!(proxy.metric("envoy_cluster_upstream_cx_total", "c"), 1);
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_active", "c"), 0);
        assert_eq!(proxy.metric("envoy_http_downstream_rq_active", ""), 0);
    });
}

#[test]
fn pipelined_requests_are_answered_in_order_whatever_the_pieces() {
    run(async {
        let (up, _) = echo().await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        let raw = "\r\nPOST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\none\
                   POST /2 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n\
                   GET /3 HTTP/1.1\r\nHost: a\r\n\r\n";
        for piece in [1, 2, 3, 7, 20, 64, raw.len()] {
            let mut client = proxy.connect().await;
            for part in raw.as_bytes().chunks(piece) {
                client.tcp.write_all(part).await.expect("send");
                tokio::task::yield_now().await;
            }
            for body in ["one", "two", "ok"] {
                let answer = client.answer().await.expect("answer");
                assert_eq!(answer.text(), body, "pieces of {piece}");
            }
        }
    });
}

#[test]
fn malformed_requests_are_refused_and_counted() {
    run(async {
        let (up, log) = echo().await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        for (raw, status, body) in [
            ("GET / HTTP/1.1\r\n\r\n", 400, ""),
            ("GET / HTTP/1.0\r\nHost: a\r\n\r\n", 426, ""),
            ("GET / HTTP/1.1\nHost: a\n\n", 400, "Bad Request"),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                400,
                "Bad Request",
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
                501,
                "Not Implemented",
            ),
            (
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                400,
                "Bad Request",
            ),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 403, ""),
            (
                "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\nContent-Length: 5\r\n\r\n",
                400,
                "Bad Request",
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n",
                403,
                "",
            ),
        ] {
            let mut client = proxy.connect().await;
            client.send(raw).await;
            let answer = client.answer().await.expect("answer");
            assert_eq!((answer.status, answer.text().as_str()), (status, body), "{raw:?}");
        }
        let mut large = String::from("GET / HTTP/1.1\r\nHost: a\r\n");
        for i in 0..200 {
            large.push_str(&format!("X-{i}: y\r\n"));
        }
        large.push_str("\r\n");
        assert_eq!(proxy.ask(&large).await.status, 431);
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(70_000));
        assert_eq!(proxy.ask(&long).await.status, 431);
        assert!(proxy.metric("envoy_http_downstream_cx_protocol_error", "") >= 7);
        assert_eq!(proxy.metric("heddle_http1_protocol_error_total", "bare_newline"), 1);
        assert_eq!(proxy.metric("heddle_http1_protocol_error_total", "too_many_headers"), 1);
        // The one whose body was bad reached the upstream's connection but never completed there.
        assert!(log.borrow().is_empty());
    });
}

#[test]
fn bodies_of_100_mb_stream_with_bounded_memory() {
    run(async {
        const SIZE: usize = 100 * 1024 * 1024;
        for chunked in [false, true] {
            let up = server(move |mut client, _| async move {
                let Some(_) = client.request().await else { return };
                let head = if chunked {
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned()
                } else {
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n")
                };
                client.tcp.write_all(head.as_bytes()).await.expect("send");
                let block = vec![b'x'; 1024 * 1024];
                for _ in 0..SIZE / block.len() {
                    if chunked {
                        client
                            .tcp
                            .write_all(format!("{:x}\r\n", block.len()).as_bytes())
                            .await
                            .expect("send");
                    }
                    client.tcp.write_all(&block).await.expect("send");
                    if chunked {
                        client.tcp.write_all(b"\r\n").await.expect("send");
                    }
                }
                if chunked {
                    client.tcp.write_all(b"0\r\nx-checksum: 7\r\n\r\n").await.expect("send");
                }
                client.request().await;
            })
            .await;
            let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
            let before = resident();
            let mut client = proxy.connect().await;
            client.send(GET).await;
            // The test's own client keeps the body; count instead of keeping.
            let mut total = 0;
            let mut last = Vec::new();
            while total < SIZE || (chunked && !last.ends_with(b"\r\n\r\n")) {
                let mut block = vec![0; 65536];
                let n = tokio::io::AsyncReadExt::read(&mut client.tcp, &mut block)
                    .await
                    .expect("read");
                assert!(n > 0);
                total += n;
                last.extend_from_slice(&block[..n]);
                let keep = last.len().saturating_sub(64);
                last.drain(..keep);
            }
            let grown = resident().saturating_sub(before);
            assert!(grown < 32 * 1024 * 1024, "grew by {grown} bytes");
            if chunked {
                assert!(String::from_utf8_lossy(&last).ends_with("0\r\nx-checksum: 7\r\n\r\n"));
            }
        }
    });
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm
        .split(' ')
        .nth(1)
        .and_then(|p| p.parse::<usize>().ok())
        .unwrap_or(0)
        * 4096
}

#[test]
fn a_slow_reader_holds_the_upstream_back() {
    run(async {
        let sent = Rc::new(std::cell::Cell::new(0_usize));
        let counter = Rc::clone(&sent);
        let up = server(move |mut client, _| {
            let sent = Rc::clone(&counter);
            async move {
                client.request().await;
                client
                    .tcp
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
                    .await
                    .expect("send");
                let block = vec![b'x'; 65536];
                while client.tcp.write_all(&block).await.is_ok() {
                    sent.set(sent.get() + block.len());
                }
            }
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        client.send(GET).await;
        let mut before = usize::MAX;
        while sent.get() != before || before == 0 {
            before = sent.get();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(before < 32 * 1024 * 1024, "{before} bytes went out unread");
        drop(client);
        while proxy.metric("envoy_cluster_upstream_cx_active", "c") > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

#[test]
fn upstream_faults_have_envoys_words() {
    run(async {
        let closed = {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
            listener.local_addr().expect("address")
        };
        let closes = server(|mut client, _| async move {
            client.request().await;
        })
        .await;
        let garbage = server(|mut client, _| async move {
            client.request().await;
            client
                .tcp
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n")
                .await
                .expect("send");
            client.rest().await;
        })
        .await;
        let silent = server(|mut client, _| async move {
            client.rest().await;
        })
        .await;
        let mut slow = route_action("silent");
        slow.timeout = Duration::from_millis(50);
        let direct = |c: &str| route(&format!("/{c}"), Action::Route(Box::new(route_action(c))));
        let routes = table(vec![
            direct("refused"),
            direct("closes"),
            direct("garbage"),
            route("/silent", Action::Route(Box::new(slow))),
            direct("empty"),
            direct("missing"),
            route(
                "/hello",
                Action::Direct(DirectResponse {
                    status: 418,
                    body: "short and stout".into(),
                }),
            ),
            route(
                "/moved",
                Action::Redirect(Box::new(Redirect {
                    host: Some("new".into()),
                    status: 301,
                    ..Redirect::default()
                })),
            ),
        ]);
        let proxy = Proxy::start(
            manager(routes),
            vec![
                (h1("refused"), vec![closed]),
                (h1("closes"), vec![closes]),
                (h1("garbage"), vec![garbage]),
                (h1("silent"), vec![silent]),
                (h1("empty"), vec![]),
            ],
        )
        .await;
        let ask = async |path: &str| proxy.ask(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
        let start = "upstream connect error or disconnect/reset before headers. reset reason: ";
        let answer = ask("/refused").await;
        assert_eq!(answer.status, 503);
        assert!(
            answer.text().starts_with(&format!(
                "{start}remote connection failure, transport failure reason: delayed connect error"
            )),
            "{}",
            answer.text()
        );
        let answer = ask("/closes").await;
        assert_eq!(
            (answer.status, answer.text()),
            (503, format!("{start}connection termination"))
        );
        let answer = ask("/garbage").await;
        assert_eq!((answer.status, answer.text()), (502, format!("{start}protocol error")));
        let answer = ask("/silent").await;
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (504, "upstream request timeout")
        );
        let answer = ask("/empty").await;
        assert_eq!((answer.status, answer.text().as_str()), (503, "no healthy upstream"));
        assert_eq!(ask("/missing").await.status, 503);
        assert_eq!(ask("/nowhere").await.status, 404);
        let answer = ask("/hello").await;
        assert_eq!((answer.status, answer.text().as_str()), (418, "short and stout"));
        let answer = ask("/moved?x").await;
        assert_eq!(
            (answer.status, answer.header("location")),
            (301, Some("http://new/moved?x"))
        );
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_timeout", "silent"), 1);
        assert_eq!(proxy.metric("envoy_http_no_route", ""), 1);
        assert_eq!(proxy.metric("envoy_cluster_upstream_cx_active", ""), 0);
    });
}

fn retrying(on: RetryOn, num_retries: u32) -> RouteAction {
    let mut action = route_action("c");
    action.retry = Some(Arc::new(RetryPolicy {
        avoid_previous_hosts: true,
        host_selection_attempts: 3,
        ..retry_policy(on, num_retries)
    }));
    action
}

#[test]
fn retries_send_the_body_again_to_another_host() {
    run(async {
        let (good, log) = echo().await;
        let bad = server(|mut client, _| async move {
            while client.request().await.is_some() {
                client
                    .tcp
                    .write_all(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n")
                    .await
                    .expect("send");
            }
        })
        .await;
        let mut routes = table(vec![route(
            "/",
            Action::Route(Box::new(retrying(
                RetryOn {
                    server_error: true,
                    ..RetryOn::default()
                },
                2,
            ))),
        )]);
        routes.virtual_hosts[0].include_attempt_count = true;
        let proxy = Proxy::start(manager(routes), vec![(h1("c"), vec![bad, good])]).await;
        for _ in 0..10 {
            let answer = proxy
                .ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello")
                .await;
            assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
        }
        assert!(
            log.borrow()
                .iter()
                .any(|s| s.header("x-envoy-attempt-count") == Some("2"))
        );
        assert!(proxy.metric("envoy_cluster_upstream_rq_retry", "c") > 0);
        assert_eq!(
            proxy.metric("envoy_cluster_upstream_rq_retry", "c"),
            proxy.metric("envoy_cluster_upstream_rq_retry_success", "c")
        );
    });
}

#[test]
fn used_up_retries_pass_the_last_answer_on() {
    run(async {
        let bad = server(|mut client, _| async move {
            while client.request().await.is_some() {
                client
                    .tcp
                    .write_all(b"HTTP/1.1 503 No\r\ncontent-length: 3\r\n\r\nno!")
                    .await
                    .expect("send");
            }
        })
        .await;
        let routes = table(vec![route(
            "/",
            Action::Route(Box::new(retrying(
                RetryOn {
                    gateway_error: true,
                    ..RetryOn::default()
                },
                2,
            ))),
        )]);
        let proxy = Proxy::start(manager(routes), vec![(h1("c"), vec![bad])]).await;
        let answer = proxy.ask(GET).await;
        assert_eq!((answer.status, answer.text().as_str()), (503, "no!"));
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_retry", "c"), 2);
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_retry_limit_exceeded", "c"), 1);
    });
}

#[test]
fn an_early_answer_reaches_the_client() {
    run(async {
        let up = server(|mut client, _| async move {
            // Answers after the head, without reading the body, and closes.
            while !client.buffer.windows(4).any(|w| w == b"\r\n\r\n") {
                let mut block = [0; 4096];
                let n = tokio::io::AsyncReadExt::read(&mut client.tcp, &mut block)
                    .await
                    .expect("read");
                client.buffer.extend_from_slice(&block[..n]);
            }
            client
                .tcp
                .write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
                .await
                .expect("send");
            client.rest().await;
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        client
            .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nbeginning")
            .await;
        let answer = client.answer().await.expect("answer");
        assert_eq!((answer.status, answer.text().as_str()), (413, "big"));
        // The rest of the request was never read: no further request on this connection.
        client.tcp.shutdown().await.expect("shutdown");
        assert!(client.rest().await.is_empty());
    });
}

#[test]
fn interim_answers_head_and_empty_ones() {
    run(async {
        let up = server(|mut client, _| async move {
            while let Some(seen) = client.request().await {
                let answer: &[u8] = match seen.line.split(' ').next() {
                    Some("HEAD") => b"HTTP/1.1 200 OK\r\ncontent-length: 12345\r\n\r\n",
                    Some("DELETE") => b"HTTP/1.1 204 No Content\r\n\r\n",
                    _ => b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
                };
                assert!(seen.header("expect").is_none());
                client.tcp.write_all(answer).await.expect("send");
            }
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let answer = client.answer_to("HEAD").await.expect("answer");
        assert_eq!((answer.status, answer.header("content-length")), (200, Some("12345")));
        client.send("DELETE / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let answer = client.answer().await.expect("answer");
        assert_eq!((answer.status, answer.header("content-length")), (204, None));
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(client.answer().await.expect("answer").status, 103);
        assert_eq!(client.answer().await.expect("answer").text(), "hi");
        client
            .send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
            .await;
        assert_eq!(client.answer().await.expect("answer").status, 100);
        client.send("ab").await;
        assert_eq!(client.answer().await.expect("answer").status, 103);
        assert_eq!(client.answer().await.expect("answer").status, 200);
    });
}

/// What comes before an answer waits for a client that does not read no longer than the answer would.
#[test]
fn interim_answers_wait_for_a_client_no_longer_than_answers() {
    run(async {
        let hint = format!("HTTP/1.1 103 Early Hints\r\nlink: <{}>\r\n\r\n", "x".repeat(8_000));
        let answer = hint.repeat(30) + "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let up =
            server(move |mut client, _| {
                let answer = answer.clone();
                async move {
                    while client.request().await.is_some() && client.tcp.write_all(answer.as_bytes()).await.is_ok() {}
                }
            })
            .await;
        let mut manager = manager(to("c"));
        manager.stream_idle_timeout = Duration::from_millis(100);
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        // More than the kernel holds on the way.
        client.send(&"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(200)).await;
        proxy.until("envoy_http_downstream_rq_idle_timeout", "", 1).await;
        proxy.until("envoy_http_downstream_rq_active", "", 0).await;
        drop(client);
    });
}

#[test]
fn websocket_bytes_go_both_ways() {
    run(async {
        let up = server(|mut client, _| async move {
            let seen = client.request().await.expect("request");
            assert_eq!(seen.header("upgrade"), Some("websocket"));
            assert_eq!(seen.header("connection"), Some("upgrade"));
            client
                .tcp
                .write_all(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello",
                )
                .await
                .expect("send");
            let mut block = [0; 64];
            while let Ok(n @ 1..) = tokio::io::AsyncReadExt::read(&mut client.tcp, &mut block).await {
                client.tcp.write_all(&block[..n]).await.expect("send");
            }
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        client
            .send(
                "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n"
                    .replace("WebSocket", "websocket")
                    .as_str(),
            )
            .await;
        let answer = client.answer().await.expect("answer");
        assert_eq!(
            (answer.status, answer.header("connection"), answer.header("upgrade")),
            (101, Some("upgrade"), Some("websocket"))
        );
        client.send("ping").await;
        client.tcp.shutdown().await.expect("shutdown");
        assert_eq!(client.rest().await, b"helloping");
    });
}

#[test]
fn stale_and_closing_connections_are_not_used_again() {
    run(async {
        let up = server(|mut client, connection| async move {
            let Some(_) = client.request().await else { return };
            let close = if connection % 2 == 0 {
                "connection: close\r\n"
            } else {
                ""
            };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n{close}\r\n{connection}");
            client.tcp.write_all(head.as_bytes()).await.expect("send");
            // Every connection ends after one answer; the odd ones do not say so.
        })
        .await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        for i in 1..=6 {
            let answer = proxy.ask(GET).await;
            assert_eq!((answer.status, answer.text()), (200, i.to_string()));
            // Let the FIN arrive.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(proxy.metric("envoy_cluster_upstream_rq_total", "c"), 6);
    });
}

#[test]
fn a_drain_finishes_requests_and_announces_the_end() {
    run(async {
        let (up, _) = echo().await;
        let proxy = Proxy::start(manager(to("c")), vec![(h1("c"), vec![up])]).await;
        let mut client = proxy.connect().await;
        client.send(GET).await;
        assert_eq!(client.answer().await.expect("answer").header("connection"), None);
        let mut idle = proxy.connect().await;
        let mut fresh = proxy.connect().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        proxy.drain.start();
        // A request on a kept connection, and the first one on a new connection, may have been on their way.
        for connection in [&mut client, &mut fresh] {
            connection.send(GET).await;
            let answer = connection.answer().await.expect("answer");
            assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
            assert!(connection.rest().await.is_empty());
        }
        proxy.drain.close_now();
        assert!(idle.rest().await.is_empty());
    });
}

#[test]
fn idle_and_slow_clients_are_let_go() {
    run(async {
        let (up, _) = echo().await;
        let mut manager = manager(to("c"));
        manager.idle_timeout = Duration::from_millis(100);
        manager.request_headers_timeout = Duration::from_millis(150);
        manager.request_timeout = Duration::from_millis(200);
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        let mut idle = proxy.connect().await;
        assert!(idle.rest().await.is_empty());
        let mut slow = proxy.connect().await;
        slow.send("GET / HT").await;
        let answer = slow.answer().await.expect("answer");
        assert_eq!((answer.status, answer.text().as_str()), (408, "request header timeout"));
        let mut body = proxy.connect().await;
        body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n")
            .await;
        let answer = body.answer().await.expect("answer");
        assert_eq!((answer.status, answer.text().as_str()), (408, "request timeout"));
        assert_eq!(proxy.metric("envoy_http_downstream_cx_idle_timeout", ""), 1);
        assert_eq!(proxy.metric("envoy_http_downstream_rq_header_timeout", ""), 1);
    });
}

#[test]
fn rbac_and_client_identity() {
    run(async {
        let (up, log) = echo().await;
        let mut manager = manager(to("c"));
        manager.xfcc_mode = XfccMode::SanitizeSet;
        manager.xfcc_detail = XfccDetail {
            subject: true,
            uri: true,
            dns: false,
        };
        let deny = rbac::Policy {
            name: "no-admin".into(),
            permissions: vec![rbac::Permission::Header(heddle_matching::HeaderMatcher::new(
                "x-admin",
                heddle_matching::HeaderTest::Present(true),
                false,
                false,
            ))]
            .into(),
            principals: vec![rbac::Principal::Any].into(),
        };
        manager.filters = vec![harness::rbac(rbac::Policies {
            rules: Some(rbac::Rules::new(rbac::Action::Deny, vec![deny])),
            ..rbac::Policies::default()
        })];
        let proxy = Proxy::start_with(manager, vec![(h1("c"), vec![up])], |info| {
            info.tls_version = Some("TLSv1.3");
            info.local_identity = Some("spiffe://td/ns/shop/sa/cart".into());
            info.peer = Some(Arc::new(PeerIdentity {
                uri_sans: vec!["spiffe://td/ns/shop/sa/front".into()],
                sha256: "abc".into(),
                ..PeerIdentity::default()
            }));
        })
        .await;
        let answer = proxy.ask("GET / HTTP/1.1\r\nHost: a\r\nX-Admin: 1\r\n\r\n").await;
        assert_eq!((answer.status, answer.text().as_str()), (403, "RBAC: access denied"));
        let answer = proxy.ask("POST /s/M HTTP/1.1\r\nHost: a\r\nX-Admin: 1\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!((answer.status, answer.header("grpc-status")), (200, Some("7")));
        assert_eq!(answer.header("grpc-message"), Some("RBAC: access denied"));
        let answer = proxy
            .ask("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Client-Cert: URI=forged\r\n\r\n")
            .await;
        assert_eq!(answer.status, 200);
        let log = log.borrow();
        assert_eq!(log.len(), 1);
        assert_eq!(
            log[0].header("x-forwarded-client-cert"),
            Some("By=spiffe://td/ns/shop/sa/cart;Hash=abc;Subject=\"\";URI=spiffe://td/ns/shop/sa/front")
        );
        assert_eq!(log[0].header("x-forwarded-proto"), Some("https"));
        assert_eq!(proxy.metric("envoy_http_rbac_denied", ""), 2);
    });
}

/// What is kept of a certificate belongs to one connection.
#[test]
fn each_connection_has_its_own_client() {
    run(async {
        let (up, log) = echo().await;
        let mut manager = manager(to("c"));
        manager.xfcc_mode = XfccMode::AppendForward;
        let connections = Cell::new(0);
        let proxy = Proxy::start_with(manager, vec![(h1("c"), vec![up])], move |info| {
            let number = connections.replace(connections.get() + 1);
            // The third has no certificate.
            info.peer = (number < 2).then(|| {
                Arc::new(PeerIdentity {
                    sha256: format!("c{number}"),
                    ..PeerIdentity::default()
                })
            });
        })
        .await;
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut client = proxy.connect().await;
            client.send(GET).await;
            assert_eq!(client.answer().await.expect("answer").status, 200);
            clients.push(client);
        }
        for _ in 0..2 {
            for client in &mut clients {
                client
                    .send("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Client-Cert: Hash=before\r\n\r\n")
                    .await;
                assert_eq!(client.answer().await.expect("answer").status, 200);
            }
        }
        let log = log.borrow();
        let seen: Vec<_> = log.iter().map(|s| s.header("x-forwarded-client-cert")).collect();
        let appended = [Some("Hash=before,Hash=c0"), Some("Hash=before,Hash=c1"), None];
        let expected = [[Some("Hash=c0"), Some("Hash=c1"), None], appended, appended];
        assert_eq!(seen, expected.concat());
    });
}

#[test]
fn the_edge_trusts_nobody() {
    run(async {
        let (up, log) = echo().await;
        let mut manager = manager(to("c"));
        manager.use_remote_address = true;
        manager.via = Some("heddle".into());
        let proxy = Proxy::start(manager, vec![(h1("c"), vec![up])]).await;
        let answer = proxy
            .ask(
                "GET /%2e%2e/a/../b HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\n\
                 X-Request-Id: mine\r\nX-Envoy-Retry-On: 5xx\r\nX-Envoy-Internal: true\r\nTE: trailers, gzip\r\n\r\n",
            )
            .await;
        assert_eq!(answer.header("via"), Some("heddle"));
        let log = log.borrow();
        let seen = &log[0];
        assert_eq!(seen.line, "GET /b HTTP/1.1");
        assert_eq!(seen.header("x-forwarded-for"), Some("1.2.3.4,127.0.0.1"));
        assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
        assert_ne!(seen.header("x-request-id"), Some("mine"));
        assert_eq!(seen.header("x-envoy-retry-on"), None);
        assert_eq!(seen.header("x-envoy-internal"), None);
        assert_eq!(seen.header("te"), Some("trailers"));
        assert_eq!(seen.header("x-envoy-external-address"), Some("127.0.0.1"));
    });
}

#[test]
fn circuit_breakers_answer_overflow() {
    run(async {
        let silent = server(|mut client, _| async move {
            client.rest().await;
        })
        .await;
        let mut cluster = h1("c");
        cluster.circuit_breakers.max_requests = 1;
        let proxy = Proxy::start(manager(to("c")), vec![(cluster, vec![silent])]).await;
        let mut first = proxy.connect().await;
        first.send(GET).await;
        while proxy.metric("envoy_cluster_upstream_rq_active", "c") == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let answer = proxy.ask(GET).await;
        assert_eq!(
            (answer.status, answer.header("x-envoy-overloaded")),
            (503, Some("true"))
        );
        drop(first);
        while proxy.metric("envoy_cluster_upstream_rq_active", "c") > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(proxy.metric("envoy_http_downstream_rq_rx_reset", ""), 1);
    });
}

/// Thousands of requests in one packet: another client does not wait for their end.
#[test]
fn pipelined_requests_leave_turns_to_others() {
    run(async {
        const GREEDY: usize = 2000;
        let direct = Action::Direct(DirectResponse {
            status: 200,
            body: "ok".into(),
        });
        let proxy = Proxy::start(manager(table(vec![route("/", direct)])), Vec::new()).await;
        let (mut greedy, mut honest) = (proxy.connect().await, proxy.connect().await);
        greedy.send(&"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(GREEDY)).await;
        honest.send(GET).await;
        assert_eq!(honest.answer().await.expect("answer").status, 200);
        let served = proxy.metric("envoy_http_downstream_rq_total", "");
        assert!(served < GREEDY as i64 / 2, "{served} were served before");
        for _ in 0..GREEDY {
            assert_eq!(greedy.answer().await.expect("answer").status, 200);
        }
    });
}
