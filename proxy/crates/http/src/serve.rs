//! The door: which protocol a connection speaks.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use bytes::BytesMut;
use heddle_config::snapshot::{HttpCodec, LoadShedPoint, ScaledTimer};
use heddle_net::ConnectionInfo;
use heddle_tls::Stream;
use tokio::time::Instant;

use crate::drain::{Drain, DrainStage};
use crate::hcm::{Active, HcmRuntime};
use crate::moving::Resting;
use crate::timer::{Timer, far_future};
use crate::worker::HttpWorker;
use crate::{buffer, h1, h2};

/// Serves HTTP on an accepted connection until it ends. `first_bytes` were read already and come before what `stream`
/// has. `buffer_limit` is the listener's `per_connection_buffer_limit_bytes`. Must run inside a `tokio::task::LocalSet` (or local runtime): copies of requests are tasks of their own.
///
/// Returns the connection when it is to go on in another worker; never without [`Moves`](crate::Moves) in `hcm`.
///
/// The future holds the connection; dropping it closes the connection at once.
pub async fn serve(
    worker: &Rc<HttpWorker>,
    hcm: Rc<HcmRuntime>,
    stream: Stream,
    info: Rc<ConnectionInfo>,
    first_bytes: BytesMut,
    buffer_limit: usize,
    drain: Drain,
) -> Option<Box<Resting>> {
    hcm.stats.cx_total.inc();
    let _active = Active::enter(&hcm.stats.cx_active);
    let mut first = first_bytes;
    let http2 = match (hcm.config.codec, info.alpn.as_deref()) {
        (HttpCodec::Http1, _) => false,
        (HttpCodec::Http2, _) => true,
        (HttpCodec::Auto, Some(b"h2")) => true,
        (HttpCodec::Auto, Some(b"http/1.1" | b"http/1.0")) => false,
        (HttpCodec::Auto, _) => match detect(&hcm, &stream, &mut first, &drain).await {
            Some(http2) => http2,
            None => return None,
        },
    };
    if hcm
        .overload
        .sheds(LoadShedPoint::CreatingCodec, || worker.random().f64())
    {
        hcm.stats.rq_overload_close.inc();
        return None;
    }
    if http2 {
        h2::serve(worker, &hcm, stream, &info, first, buffer_limit, &drain).await
    } else {
        h1::serve(worker, &hcm, stream, &info, first, &drain).await
    }
}

/// Goes on with a connection that [`serve`] has returned: on the worker to which it went, or on the one that it was to leave. `hcm`
/// is the connection manager of the same filter chain there. Everything else is as in [`serve`].
pub async fn resume(
    worker: &Rc<HttpWorker>,
    hcm: Rc<HcmRuntime>,
    mut connection: Box<Resting>,
    drain: Drain,
) -> Option<Box<Resting>> {
    let _active = Active::enter(&hcm.stats.cx_active);
    connection.received(&hcm);
    match connection.is_http2() {
        true => h2::resume(worker, &hcm, connection, &drain).await,
        false => h1::resume(worker, &hcm, connection, &drain).await,
    }
}

/// The part of the preface that is the start line and head of a request which no HTTP/1.1 client sends.
const PRI: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";

/// Reads until the bytes can, or cannot, be the HTTP/2 preface; true when they are to be read as HTTP/2. None when the
/// connection ended first.
async fn detect(hcm: &HcmRuntime, stream: &Stream, first: &mut BytesMut, drain: &Drain) -> Option<bool> {
    let mut timer = Timer::default();
    let now = Instant::now();
    let idle = hcm.config.idle_timeout;
    let mut begun = None;
    let mut draining = None;
    poll_fn(|cx| {
        loop {
            let n = first.len().min(h2::PREFACE.len());
            if first.get(..n) != h2::PREFACE.get(..n) {
                // A client that got as far as this speaks HTTP/2, and its preface is wrong: a connection error of that
                // protocol (RFC 9113 section 3.4), not a request of the other.
                return Poll::Ready(Some(first.starts_with(PRI)));
            }
            if n == h2::PREFACE.len() {
                return Poll::Ready(Some(true));
            }
            if n > 0 && begun.is_none() {
                begun = Some(Instant::now() + hcm.headers_timeout());
            }
            if first.capacity() == 0 {
                *first = buffer::take_read();
            }
            match stream.poll_read(cx, first) {
                Poll::Ready(Ok(n)) if n > 0 => {}
                Poll::Ready(_) => {
                    hcm.stats.cx_destroy_remote.inc();
                    return Poll::Ready(None);
                }
                Poll::Pending => break,
            }
        }
        let mut until = match begun {
            Some(deadline) => deadline,
            None if idle.is_zero() => far_future(now),
            None => now + hcm.overload.timeout(ScaledTimer::HttpDownstreamConnectionIdle, idle),
        };
        if first.is_empty() {
            buffer::give_read(std::mem::take(first));
            match drain.stage() {
                DrainStage::Closing => until = now,
                // The first request may be on its way; its answer says `connection: close`.
                DrainStage::Draining => {
                    let end = *draining.get_or_insert_with(|| Instant::now() + hcm.config.drain_timeout);
                    until = until.min(end);
                }
                DrainStage::Serving => {}
            }
        }
        drain.register(cx);
        if timer.poll_until(cx, until).is_ready() {
            if drain.is_draining() {
                hcm.stats.cx_drain_close.inc();
            } else {
                hcm.stats.cx_idle_timeout.inc();
            }
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await
}
