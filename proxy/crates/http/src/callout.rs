//! Requests of the proxy's own to a cluster: what filters ask of other servers while a request waits, and what is fetched
//! in the background. They go the way of clients' requests (circuit breakers, balancing, pools, retries, outlier
//! detection, the cluster's statistics); the answer is collected in memory, up to a bound.

pub(crate) mod grpc;

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use heddle_config::snapshot::RetryPolicy;
use heddle_telemetry::ResponseFlag;

use crate::body::{BodyLength, Sink, Source, Static, StreamError};
use crate::failure::Failure;
use crate::hcm::{Exchange, Outcome, Reply, RequestBody};
use crate::head::{Fields, RequestHead, ResponseHead};
use crate::router::{self, Job, ReplayBody};
use crate::timer::Timer;
use crate::worker::HttpWorker;

/// A request to a cluster.
#[derive(Debug)]
pub(crate) struct Callout {
    pub(crate) cluster: Arc<str>,
    /// The head as it is sent, but for what the router adds. HTTP/1 or HTTP/2 as the cluster has it.
    pub(crate) request: RequestHead,
    pub(crate) body: Bytes,
    /// For all of it, connecting and retries included; zero means none.
    pub(crate) timeout: Duration,
    /// Most bytes of the answer's body.
    pub(crate) limit: usize,
    pub(crate) retry: Option<Arc<RetryPolicy>>,
}

/// What a cluster answered, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: ResponseHead,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<Fields>,
}

/// Why there is no whole answer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CalloutError {
    /// No cluster has this name.
    #[error("no cluster {0:?}")]
    NoCluster(Arc<str>),
    /// No answer was begun.
    #[error("{}", .0.details())]
    Failed(Failure),
    /// The answer was begun and did not come to its end; why, in the words of `%RESPONSE_CODE_DETAILS%`.
    #[error("{0}")]
    Broken(Cow<'static, str>),
    /// The answer's body is longer than this bound.
    #[error("answer of more than {0} bytes")]
    TooLarge(usize),
}

/// Sends a request and waits for the answer. Who is no longer interested drops the future.
///
/// # Errors
/// There is no whole answer.
pub(crate) async fn send(worker: &Rc<HttpWorker>, callout: Callout) -> Result<Answer, CalloutError> {
    let Callout {
        cluster: name,
        request,
        body,
        timeout,
        limit,
        retry,
    } = callout;
    let mut exchange = Exchange::own(request);
    // It is here whole, so its time runs from now on.
    exchange.request_done = Some(exchange.begun);
    let entered = router::enter(worker, &name, &mut exchange);
    let entered = if timeout.is_zero() {
        entered.await
    } else {
        let entered = tokio::time::timeout(timeout, entered).await;
        entered.map_err(|_| CalloutError::Failed(Failure::Timeout))?
    };
    let cluster = entered.ok_or(CalloutError::NoCluster(name))?;
    let length = match body.len() {
        0 => BodyLength::Empty,
        n => BodyLength::Known(n as u64),
    };
    let job = Job::own(worker, length, timeout, retry.as_ref());
    let mut answer = Collect {
        limit,
        ..Collect::default()
    };
    let mut body = Static(body);
    let mut body = ReplayBody::new(&mut body, length, &worker.keeper);
    let mut timer = Timer::default();
    let sent = router::send(&job, &cluster, &mut exchange, &mut body, &mut answer, &mut timer);
    match sent.await {
        Ok(Outcome::Complete) => Ok(Answer {
            head: std::mem::take(&mut exchange.response),
            body: answer.body.freeze(),
            trailers: exchange.trailers.take(),
        }),
        Ok(_) if answer.too_large => {
            let (registry, name) = cluster.stats().registry();
            let labels = [("cluster_name", name)];
            registry.counter("heddle_cluster_callout_too_large", &labels).inc();
            Err(CalloutError::TooLarge(limit))
        }
        Ok(_) if exchange.flags.has(ResponseFlag::UpstreamRequestTimeout) => {
            Err(CalloutError::Failed(Failure::Timeout))
        }
        Ok(_) => Err(CalloutError::Broken(exchange.details)),
        Err(failure) => Err(CalloutError::Failed(failure)),
    }
}

impl RequestBody for Static {
    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<StreamError> {
        Poll::Pending
    }

    fn tunnel(&mut self) {}
}

/// Where an answer is collected.
#[derive(Default)]
struct Collect {
    body: BytesMut,
    limit: usize,
    too_large: bool,
}

impl Collect {
    fn refuse(&mut self) -> StreamError {
        self.too_large = true;
        StreamError::Overload
    }
}

impl Sink for Collect {
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Ok(()))
    }

    fn room(&self) -> usize {
        self.limit.saturating_sub(self.body.len()).max(1)
    }

    fn poll_put<S: Source>(&mut self, _: &mut Context<'_>, source: &mut S) -> Poll<Result<usize, StreamError>> {
        let chunk = source.chunk();
        let n = chunk.len();
        if n > self.limit.saturating_sub(self.body.len()) {
            return Poll::Ready(Err(self.refuse()));
        }
        self.body.extend_from_slice(chunk);
        source.consume(n);
        Poll::Ready(Ok(n))
    }

    fn finish(&mut self, _: Option<&Fields>) -> Result<(), StreamError> {
        // The router leaves the trailers in the exchange.
        Ok(())
    }

    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StreamError>> {
        Poll::Ready(Ok(()))
    }
}

impl Reply for Collect {
    fn send_head(&mut self, _: &ResponseHead, length: BodyLength) -> Result<(), StreamError> {
        match length {
            BodyLength::Known(n) if n > self.limit as u64 => Err(self.refuse()),
            _ => Ok(()),
        }
    }

    fn send_interim(&mut self, _: &ResponseHead) -> Result<(), StreamError> {
        Ok(())
    }

    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<StreamError> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
