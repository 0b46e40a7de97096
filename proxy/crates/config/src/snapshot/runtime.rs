//! What the bootstrap's static runtime layers set.

use std::time::Duration;

/// The runtime keys that concern all listeners. They stay as they were at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    /// `overload.premature_reset_*`.
    pub premature_resets: PrematureResetLimits,
    /// `overload.global_downstream_max_connections`, or the same of `overload_manager`: client connections open at once
    /// over all listeners. Without it the limit on open files decides.
    pub max_downstream_connections: Option<u64>,
}

/// How many HTTP/2 streams of one connection clients may reset before they were answered (CVE-2023-44487).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrematureResetLimits {
    /// `overload.premature_reset_total_stream_count`: the connection gets GOAWAY when half of so many streams were
    /// reset so, and takes no new ones; default 500.
    pub total_streams: u64,
    /// `overload.premature_reset_min_stream_lifetime_seconds`: a stream that lived longer does not count; default 1 s.
    pub min_stream_lifetime: Duration,
}

impl Default for PrematureResetLimits {
    fn default() -> Self {
        Self {
            total_streams: 500,
            min_stream_lifetime: Duration::from_secs(1),
        }
    }
}
