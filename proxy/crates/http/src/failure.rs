//! The one place where what went wrong becomes an answer: status, body text, response flag, details, retry class.
//!
//! Texts, flags and details are Envoy's, because that is what logs, dashboards and people compare with.

use std::borrow::Cow;

use bytes::Bytes;
use heddle_telemetry::ResponseFlag;

use crate::body::{ContentError, StreamError};
use crate::h1::H1Error;
use crate::head::{Fields, Known};
use crate::local_reply::LocalReply;

/// Why a request was not answered by an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The client's HTTP/1.1 was malformed.
    Protocol(H1Error),
    /// The client's HTTP/2 request head was not acceptable.
    BadRequest(&'static str),
    /// A filter cannot read the request's body.
    BadContent(ContentError),
    /// The head did not arrive in time.
    HeaderTimeout,
    /// The whole request did not arrive in time.
    RequestTimeout,
    /// Nothing moved for the stream idle timeout; whether the request had arrived whole.
    StreamIdle { request_complete: bool },
    /// Upgrade or CONNECT without configuration for it.
    UpgradeRefused,
    /// The path cannot be normalized.
    BadPath,
    /// No virtual host or route.
    NoRoute,
    /// The route's cluster does not exist; answer with this status.
    NoCluster(u16),
    /// No endpoint may be used.
    NoHealthyUpstream,
    /// A circuit breaker is open.
    Overflow,
    /// Connecting failed: whether by timeout, and what the transport said.
    Connect { timeout: bool, reason: String },
    /// The stream ended before a response came.
    Upstream(StreamError),
    /// The route's timeout.
    Timeout,
    /// The timeout of one try.
    TryTimeout,
    /// The client went away.
    ClientGone,
    /// The overload action `stop_accepting_requests`, or load that is shed where heads are decoded.
    NotAccepting,
    /// Load that is shed before HTTP/1 is read.
    Shed,
    /// The listener is closing its connections, and a filter was still waiting.
    Closing,
    /// The stream was reset here: too much is held that nobody takes.
    Overload,
}

/// Which conditions of `retry_on` a failure can meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RetryClass {
    /// `reset`.
    pub(crate) reset: bool,
    /// `reset-before-request`: the request was not sent.
    pub(crate) before_request: bool,
    /// `connect-failure`.
    pub(crate) connect: bool,
    /// `refused-stream`.
    pub(crate) refused: bool,
    /// `5xx` and `gateway-error`.
    pub(crate) server_error: bool,
}

impl Failure {
    /// What it means for a request that its client's stream failed so.
    pub(crate) fn of_client(error: StreamError) -> Self {
        match error {
            StreamError::H1(error) if error != H1Error::Incomplete => Self::Protocol(error),
            StreamError::Content(error) => Self::BadContent(error),
            StreamError::Overload => Self::Overload,
            _ => Self::ClientGone,
        }
    }

    /// Status of the local answer.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Protocol(e) => e.status(),
            Self::BadRequest(_) | Self::BadContent(_) | Self::BadPath => 400,
            Self::HeaderTimeout
            | Self::RequestTimeout
            | Self::StreamIdle {
                request_complete: false,
            } => 408,
            Self::StreamIdle { request_complete: true } | Self::Timeout | Self::TryTimeout => 504,
            Self::UpgradeRefused => 403,
            Self::NoRoute => 404,
            Self::NoCluster(status) => *status,
            Self::Upstream(StreamError::H1(_) | StreamError::H2 | StreamError::Length)
                if !matches!(self, Self::Upstream(StreamError::H1(H1Error::Incomplete))) =>
            {
                502
            }
            Self::NoHealthyUpstream
            | Self::Overflow
            | Self::Connect { .. }
            | Self::Upstream(_)
            | Self::Overload
            | Self::NotAccepting
            | Self::Closing => 503,
            Self::Shed => 500,
            Self::ClientGone => 0,
        }
    }

    /// Response flag, when there is one.
    pub(crate) fn flag(&self) -> Option<ResponseFlag> {
        Some(match self {
            Self::Protocol(_) | Self::BadRequest(_) => ResponseFlag::DownstreamProtocolError,
            Self::StreamIdle { .. } => ResponseFlag::StreamIdleTimeout,
            Self::NoRoute => ResponseFlag::NoRouteFound,
            Self::NoCluster(_) => ResponseFlag::NoClusterFound,
            Self::NoHealthyUpstream => ResponseFlag::NoHealthyUpstream,
            Self::Overflow => ResponseFlag::UpstreamOverflow,
            Self::Connect { .. } => ResponseFlag::UpstreamConnectionFailure,
            Self::Timeout | Self::TryTimeout => ResponseFlag::UpstreamRequestTimeout,
            Self::ClientGone => ResponseFlag::DownstreamConnectionTermination,
            Self::Overload | Self::Shed => ResponseFlag::OverloadManager,
            Self::Upstream(error) => match error {
                StreamError::H1(H1Error::Incomplete)
                | StreamError::Closed
                | StreamError::Stale
                | StreamError::GoneAway => ResponseFlag::UpstreamConnectionTermination,
                StreamError::H1(_) | StreamError::H2 | StreamError::Length | StreamError::NoTunnel => {
                    ResponseFlag::UpstreamProtocolError
                }
                StreamError::Reset | StreamError::Refused => ResponseFlag::UpstreamRemoteReset,
                StreamError::Overload => ResponseFlag::OverloadManager,
                // Of the client's request, see `Failure::of_client`.
                StreamError::Content(_) => return None,
            },
            Self::HeaderTimeout
            | Self::RequestTimeout
            | Self::UpgradeRefused
            | Self::BadContent(_)
            | Self::BadPath
            | Self::NotAccepting
            | Self::Closing => return None,
        })
    }

    /// Envoy's name of the reset, for texts and details.
    fn reset_reason(&self) -> Option<&'static str> {
        Some(match self {
            Self::Overflow => "overflow",
            Self::Connect { timeout: true, .. } => "connection timeout",
            Self::Connect { timeout: false, .. } => "remote connection failure",
            Self::Upstream(error) => match error {
                StreamError::H1(H1Error::Incomplete)
                | StreamError::Closed
                | StreamError::Stale
                | StreamError::GoneAway => "connection termination",
                StreamError::H1(_) | StreamError::H2 | StreamError::Length | StreamError::NoTunnel => "protocol error",
                StreamError::Reset => "remote reset",
                StreamError::Refused => "remote refused stream reset",
                StreamError::Overload => "overload manager reset",
                StreamError::Content(_) => return None,
            },
            _ => return None,
        })
    }

    /// What the transport said, for `%UPSTREAM_TRANSPORT_FAILURE_REASON%`.
    pub(crate) fn transport_reason(&self) -> Option<&str> {
        match self {
            Self::Connect { reason, .. } if !reason.is_empty() => Some(reason),
            _ => None,
        }
    }

    /// Body of the local answer, and the gRPC message.
    pub(crate) fn body(&self, retried: bool) -> Cow<'static, str> {
        match self {
            Self::Protocol(H1Error::Http10 | H1Error::MissingHost) => Cow::Borrowed(""),
            Self::Protocol(e) => Cow::Borrowed(crate::head::reason(e.status())),
            Self::BadRequest(_) => Cow::Borrowed("Bad Request"),
            Self::BadContent(error) => Cow::Borrowed(error.text()),
            Self::HeaderTimeout => Cow::Borrowed("request header timeout"),
            Self::RequestTimeout => Cow::Borrowed("request timeout"),
            Self::StreamIdle { .. } => Cow::Borrowed("stream timeout"),
            Self::NotAccepting => Cow::Borrowed("envoy overloaded"),
            Self::Shed => Cow::Borrowed("Internal Server Error"),
            Self::NoHealthyUpstream => Cow::Borrowed("no healthy upstream"),
            Self::Timeout | Self::TryTimeout => Cow::Borrowed("upstream request timeout"),
            Self::UpgradeRefused
            | Self::BadPath
            | Self::NoRoute
            | Self::NoCluster(_)
            | Self::ClientGone
            | Self::Overload
            | Self::Closing => Cow::Borrowed(""),
            Self::Overflow | Self::Connect { .. } | Self::Upstream(_) => {
                let reason = self.reset_reason().unwrap_or_default();
                let latest = if retried { "retried and the latest " } else { "" };
                let mut text = format!(
                    "upstream connect error or disconnect/reset before headers. {latest}reset reason: {reason}"
                );
                if let Some(transport) = self.transport_reason() {
                    text.push_str(", transport failure reason: ");
                    text.push_str(transport);
                }
                Cow::Owned(text)
            }
        }
    }

    /// `%RESPONSE_CODE_DETAILS%`.
    pub(crate) fn details(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Protocol(e) => e.details(),
            Self::BadRequest(details) => details,
            Self::BadContent(error) => error.details(),
            Self::HeaderTimeout => "request_header_timeout",
            Self::RequestTimeout => "request_overall_timeout",
            Self::StreamIdle { .. } => "stream_idle_timeout",
            Self::UpgradeRefused => "upgrade_failed",
            Self::BadPath => "path_normalization_failed",
            Self::NoRoute => "route_not_found",
            Self::NoCluster(_) => "cluster_not_found",
            Self::NotAccepting => "overload",
            Self::Shed => "overload_error:envoy_overloaded",
            Self::Closing => "listener_closing",
            Self::NoHealthyUpstream => "no_healthy_upstream",
            Self::Timeout => "response_timeout",
            Self::TryTimeout => "upstream_per_try_timeout",
            Self::ClientGone => "downstream_remote_disconnect",
            Self::Overload => "overload_manager_reset",
            Self::Overflow | Self::Connect { .. } | Self::Upstream(_) => {
                let mut inside = self.reset_reason().unwrap_or_default().to_owned();
                if let Some(transport) = self.transport_reason() {
                    inside.push('|');
                    inside.push_str(transport);
                }
                let inside = inside.replace(' ', "_");
                return Cow::Owned(format!("upstream_reset_before_response_started{{{inside}}}"));
            }
        })
    }

    /// The answer to it; `retried` says whether it came after other tries.
    pub(crate) fn reply(&self, retried: bool) -> LocalReply {
        let mut headers = Fields::new();
        if *self == Self::Overflow {
            headers.push_known(Known::Overloaded, b"true");
        }
        LocalReply {
            status: self.status(),
            headers,
            body: match self.body(retried) {
                Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
                Cow::Owned(text) => Bytes::from(text),
            },
            grpc_status: None,
            details: self.details(),
            flag: self.flag(),
        }
    }

    /// What `retry_on` may do about it.
    pub(crate) fn retry_class(&self) -> RetryClass {
        match self {
            Self::Connect { .. } => RetryClass {
                reset: true,
                before_request: true,
                connect: true,
                server_error: true,
                ..RetryClass::default()
            },
            Self::Upstream(StreamError::Refused) => RetryClass {
                reset: true,
                refused: true,
                server_error: true,
                ..RetryClass::default()
            },
            Self::Upstream(StreamError::GoneAway) => RetryClass {
                reset: true,
                before_request: true,
                refused: true,
                server_error: true,
                ..RetryClass::default()
            },
            Self::Upstream(_) | Self::TryTimeout => RetryClass {
                reset: true,
                server_error: true,
                ..RetryClass::default()
            },
            _ => RetryClass::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envoys_words() {
        let refused = Failure::Connect {
            timeout: false,
            reason: "delayed connect error: Connection refused".to_owned(),
        };
        assert_eq!(refused.status(), 503);
        assert_eq!(
            refused.body(false),
            "upstream connect error or disconnect/reset before headers. reset reason: remote connection failure, \
             transport failure reason: delayed connect error: Connection refused"
        );
        assert_eq!(
            refused.details(),
            "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_Connection_refused}"
        );
        assert_eq!(refused.flag().map(ResponseFlag::short), Some("UF"));
        let table: &[(Failure, u16, Option<&str>, &str)] = &[
            (Failure::NoRoute, 404, Some("NR"), ""),
            (Failure::NoCluster(503), 503, Some("NC"), ""),
            (Failure::NoHealthyUpstream, 503, Some("UH"), "no healthy upstream"),
            (Failure::NotAccepting, 503, None, "envoy overloaded"),
            (Failure::Timeout, 504, Some("UT"), "upstream request timeout"),
            (
                Failure::Upstream(StreamError::H2),
                502,
                Some("UPE"),
                "upstream connect error or disconnect/reset before headers. reset reason: protocol error",
            ),
            (
                Failure::Upstream(StreamError::Closed),
                503,
                Some("UC"),
                "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
            ),
            (
                Failure::Upstream(StreamError::H1(H1Error::Incomplete)),
                503,
                Some("UC"),
                "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
            ),
            (
                Failure::Upstream(StreamError::Reset),
                503,
                Some("UR"),
                "upstream connect error or disconnect/reset before headers. reset reason: remote reset",
            ),
            (
                Failure::Overflow,
                503,
                Some("UO"),
                "upstream connect error or disconnect/reset before headers. reset reason: overflow",
            ),
            (
                Failure::StreamIdle {
                    request_complete: false,
                },
                408,
                Some("SI"),
                "stream timeout",
            ),
            (
                Failure::Protocol(H1Error::TooLarge),
                431,
                Some("DPE"),
                "Request Header Fields Too Large",
            ),
        ];
        for (failure, status, flag, body) in table {
            assert_eq!(failure.status(), *status, "{failure:?}");
            assert_eq!(failure.flag().map(ResponseFlag::short), *flag, "{failure:?}");
            assert_eq!(failure.body(false), *body, "{failure:?}");
        }
    }
}
