use std::future::poll_fn;
use std::io::IoSlice;

use super::*;
use crate::stream::Kind;

async fn connected() -> (Stream, Stream) {
    let root = Authority::root("root");
    let (server, client) = mutual(&root);
    let (accepted, dialled) = handshake(&server, &client).await;
    (accepted.expect("server side").0, dialled.expect("client side").0)
}

async fn read_to_end(stream: &Stream) -> std::io::Result<BytesMut> {
    let mut all = BytesMut::new();
    while stream.read(&mut all).await? > 0 {}
    Ok(all)
}

#[tokio::test]
async fn megabytes_both_ways_at_once() {
    let (server, client) = connected().await;
    let payload: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let send = |stream: &'static Stream, payload: &'static [u8]| async move {
        stream.write_all(payload).await.expect("writes");
        stream.shutdown().await.expect("shuts down");
    };
    // Leaked so that four futures can share them without counting references.
    let server: &'static Stream = Box::leak(Box::new(server));
    let client: &'static Stream = Box::leak(Box::new(client));
    let payload: &'static [u8] = Box::leak(payload.into_boxed_slice());
    let (_, _, at_server, at_client) = tokio::join!(
        send(server, payload),
        send(client, payload),
        read_to_end(server),
        read_to_end(client)
    );
    assert!(at_server.expect("clean end") == payload);
    assert!(at_client.expect("clean end") == payload);
}

#[tokio::test]
async fn vectored_pieces_arrive_in_order() {
    let (server, client) = connected().await;
    let big = vec![b'x'; 40_000];
    let pieces: [&[u8]; 5] = [b"HTTP/1.1 200 OK\r\n\r\n", b"", b"body", &big, b"end"];
    let mut sent = 0;
    let all = pieces.concat();
    let write = async {
        while sent < all.len() {
            let mut skip = sent;
            let slices: Vec<IoSlice<'_>> = pieces
                .iter()
                .map(|p| {
                    let from = skip.min(p.len());
                    skip -= from;
                    IoSlice::new(&p[from..])
                })
                .collect();
            sent += poll_fn(|cx| client.poll_write_vectored(cx, &slices))
                .await
                .expect("writes");
        }
        client.shutdown().await.expect("shuts down");
    };
    let (_, received) = tokio::join!(write, read_to_end(&server));
    assert!(received.expect("clean end") == all);
}

#[tokio::test]
async fn a_missing_close_notify_is_told_apart() {
    let (server, client) = connected().await;
    client.write_all(b"half of it").await.expect("writes");
    // FIN without close_notify.
    rustix::net::shutdown(client.tcp(), rustix::net::Shutdown::Write).expect("shuts down");
    let mut got = BytesMut::new();
    assert_eq!(server.read(&mut got).await.expect("data first"), 10);
    let error = server.read(&mut got).await.expect_err("truncated");
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    let again = server.read(&mut got).await.expect_err("stays truncated");
    assert_eq!(again.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn half_close_keeps_the_other_direction() {
    let (server, client) = connected().await;
    client.shutdown().await.expect("shuts down");
    assert_eq!(server.read(&mut BytesMut::new()).await.expect("clean end"), 0);
    server.write_all(b"answer").await.expect("still writes");
    let mut got = BytesMut::new();
    client.read(&mut got).await.expect("still reads");
    assert_eq!(&got[..], b"answer");
}

/// Segments that a socket has sent: `tcpi_segs_out`, the 32 bits at 136 of the kernel's `struct tcp_info`, of which libc has
/// the beginning.
fn segments_sent(stream: &Stream) -> u32 {
    use std::os::fd::AsRawFd;
    let mut info = [0_u32; 64];
    let mut length = libc::socklen_t::try_from(size_of_val(&info)).expect("fits");
    // SAFETY: the kernel writes at most `length` bytes to `info`, which has that size.
    let result = unsafe {
        libc::getsockopt(
            stream.tcp().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert!(result == 0 && length >= 140, "{result} {length}");
    info[136 / 4]
}

#[tokio::test]
async fn the_end_is_said_in_one_packet() {
    let (server, client) = connected().await;
    // What the handshake has left to be acknowledged is acknowledged by this.
    server.write_all(b"answer").await.expect("writes");
    client.read(&mut BytesMut::new()).await.expect("reads");
    let before = segments_sent(&server);
    server.shutdown().await.expect("shuts down");
    assert_eq!(segments_sent(&server) - before, 1, "close_notify goes with FIN");
    assert_eq!(client.read(&mut BytesMut::new()).await.expect("clean end"), 0);
}

#[tokio::test]
async fn records_that_do_not_decrypt_end_the_connection() {
    let (server, client) = connected().await;
    // A record of the right shape that no key of this session has made.
    let mut forged = vec![23, 3, 3, 0, 32];
    forged.extend_from_slice(&[0xaa; 32]);
    client.tcp().writable().await.expect("writable");
    client.tcp().try_write(&forged).expect("writes");
    let error = server.read(&mut BytesMut::new()).await.expect_err("forged");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
}

#[tokio::test]
async fn an_idle_connection_holds_no_buffers() {
    let (server, client) = connected().await;
    for _ in 0..3 {
        client.write_all(b"request").await.expect("writes");
        let mut got = BytesMut::new();
        server.read(&mut got).await.expect("reads");
        assert!(
            got.capacity() <= 64,
            "room is made for what came, not for what may come: {}",
            got.capacity()
        );
    }
    assert_eq!(server.buffered(), (0, 0));
    assert_eq!(client.buffered(), (0, 0));
}

#[tokio::test]
async fn a_slow_reader_bounds_what_is_kept() {
    let (server, client) = connected().await;
    let payload = vec![7_u8; 256 * 1024];
    let mut accepted = 0_usize;
    // Nobody reads: after the kernel's buffers are full the stream takes no more than one batch.
    loop {
        let mut once = false;
        let n = poll_fn(|cx| {
            if once {
                return std::task::Poll::Ready(None);
            }
            match client.poll_write_vectored(cx, &[IoSlice::new(&payload)]) {
                std::task::Poll::Ready(n) => std::task::Poll::Ready(Some(n.expect("writes"))),
                std::task::Poll::Pending => {
                    once = true;
                    cx.waker().wake_by_ref();
                    std::task::Poll::Ready(None)
                }
            }
        })
        .await;
        match n {
            Some(n) => accepted += n,
            None => break,
        }
        assert!(accepted < 64 << 20, "backpressure must come");
    }
    let (_, unsent) = client.buffered();
    assert!(unsent > 0 && unsent < 80 * 1024, "{unsent}");
    drop(server);
}

#[tokio::test]
async fn plain_streams_return_what_was_read_before() {
    let (near, far) = pair().await;
    let stream = Stream::plain_with(far, BytesMut::from(&b"GET /"[..]));
    assert!(!stream.is_tls());
    let near = Stream::plain(near);
    near.write_all(b" HTTP/1.1").await.expect("writes");
    near.shutdown().await.expect("shuts down");
    assert_eq!(&read_to_end(&stream).await.expect("reads")[..], b"GET / HTTP/1.1");
}

/// Between two event loops, with half a record before and half after; then to its end.
#[tokio::test]
async fn a_session_goes_on_in_another_thread() {
    let (server, client) = connected().await;
    assert!(server.is_at_rest());
    let record = |stream: &Stream| {
        let Kind::Tls(session) = &stream.kind else {
            panic!("TLS")
        };
        let mut session = session.borrow_mut();
        session.ssl.ssl_write(b"a record").expect("encrypts");
        let memory = session.ssl.get_mut();
        let bytes = memory.unsent().to_vec();
        memory.sent = memory.output.len();
        memory.settle_output();
        bytes
    };
    let bytes = record(&client);
    let (before, after) = bytes.split_at(bytes.len() / 2);
    client.tcp().writable().await.expect("writable");
    assert_eq!(client.tcp().try_write(before).expect("writes"), before.len());
    server.tcp().readable().await.expect("readable");
    let mut read = BytesMut::new();
    let waits = poll_fn(|cx| std::task::Poll::Ready(server.poll_read(cx, &mut read).is_pending())).await;
    assert!(waits && read.is_empty());
    let detached = server.detach().expect("leaves the event loop");
    assert_eq!(client.tcp().try_write(after).expect("writes"), after.len());
    let there = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        runtime.block_on(async {
            let server = detached.attach().expect("enters the event loop");
            let mut read = BytesMut::new();
            while read.len() < 8 {
                assert!(server.read(&mut read).await.expect("reads") > 0);
            }
            server.write_all(&read).await.expect("writes");
            assert_eq!(server.read(&mut BytesMut::new()).await.expect("a clean end"), 0);
            assert!(!server.is_at_rest(), "the client has ended");
        });
    });
    let mut answer = BytesMut::new();
    while answer.len() < 8 {
        assert!(client.read(&mut answer).await.expect("reads") > 0);
    }
    assert_eq!(&answer[..], b"a record");
    client.shutdown().await.expect("shuts down");
    drop(client);
    there.join().expect("no panic");
}
