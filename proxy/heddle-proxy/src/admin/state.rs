//! What the admin interface reads and what it may ask for.

use std::cell::Cell;
use std::sync::Arc;

use heddle_config::snapshot::Snapshot;
use heddle_telemetry::StatsReader;
use heddle_telemetry::access_log::LogFiles;
use heddle_upstream::Upstreams;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::logging::{Panics, Suppressed};

/// `envoy.admin.v3.ServerInfo.State`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServerState {
    /// Waiting for clusters.
    #[default]
    PreInitializing,
    /// Waiting for listeners.
    Initializing,
    /// Serving.
    Live,
    /// Finishing what is there.
    Draining,
}

impl ServerState {
    /// Envoy's name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Live => "LIVE",
            Self::Draining => "DRAINING",
            Self::PreInitializing => "PRE_INITIALIZING",
            Self::Initializing => "INITIALIZING",
        }
    }

    /// Envoy's number, the value of the gauge `envoy_server_state`.
    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Live => 0,
            Self::Draining => 1,
            Self::PreInitializing => 2,
            Self::Initializing => 3,
        }
    }
}

/// What a user asked for through the admin interface; the main thread carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminCommand {
    /// `/drain_listeners`.
    DrainListeners {
        /// `graceful`: tell clients to go away before listeners close.
        graceful: bool,
        /// `inboundonly`: only listeners with traffic direction INBOUND.
        inbound_only: bool,
        /// `skip_exit`: with `graceful`, keep the listeners open after the drain time.
        skip_exit: bool,
    },
    /// `/healthcheck/fail` (true) and `/healthcheck/ok` (false).
    FailHealthCheck(bool),
    /// `/quitquitquit`: exit now.
    Quit,
}

/// Sets the log level (`trace` to `error`, `off`), or the filter of one module (`module:level`). Returns the filter in
/// force.
pub(crate) type SetLogLevel = Box<dyn Fn(&str) -> Result<String, String>>;

/// Everything that the admin interface shows. Lives on the main thread.
pub(crate) struct AdminState {
    /// Version printed by `/server_info`.
    pub(crate) version: &'static str,
    /// Command line as JSON, for `/server_info`.
    pub(crate) command_line: serde_json::Value,
    /// When the process started.
    pub(crate) started: Instant,
    /// Number of workers.
    pub(crate) concurrency: usize,
    /// State of the server.
    pub(crate) server: watch::Receiver<ServerState>,
    /// The snapshot in force.
    pub(crate) snapshot: watch::Receiver<Arc<Snapshot>>,
    /// Clusters' shared state.
    pub(crate) upstreams: Upstreams,
    /// Metrics of every worker and of the main thread.
    pub(crate) stats: Vec<StatsReader>,
    /// Access logs, for `/reopen_logs` and their counters.
    pub(crate) logs: LogFiles,
    /// `/config_dump` as JSON, with endpoints (`include_eds`) or without. Private keys are redacted by whoever makes it.
    pub(crate) config_dump: Box<dyn Fn(bool) -> serde_json::Value>,
    /// `/logging`.
    pub(crate) set_log_level: SetLogLevel,
    /// Lines of the proxy's own log that were left out.
    pub(crate) suppressed_lines: Suppressed,
    /// Panics so far.
    pub(crate) panics: Panics,
    /// Where commands go. Bounded; a full queue is answered with 503.
    pub(crate) commands: mpsc::Sender<AdminCommand>,
    /// Set by `/healthcheck/fail`.
    pub(crate) health_check_failed: Cell<bool>,
}

impl AdminState {
    /// The state shown: a failed health check shows as draining, as in Envoy.
    pub(crate) fn server_state(&self) -> ServerState {
        match *self.server.borrow() {
            ServerState::Live if self.health_check_failed.get() => ServerState::Draining,
            other => other,
        }
    }
}
