//! Clusters, load balancing, health, outlier detection, connecting.
//!
//! Every worker has a [`ClusterManager`] of its own, single-threaded, that follows the snapshots. What must be one for
//! the whole process — circuit breakers, ejections, health check and DNS results — is in [`Upstreams`], as atomics
//! that all workers read. The main thread runs one [`Supervisor`], which checks health, resolves names and ends
//! ejections.
//!
//! ```text
//! ClusterManager ─▶ ClusterHandle ─▶ pick ─▶ Host ─▶ connect ─▶ Connection
//!       │                │                     │
//!       └── Snapshot     └── SharedCluster ────┴── SharedHost ◀── Supervisor
//! ```
#![forbid(unsafe_code)]
#![allow(
    clippy::redundant_allocation,
    reason = "an Rc around an Arc of the snapshot: cloning it on the request path must not write a counter that other cores write"
)]

mod balance;
mod breaker;
mod cluster;
mod connect;
mod dns;
mod health;
mod host;
mod manager;
mod original_dst;
mod outlier;
mod shared;
mod stats;
mod supervisor;

pub use breaker::{ConnectionGuard, Limit, Overflow, PendingGuard, RequestGuard, RetryGuard};
pub use cluster::{ClusterHandle, PickContext, PickError};
pub use connect::{ConnectError, ConnectErrorKind, ConnectOptions, Connection};
pub use host::Host;
pub use manager::ClusterManager;
pub use outlier::Outcome;
pub use shared::{ClusterStatus, HostStatus, Upstreams};
pub use stats::ClusterStats;
pub use supervisor::Supervisor;
