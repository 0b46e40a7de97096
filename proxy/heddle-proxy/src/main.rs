//! heddle-proxy: reads the bootstrap, starts the workers, follows discovery, serves the admin interface.
//!
//! Threads: this one (discovery, admin, health checks, signals; it never touches traffic), one per worker, one that
//! writes access logs.
#![forbid(unsafe_code)]

mod admin;
mod args;
mod control;
mod descriptors;
mod discovery;
mod logging;
mod on_demand;
mod overload;
mod workers;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use clap::Parser;
use heddle_config::{Bootstrap, Builder};
use heddle_http::OverloadStates;
use heddle_net::ListenOptions;
use heddle_telemetry::Stats;
use heddle_telemetry::access_log::LogFiles;
use heddle_upstream::{Supervisor, Upstreams};
use heddle_worker::{Asks, Shared, WorkerSettings};
// BoringSSL's X25519 is this one.
use heddle_x25519 as _;
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::Instant;

use crate::admin::{AdminServer, AdminState};
use crate::args::{Args, Mode};
use crate::control::{Control, End, Inputs};
use crate::discovery::Discovery;
use crate::logging::Logging;
use crate::on_demand::Demand;
use crate::overload::OverloadManager;

#[global_allocator]
static ALLOCATOR: heddle_memory::MiMalloc = heddle_memory::MiMalloc;

/// Commands from the admin interface that may wait.
const QUEUED_COMMANDS: usize = 16;

/// Connections of all workers that may wait to have the listener of their destination asked for; others wait in line.
const QUEUED_ASKS: usize = 1024;

fn main() -> ExitCode {
    let args = Args::parse();
    let logging = match logging::start(&args.log_level) {
        Ok(logging) => logging,
        Err(problem) => return fail(&problem),
    };
    if args.tcp_bypass {
        heddle_tls::expect_two_queues();
    }
    match args.mode {
        Mode::Validate => validate(&args),
        Mode::Serve => serve(&args, logging),
    }
}

fn fail(problem: &str) -> ExitCode {
    eprintln!("heddle-proxy: {problem}");
    ExitCode::FAILURE
}

/// `--mode validate`: reads and checks everything, binds nothing.
fn validate(args: &Args) -> ExitCode {
    let checked = Bootstrap::load(&args.options()).and_then(|b| Builder::new(&b, Box::new(|_| Ok(()))));
    match checked {
        Ok(_) => {
            println!("configuration OK");
            ExitCode::SUCCESS
        }
        Err(errors) => fail(&errors.to_string()),
    }
}

fn serve(args: &Args, logging: Logging) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(e) => {
            return fail(&format!(
                "cannot start the event loop: {e}; check the limit on open files"
            ));
        }
    };
    let end = LocalSet::new().block_on(&runtime, run(args, logging));
    // Streams and the admin interface end with the runtime; nothing of theirs is worth waiting for.
    runtime.shutdown_background();
    match end {
        End::Orderly => ExitCode::SUCCESS,
        End::Failed(problem) => fail(&problem),
    }
}

async fn run(args: &Args, logging: Logging) -> End {
    let bootstrap = match Bootstrap::load(&args.options()) {
        Ok(bootstrap) => bootstrap,
        Err(errors) => return End::Failed(errors.to_string()),
    };
    let open_files = match heddle_net::raise_descriptor_limit() {
        Ok(limit) => limit,
        Err(e) => return End::Failed(format!("the limit on open files cannot be read: {e}")),
    };
    let mut builder = match Builder::new(&bootstrap, Box::new(can_listen)) {
        Ok(builder) => builder,
        Err(errors) => return End::Failed(errors.to_string()),
    };
    let admin = match &bootstrap.admin {
        Some(address) => match AdminServer::bind(address).await {
            Ok(server) => Some(server),
            Err(e) => return End::Failed(e.to_string()),
        },
        None => None,
    };
    let logs = match LogFiles::start() {
        Ok(logs) => logs,
        Err(e) => return End::Failed(format!("the thread that writes access logs cannot be started: {e}")),
    };
    let defaults = WorkerSettings::default();
    let max_connections = descriptors::max_connections(
        open_files,
        args.workers(),
        bootstrap.runtime.max_downstream_connections,
        defaults.max_connections,
    );
    let upstreams = Upstreams::new();
    let stats = Stats::new();
    let (snapshot, snapshots) = watch::channel(builder.snapshot());
    let builder = Rc::new(RefCell::new(builder));
    let (updates, deliveries) = mpsc::channel(1);
    let discovery = Discovery::new(&bootstrap, stats.clone(), updates);
    let (ask_sender, ask_receiver) = mpsc::channel(QUEUED_ASKS);
    let asks = Asks {
        queue: ask_sender,
        epoch: Arc::default(),
    };
    let demand = Demand::new(asks.epoch.clone(), &stats);
    let control = Control::new(
        builder.clone(),
        discovery,
        demand,
        snapshot,
        args.workers(),
        args.drain_time(),
    );
    let (shared, inboxes) = Shared::new(asks, args.workers());
    let (overload_sender, overload) = watch::channel(OverloadStates::default());
    if let Some(config) = &bootstrap.overload {
        let probe = |resource| overload::probe(resource, shared.clone(), max_connections);
        spawn_local(OverloadManager::new(config, &stats, overload_sender, probe).run());
    }
    let started = workers::start(workers::Start {
        snapshot: &control.snapshot,
        phase: &control.phase,
        logs: &logs,
        upstreams: &upstreams,
        shared: &shared,
        inboxes,
        overload: &overload,
        settings: WorkerSettings {
            drain_timeout: args.drain_time(),
            max_connections,
            overload: bootstrap
                .overload
                .as_ref()
                .map(|manager| manager.limits)
                .unwrap_or_default(),
            ..defaults
        },
    });
    let workers = match started {
        Ok(workers) => workers,
        Err(e) => return End::Failed(format!("worker threads cannot be started: {e}")),
    };
    spawn_local(Supervisor::new(upstreams.clone(), stats.clone(), snapshots.clone()).run());
    let (command_sender, commands) = mpsc::channel(QUEUED_COMMANDS);
    if let Some(server) = admin {
        if let Some(address) = server.local_addr() {
            tracing::info!("admin interface on {address}");
        }
        let mut readers = workers.stats.clone();
        readers.push(stats.reader());
        let state = AdminState {
            version: concat!("heddle/", env!("CARGO_PKG_VERSION")),
            command_line: args.to_json(),
            started: Instant::now(),
            concurrency: args.workers(),
            server: control.state.subscribe(),
            snapshot: snapshots,
            upstreams,
            stats: readers,
            logs: logs.clone(),
            config_dump: Box::new(move |endpoints| builder.borrow().config_dump(endpoints)),
            set_log_level: logging.set_level,
            suppressed_lines: logging.suppressed,
            panics: logging.panics,
            commands: command_sender,
            health_check_failed: Cell::new(false),
        };
        spawn_local(server.run(Rc::new(state)));
    }
    tracing::info!(
        "heddle-proxy {} with {} workers, at most {max_connections} connections of clients ({open_files} open files)",
        env!("CARGO_PKG_VERSION"),
        args.workers()
    );
    let inputs = Inputs {
        deliveries,
        reports: workers.reports,
        ended: workers.ended,
        commands,
        asks: ask_receiver,
    };
    let end = control.run(inputs).await;
    logs.stop();
    end
}

/// Whether a new listener's address can be had. Workers open sockets of their own.
fn can_listen(address: SocketAddr) -> Result<(), String> {
    heddle_net::bind(&ListenOptions::new(address)).map(drop).map_err(|e| {
        let remedy = match e.kind() {
            std::io::ErrorKind::AddrInUse => "; another process has it: stop that one or choose another port",
            std::io::ErrorKind::PermissionDenied => {
                "; choose a port above 1023, or give the process CAP_NET_BIND_SERVICE"
            }
            std::io::ErrorKind::AddrNotAvailable => "; it is not an address of this host",
            _ => "",
        };
        format!("{e}{remedy}")
    })
}
