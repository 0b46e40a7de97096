//! A worker: listeners, filter chains and network filters on one thread.
//!
//! The main thread starts one [`Worker::run`] per core. Nothing here is shared between workers but the snapshot, the
//! counts in [`Shared`] and the clusters' process-wide state.
//!
//! ```text
//! accept ─▶ limits ─▶ listener filters ─▶ original-destination hand-off ─▶ filter chain ─▶ TLS ─▶ network filters
//! ```
#![forbid(unsafe_code)]

mod accept;
mod begun;
mod chains;
mod connection;
mod copy;
mod exchange;
mod expressions;
mod inspect;
mod listener;
mod manager;
mod measure;
mod on_demand;
mod params;
mod rbac;
mod run;
mod state;
mod stats;
mod tcp_proxy;
#[cfg(test)]
mod tests;
mod turns;

pub use exchange::Inbox;
pub use on_demand::{Ask, Asks};
pub use params::{ListenerFailure, Phase, Scope, Shared, WorkerError, WorkerParams, WorkerReport, WorkerSettings};
pub use run::Worker;
