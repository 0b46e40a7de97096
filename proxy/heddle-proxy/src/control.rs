//! The main thread's loop: updates in, snapshots out, verdicts back, and the way to the end.

use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_config::snapshot::Snapshot;
use heddle_config::{Builder, Checkpoint, Refusal, ResourceKind};
use heddle_worker::{Ask, Phase, Scope, WorkerReport};
use heddle_xds::{Delivery, Verdict};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::{Instant, interval_at, sleep_until};

use crate::admin::{AdminCommand, ServerState};
use crate::discovery::Discovery;
use crate::on_demand::Demand;
use crate::workers::Ended;

/// How long workers may take to put a snapshot into force before the update is acknowledged without them. They take
/// microseconds; the bound keeps one stuck worker from stopping discovery.
const APPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// After this, listeners are asked for even though a cluster is not warm, as Envoy does after its
/// `initial_fetch_timeout`; what keeps the proxy from being ready is logged as often.
const PATIENCE: Duration = Duration::from_secs(15);

/// Time between looks whether the descriptors of the API are still used.
const RELEASE: Duration = Duration::from_secs(30);

/// How long workers may take to close everything at the end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Most lines about what is waited for in one log entry.
const MAX_WAITING: usize = 8;

/// How the process ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// As asked.
    Orderly,
    /// Because of this.
    Failed(String),
}

/// Gives back what the last configuration took to be read, once nothing more has come for a while.
fn give_back_memory() {
    let released = heddle_config::release_descriptors();
    heddle_memory::give_back();
    if released && let Err(e) = heddle_memory::give_back_program() {
        tracing::warn!("the pages of code that nothing runs stay resident: {e}");
    }
}

/// The channels that the loop listens to.
pub(crate) struct Inputs {
    pub(crate) deliveries: mpsc::Receiver<Delivery>,
    pub(crate) reports: mpsc::Receiver<WorkerReport>,
    pub(crate) ended: mpsc::Receiver<Ended>,
    pub(crate) commands: mpsc::Receiver<AdminCommand>,
    pub(crate) asks: mpsc::Receiver<Ask>,
}

/// See the module.
pub(crate) struct Control {
    pub(crate) builder: Rc<RefCell<Builder>>,
    pub(crate) discovery: Discovery,
    pub(crate) demand: Demand,
    pub(crate) snapshot: watch::Sender<Arc<Snapshot>>,
    pub(crate) phase: watch::Sender<Phase>,
    pub(crate) state: watch::Sender<ServerState>,
    pub(crate) drain_time: Duration,
    workers: Vec<WorkerView>,
    decoding: Option<Decoding>,
    in_flight: Option<InFlight>,
    live: bool,
    /// Forces the end of draining.
    deadline: Option<Instant>,
    /// When which listeners close that drain gracefully.
    closing: Option<(Instant, Scope)>,
}

/// What the main thread knows of one worker.
#[derive(Clone, Copy, Debug, Default)]
struct WorkerView {
    version: u64,
    drained: bool,
    ended: bool,
}

/// The configuration with what was taken of an update.
type Decoded = (Builder, Result<(), Refusal>);

/// A large update that is being decoded on another thread. One at a time.
struct Decoding {
    task: JoinHandle<Decoded>,
    before: Option<Checkpoint>,
    verdict: oneshot::Sender<Verdict>,
}

/// An update that workers are putting into force.
struct InFlight {
    version: u64,
    before: Option<Checkpoint>,
    /// What the workers' consent makes of the update.
    outcome: Verdict,
    verdict: oneshot::Sender<Verdict>,
    deadline: Instant,
}

/// The signals that end the proxy.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Control {
    pub(crate) fn new(
        builder: Rc<RefCell<Builder>>,
        discovery: Discovery,
        demand: Demand,
        snapshot: watch::Sender<Arc<Snapshot>>,
        workers: usize,
        drain_time: Duration,
    ) -> Self {
        Self {
            builder,
            discovery,
            demand,
            snapshot,
            phase: watch::channel(Phase::SERVING).0,
            state: watch::channel(ServerState::PreInitializing).0,
            drain_time,
            workers: vec![WorkerView::default(); workers],
            decoding: None,
            in_flight: None,
            live: false,
            deadline: None,
            closing: None,
        }
    }

    /// Runs until the process should end.
    pub(crate) async fn run(mut self, mut inputs: Inputs) -> End {
        let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        let mut signals = match signals {
            (Ok(terminate), Ok(interrupt)) => Signals { terminate, interrupt },
            (Err(e), _) | (_, Err(e)) => return End::Failed(format!("signals cannot be received: {e}")),
        };
        self.discovery.follow(&self.builder.borrow(), false);
        let mut release = interval_at(Instant::now() + RELEASE, RELEASE);
        let mut patience = interval_at(Instant::now() + PATIENCE, PATIENCE);
        loop {
            self.show_state();
            if !self.is_busy() && self.builder.borrow().is_settled() {
                self.demand.release();
            }
            let apply_deadline = self.in_flight.as_ref().map(|f| f.deadline);
            let wait_deadline = self.builder.borrow().deadline().map(Instant::from_std);
            tokio::select! {
                Some(delivery) = inputs.deliveries.recv(), if !self.is_busy() => self.update(delivery),
                decoded = end_of(&mut self.decoding) => self.decoded(decoded),
                Some(ask) = inputs.asks.recv() => {
                    let builder = self.builder.borrow();
                    if self.demand.ask(ask, |name| builder.has_listener(name)) {
                        self.discovery.demand(self.demand.names());
                        self.discovery.follow(&builder, false);
                    }
                }
                Some(report) = inputs.reports.recv() => {
                    if let Some(end) = self.report(report) {
                        return self.stop(&mut inputs, end).await;
                    }
                }
                Some(ended) = inputs.ended.recv() => {
                    let reason = ended.err().unwrap_or_else(|| "a worker ended by itself".to_owned());
                    return self.stop(&mut inputs, End::Failed(reason)).await;
                }
                Some(command) = inputs.commands.recv() => {
                    if self.command(command) {
                        return self.stop(&mut inputs, End::Orderly).await;
                    }
                }
                () = until(apply_deadline) => self.give_up_waiting(),
                () = until(wait_deadline), if !self.is_busy() => self.end_waits(),
                () = until(self.closing.map(|(at, _)| at)) => {
                    if let Some((_, scope)) = self.closing.take() {
                        tracing::info!("the drain time is over, closing listeners");
                        self.advance(Phase::closed(scope));
                    }
                }
                () = until(self.deadline) => {
                    tracing::info!("the drain time is over, closing what is left");
                    return self.stop(&mut inputs, End::Orderly).await;
                }
                name = signals.next() => {
                    if self.asked_to_end(name) {
                        return self.stop(&mut inputs, End::Orderly).await;
                    }
                }
                _ = release.tick() => give_back_memory(),
                _ = patience.tick(), if !self.live => self.be_patient(),
            }
        }
    }

    /// Applies one update; the verdict follows when the workers have it.
    fn update(&mut self, delivery: Delivery) {
        let Delivery { update, verdict } = delivery;
        self.demand.hear(&update);
        let mut builder = self.builder.borrow_mut();
        builder.set_time(Instant::now().into_std());
        // Endpoints cannot make a worker refuse a snapshot, and they change most often.
        let before = (update.kind != ResourceKind::Endpoints).then(|| builder.checkpoint());
        let size: usize = update.resources.iter().map(|resource| resource.body.value.len()).sum();
        if builder.is_slow(update.kind, size) {
            // This thread answers probes and scrapes meanwhile.
            let mut next = builder.clone();
            let task = spawn_blocking(move || {
                let result = next.apply(update);
                // Made here as well; asking again gives the same one.
                next.snapshot();
                (next, result)
            });
            self.decoding = Some(Decoding { task, before, verdict });
            return;
        }
        let result = builder.apply(update);
        drop(builder);
        self.applied(result, before, verdict);
    }

    /// The thread that has decoded an update is done. What it made of the configuration takes its place.
    fn decoded(&mut self, (decoding, end): (Decoding, Result<Decoded, JoinError>)) {
        let Decoding { before, verdict, .. } = decoding;
        match end {
            Ok((next, result)) => {
                self.builder.replace(next);
                self.applied(result, before, verdict);
            }
            Err(_) => answer(
                verdict,
                Verdict::Refused("decoding it failed, which is a bug; see the proxy's log".to_owned()),
            ),
        }
    }

    /// Whether an update is under way.
    fn is_busy(&self) -> bool {
        self.decoding.is_some() || self.in_flight.is_some()
    }

    /// Hands what an update has made of the configuration to the workers.
    fn applied(&mut self, result: Result<(), Refusal>, before: Option<Checkpoint>, verdict: oneshot::Sender<Verdict>) {
        let outcome = match result {
            Ok(()) => Verdict::Taken,
            Err(refusal) => Verdict::TakenBut(refusal),
        };
        let mut builder = self.builder.borrow_mut();
        let snapshot = builder.snapshot();
        self.discovery.follow(&builder, false);
        drop(builder);
        let version = snapshot.version;
        let is_new = self.snapshot.send_if_modified(|current| {
            let is_new = !Arc::ptr_eq(current, &snapshot);
            *current = snapshot;
            is_new
        });
        if is_new && !self.phase.borrow().stopping {
            self.in_flight = Some(InFlight {
                version,
                before,
                outcome,
                verdict,
                deadline: Instant::now() + APPLY_TIMEOUT,
            });
        } else {
            answer(verdict, outcome);
        }
    }

    /// Publishes what has waited long enough for the rest of its configuration.
    fn end_waits(&mut self) {
        let mut builder = self.builder.borrow_mut();
        builder.tick(Instant::now().into_std());
        let snapshot = builder.snapshot();
        self.discovery.follow(&builder, false);
        self.snapshot.send_if_modified(|current| {
            let is_new = !Arc::ptr_eq(current, &snapshot);
            *current = snapshot;
            is_new
        });
    }

    /// Takes note of what a worker says. `Some` when the process has to end.
    fn report(&mut self, report: WorkerReport) -> Option<End> {
        match report {
            WorkerReport::Applied { worker, version } => {
                self.view(worker, |w| w.version = version);
                let applied = self.workers.iter().map(|w| w.version).min().unwrap_or(0);
                if let Some(done) = self.in_flight.take_if(|f| applied >= f.version) {
                    answer(done.verdict, done.outcome);
                }
                None
            }
            WorkerReport::Refused { version, failures, .. } => {
                let problem = failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
                match self.in_flight.take_if(|f| f.version == version) {
                    Some(refused) => self.go_back(refused, problem),
                    // Nobody waits: this is the configuration of the start, or a second worker's opinion.
                    None if !self.live && version == self.snapshot.borrow().version => {
                        return Some(End::Failed(problem));
                    }
                    None => {}
                }
                None
            }
            WorkerReport::Drained { worker } => {
                self.view(worker, |w| w.drained = true);
                // Draining on request of the admin interface does not end the process.
                let done = self.deadline.is_some() && self.workers.iter().all(|w| w.drained);
                done.then(|| {
                    tracing::info!("all connections have finished");
                    End::Orderly
                })
            }
            WorkerReport::Stopped { worker } => {
                self.view(worker, |w| w.ended = true);
                None
            }
        }
    }

    fn view(&mut self, worker: usize, change: impl FnOnce(&mut WorkerView)) {
        if let Some(view) = self.workers.get_mut(worker) {
            change(view);
        }
    }

    /// A worker could not put an update into force: the configuration before it comes back as a new snapshot.
    fn go_back(&mut self, refused: InFlight, problem: String) {
        if let Some(before) = refused.before {
            let mut builder = self.builder.borrow_mut();
            builder.restore(before);
            self.snapshot.send_replace(builder.snapshot());
            self.discovery.follow(&builder, false);
        }
        answer(refused.verdict, Verdict::Refused(problem));
    }

    fn give_up_waiting(&mut self) {
        if let Some(slow) = self.in_flight.take() {
            let behind = self.workers.iter().filter(|w| w.version < slow.version).count();
            tracing::warn!(
                "{behind} workers have not put configuration {} into force after {APPLY_TIMEOUT:?}",
                slow.version
            );
            answer(slow.verdict, slow.outcome);
        }
    }

    fn be_patient(&mut self) {
        let builder = self.builder.borrow();
        self.discovery.follow(&builder, true);
        let waiting = builder.waiting();
        let more = waiting.len().saturating_sub(MAX_WAITING);
        let mut text = waiting.into_iter().take(MAX_WAITING).collect::<Vec<_>>().join(", ");
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
        if text.is_empty() {
            text.push_str("the discovery server has not sent everything yet");
        }
        tracing::warn!("not ready: {text}");
    }

    /// Publishes the state of the server. Once live, it stays so until it drains.
    fn show_state(&mut self) {
        let builder = self.builder.borrow();
        if !self.live && builder.is_complete() {
            let version = self.snapshot.borrow().version;
            self.live = self.workers.iter().all(|w| w.version >= version);
            if self.live {
                tracing::info!("ready: configuration {version} is in force");
            }
        }
        let state = if self.phase.borrow().draining == Scope::All {
            ServerState::Draining
        } else if self.live {
            ServerState::Live
        } else if builder.has_clusters() && builder.clusters_are_warm() {
            ServerState::Initializing
        } else {
            ServerState::PreInitializing
        };
        self.state
            .send_if_modified(|current| std::mem::replace(current, state) != state);
    }

    /// Carries out what a user asked for. True when the process should end now.
    fn command(&mut self, command: AdminCommand) -> bool {
        match command {
            AdminCommand::DrainListeners {
                graceful,
                inbound_only,
                skip_exit,
            } => {
                tracing::info!(graceful, inbound_only, skip_exit, "draining listeners");
                let scope = if inbound_only { Scope::Inbound } else { Scope::All };
                if graceful {
                    self.drain(scope, skip_exit);
                } else {
                    self.advance(Phase::closed(scope));
                }
                false
            }
            AdminCommand::FailHealthCheck(failed) => {
                tracing::info!("health check set to {}", if failed { "fail" } else { "pass" });
                false
            }
            AdminCommand::Quit => true,
        }
    }

    /// Has connections finish while new ones are accepted, and closes the listeners after the drain time unless `stay`. As
    /// in Envoy, it does nothing more for those that drain already.
    fn drain(&mut self, scope: Scope, stay: bool) {
        if self.phase.borrow().draining >= scope {
            return;
        }
        self.advance(Phase::draining(scope));
        self.closing = match stay {
            true => self.closing,
            false => Some((Instant::now() + self.drain_time, scope)),
        };
    }

    /// A signal: the first drains, the next ends at once; so does the first when draining was asked for before. True
    /// when the process should end now.
    fn asked_to_end(&mut self, name: &str) -> bool {
        if self.phase.borrow().closed == Scope::All {
            tracing::info!("{name}: ending now");
            return true;
        }
        tracing::info!(
            "{name}: connections have {} s to finish; another signal ends at once",
            self.drain_time.as_secs()
        );
        self.deadline = Some(Instant::now() + self.drain_time);
        self.advance(Phase::closed(Scope::All));
        false
    }

    fn advance(&mut self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let further = phase.and(to);
            std::mem::replace(phase, further) != further
        });
        // Workers that stop put no more snapshots into force.
        if to.stopping
            && let Some(in_flight) = self.in_flight.take()
        {
            answer(in_flight.verdict, in_flight.outcome);
        }
    }

    /// Has the workers close everything and waits for them.
    async fn stop(&mut self, inputs: &mut Inputs, end: End) -> End {
        self.advance(Phase::STOPPING);
        self.show_state();
        let deadline = Instant::now() + STOP_TIMEOUT;
        let mut running = self.workers.len();
        while running > 0 {
            tokio::select! {
                Some(_) = inputs.ended.recv() => running -= 1,
                Some(_) = inputs.reports.recv() => {}
                () = sleep_until(deadline) => {
                    tracing::warn!("{running} workers did not end within {STOP_TIMEOUT:?}");
                    break;
                }
                else => break,
            }
        }
        end
    }
}

impl Signals {
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// The end of what is being decoded, if there is something: it is taken out then.
async fn end_of(decoding: &mut Option<Decoding>) -> (Decoding, Result<Decoded, JoinError>) {
    let Some(current) = decoding else {
        return pending().await;
    };
    let end = (&mut current.task).await;
    match decoding.take() {
        Some(done) => (done, end),
        None => pending().await,
    }
}

/// The stream may be gone: then nobody needs the verdict.
fn answer(verdict: oneshot::Sender<Verdict>, outcome: Verdict) {
    let _ = verdict.send(outcome);
}

/// Sleeps until the deadline, for ever without one.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}
