//! Access logs of TCP connections.

use std::time::SystemTime;

use heddle_config::snapshot::{AccessLog, AccessLogSink};
use heddle_telemetry::Counter;
use heddle_telemetry::access_log::{Destination, LogContext, LogFiles, LogSink};
use tokio::time::Instant;

/// The open destinations of a list of `access_log`s, in its order.
pub(crate) struct Sinks(Vec<LogSink>);

impl Sinks {
    /// Opens all destinations; the error says which cannot be opened.
    pub(crate) fn open(files: &LogFiles, logs: &[AccessLog]) -> Result<Self, String> {
        let open = |log: &AccessLog| {
            let destination = match &log.sink {
                AccessLogSink::Stdout => Destination::Stdout,
                AccessLogSink::Stderr => Destination::Stderr,
                AccessLogSink::File(path) => Destination::File(path.into()),
            };
            files.sink(&destination).map_err(|e| e.to_string())
        };
        logs.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// Writes one line to each.
    pub(crate) fn write(&self, logs: &[AccessLog], context: &LogContext<'_>, dropped: &Counter) {
        for (sink, log) in self.0.iter().zip(logs) {
            let mut line = Vec::with_capacity(256);
            log.format.write(context, &mut line);
            if !sink.send(line) {
                dropped.inc();
            }
        }
    }
}

/// When something began, by both clocks.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) at: Instant,
    pub(crate) wall: SystemTime,
}

impl Begun {
    pub(crate) fn now() -> Self {
        Self {
            at: Instant::now(),
            wall: SystemTime::now(),
        }
    }
}
