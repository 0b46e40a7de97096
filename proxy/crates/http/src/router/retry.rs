//! Whether and when to try again (`RetryPolicy`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use heddle_config::snapshot::RetryPolicy;

use crate::failure::Failure;
use crate::head::{Known, ResponseHead};

/// Retries of one request.
#[derive(Debug)]
pub(crate) struct RetryState<'p> {
    policy: Option<&'p Arc<RetryPolicy>>,
    left: u32,
    made: u32,
    /// Empty unless the policy avoids them.
    tried: Vec<SocketAddr>,
}

impl<'p> RetryState<'p> {
    pub(crate) fn new(policy: Option<&'p Arc<RetryPolicy>>) -> Self {
        Self {
            left: policy.map_or(0, |p| p.num_retries),
            policy,
            made: 0,
            tried: Vec::new(),
        }
    }

    /// Whether a retry may ever come.
    pub(crate) fn wanted(&self) -> bool {
        self.left > 0
    }

    /// `per_try_timeout`; zero means none.
    pub(crate) fn per_try(&self) -> Duration {
        self.policy.map_or(Duration::ZERO, |p| p.per_try_timeout)
    }

    /// Hosts to avoid.
    pub(crate) fn tried(&self) -> &[SocketAddr] {
        if self.policy.is_some_and(|p| p.avoid_previous_hosts) {
            &self.tried
        } else {
            &[]
        }
    }

    pub(crate) fn host_attempts(&self) -> u32 {
        self.policy.map_or(1, |p| p.host_selection_attempts)
    }

    pub(crate) fn remember(&mut self, host: SocketAddr) {
        if self.policy.is_some_and(|p| p.avoid_previous_hosts) {
            self.tried.push(host);
        }
    }

    fn failure_matches(&self, failure: &Failure) -> bool {
        let Some(policy) = self.policy else {
            return false;
        };
        let class = failure.retry_class();
        let on = &policy.on;
        (class.reset && on.reset)
            || (class.before_request && on.reset_before_request)
            || (class.connect && on.connect_failure)
            || (class.refused && on.refused_stream)
            || (class.server_error && (on.server_error || on.gateway_error))
    }

    /// Takes a retry for a failure, if the policy covers it and one is left.
    pub(crate) fn may_retry_failure(&mut self, failure: &Failure) -> bool {
        self.failure_matches(failure) && self.take()
    }

    /// Whether a covered failure stands because no retry is left.
    pub(crate) fn exhausted_by(&self, failure: &Failure) -> bool {
        self.left == 0 && self.made > 0 && self.failure_matches(failure)
    }

    /// Takes a retry for an answer, if the policy covers it and one is left. The second value says whether the answer
    /// is covered at all.
    pub(crate) fn may_retry_response(&mut self, head: &ResponseHead, grpc: bool) -> (bool, bool) {
        let Some(policy) = self.policy else {
            return (false, false);
        };
        let on = &policy.on;
        let status = head.status;
        let mut covered = (on.server_error && (500..600).contains(&status))
            || (on.gateway_error && matches!(status, 502..=504))
            || (on.retriable_4xx && status == 409)
            || (on.retriable_status_codes && policy.status_codes.contains(&status));
        if grpc && !covered {
            // A trailers-only answer; a status in trailers comes too late.
            covered = match head.fields.get_known(Known::GrpcStatus) {
                Some(b"1") => on.grpc_cancelled,
                Some(b"4") => on.grpc_deadline_exceeded,
                Some(b"8") => on.grpc_resource_exhausted,
                Some(b"13") => on.grpc_internal,
                Some(b"14") => on.grpc_unavailable,
                _ => false,
            };
        }
        (covered && self.take(), covered)
    }

    fn take(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.made += 1;
        true
    }

    /// Retries made.
    pub(crate) fn made(&self) -> u32 {
        self.made
    }

    /// The pause before the retry just taken: exponential, bounded, fully jittered (as in Envoy).
    pub(crate) fn back_off(&self, random: &mut fastrand::Rng) -> Duration {
        let Some(policy) = self.policy else {
            return Duration::ZERO;
        };
        let base = u64::try_from(policy.base_interval.as_micros())
            .unwrap_or(u64::MAX)
            .max(1);
        let max = u64::try_from(policy.max_interval.as_micros())
            .unwrap_or(u64::MAX)
            .max(1);
        let factor = 1_u64
            .checked_shl(self.made.min(32))
            .unwrap_or(u64::MAX)
            .saturating_sub(1)
            .max(1);
        Duration::from_micros(random.u64(..base.saturating_mul(factor).min(max).max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::StreamError;
    use heddle_config::snapshot::RetryOn;

    fn policy(on: RetryOn) -> Arc<RetryPolicy> {
        Arc::new(RetryPolicy {
            on,
            num_retries: 2,
            per_try_timeout: Duration::ZERO,
            status_codes: vec![429],
            base_interval: Duration::from_millis(25),
            max_interval: Duration::from_millis(250),
            avoid_previous_hosts: false,
            host_selection_attempts: 1,
        })
    }

    fn answer(status: u16) -> ResponseHead {
        ResponseHead {
            status,
            ..ResponseHead::default()
        }
    }

    #[test]
    fn conditions() {
        let refused = Failure::Connect {
            timeout: false,
            reason: String::new(),
        };
        let reset = Failure::Upstream(StreamError::Reset);
        let only = |change: fn(&mut RetryOn)| {
            let mut on = RetryOn::default();
            change(&mut on);
            policy(on)
        };
        let connect = only(|on| on.connect_failure = true);
        assert!(RetryState::new(Some(&connect)).may_retry_failure(&refused));
        assert!(!RetryState::new(Some(&connect)).may_retry_failure(&reset));
        assert!(
            !RetryState::new(Some(&connect))
                .may_retry_response(&answer(503), false)
                .0
        );
        let gateway = only(|on| on.gateway_error = true);
        assert!(
            RetryState::new(Some(&gateway))
                .may_retry_response(&answer(503), false)
                .0
        );
        assert!(
            !RetryState::new(Some(&gateway))
                .may_retry_response(&answer(500), false)
                .0
        );
        let codes = only(|on| on.retriable_status_codes = true);
        assert!(RetryState::new(Some(&codes)).may_retry_response(&answer(429), false).0);
        let grpc = only(|on| on.grpc_unavailable = true);
        let mut trailers_only = answer(200);
        trailers_only.fields.push_known(Known::GrpcStatus, b"14");
        assert!(RetryState::new(Some(&grpc)).may_retry_response(&trailers_only, true).0);
        assert!(!RetryState::new(Some(&grpc)).may_retry_response(&trailers_only, false).0);
        assert!(!RetryState::new(None).may_retry_failure(&reset));
    }

    #[test]
    fn retries_are_used_up_and_back_off_is_bounded() {
        let all = policy(RetryOn {
            reset: true,
            ..RetryOn::default()
        });
        let mut state = RetryState::new(Some(&all));
        let reset = Failure::Upstream(StreamError::Reset);
        let mut random = fastrand::Rng::with_seed(1);
        assert!(state.may_retry_failure(&reset));
        assert!(state.back_off(&mut random) < Duration::from_millis(25));
        assert!(state.may_retry_failure(&reset));
        assert!(state.back_off(&mut random) < Duration::from_millis(75));
        assert!(!state.may_retry_failure(&reset));
        assert!(state.exhausted_by(&reset));
    }
}
