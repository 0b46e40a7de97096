//! Copies of requests for other clusters (`request_mirror_policies`). A copy is a request of the proxy's own whose answer
//! nobody reads. Its head is copied, its body teed as it leaves for the upstream; what the copy's cluster does not take in
//! time is held up to that cluster's buffer limit and what the worker's requests may keep together, beyond which the copy is
//! given up, so that the request itself is never held up. A copy that has its request whole goes on when the request is over, until its answer ends or its time is up.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use heddle_config::snapshot::{MirrorHost, MirrorTo};
use heddle_telemetry::Counter;

use super::replay::ReplayBody;
use super::{Job, Routed};
use crate::body::{BodyLength, Fill, Sink, Source, StreamError};
use crate::hcm::{Exchange, Reply, RequestBody};
use crate::head::{Fields, Method, RequestHead, ResponseHead};
use crate::kept::{Keeper, KeptBytes, Purpose};
use crate::route::select;
use crate::timer::Timer;
use crate::worker::HttpWorker;

/// Where the body of a request goes besides its upstream. Dropped before the body's end, it gives the copies up.
pub(super) struct Copies(Box<[Rc<Tee>]>);

impl Copies {
    /// Begins the copies that a request's route asks for.
    #[cold]
    pub(super) fn begin(routed: &Routed<'_>, job: &Job<'_>, exchange: &Exchange) -> Option<Self> {
        if routed.facts.upgrade || exchange.request.method == Method::Connect {
            // What goes through a tunnel is no request.
            return None;
        }
        let dice = || routed.env.worker.dice();
        let policies = routed.action.mirrors.iter().filter(|p| p.share.holds(dice));
        let tees: Box<[_]> = policies
            .filter_map(|policy| {
                let cluster = cluster(&policy.to, &exchange.request)?;
                let mut head = exchange.request.clone();
                if let Some(host) = host(&policy.host, head.host()) {
                    head.set_host(&host);
                }
                begin(job, cluster, head)
            })
            .collect();
        (!tees.is_empty()).then_some(Self(tees))
    }

    /// Takes what the upstream took.
    pub(super) fn put(&self, bytes: &[u8]) {
        self.0.iter().for_each(|tee| tee.put(bytes));
    }

    /// The body is over.
    pub(super) fn finish(&self, trailers: Option<&Fields>) {
        self.0.iter().for_each(|tee| tee.end(End::Whole(trailers.cloned())));
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.0.iter().for_each(|tee| tee.end(End::Cut));
    }
}

/// The cluster that a copy goes to; none where the request does not name one.
fn cluster(to: &MirrorTo, request: &RequestHead) -> Option<Arc<str>> {
    match to {
        MirrorTo::Cluster(name) => Some(Arc::clone(name)),
        MirrorTo::Header(header) => {
            let name = request.fields.get(header.as_bytes())?;
            Some(std::str::from_utf8(name).ok()?.into())
        }
    }
}

/// The host of a copy; none where it stays.
fn host(rule: &MirrorHost, host: &str) -> Option<String> {
    match rule {
        MirrorHost::Same => None,
        MirrorHost::Literal(literal) => Some(literal.clone().into()),
        MirrorHost::Suffixed => {
            let name = select::without_port(host);
            let port = host.get(name.len()..).unwrap_or_default();
            Some(format!("{name}-shadow{port}"))
        }
    }
}

/// Begins a copy; none when there is no such cluster.
fn begin(job: &Job<'_>, cluster: Arc<str>, head: RequestHead) -> Option<Rc<Tee>> {
    let worker = Rc::clone(job.worker);
    let keeper = job.keeper();
    let found = worker.clusters.get(&cluster)?;
    let (registry, name) = found.stats().registry();
    let tee = Rc::new(Tee {
        limit: found.config().buffer_limit,
        overflow: registry.counter("heddle_cluster_mirror_overflow", &[("cluster_name", name)]),
        held: RefCell::new(Held::new(keeper)),
    });
    let length = job.facts.length;
    if length == BodyLength::Empty {
        tee.end(End::Whole(None));
    }
    let (timeout, idle_timeout) = (job.timeout, job.idle_timeout);
    let body = CopiedBody {
        front: BytesMut::new(),
        keeper: Rc::clone(keeper),
        tee: Rc::clone(&tee),
    };
    tokio::task::spawn_local(send(worker, cluster, head, body, length, timeout, idle_timeout));
    Some(tee)
}

/// Sends a copy and throws its answer away.
async fn send(
    worker: Rc<HttpWorker>,
    cluster: Arc<str>,
    head: RequestHead,
    mut body: CopiedBody,
    length: BodyLength,
    timeout: Duration,
    idle_timeout: Duration,
) {
    let mut exchange = Exchange::own(head);
    let Some(cluster) = super::enter(&worker, &cluster, &mut exchange).await else {
        return;
    };
    let job = Job {
        idle_timeout,
        ..Job::own(&worker, length, timeout, None)
    };
    let keeper = Rc::clone(&body.keeper);
    let mut body = ReplayBody::new(&mut body, length, &keeper);
    let mut timer = Timer::default();
    // The cluster's statistics have said what became of it.
    let _ = super::send(&job, &cluster, &mut exchange, &mut body, &mut Nobody, &mut timer).await;
}

/// How the body of a copy ends.
#[derive(Debug)]
enum End {
    Whole(Option<Fields>),
    Cut,
}

/// Bytes on their way from a request to its copy.
struct Tee {
    limit: usize,
    overflow: Counter,
    held: RefCell<Held>,
}

struct Held {
    bytes: BytesMut,
    /// Bytes that the copy has taken and not sent.
    ahead: usize,
    /// The worker's account of both.
    account: KeptBytes,
    end: Option<End>,
    waker: Option<Waker>,
}

impl Held {
    fn new(keeper: &Rc<Keeper>) -> Self {
        Self {
            bytes: BytesMut::new(),
            ahead: 0,
            account: KeptBytes::new(keeper, Purpose::Again),
            end: None,
            waker: None,
        }
    }
}

impl Tee {
    fn put(&self, bytes: &[u8]) {
        let mut held = self.held.borrow_mut();
        if held.end.is_some() {
            return;
        }
        let all = held.bytes.len() + held.ahead + bytes.len();
        if all > self.limit || !held.account.set(all) {
            drop(held);
            self.overflow.inc();
            self.end(End::Cut);
            return;
        }
        held.bytes.extend_from_slice(bytes);
        if let Some(waker) = held.waker.take() {
            waker.wake();
        }
    }

    /// The first end counts.
    fn end(&self, end: End) {
        let mut held = self.held.borrow_mut();
        if held.end.is_some() {
            return;
        }
        if matches!(end, End::Cut) {
            held.bytes = BytesMut::new();
            let ahead = held.ahead;
            held.account.shrink(ahead);
        }
        held.end = Some(end);
        if let Some(waker) = held.waker.take() {
            waker.wake();
        }
    }
}

/// The body of a copy.
struct CopiedBody {
    front: BytesMut,
    /// The client's connection.
    keeper: Rc<Keeper>,
    tee: Rc<Tee>,
}

impl Drop for CopiedBody {
    fn drop(&mut self) {
        // Nobody sends it any more.
        self.tee.end(End::Cut);
    }
}

impl Source for CopiedBody {
    fn poll_fill(&mut self, cx: &mut Context<'_>, _: usize) -> Poll<Result<Fill, StreamError>> {
        let held = &mut *self.tee.held.borrow_mut();
        if matches!(held.end, Some(End::Cut)) {
            return Poll::Ready(Err(StreamError::Reset));
        }
        if self.front.is_empty() {
            self.front = std::mem::take(&mut held.bytes);
            held.ahead = self.front.len();
        }
        if !self.front.is_empty() {
            return Poll::Ready(Ok(Fill::Data));
        }
        if held.end.is_some() {
            return Poll::Ready(Ok(Fill::End));
        }
        held.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn chunk(&self) -> &[u8] {
        &self.front
    }

    fn consume(&mut self, n: usize) {
        self.front.advance(n.min(self.front.len()));
        let held = &mut *self.tee.held.borrow_mut();
        held.ahead = self.front.len();
        if held.ahead == 0 {
            // Not before is its memory free.
            held.account.shrink(held.bytes.len());
        }
    }

    fn ends_after(&self, n: usize) -> bool {
        let held = self.tee.held.borrow();
        n >= self.front.len() && held.bytes.is_empty() && matches!(held.end, Some(End::Whole(None)))
    }

    fn take_trailers(&mut self) -> Option<Fields> {
        match &mut self.tee.held.borrow_mut().end {
            Some(End::Whole(trailers)) => trailers.take(),
            _ => None,
        }
    }
}

impl RequestBody for CopiedBody {
    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<StreamError> {
        Poll::Pending
    }

    fn tunnel(&mut self) {}
}

/// Who reads the answer to a copy.
struct Nobody;

impl Sink for Nobody {
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Ok(()))
    }

    fn room(&self) -> usize {
        crate::buffer::READ_SIZE
    }

    fn poll_put<S: Source>(&mut self, _: &mut Context<'_>, source: &mut S) -> Poll<Result<usize, StreamError>> {
        let n = source.chunk().len();
        source.consume(n);
        Poll::Ready(Ok(n))
    }

    fn finish(&mut self, _: Option<&Fields>) -> Result<(), StreamError> {
        Ok(())
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Ok(()))
    }
}

impl Reply for Nobody {
    fn send_head(&mut self, _: &ResponseHead, _: BodyLength) -> Result<(), StreamError> {
        Ok(())
    }

    fn send_interim(&mut self, _: &ResponseHead) -> Result<(), StreamError> {
        Ok(())
    }

    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<StreamError> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let suffixed = |h| host(&MirrorHost::Suffixed, h).expect("another host");
        assert_eq!(suffixed("shop.example"), "shop.example-shadow");
        assert_eq!(suffixed("shop.example:8080"), "shop.example-shadow:8080");
        assert_eq!(suffixed("[::1]:80"), "[::1]-shadow:80");
        assert_eq!(host(&MirrorHost::Same, "a"), None);
        assert_eq!(host(&MirrorHost::Literal("b".into()), "a").as_deref(), Some("b"));
    }

    #[test]
    fn what_the_copy_does_not_take_is_bounded() {
        let stats = heddle_telemetry::Stats::new();
        let tee = Rc::new(Tee {
            limit: 8,
            overflow: stats.counter("heddle_cluster_mirror_overflow", &[]),
            held: RefCell::new(Held::new(&Rc::default())),
        });
        let mut body = CopiedBody {
            front: BytesMut::new(),
            keeper: Rc::default(),
            tee: Rc::clone(&tee),
        };
        let copies = Copies(Box::new([Rc::clone(&tee)]));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(body.poll_fill(&mut cx, 64).is_pending());
        copies.put(b"12345");
        assert_eq!(body.poll_fill(&mut cx, 64), Poll::Ready(Ok(Fill::Data)));
        copies.put(b"678");
        body.consume(1);
        copies.put(b"9");
        assert_eq!(body.chunk(), b"2345");
        body.consume(4);
        assert_eq!(body.poll_fill(&mut cx, 64), Poll::Ready(Ok(Fill::Data)));
        assert_eq!(body.chunk(), b"6789");
        assert_eq!(tee.overflow.get(), 0);
        copies.put(b"12345");
        assert_eq!(tee.overflow.get(), 1);
        assert_eq!(body.poll_fill(&mut cx, 64), Poll::Ready(Err(StreamError::Reset)));
        copies.put(b"more");
        copies.finish(None);
        assert_eq!(tee.overflow.get(), 1, "it was given up already");
    }
}
