//! Retry policies.

use std::sync::Arc;
use std::time::Duration;

use super::{Result, duration, duration_or, pb, positive, required};
use crate::path::Path;
use crate::snapshot::{RetryOn, RetryPolicy};

const PREVIOUS_HOSTS: &str = "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate";

/// First pause before a service is asked again.
const SERVICE_BACK_OFF: Duration = Duration::from_secs(1);

/// A `retry_policy` that may be absent. A policy that retries on nothing means that nothing is retried, whatever the
/// virtual host says.
pub(super) fn optional(config: Option<&pb::route::RetryPolicy>, path: &Path<'_>) -> Result<Option<Arc<RetryPolicy>>> {
    config
        .map(|c| policy(c, &path.field("retry_policy")).map(Arc::new))
        .transpose()
}

fn policy(config: &pb::route::RetryPolicy, path: &Path<'_>) -> Result<RetryPolicy> {
    let back_off = config.retry_back_off.as_ref();
    let here = path.field("retry_back_off");
    let base_interval = match back_off {
        Some(b) => {
            let here = here.field("base_interval");
            match duration(Some(required(b.base_interval.as_ref(), &here)?), &here)? {
                Some(d) if !d.is_zero() => d,
                _ => return Err(here.error("must be above zero")),
            }
        }
        None => Duration::from_millis(25),
    };
    let max_interval = back_off.and_then(|b| b.max_interval.as_ref());
    let max_interval = duration_or(
        max_interval,
        base_interval.saturating_mul(10),
        &here.field("max_interval"),
    )?;
    if max_interval < base_interval {
        return Err(here.field("max_interval").error("must not be below base_interval"));
    }
    let attempts = match config.host_selection_retry_max_attempts {
        0 => 1,
        n => u32::try_from(n).map_err(|_| {
            path.field("host_selection_retry_max_attempts")
                .error(format!("{n} is not a count"))
        })?,
    };
    let mut avoid_previous_hosts = false;
    for (i, predicate) in config.retry_host_predicate.iter().enumerate() {
        use pb::route::retry_policy::retry_host_predicate::ConfigType;
        let here = path.item("retry_host_predicate", i);
        let by_type = predicate
            .config_type
            .as_ref()
            .map(|ConfigType::TypedConfig(any)| heddle_api::message_name(&any.type_url) == PREVIOUS_HOSTS);
        // Istio leaves the configuration out; the name decides then.
        if !by_type.unwrap_or(predicate.name == "envoy.retry_host_predicates.previous_hosts") {
            return Err(here.unsupported(
                format!("{:?}", predicate.name),
                "use envoy.retry_host_predicates.previous_hosts",
            ));
        }
        avoid_previous_hosts = true;
    }
    let codes = config.retriable_status_codes.iter().enumerate();
    Ok(RetryPolicy {
        on: retry_on(&config.retry_on, &path.field("retry_on"))?,
        num_retries: config.num_retries.unwrap_or(1),
        per_try_timeout: duration_or(
            config.per_try_timeout.as_ref(),
            Duration::ZERO,
            &path.field("per_try_timeout"),
        )?,
        status_codes: codes
            .map(|(i, code)| match u16::try_from(*code) {
                Ok(code) if (100..600).contains(&code) => Ok(code),
                _ => Err(path
                    .item("retriable_status_codes", i)
                    .error(format!("{code} is not an HTTP status"))),
            })
            .collect::<Result<_>>()?,
        base_interval,
        max_interval,
        avoid_previous_hosts,
        host_selection_attempts: attempts,
    })
}

/// The policy of a service that filters call. What it says nothing about is as in Envoy: one retry, after a second or so,
/// on failures and answers of 5xx.
pub(super) fn of_service(config: Option<&pb::core::RetryPolicy>, path: &Path<'_>) -> Result<Option<Arc<RetryPolicy>>> {
    let Some(config) = config else { return Ok(None) };
    let path = path.field("retry_policy");
    let here = path.field("retry_back_off");
    let back_off = config.retry_back_off.as_ref();
    let base = back_off.and_then(|b| b.base_interval.as_ref());
    let base_interval = positive(base, SERVICE_BACK_OFF, &here.field("base_interval"))?;
    let max_interval = duration_or(
        back_off.and_then(|b| b.max_interval.as_ref()),
        base_interval.saturating_mul(10),
        &here.field("max_interval"),
    )?;
    if max_interval < base_interval {
        return Err(here.field("max_interval").error("must not be below base_interval"));
    }
    let on = match config.retry_on.as_str() {
        "" => "5xx,gateway-error,connect-failure,reset",
        on => on,
    };
    Ok(Some(Arc::new(RetryPolicy {
        on: retry_on(on, &path.field("retry_on"))?,
        num_retries: config.num_retries.unwrap_or(1),
        per_try_timeout: Duration::ZERO,
        status_codes: Vec::new(),
        base_interval,
        max_interval,
        avoid_previous_hosts: false,
        host_selection_attempts: 1,
    })))
}

fn retry_on(text: &str, path: &Path<'_>) -> Result<RetryOn> {
    let mut on = RetryOn::default();
    for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
        let flag = match word {
            "5xx" => &mut on.server_error,
            "gateway-error" => &mut on.gateway_error,
            "reset" => &mut on.reset,
            "reset-before-request" => &mut on.reset_before_request,
            "connect-failure" => &mut on.connect_failure,
            "refused-stream" => &mut on.refused_stream,
            "retriable-4xx" => &mut on.retriable_4xx,
            "retriable-status-codes" => &mut on.retriable_status_codes,
            "cancelled" => &mut on.grpc_cancelled,
            "deadline-exceeded" => &mut on.grpc_deadline_exceeded,
            "internal" => &mut on.grpc_internal,
            "resource-exhausted" => &mut on.grpc_resource_exhausted,
            "unavailable" => &mut on.grpc_unavailable,
            other => return Err(path.unsupported(format!("{other:?}"), "remove it")),
        };
        *flag = true;
    }
    Ok(on)
}
