//! The worker's event loop.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_http::{Clusters, drain_host, sweep_pools, trim_spares};
use heddle_net::BufferPool;
use tokio::runtime::{Handle, LocalOptions, LocalRuntime};
use tokio::task::{JoinError, spawn_local};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::expressions::Scans;
use crate::manager::ListenerManager;
use crate::params::{Phase, Scope, WorkerError, WorkerParams, WorkerReport};
use crate::state::WorkerState;
use crate::{accept, measure, turns};

/// Time between looks at idle pools and unused hosts.
const HOUSEKEEPING: Duration = Duration::from_secs(5);

/// A worker whose tasks ran for more than this, between two looks, serves somebody.
const LEAST_WORK: Duration = Duration::from_millis(50);

/// So many looks without work, and a worker is at rest.
const LOOKS_AT_REST: u32 = 3;

/// Time that connections get to send their last bytes once they are told to close at once.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// One worker.
pub struct Worker;

impl Worker {
    /// Serves on the calling thread until the phase is stopping or the main thread has gone.
    ///
    /// # Errors
    /// [`WorkerError`] when the event loop cannot be made; nothing has been served then.
    pub fn run(params: WorkerParams) -> Result<(), WorkerError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .on_thread_unpark(turns::begun)
            .build_local(LocalOptions::default())
            .map_err(|source| WorkerError::Runtime {
                worker: params.index,
                source,
            })?;
        run_until_ended(runtime, serve(params));
        Ok(())
    }
}

/// Runs this, and the tasks that it spawns, until it has ended; its panic is the caller's.
fn run_until_ended(runtime: LocalRuntime, main: impl Future<Output = ()> + 'static) {
    // A task of its own, as those that it spawns.
    let ended = runtime.block_on(async { spawn_local(main).await });
    // Nobody aborts the task: what is no panic cannot be.
    if let Err(Ok(panic)) = ended.map_err(JoinError::try_into_panic) {
        std::panic::resume_unwind(panic);
    }
}

/// Whether a worker has come to rest since it last worked.
#[derive(Default)]
struct Rest {
    worked: bool,
    idle: u32,
}

impl Rest {
    /// Takes in whether there was work since the last look. True once, at the look that finds it at rest.
    fn look(&mut self, worked: bool) -> bool {
        if worked {
            *self = Self { worked, idle: 0 };
            return false;
        }
        self.idle = self.idle.saturating_add(1);
        self.idle >= LOOKS_AT_REST && std::mem::take(&mut self.worked)
    }
}

/// Runs a worker inside a local runtime, or a `LocalSet`, that is already there.
pub(crate) async fn serve(params: WorkerParams) {
    let WorkerParams {
        index,
        mut snapshot,
        stats,
        logs,
        upstreams,
        shared,
        inbox,
        mut overload,
        mut phase,
        reports,
        settings,
    } = params;
    heddle_keys::collect_here(&stats);
    let scans = Scans::new(&stats);
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
    spawn_local(measure::run(Rc::clone(&state)));
    spawn_local(heddle_tls::second_looks());
    spawn_local(accept::take_arrivals(Rc::clone(&state), inbox));
    let mut manager = ListenerManager::default();
    let mut newest = Some(first);
    let mut housekeeping = interval(HOUSEKEEPING);
    housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reached = Phase::SERVING;
    let metrics = Handle::current().metrics();
    let mut ran = metrics.worker_total_busy_duration(0);
    let mut rest = Rest::default();
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
        let before = std::mem::replace(&mut reached, wanted);
        if wanted.stopping {
            break;
        }
        if wanted.draining > before.draining {
            manager.drain(wanted.draining);
        }
        if wanted.closed > before.closed {
            manager.stop_accepting(&state, wanted.closed);
        }
        if wanted.closed == Scope::All && before.closed < Scope::All {
            let (state, reports) = (Rc::clone(&state), reports.clone());
            spawn_local(async move {
                state.until_idle().await;
                // The main thread may have gone: then nobody waits for this.
                let _ = reports.send(WorkerReport::Drained { worker: index }).await;
            });
        }
        tokio::select! {
            changed = snapshot.changed() => match changed {
                Ok(()) => newest = Some(Arc::clone(&snapshot.borrow_and_update())),
                Err(_) => break,
            },
            changed = phase.changed() => if changed.is_err() { break },
            // The main thread sends them anew as long as streams are to be reset.
            Ok(()) = overload.changed() => {
                let states = *overload.borrow_and_update();
                if state.overload.set(states) {
                    manager.wake_connections();
                }
                let reset = state.overload.reset_streams();
                if reset > 0 {
                    tracing::warn!(worker = index, "memory is short: {reset} HTTP/2 streams were reset");
                }
            }
            _ = housekeeping.tick() => {
                scans.count();
                state.clusters.maintain();
                sweep_pools();
                let needed_spares = trim_spares() | BufferPool::trim();
                let before = std::mem::replace(&mut ran, metrics.worker_total_busy_duration(0));
                if rest.look(needed_spares || ran.saturating_sub(before) > LEAST_WORK) {
                    // What a thread frees and then allocates nothing stays resident.
                    heddle_memory::give_back();
                }
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn runtime() -> LocalRuntime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .expect("a runtime")
    }

    #[test]
    fn a_worker_is_at_rest_once_when_it_has_not_worked_for_a_while() {
        let mut rest = Rest::default();
        assert!((0..10).all(|_| !rest.look(false)), "it has not worked yet");
        // Work now and then is no rest.
        for _ in 0..10 {
            assert!(!rest.look(true) && !rest.look(false) && !rest.look(false));
        }
        assert!(rest.look(false));
        assert!((0..10).all(|_| !rest.look(false)), "nothing new to give back");
    }

    /// Connections are tasks: when the main one ends, those that are left end too.
    #[test]
    fn what_was_spawned_ends_with_the_main_task() {
        struct Ended(Rc<Cell<bool>>);
        impl Drop for Ended {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let (begun, ended) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
        let (task_begun, connection) = (Rc::clone(&begun), Ended(Rc::clone(&ended)));
        run_until_ended(runtime(), async move {
            spawn_local(async move {
                let _connection = connection;
                task_begun.set(true);
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
        });
        assert!(begun.get() && ended.get());
    }

    /// A worker whose loop is gone must not look like one that was told to stop.
    #[test]
    fn a_panic_of_the_main_task_is_the_threads() {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            run_until_ended(runtime(), async {
                tokio::task::yield_now().await;
                panic!("the loop is gone");
            });
        }));
        let panic = ended.expect_err("a panic");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"the loop is gone"));
    }
}
