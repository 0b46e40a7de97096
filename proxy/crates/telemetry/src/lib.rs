//! Counters, Prometheus text, access logs, Istio's standard metrics.
#![forbid(unsafe_code)]

pub mod access_log;
mod flags;
pub mod istio;
pub mod prometheus;
pub mod stats;

pub use flags::{ResponseFlag, ResponseFlags};
pub use stats::{Counter, Gauge, Histogram, Owner, Stats, StatsReader};
