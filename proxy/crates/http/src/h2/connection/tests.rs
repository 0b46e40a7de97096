use super::super::budget::reset_largest;
use super::super::core::PREFACE;
use super::super::premature::PrematureResets;
use super::super::streams::guarded;
use super::*;
use crate::head::ResponseHead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use heddle_config::snapshot::PrematureResetLimits;
use heddle_telemetry::Stats;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

/// A task that notes whether it was woken.
#[derive(Default)]
struct Task(Arc<Woken>);

#[derive(Default)]
struct Woken(AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Task {
    fn poll<T>(&self, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        self.0.0.store(false, Ordering::Relaxed);
        poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self.0))))
    }

    fn is_woken(&self) -> bool {
        self.0.0.load(Ordering::Relaxed)
    }
}

const MAX_HELD: usize = 1 << 20;

const GET: [u8; 5] = [0x82, 0x86, 0x84, 0x41, 0x01];

/// The connection of a client that has sent requests for so many streams, and the client's end of it.
async fn serving(requests: u32) -> (Rc<Connection>, Vec<Stream>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let client = TcpStream::connect(listener.local_addr().expect("address")).await;
    let (tcp, _) = listener.accept().await.expect("accept");
    let mut first = BytesMut::from(PREFACE);
    let mut frames = Vec::new();
    frame::settings(&[], &mut frames);
    for n in 0..requests {
        let at = frame::begin_headers(&mut frames);
        frames.extend_from_slice(&GET);
        frames.push(b'a');
        frame::end_headers(at, 2 * n + 1, true, &mut frames);
    }
    first.extend_from_slice(&frames);
    let connection = Connection::new(
        Role::Server,
        Transport::plain(tcp),
        first,
        Http2Options::default(),
        Limits {
            max_bytes: 60 * 1024,
            max_count: 100,
        },
        MAX_HELD,
        CodecStats::downstream(&Stats::new(), &[]),
    );
    turn(&connection).await;
    let streams: Vec<_> = std::iter::from_fn(|| connection.next_accepted())
        .map(|accepted| connection.stream(&accepted))
        .collect();
    assert_eq!(streams.len(), requests as usize);
    (connection, streams, client.expect("connect"))
}

/// One turn, after which nothing is left to be sent.
async fn turn(connection: &Connection) {
    std::future::poll_fn(|cx| {
        assert!(connection.poll_turn(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    assert_eq!(connection.core.borrow().pending(), 0, "the socket takes it");
}

fn head() -> ResponseHead {
    ResponseHead {
        status: 204,
        ..ResponseHead::default()
    }
}

/// Uses up the connection's window and the room in the output, which are about the same to begin with.
async fn exhaust(connection: &Connection, stream: &Stream) {
    stream.send_response(&head(), false).expect("open");
    stream.send_data(&[b'x'; 1155], false);
    turn(connection).await;
    // The frames' own headers fill what the window leaves.
    while stream.room() > 0 {
        stream.send_data(&vec![b'x'; stream.room().min(500)], false);
    }
    let core = connection.core.borrow();
    assert_eq!((core.send_window, core.room()), (0, 0));
}

#[tokio::test]
async fn heads_need_no_window() {
    let (connection, streams, _client) = serving(2).await;
    exhaust(&connection, &streams[0]).await;
    let waiting = Task::default();
    assert!(waiting.poll(|cx| streams[1].poll_head_room(cx, 0)).is_pending());
    turn(&connection).await;
    assert!(waiting.is_woken(), "there is room, and a head needs nothing else");
    assert!(waiting.poll(|cx| streams[1].poll_head_room(cx, 0)).is_ready());
}

#[tokio::test]
async fn room_that_one_does_not_use_is_anothers() {
    let (connection, streams, _client) = serving(32).await;
    exhaust(&connection, &streams[0]).await;
    connection.core.borrow_mut().held = MAX_HELD;
    let waiting: Vec<_> = streams[1..].iter().map(|stream| (stream, Task::default())).collect();
    for (stream, task) in &waiting {
        assert!(task.poll(|cx| stream.poll_ready(cx)).is_pending());
    }
    connection.core.borrow_mut().send_window += 1 << 20;
    let driver = Task::default();
    for _ in 0..streams.len() {
        // None of those let run has anything to send.
        assert!(driver.poll(|cx| connection.poll_turn(cx)).is_pending());
        if !driver.is_woken() {
            break;
        }
    }
    assert!(waiting.iter().all(|(_, task)| task.is_woken()));
    connection.core.borrow_mut().held = 0;
}

#[tokio::test]
async fn what_streams_write_in_their_drivers_turn_goes_out_with_it() {
    let (connection, streams, _client) = serving(2).await;
    let driver = Task::default();
    let turn = |answers: &dyn Fn()| {
        let over = driver.poll(|cx| {
            let received = connection.poll_receive(cx);
            answers();
            connection.poll_send_out(cx, received)
        });
        assert!(over.is_pending());
        assert_eq!(connection.core.borrow().pending(), 0, "the socket takes it");
    };
    turn(&|| streams[0].send_response(&head(), true).expect("open"));
    assert!(!driver.is_woken(), "nothing is left to be sent");
    streams[1].send_response(&head(), true).expect("open");
    assert!(driver.is_woken(), "it does not send by itself");
    turn(&|| ());
}

#[tokio::test]
async fn a_driver_that_panics_leaves_no_stream_waiting() {
    let (connection, streams, client) = serving(2).await;
    let local = tokio::task::LocalSet::new();
    let driven = Rc::clone(&connection);
    let driver = local.spawn_local(async move {
        let _driver = driven.driver();
        turn(&driven).await;
        panic!("on purpose");
    });
    assert!(local.run_until(driver).await.expect_err("it panicked").is_panic());
    for stream in &streams {
        let task = Task::default();
        assert!(matches!(
            task.poll(|cx| stream.poll_reset(cx)),
            Poll::Ready(StreamError::Closed)
        ));
    }
    // Nothing else holds the socket.
    drop(streams);
    drop(connection);
    let mut rest = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut { client }, &mut rest).await;
    assert!(read.is_ok() || read.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn a_stream_that_panics_is_reset_alone() {
    let (connection, mut streams, _client) = serving(2).await;
    let broken = streams.remove(0);
    let panics = std::cell::Cell::new(0);
    let faulty = async move {
        let _stream = broken;
        panic!("on purpose");
    };
    guarded(Box::pin(faulty), || panics.set(panics.get() + 1)).await;
    assert_eq!(panics.get(), 1);
    assert_eq!(connection.active(), 1);
    let core = connection.core.borrow();
    assert_eq!(core.stats.tx_reset.get(), 1);
    assert_eq!(streams[0].state.error.get(), None);
    assert!(!core.over);
}

#[tokio::test]
async fn streams_that_hold_most_are_reset_wherever_they_are() {
    let (first, a, _client) = serving(2).await;
    let (second, b, _other) = serving(2).await;
    let hold = |stream: &Stream, bytes| stream.state.holding.set(bytes - stream.state.heads.get());
    hold(&a[0], 3 << 20);
    hold(&a[1], (1 << 20) - 1);
    hold(&b[0], 5 << 20);
    hold(&b[1], 4 << 20);
    let failed = || [&a[0], &a[1], &b[0], &b[1]].map(|stream| stream.state.error.get().is_some());
    assert_eq!(reset_largest(6 << 20, 50), 0);
    assert_eq!(reset_largest(1 << 20, 1), 1);
    assert_eq!(failed(), [false, false, true, false]);
    assert_eq!(reset_largest(1 << 20, 50), 2, "those that are left");
    assert_eq!(failed(), [true, false, true, true]);
    assert_eq!(b[0].dropped(), Some(StreamError::Overload));
    // Their clients hear of it.
    let resets = |connection: &Rc<Connection>| connection.core.borrow().stats.tx_reset.get();
    assert_eq!((resets(&first), resets(&second)), (1, 2));
}

#[tokio::test]
async fn heads_are_held_until_their_streams_end() {
    let (connection, mut streams, _client) = serving(2).await;
    let held = |connection: &Rc<Connection>| {
        connection
            .core
            .borrow()
            .streams
            .values()
            .map(|s| s.held())
            .sum::<usize>()
    };
    let requests = held(&connection);
    assert!(requests > 0);
    let mut answer = head();
    answer.fields.push(b"x", &[b'v'; 30_000]);
    streams[0].send_response(&answer, true).expect("open");
    assert_eq!(
        held(&connection),
        requests + answer.fields.held(),
        "logs read it at the end"
    );
    let interim = ResponseHead {
        status: 103,
        ..answer.clone()
    };
    streams[1].send_response(&interim, false).expect("open");
    assert_eq!(
        held(&connection),
        requests + answer.fields.held(),
        "the next takes its place"
    );
    drop(streams.remove(0));
    assert_eq!(held(&connection), requests / 2);
    // A local answer's waits with its request.
    exhaust(&connection, &streams[0]).await;
    let before = held(&connection);
    let task = Task::default();
    assert!(task.poll(|cx| streams[0].poll_head_room(cx, 5000)).is_pending());
    assert_eq!(held(&connection), before + 5000);
    drop(streams);
    assert_eq!(held(&connection), 0);
}

/// Has the connection read these frames of its client.
async fn hear(connection: &Connection, client: &mut TcpStream, frames: &[u8]) {
    let all = connection.received() + frames.len() as u64;
    client.write_all(frames).await.expect("sends");
    while connection.received() < all {
        tokio::task::yield_now().await;
        turn(connection).await;
    }
}

fn ping() -> Vec<u8> {
    let mut frames = Vec::new();
    frame::ping([7; 8], false, &mut frames);
    frames
}

/// A connection whose client has had its answer, and has acknowledged our SETTINGS.
async fn resting() -> (Rc<Connection>, Driver, TcpStream) {
    let (connection, streams, mut client) = serving(1).await;
    let driver = connection.driver();
    let mut acknowledged = Vec::new();
    frame::settings_ack(&mut acknowledged);
    hear(&connection, &mut client, &acknowledged).await;
    assert!(!connection.is_at_rest(), "a stream is open");
    streams[0].send_response(&head(), true).expect("open");
    drop(streams);
    turn(&connection).await;
    (connection, driver, client)
}

#[tokio::test]
async fn who_has_something_under_way_is_not_at_rest() {
    let (connection, driver, mut client) = resting().await;
    assert!(connection.is_at_rest());
    let (begin, end) = (&ping()[..12], &ping()[12..]);
    hear(&connection, &mut client, begin).await;
    assert!(!connection.is_at_rest(), "half a frame has come");
    hear(&connection, &mut client, end).await;
    assert!(connection.is_at_rest());
    let other = Rc::clone(&connection);
    assert!(!connection.is_at_rest(), "somebody has it");
    drop(other);
    connection.ping();
    assert!(!connection.is_at_rest(), "it has something to say");
    turn(&connection).await;
    assert!(connection.is_at_rest());
    connection.graceful_shutdown();
    turn(&connection).await;
    assert!(!connection.is_at_rest(), "it ends");
    drop(driver);
    let (greeted, streams, _client) = serving(0).await;
    let _driver = greeted.driver();
    assert!(
        streams.is_empty() && !greeted.is_at_rest(),
        "our SETTINGS are on their way"
    );
}

/// A client that has used up what it may do has no more of it on another worker, and its next streams are what they would have been.
#[tokio::test]
async fn what_a_client_has_done_goes_along() {
    fn is_send<T: Send>(_: &T) {}
    let (connection, driver, mut client) = resting().await;
    for _ in 0..990 {
        connection
            .core
            .borrow_mut()
            .inbound
            .control()
            .expect("within the bound");
    }
    connection.core.borrow_mut().send_window = 4321;
    connection.core.borrow_mut().reset_number(1, Reason::CANCEL);
    turn(&connection).await;
    let driven = Driven {
        resets: PrematureResets::new(PrematureResetLimits::default()),
        ping_due: None,
    };
    driver.release();
    let (transport, at_rest) = connection.into_rest(driven).expect("nobody else has it");
    is_send(&at_rest);
    let stats = CodecStats::downstream(&Stats::new(), &[]);
    let connection = Connection::resume(transport, at_rest, stats);

    let mut frames = Vec::new();
    for (stream, authority) in [(3, 0xbe), (1, 0xbe)] {
        let at = frame::begin_headers(&mut frames);
        // The authority as the client's table has it since its first request.
        frames.extend_from_slice(&[0x82, 0x86, 0x84, authority]);
        frame::end_headers(at, stream, true, &mut frames);
    }
    hear(&connection, &mut client, &frames).await;
    let accepted = connection.next_accepted().expect("a request");
    assert_eq!(accepted.head.fields.slice(accepted.head.authority), b"a");
    assert!(
        connection.next_accepted().is_none(),
        "the other was reset before, which is no offence"
    );
    let mut core = connection.core.borrow_mut();
    assert_eq!((core.send_window, core.last_peer), (4321, 3));
    let left = (0..).take_while(|_| core.inbound.control().is_ok()).count();
    assert!(left < 500, "{left} control frames more");
}
