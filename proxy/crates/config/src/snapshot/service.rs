//! Services that filters call.

use std::sync::Arc;
use std::time::Duration;

use super::RetryPolicy;

/// `envoy.config.core.v3.GrpcService` with `envoy_grpc`.
#[derive(Debug)]
pub struct GrpcTarget {
    /// `envoy_grpc.cluster_name`.
    pub cluster: Arc<str>,
    /// `envoy_grpc.authority`; the cluster's name when not set.
    pub authority: Arc<str>,
    /// `timeout`; zero means none.
    pub timeout: Duration,
    /// `initial_metadata`: names in lower case, and values.
    pub metadata: Vec<(Box<str>, Box<str>)>,
    /// `retry_policy`.
    pub retry: Option<Arc<RetryPolicy>>,
}

/// `envoy.config.core.v3.HttpUri`.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpTarget {
    /// `cluster`.
    pub cluster: Arc<str>,
    /// Host and port of `uri`.
    pub host: Box<str>,
    /// Path and query of `uri`.
    pub path: Box<str>,
    /// Whether `uri` is `https`.
    pub https: bool,
    /// `timeout`; zero means none.
    pub timeout: Duration,
    /// `retry_policy` beside it.
    pub retry: Option<Arc<RetryPolicy>>,
}
