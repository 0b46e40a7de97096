//! Panics go to the log: the standard hook's lines have no bound.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;

/// Has every panic written as a log line, with a backtrace when `RUST_BACKTRACE` asks for one.
pub(super) fn log() {
    std::panic::set_hook(Box::new(|panic| {
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
