//! Panics go to the log, since the standard hook's lines have no bound, and are counted.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many panics there were, in whatever task or thread: each is a bug. What the task served is closed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Panics(Arc<AtomicU64>);

impl Panics {
    /// The number now.
    pub(crate) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Has every panic counted, and written as a log line with a backtrace when `RUST_BACKTRACE` asks for one.
pub(super) fn log(panics: Panics) {
    std::panic::set_hook(Box::new(move |panic| {
        panics.0.fetch_add(1, Ordering::Relaxed);
        let trace = Backtrace::capture();
        let trace = match trace.status() {
            BacktraceStatus::Captured => format!("\n{trace}"),
            _ => String::new(),
        };
        let thread = std::thread::current();
        let (name, place) = (thread.name().unwrap_or("unnamed"), place(panic));
        tracing::error!("thread {name} panicked at {place}: {}{trace}", message(panic));
    }));
}

fn place(panic: &PanicHookInfo<'_>) -> String {
    panic
        .location()
        .map_or_else(|| "an unknown place".to_owned(), ToString::to_string)
}

fn message<'a>(panic: &'a PanicHookInfo<'_>) -> &'a str {
    panic.payload_as_str().unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_any_task_is_counted() {
        let panics = Panics::default();
        log(panics.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        let ended = runtime.block_on(
            tokio::task::LocalSet::new()
                .run_until(async { tokio::task::spawn_local(async { panic!("on purpose") }).await }),
        );
        drop(std::panic::take_hook());
        assert!(ended.expect_err("it panicked").is_panic());
        assert!(panics.total() > 0);
    }
}
