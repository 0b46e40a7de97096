//! When a request is over: the deadlines of its parts, and the route's timeout.

use std::time::Duration;

use heddle_config::snapshot::RouteAction;
use tokio::time::Instant;

use super::Job;
use crate::failure::Failure;
use crate::hcm::{Exchange, IdleWatch};
use crate::head::Known;
use crate::timer::far_future;

/// The deadlines of a request.
#[derive(Debug)]
pub(crate) struct Deadlines {
    /// For the whole request to arrive.
    pub(crate) request: Instant,
    /// The route's timeout; it runs from the request's end.
    pub(crate) route_timeout: Duration,
    /// Set once the request has arrived.
    pub(crate) route: Instant,
    /// Of the try in progress.
    pub(crate) per_try: Instant,
    /// When to look whether the upstream is still there, and how often; set by the try that wants it.
    pub(crate) look: Instant,
    pub(crate) look_every: Duration,
    look_due: bool,
    pub(crate) idle: IdleWatch,
}

impl Deadlines {
    pub(super) fn new(job: &Job<'_>, exchange: &Exchange) -> Self {
        let now = exchange.begun;
        let never = far_future(now);
        let request = if job.request_timeout.is_zero() {
            never
        } else {
            now + job.request_timeout
        };
        let mut deadlines = Self {
            request,
            route_timeout: job.timeout,
            route: never,
            per_try: never,
            look: never,
            look_every: Duration::ZERO,
            look_due: false,
            idle: IdleWatch::new(job.idle_timeout, exchange.passed, job.hcm().map(|hcm| &hcm.overload)),
        };
        if exchange.request_done.is_some() {
            deadlines.request_done(exchange.passed);
        }
        deadlines
    }

    /// The request has arrived whole.
    pub(crate) fn request_done(&mut self, now: Instant) {
        let never = far_future(now);
        self.request = never;
        self.route = if self.route_timeout.is_zero() {
            never
        } else {
            now + self.route_timeout
        };
    }

    /// The next moment at which something may be over.
    pub(crate) fn next(&mut self) -> Instant {
        self.request
            .min(self.route)
            .min(self.per_try)
            .min(self.look)
            .min(self.idle.deadline())
    }

    /// What is over now.
    pub(crate) fn expired(&mut self, now: Instant, request_complete: bool) -> Option<Failure> {
        if now >= self.route {
            Some(Failure::Timeout)
        } else if now >= self.per_try {
            Some(Failure::TryTimeout)
        } else if now >= self.request {
            Some(Failure::RequestTimeout)
        } else if self.idle.expired(now) {
            Some(Failure::StreamIdle { request_complete })
        } else {
            if now >= self.look {
                self.look = now + self.look_every;
                self.look_due = true;
            }
            None
        }
    }

    /// Whether it is time to look whether the upstream is still there. Once per time.
    pub(crate) fn take_look(&mut self) -> bool {
        std::mem::take(&mut self.look_due)
    }
}

/// The route's timeout, or what a gRPC client asked for within `grpc_timeout_header_max`.
pub(super) fn route_timeout(action: &RouteAction, exchange: &Exchange) -> Duration {
    if let Some(max) = action.grpc_timeout_max
        && exchange.request.grpc
    {
        let asked = exchange
            .request
            .fields
            .get_known(Known::GrpcTimeout)
            .and_then(parse_grpc_timeout);
        return match asked {
            Some(asked) if max.is_zero() => asked,
            Some(asked) => asked.min(max),
            // Without the header a gRPC call has no deadline, up to the bound.
            None => max,
        };
    }
    action.timeout
}

/// `grpc-timeout`: at most eight digits and a unit (gRPC over HTTP/2, "Timeout").
fn parse_grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let n = digits.iter().fold(0_u64, |n, d| n * 10 + u64::from(d - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(n * 3600),
        b'M' => Duration::from_secs(n * 60),
        b'S' => Duration::from_secs(n),
        b'm' => Duration::from_millis(n),
        b'u' => Duration::from_micros(n),
        b'n' => Duration::from_nanos(n),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeouts() {
        assert_eq!(parse_grpc_timeout(b"5S"), Some(Duration::from_secs(5)));
        assert_eq!(parse_grpc_timeout(b"100m"), Some(Duration::from_millis(100)));
        assert_eq!(
            parse_grpc_timeout(b"99999999H"),
            Some(Duration::from_secs(99_999_999 * 3600))
        );
        for bad in [&b""[..], b"S", b"1", b"123456789S", b"-1S", b"1x"] {
            assert_eq!(parse_grpc_timeout(bad), None);
        }
    }
}
