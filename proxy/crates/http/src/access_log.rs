//! The access logs of a listener, connection manager or TCP proxy on one worker.

use std::rc::Rc;

use heddle_config::snapshot::AccessLog;
use heddle_telemetry::Counter;
use heddle_telemetry::access_log::{LogContext, LogSink, OpenError, WorkerLogs};

/// The open destinations of a list of `access_log`s, in its order.
pub struct AccessLogs(Vec<Rc<LogSink>>);

impl AccessLogs {
    /// Opens all destinations.
    ///
    /// # Errors
    /// One cannot be opened.
    pub fn open(worker: &WorkerLogs, logs: &[AccessLog]) -> Result<Self, OpenError> {
        logs.iter()
            .map(|log| worker.sink(&log.destination))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes one line to each; `dropped` counts those for which there was no room.
    pub fn write(&self, logs: &[AccessLog], context: &LogContext<'_>, dropped: &Counter) {
        for (sink, log) in self.0.iter().zip(logs) {
            if !sink.send(|out| log.format.write(context, out)) {
                dropped.inc();
            }
        }
    }
}
