//! A request on its way through the filters.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use heddle_net::ConnectionInfo;
use tokio::time::Instant;

use super::{Call, End, Filter, FilterState, Verdict};
use crate::body::{BodyLength, StreamError};
use crate::drain::{Drain, DrainStage};
use crate::failure::Failure;
use crate::h1::H1Error;
use crate::hcm::{Environment, Exchange, Facts, HcmRuntime, IdleWatch, Reply, RequestBody, choose};
use crate::local_reply::LocalReply;
use crate::timer::{Timer, far_future};

/// What the codec knows of a request, for the time that a filter waits.
pub(crate) struct Client<'c, B, R> {
    pub(crate) body: &'c mut B,
    pub(crate) reply: &'c mut R,
    pub(crate) timer: &'c mut Timer,
    pub(crate) facts: Facts,
}

/// Shows a request to the filters. Returns the answer when one of them gives it.
///
/// # Errors
/// The request ended while a filter waited.
pub(crate) async fn on_request<B: RequestBody, R: Reply>(
    env: Environment<'_>,
    exchange: &mut Exchange,
    client: &mut Client<'_, B, R>,
) -> Result<Option<Box<LocalReply>>, Failure> {
    let filters = &env.hcm.filters;
    exchange.filter_states.extend(filters.iter().map(Filter::state));
    exchange.filters_off = switched_off(env.hcm, exchange);
    let mut idle = idle_timeout(env.hcm, exchange);
    for (number, filter) in filters.iter().enumerate() {
        if is_off(exchange, number) {
            continue;
        }
        let mut state = take_state(exchange, number);
        let mut call = Call {
            exchange,
            env,
            number,
            route_stale: false,
        };
        let mut watch = None;
        let verdict = {
            let begun = call.exchange.begun;
            let mut running = pin!(filter.on_request(&mut call, &mut state));
            poll_fn(|cx| match running.as_mut().poll(cx) {
                Poll::Ready(verdict) => Poll::Ready(Ok(verdict)),
                Poll::Pending => watch
                    .get_or_insert_with(|| Watch::new(env, begun, idle, client.facts))
                    .poll(cx, client)
                    .map(Err),
            })
            .await
        };
        let route_stale = call.route_stale;
        if let Some(slot) = exchange.filter_states.get_mut(number) {
            *slot = state;
        }
        if watch.is_some() {
            exchange.passed = Instant::now();
        }
        if let Verdict::Reply(reply) = verdict? {
            return Ok(Some(reply));
        }
        if route_stale {
            exchange.selected = choose(env, exchange);
            idle = idle_timeout(env.hcm, exchange);
        }
    }
    Ok(None)
}

/// Shows the response head to the filters, the last one first.
pub(crate) fn on_response(env: Environment<'_>, exchange: &mut Exchange) {
    for (number, filter) in env.hcm.filters.iter().enumerate().rev() {
        if is_off(exchange, number) {
            continue;
        }
        let mut state = take_state(exchange, number);
        let mut call = Call {
            exchange,
            env,
            number,
            route_stale: false,
        };
        filter.on_response(&mut call, &mut state);
        if let Some(slot) = exchange.filter_states.get_mut(number) {
            *slot = state;
        }
    }
}

/// Tells the filters that the request is over, and forgets what they kept for it.
pub(crate) fn on_end(hcm: &HcmRuntime, exchange: &mut Exchange, connection: &ConnectionInfo, now: Instant) {
    for (number, filter) in hcm.filters.iter().enumerate() {
        if is_off(exchange, number) {
            continue;
        }
        let mut state = take_state(exchange, number);
        if matches!(state, FilterState::None) {
            // Answered before it came to the filters.
            state = filter.state();
        }
        let end = End {
            exchange,
            connection,
            now,
        };
        filter.on_end(end, &mut state);
    }
    exchange.filter_states.clear();
}

fn take_state(exchange: &mut Exchange, number: usize) -> FilterState {
    exchange
        .filter_states
        .get_mut(number)
        .map(std::mem::take)
        .unwrap_or_default()
}

fn is_off(exchange: &Exchange, number: usize) -> bool {
    exchange.filters_off & (1 << number) != 0
}

/// The filters that do not run for this request, by the route that it has before the first of them.
fn switched_off(hcm: &HcmRuntime, exchange: &Exchange) -> u64 {
    let selected = exchange.selected.as_ref();
    if selected.is_some_and(|s| !s.table.may_disable) {
        return 0;
    }
    let filters = hcm.config.filters.iter().enumerate();
    filters
        .filter(|(number, filter)| {
            let said = selected.and_then(|s| s.said_to(*number)).and_then(|said| said.disabled);
            said.unwrap_or(filter.disabled)
        })
        .fold(0, |off, (number, _)| off | 1 << number)
}

/// The route's idle timeout, or the connection manager's.
fn idle_timeout(hcm: &HcmRuntime, exchange: &Exchange) -> Duration {
    let route = exchange.selected.as_ref().and_then(|s| s.action());
    route
        .and_then(|action| action.idle_timeout)
        .unwrap_or(hcm.config.stream_idle_timeout)
}

/// Looks after a request whose filter waits.
struct Watch {
    idle: IdleWatch,
    /// For the whole request to arrive.
    request: Instant,
    arrived: bool,
    drain: Drain,
}

impl Watch {
    fn new(env: Environment<'_>, begun: Instant, idle: Duration, facts: Facts) -> Self {
        let bound = env.hcm.config.request_timeout;
        Self {
            idle: IdleWatch::new(idle, begun),
            request: if bound.is_zero() {
                far_future(begun)
            } else {
                begun + bound
            },
            arrived: matches!(facts.length, BodyLength::Empty | BodyLength::Tunnel),
            // A handle of its own: it keeps one waker, and the connection waits with another.
            drain: env.drain.clone(),
        }
    }

    /// Ready when the request is not to be waited for any more.
    fn poll<B: RequestBody, R: Reply>(&mut self, cx: &mut Context<'_>, client: &mut Client<'_, B, R>) -> Poll<Failure> {
        if client.reply.poll_gone(cx).is_ready() {
            return Poll::Ready(Failure::ClientGone);
        }
        match client.body.watch(cx) {
            Ok(whole) => self.arrived = self.arrived || whole,
            Err(StreamError::H1(error)) if error != H1Error::Incomplete => {
                return Poll::Ready(Failure::Protocol(error));
            }
            Err(_) => return Poll::Ready(Failure::ClientGone),
        }
        if self.drain.poll_stage(cx, DrainStage::Closing).is_ready() {
            return Poll::Ready(Failure::Closing);
        }
        loop {
            let request = if self.arrived {
                far_future(self.request)
            } else {
                self.request
            };
            if client
                .timer
                .poll_until(cx, request.min(self.idle.deadline()))
                .is_pending()
            {
                return Poll::Pending;
            }
            let now = Instant::now();
            if now >= request {
                return Poll::Ready(Failure::RequestTimeout);
            }
            if self.idle.expired(now) {
                return Poll::Ready(Failure::StreamIdle {
                    request_complete: self.arrived,
                });
            }
        }
    }
}
