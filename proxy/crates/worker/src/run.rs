//! The worker's event loop.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_http::{Clusters, drain_host, sweep_pools};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::manager::ListenerManager;
use crate::params::{Phase, WorkerError, WorkerParams, WorkerReport};
use crate::state::WorkerState;

/// Time between looks at idle pools and unused hosts.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

/// Time that connections get to send their last bytes once they are told to close at once.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// One worker.
pub struct Worker;

impl Worker {
    /// Serves on the calling thread until the phase is [`Phase::Stopping`] or the main thread has gone.
    ///
    /// # Errors
    /// [`WorkerError`] when the event loop cannot be made; nothing has been served then.
    pub fn run(params: WorkerParams) -> Result<(), WorkerError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|source| WorkerError::Runtime {
                worker: params.index,
                source,
            })?;
        let local = LocalSet::new();
        local.block_on(&runtime, serve(params));
        Ok(())
    }
}

/// Runs a worker inside a `LocalSet` that is already there.
pub(crate) async fn serve(params: WorkerParams) {
    let WorkerParams {
        index,
        mut snapshot,
        stats,
        logs,
        upstreams,
        shared,
        mut phase,
        reports,
        settings,
    } = params;
    let first = Arc::clone(&snapshot.borrow_and_update());
    let clusters = Rc::new(Clusters::new(
        upstreams,
        stats.clone(),
        drain_host,
        fastrand::u64(..) ^ (index as u64).rotate_left(32),
    ));
    let state = Rc::new(WorkerState::new(
        index,
        stats,
        logs.worker(),
        shared,
        settings,
        clusters,
        Arc::clone(&first),
    ));
    let mut manager = ListenerManager::default();
    let mut newest = Some(first);
    let mut housekeeping = interval(HOUSEKEEPING);
    housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reached = Phase::Serving;
    loop {
        if let Some(next) = newest.take() {
            // Refusals leave everything as it was; the main thread decides what comes next.
            let report = match manager.prepare(&state, &next) {
                Ok(plan) => {
                    state.set_snapshot(&next);
                    manager.commit(&state, plan);
                    WorkerReport::Applied {
                        worker: index,
                        version: next.version,
                    }
                }
                Err(failures) => WorkerReport::Refused {
                    worker: index,
                    version: next.version,
                    failures,
                },
            };
            if reports.send(report).await.is_err() {
                break;
            }
        }
        let wanted = *phase.borrow_and_update();
        if wanted > reached {
            reached = wanted;
            match reached {
                Phase::Serving => {}
                Phase::DrainingInbound => manager.stop_accepting(&state, true),
                Phase::Draining => {
                    manager.stop_accepting(&state, false);
                    let (state, reports) = (Rc::clone(&state), reports.clone());
                    spawn_local(async move {
                        state.until_idle().await;
                        // The main thread may have gone: then nobody waits for this.
                        let _ = reports.send(WorkerReport::Drained { worker: index }).await;
                    });
                }
                Phase::Stopping => break,
            }
        }
        tokio::select! {
            changed = snapshot.changed(), if reached < Phase::Draining => match changed {
                Ok(()) => newest = Some(Arc::clone(&snapshot.borrow_and_update())),
                Err(_) => break,
            },
            changed = phase.changed() => if changed.is_err() { break },
            _ = housekeeping.tick() => {
                state.clusters.maintain();
                sweep_pools();
            }
        }
    }
    manager.close_connections();
    if timeout(LAST_WORDS, state.until_idle()).await.is_err() {
        tracing::debug!(
            worker = index,
            open = state.open_connections(),
            "connections cut off at the end"
        );
    }
    // Fails only when the main thread has gone already.
    let _ = reports.send(WorkerReport::Stopped { worker: index }).await;
}
