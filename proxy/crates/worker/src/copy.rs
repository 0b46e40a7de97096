//! Moving bytes both ways between two streams until both directions have ended.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use heddle_http::{Drain, DrainStage};
use heddle_net::{BUFFER_SIZE, BufferPool, Liveness};
use heddle_tls::Stream;
use tokio::time::{Instant, sleep_until};

/// A read that fills its buffer asks for this much the next time: long transfers take a quarter of the system calls.
const LARGE: usize = 4 * BUFFER_SIZE;

/// Bytes moved one way before other tasks of the worker get their turn: well below a millisecond, with TLS on both sides.
const TURN_BYTES: u64 = 128 * 1024;

/// How a copy ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// Both directions came to their end.
    Finished,
    /// Nothing moved for the idle timeout.
    Idle,
    /// The upstream owes an acknowledgement for longer than its patience.
    Unresponsive,
    /// The downstream does.
    DownstreamUnresponsive,
    /// The listener is closing.
    Drained,
    /// Reading from or writing to the downstream failed.
    Downstream(io::Error),
    /// Reading from or writing to the upstream failed.
    Upstream(io::Error),
}

/// What moved, for counters. Called with bytes from downstream and bytes to downstream.
pub(crate) trait Meter {
    fn moved(&self, from_downstream: u64, to_downstream: u64);
}

#[derive(Default)]
struct Direction {
    buffer: BytesMut,
    ended: bool,
    done: bool,
}

enum Side {
    From(io::Error),
    To(io::Error),
}

impl Direction {
    /// Moves what can be moved, up to [`TURN_BYTES`]. Ready when the source has ended and the sink has been told.
    fn poll(
        &mut self,
        from: &Stream,
        to: &Stream,
        cx: &mut Context<'_>,
        limit: usize,
        moved: &mut u64,
    ) -> Poll<Result<(), Side>> {
        if self.done {
            return Poll::Ready(Ok(()));
        }
        loop {
            while !self.buffer.is_empty() {
                let n = match to.poll_write_vectored(cx, &[IoSlice::new(&self.buffer)]) {
                    Poll::Ready(Ok(0)) => {
                        return Poll::Ready(Err(Side::To(io::ErrorKind::WriteZero.into())));
                    }
                    Poll::Ready(Ok(n)) => n,
                    Poll::Ready(Err(e)) => return Poll::Ready(Err(Side::To(e))),
                    // The sink is slow: keep the bytes and read no more.
                    Poll::Pending => return Poll::Pending,
                };
                self.buffer.advance(n);
                *moved += n as u64;
            }
            if self.ended {
                self.give_back();
                ready!(to.poll_shutdown(cx)).map_err(Side::To)?;
                self.done = true;
                return Poll::Ready(Ok(()));
            }
            if *moved >= TURN_BYTES {
                // The others of this worker first.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.buffer.capacity() == 0 {
                self.buffer = BufferPool::take();
            }
            let room = self.buffer.capacity();
            match from.poll_read(cx, &mut self.buffer) {
                Poll::Ready(Ok(0)) => self.ended = true,
                Poll::Ready(Ok(n)) => {
                    if n == room && room < LARGE && room < limit {
                        let mut larger = BytesMut::with_capacity(LARGE.min(limit));
                        larger.extend_from_slice(&self.buffer);
                        BufferPool::give(std::mem::replace(&mut self.buffer, larger));
                    }
                }
                // A TLS peer that leaves without close_notify: what came before was delivered, and raw TCP has no way
                // to say more than FIN.
                Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => self.ended = true,
                Poll::Ready(Err(e)) => return Poll::Ready(Err(Side::From(e))),
                Poll::Pending => {
                    // An idle connection holds no buffer.
                    self.give_back();
                    if let Poll::Ready(Err(e)) = to.poll_flush(cx) {
                        return Poll::Ready(Err(Side::To(e)));
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    fn give_back(&mut self) {
        BufferPool::give(std::mem::take(&mut self.buffer));
    }
}

/// Bounds of one copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Nothing may move for so long; zero: for ever.
    pub(crate) idle: Duration,
    /// Bytes held per direction at most.
    pub(crate) buffer: usize,
    /// How long the client may owe an acknowledgement; none: as long as the kernel lets it.
    pub(crate) downstream_patience: Option<Duration>,
    /// The same for the upstream.
    pub(crate) upstream_patience: Option<Duration>,
}

/// Copies until both directions have ended, one failed, a limit is reached, or the listener closes. A direction that
/// ends is passed on as a half-close. A slow receiver stops the reading on the other side.
pub(crate) async fn both_ways(
    downstream: &Stream,
    upstream: &Stream,
    limits: &Limits,
    drain: &Drain,
    meter: &impl Meter,
) -> Ended {
    let mut up = Direction::default();
    let mut down = Direction::default();
    let limit = limits.buffer;
    let last = Cell::new(Instant::now());
    let copy = poll_fn(|cx| {
        let (mut sent, mut received) = (0, 0);
        let upward = up.poll(downstream, upstream, cx, limit, &mut sent);
        let downward = down.poll(upstream, downstream, cx, limit, &mut received);
        if sent > 0 || received > 0 {
            meter.moved(sent, received);
            last.set(Instant::now());
        }
        match (upward, downward) {
            (Poll::Ready(Err(Side::From(e))), _) | (_, Poll::Ready(Err(Side::To(e)))) => {
                Poll::Ready(Ended::Downstream(e))
            }
            (Poll::Ready(Err(Side::To(e))), _) | (_, Poll::Ready(Err(Side::From(e)))) => {
                Poll::Ready(Ended::Upstream(e))
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(Ended::Finished),
            _ => drain.poll_stage(cx, DrainStage::Closing).map(|()| Ended::Drained),
        }
    });
    tokio::select! {
        biased;
        ended = copy => ended,
        ended = watch(downstream, upstream, limits, &last) => ended,
    }
}

/// Waits until nothing has moved for too long, or one side is to be taken for dead. For ever without limits.
async fn watch(downstream: &Stream, upstream: &Stream, limits: &Limits, last: &Cell<Instant>) -> Ended {
    let mut sides = [
        (
            limits.upstream_patience.map(Liveness::new),
            upstream,
            Ended::Unresponsive,
        ),
        (
            limits.downstream_patience.map(Liveness::new),
            downstream,
            Ended::DownstreamUnresponsive,
        ),
    ];
    let period = sides.iter().filter_map(|(l, ..)| Some(l.as_ref()?.period())).min();
    let idle = (!limits.idle.is_zero()).then_some(limits.idle);
    loop {
        // One timer per period, however many bytes move: it looks at the clock when it fires.
        let idle_at = idle.map(|idle| last.get() + idle);
        let now = Instant::now();
        if idle_at.is_some_and(|at| at <= now) {
            return Ended::Idle;
        }
        for (liveness, stream, ended) in &mut sides {
            if liveness
                .as_mut()
                .is_some_and(|l| l.is_dead(stream.tcp(), now.into_std()))
            {
                return std::mem::replace(ended, Ended::Finished);
            }
        }
        let look_at = period.map(|period| now + period);
        match idle_at.into_iter().chain(look_at).min() {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;

    use heddle_http::DrainTrigger;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[derive(Default)]
    struct Moved(Cell<u64>);

    impl Meter for Moved {
        fn moved(&self, from_downstream: u64, to_downstream: u64) {
            self.0.set(self.0.get() + from_downstream + to_downstream);
        }
    }

    async fn pair() -> (TcpStream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let peer = TcpStream::connect(listener.local_addr().expect("address")).await;
        let (ours, _) = listener.accept().await.expect("accept");
        (peer.expect("connect"), Stream::plain(ours))
    }

    /// The client has sent all that the kernel takes, and nothing has to be waited for.
    #[tokio::test(start_paused = true)]
    async fn a_greedy_client_leaves_turns_to_others() {
        let ((client, downstream), (_server, upstream)) = (pair().await, pair().await);
        let mut sent = 0;
        client.writable().await.expect("open");
        while let Ok(n) = client.try_write(&[0; 64 * 1024]) {
            sent += n as u64;
        }
        assert!(sent > TURN_BYTES, "the kernel took {sent}");
        let limits = Limits {
            idle: Duration::ZERO,
            buffer: 1 << 20,
            downstream_patience: None,
            upstream_patience: None,
        };
        let (drain, moved) = (DrainTrigger::new().listener(), Moved::default());
        let mut copy = pin!(both_ways(&downstream, &upstream, &limits, &drain, &moved));
        downstream.tcp().readable().await.expect("open");
        let mut turns = 0;
        let mut before = 0;
        poll_fn(|cx| {
            assert!(copy.as_mut().poll(cx).is_pending());
            turns += 1;
            let now = moved.0.get();
            assert!(now - before <= TURN_BYTES + LARGE as u64, "{} in a turn", now - before);
            before = now;
            // It asks for another turn by itself.
            if now > TURN_BYTES {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        assert!(turns > 1);
    }
}
