//! The worker threads.

use std::io;
use std::sync::Arc;

use heddle_config::snapshot::Snapshot;
use heddle_http::OverloadStates;
use heddle_telemetry::access_log::LogFiles;
use heddle_telemetry::{Stats, StatsReader};
use heddle_upstream::Upstreams;
use heddle_worker::{Inbox, Phase, Shared, Worker, WorkerParams, WorkerReport, WorkerSettings};
use tokio::sync::{mpsc, watch};

/// A worker's thread has ended; the text says why when it should not have.
pub(crate) type Ended = Result<(), String>;

/// What the workers share with the main thread.
pub(crate) struct Start<'a> {
    pub(crate) snapshot: &'a watch::Sender<Arc<Snapshot>>,
    pub(crate) phase: &'a watch::Sender<Phase>,
    pub(crate) logs: &'a LogFiles,
    pub(crate) upstreams: &'a Upstreams,
    pub(crate) shared: &'a Shared,
    /// One for each worker.
    pub(crate) inboxes: Vec<Inbox>,
    pub(crate) overload: &'a watch::Receiver<OverloadStates>,
    pub(crate) settings: WorkerSettings,
}

/// The main thread's ends.
pub(crate) struct Workers {
    pub(crate) stats: Vec<StatsReader>,
    pub(crate) reports: mpsc::Receiver<WorkerReport>,
    pub(crate) ended: mpsc::Receiver<Ended>,
}

/// Starts the threads.
pub(crate) fn start(start: Start<'_>) -> io::Result<Workers> {
    let count = start.inboxes.len();
    // One report per worker and snapshot, and the main thread publishes no snapshot before it has heard of the last.
    let (report_sender, reports) = mpsc::channel(4 * count);
    let (end_sender, ended) = mpsc::channel(count);
    let mut readers = Vec::with_capacity(count);
    for (index, inbox) in start.inboxes.into_iter().enumerate() {
        let stats = Stats::new();
        readers.push(stats.reader());
        let params = WorkerParams {
            index,
            snapshot: start.snapshot.subscribe(),
            stats,
            logs: start.logs.clone(),
            upstreams: start.upstreams.clone(),
            shared: start.shared.clone(),
            inbox,
            overload: start.overload.clone(),
            phase: start.phase.subscribe(),
            reports: report_sender.clone(),
            settings: start.settings,
        };
        let ended = end_sender.clone();
        std::thread::Builder::new()
            .name(format!("worker-{index}"))
            .spawn(move || {
                // A panic outside of a connection's task leaves the worker in an unknown state; the main thread ends the
                // process rather than serve with a hole.
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Worker::run(params)));
                let end = match outcome {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(e)) => Err(e.to_string()),
                    Err(_) => Err(format!("worker {index} panicked; its message is in the log above")),
                };
                // Fails only when the main thread is gone, and then nobody needs it.
                let _ = ended.blocking_send(end);
            })?;
    }
    Ok(Workers {
        stats: readers,
        reports,
        ended,
    })
}
