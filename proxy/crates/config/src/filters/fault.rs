//! `envoy.filters.http.fault`.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use heddle_api::envoy::extensions::filters::common::fault::v3 as common;
use heddle_api::envoy::extensions::filters::http::fault::v3 as pb;
use heddle_matching::HeaderMatcher;
use prost_types::Any;

use super::Kind;
use crate::check::fields::{Message, NO_RUNTIME, NOBODY_READS, message};
use crate::decode::{Result, duration, fraction, matcher, required, unpack};
use crate::path::Path;
use crate::snapshot::Fraction;

/// `envoy.extensions.filters.http.fault.v3.HTTPFault`, of the filter or of a route.
#[derive(Debug, Default)]
pub struct Fault {
    /// Holds requests up.
    pub delay: Option<Delay>,
    /// Answers requests.
    pub abort: Option<Abort>,
    /// `upstream_cluster`: only for requests to this cluster.
    pub upstream_cluster: Option<Box<str>>,
    /// `headers`: all must match.
    pub headers: Vec<HeaderMatcher>,
    /// `downstream_nodes`: only for requests whose `x-envoy-downstream-service-node` is one of these; empty means all.
    pub downstream_nodes: Vec<Box<str>>,
    /// `max_active_faults`, none by default. Of the filter, over all workers.
    pub max_active: Option<u32>,
    /// Whether faults are counted by `x-envoy-downstream-service-cluster` too; unless
    /// `disable_downstream_cluster_stats`.
    pub cluster_stats: bool,
    /// Faults in progress, over all workers.
    pub active: AtomicU64,
}

/// `envoy.extensions.filters.common.fault.v3.FaultDelay`.
#[derive(Debug)]
pub struct Delay {
    /// `fixed_delay`; none means what `x-envoy-fault-delay-request` says (`header_delay`).
    pub fixed: Option<Duration>,
    /// Of which requests.
    pub percentage: Fraction,
}

/// `envoy.extensions.filters.http.fault.v3.FaultAbort`.
#[derive(Debug)]
pub struct Abort {
    /// With what.
    pub with: AbortWith,
    /// Of which requests.
    pub percentage: Fraction,
    /// `response_body`, `fault filter abort` by default.
    pub body: bytes::Bytes,
}

/// What an aborted request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortWith {
    /// `http_status`.
    Http(u16),
    /// `grpc_status`.
    Grpc(u32),
    /// `header_abort`: what `x-envoy-fault-abort-request` or `x-envoy-fault-abort-grpc-request` says.
    Header,
}

impl Kind for Fault {
    const TYPE: &'static str = "envoy.extensions.filters.http.fault.v3.HTTPFault";
    const ROUTE_TYPE: &'static str = Self::TYPE;
    const MESSAGES: &'static [Message] = &[
        Message {
            name: "envoy.extensions.filters.common.fault.v3.FaultDelay",
            implemented: &["fixed_delay", "header_delay", "percentage"],
            ignored: &[],
            instead: &[],
        },
        message("envoy.extensions.filters.common.fault.v3.FaultDelay.HeaderDelay", &[]),
        message(
            "envoy.extensions.filters.http.fault.v3.FaultAbort",
            &["grpc_status", "header_abort", "http_status", "percentage", "response_body"],
        ),
        message("envoy.extensions.filters.http.fault.v3.FaultAbort.HeaderAbort", &[]),
        Message {
            name: Self::TYPE,
            implemented: &[
                "abort",
                "delay",
                "disable_downstream_cluster_stats",
                "downstream_nodes",
                "headers",
                "max_active_faults",
                "upstream_cluster",
            ],
            ignored: &[
                ("abort_grpc_status_runtime", NO_RUNTIME),
                ("abort_http_status_runtime", NO_RUNTIME),
                ("abort_percent_runtime", NO_RUNTIME),
                ("delay_duration_runtime", NO_RUNTIME),
                ("delay_percent_runtime", NO_RUNTIME),
                ("filter_metadata", NOBODY_READS),
                ("max_active_faults_runtime", NO_RUNTIME),
                ("response_rate_limit_percent_runtime", NO_RUNTIME),
            ],
            instead: &[("response_rate_limit", "use delay or abort")],
        },
    ];
    type Route = Self;

    fn decode(any: &Any, path: &Path<'_>) -> Result<Self> {
        let config: pb::HttpFault = unpack(any, path)?;
        let headers = config.headers.iter().enumerate();
        Ok(Self {
            delay: match &config.delay {
                Some(delay) => Some(self::delay(delay, &path.field("delay"))?),
                None => None,
            },
            abort: match &config.abort {
                Some(abort) => Some(self::abort(abort, &path.field("abort"))?),
                None => None,
            },
            upstream_cluster: (!config.upstream_cluster.is_empty()).then(|| config.upstream_cluster.as_str().into()),
            headers: headers
                .map(|(i, h)| matcher::header(h, &path.item("headers", i)))
                .collect::<Result<_>>()?,
            downstream_nodes: config.downstream_nodes.iter().map(|n| n.as_str().into()).collect(),
            max_active: config.max_active_faults,
            cluster_stats: !config.disable_downstream_cluster_stats,
            active: AtomicU64::new(0),
        })
    }

    fn decode_route(any: &Any, path: &Path<'_>) -> Result<Self> {
        Self::decode(any, path)
    }
}

fn delay(config: &common::FaultDelay, path: &Path<'_>) -> Result<Delay> {
    use common::fault_delay::FaultDelaySecifier as Kind;
    Ok(Delay {
        fixed: match required(config.fault_delay_secifier.as_ref(), path)? {
            Kind::FixedDelay(d) => duration(Some(d), &path.field("fixed_delay"))?,
            Kind::HeaderDelay(_) => None,
        },
        percentage: percentage(config.percentage.as_ref(), path)?,
    })
}

fn abort(config: &pb::FaultAbort, path: &Path<'_>) -> Result<Abort> {
    use pb::fault_abort::ErrorType as Kind;
    Ok(Abort {
        with: match required(config.error_type.as_ref(), path)? {
            Kind::HttpStatus(status) => match u16::try_from(*status) {
                Ok(status) if (200..600).contains(&status) => AbortWith::Http(status),
                _ => {
                    return Err(path
                        .field("http_status")
                        .error(format!("{status} is not between 200 and 599")));
                }
            },
            Kind::GrpcStatus(status) => AbortWith::Grpc(*status),
            Kind::HeaderAbort(_) => AbortWith::Header,
        },
        percentage: percentage(config.percentage.as_ref(), path)?,
        body: match config.response_body.as_str() {
            "" => bytes::Bytes::from_static(b"fault filter abort"),
            text => text.to_owned().into(),
        },
    })
}

/// Envoy takes a percentage that is not there for none.
fn percentage(
    config: Option<&heddle_api::envoy::r#type::v3::FractionalPercent>,
    path: &Path<'_>,
) -> Result<Fraction> {
    match config {
        Some(percent) => fraction::percent(percent, &path.field("percentage")),
        None => Ok(Fraction::default()),
    }
}
