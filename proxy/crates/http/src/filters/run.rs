//! A request on its way through the filters.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use heddle_net::ConnectionInfo;
use tokio::time::Instant;

use super::body::{Shared, SharedResponse};
use super::{Call, End, Filter, Filtered, Verdict};
use crate::body::{BodyLength, Source};
use crate::drain::{Drain, DrainStage};
use crate::failure::Failure;
use crate::hcm::{Environment, Exchange, Facts, HcmRuntime, IdleWatch, Reply, RequestBody, ask_for_body};
use crate::local_reply::LocalReply;
use crate::timer::{Timer, far_future};

/// What the codec knows of a request, for the time that a filter waits.
pub(crate) struct Client<'c, 'b, B, R> {
    pub(crate) body: RefCell<&'c mut Filtered<'b, B>>,
    pub(crate) reply: &'c mut R,
    pub(crate) timer: &'c mut Timer,
    pub(crate) facts: &'c mut Facts,
}

/// How far a request came.
pub(crate) enum Shown {
    /// Through all filters, or to one that answers.
    All(Option<Box<LocalReply>>),
    /// To the filter with this number, which waits: [`on_request_waiting`] is next.
    Waits(usize),
}

/// Shows a request to the filters.
pub(crate) fn on_request(env: Environment<'_>, exchange: &mut Exchange, body: &Shared<'_>) -> Shown {
    exchange.filter_states.extend(env.hcm.filters.iter().map(Filter::state));
    exchange.filters_off = switched_off(env.hcm, exchange);
    on_request_from(env, exchange, body, 0)
}

/// [`on_request`] from the filter with this number on.
fn on_request_from(env: Environment<'_>, exchange: &mut Exchange, body: &Shared<'_>, first: usize) -> Shown {
    // Beside the exchange for as long as filters run, so that each gets both.
    let mut states = std::mem::take(&mut exchange.filter_states);
    let filters = env.hcm.filters.iter().zip(&mut states).enumerate();
    let mut shown = Shown::All(None);
    for (number, (filter, state)) in filters.skip(first) {
        if is_off(exchange, number) {
            continue;
        }
        let mut call = Call {
            exchange,
            env,
            number,
            body: Some(body),
            answer: None,
            waits: false,
        };
        match filter.on_request(&mut call, state) {
            Verdict::Continue if call.waits => shown = Shown::Waits(number),
            Verdict::Continue => continue,
            Verdict::Reply(reply) => shown = Shown::All(Some(reply)),
        }
        break;
    }
    exchange.filter_states = states;
    shown
}

/// Runs the filter that waits, and those behind it, some of which may wait too. Returns the answer when one of them gives
/// it.
///
/// # Errors
/// The request ended while a filter waited.
pub(crate) async fn on_request_waiting<B: RequestBody, R: Reply>(
    env: Environment<'_>,
    exchange: &mut Exchange,
    client: &mut Client<'_, '_, B, R>,
    first: usize,
) -> Result<Option<Box<LocalReply>>, Failure> {
    let Client {
        body,
        reply,
        timer,
        facts,
    } = client;
    let mut number = first;
    loop {
        let idle = idle_timeout(env.hcm, exchange);
        let mut states = std::mem::take(&mut exchange.filter_states);
        let mut watch = Watch::new(env, exchange.begun, idle, facts.length);
        let waited = {
            let mut call = Call {
                exchange,
                env,
                number,
                body: Some(&*body),
                answer: None,
                waits: false,
            };
            let both = env.hcm.filters.get(number).zip(states.get_mut(number));
            let mut running = pin!(async {
                match both {
                    Some((filter, state)) => filter.on_request_waiting(&mut call, state).await,
                    None => Verdict::broken(),
                }
            });
            poll_fn(|cx| {
                body.borrow_mut().before_filter();
                match running.as_mut().poll(cx) {
                    Poll::Ready(verdict) => Poll::Ready(Ok(verdict)),
                    Poll::Pending => watch.poll(cx, &mut body.borrow_mut(), *reply, timer, facts).map(Err),
                }
            })
            .await
        };
        exchange.filter_states = states;
        exchange.passed = Instant::now();
        if let Verdict::Reply(reply) = waited? {
            return Ok(Some(reply));
        }
        match on_request_from(env, exchange, &*body, number + 1) {
            Shown::All(answer) => return Ok(answer),
            Shown::Waits(next) => number = next,
        }
    }
}

/// Shows the response head to the filters before the one with number `before`, the last one first. Returns the number of
/// one that waits ([`on_response_waiting`] is next); it is the next `before`. An answer to a request that did not come to
/// the filters does not come to them either, as in Envoy.
pub(crate) fn on_response(env: Environment<'_>, exchange: &mut Exchange, before: usize) -> Option<usize> {
    let mut states = std::mem::take(&mut exchange.filter_states);
    let filters = env.hcm.filters.iter().zip(&mut states).enumerate();
    let mut waits = None;
    for (number, (filter, state)) in filters.take(before).rev() {
        if is_off(exchange, number) {
            continue;
        }
        let mut call = Call {
            exchange,
            env,
            number,
            body: None,
            answer: None,
            waits: false,
        };
        filter.on_response(&mut call, state);
        if call.waits {
            waits = Some(number);
            break;
        }
    }
    exchange.filter_states = states;
    waits
}

/// Runs the filter that waits, and those before it, some of which may wait too. Whoever answers looks after the request
/// meanwhile: `look` is asked whenever a filter waits, and its answer ends the wait.
///
/// # Errors
/// The request ended while a filter waited.
pub(crate) async fn on_response_waiting<E: From<Failure>>(
    env: Environment<'_>,
    exchange: &mut Exchange,
    first: usize,
    answer: &SharedResponse<'_>,
    mut look: impl FnMut(&mut Context<'_>) -> Poll<E>,
) -> Result<(), E> {
    // A handle of its own: it keeps one waker, and the connection waits with another.
    let drain = env.drain.clone();
    let mut next = Some(first);
    while let Some(number) = next {
        let mut states = std::mem::take(&mut exchange.filter_states);
        let waited = {
            let mut call = Call {
                exchange,
                env,
                number,
                body: None,
                answer: Some(answer),
                waits: false,
            };
            let both = env.hcm.filters.get(number).zip(states.get_mut(number));
            let mut running = pin!(async {
                if let Some((filter, state)) = both {
                    filter.on_response_waiting(&mut call, state).await;
                }
            });
            poll_fn(|cx| match running.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Ok(())),
                Poll::Pending => match drain.poll_stage(cx, DrainStage::Closing) {
                    Poll::Ready(()) => Poll::Ready(Err(Failure::Closing.into())),
                    Poll::Pending => look(cx).map(Err),
                },
            })
            .await
        };
        exchange.filter_states = states;
        waited?;
        next = on_response(env, exchange, number);
    }
    Ok(())
}

/// Tells the filters that the request is over, and forgets what they kept for it.
pub(crate) fn on_end(hcm: &HcmRuntime, exchange: &mut Exchange, connection: &ConnectionInfo, took: Duration) {
    let mut states = std::mem::take(&mut exchange.filter_states);
    if states.is_empty() {
        // Answered before it came to the filters.
        states.extend(hcm.filters.iter().map(Filter::state));
    }
    for (number, (filter, state)) in hcm.filters.iter().zip(&mut states).enumerate() {
        if is_off(exchange, number) {
            continue;
        }
        let end = End {
            exchange,
            connection,
            took,
        };
        filter.on_end(end, state);
    }
    states.clear();
    exchange.filter_states = states;
}

/// Whether a filter does not run for this request.
pub(super) fn is_off(exchange: &Exchange, number: usize) -> bool {
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
    /// Body bytes that a filter had read when this was looked at last.
    bytes: u64,
    drain: Drain,
}

impl Watch {
    fn new(env: Environment<'_>, begun: Instant, idle: Duration, length: BodyLength) -> Self {
        let bound = env.hcm.config.request_timeout;
        Self {
            idle: IdleWatch::new(idle, begun, Some(&env.hcm.overload)),
            request: if bound.is_zero() {
                far_future(begun)
            } else {
                begun + bound
            },
            arrived: matches!(length, BodyLength::Empty | BodyLength::Tunnel),
            bytes: 0,
            // A handle of its own: it keeps one waker, and the connection waits with another.
            drain: env.drain.clone(),
        }
    }

    /// Ready when the request is not to be waited for any more.
    fn poll<B: RequestBody, R: Reply>(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut Filtered<'_, B>,
        reply: &mut R,
        timer: &mut Timer,
        facts: &mut Facts,
    ) -> Poll<Failure> {
        if let Poll::Ready(error) = reply.poll_gone(cx) {
            return Poll::Ready(Failure::of_client(error));
        }
        if let Some(error) = body.dropped() {
            return Poll::Ready(Failure::of_client(error));
        }
        match body.watch(cx) {
            Ok(whole) => self.arrived = self.arrived || whole,
            Err(error) => return Poll::Ready(Failure::of_client(error)),
        }
        if body.is_holding() {
            let asked = match std::mem::take(&mut facts.expect_continue) {
                true => ask_for_body(reply),
                false => Ok(()),
            };
            if asked.is_err() || matches!(reply.poll_flush(cx), Poll::Ready(Err(_))) {
                return Poll::Ready(Failure::ClientGone);
            }
        }
        if body.bytes() != self.bytes {
            self.bytes = body.bytes();
            self.idle.touch();
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
            if timer.poll_until(cx, request.min(self.idle.deadline())).is_pending() {
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
