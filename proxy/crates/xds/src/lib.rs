//! Discovery streams: how configuration gets from the controller to this proxy, over the incremental ("delta")
//! variant of xDS.
//!
//! [`Session`] is the protocol without a network: what to ask for, what a response means, what to acknowledge. [`run`]
//! is the thin part that connects, sends and receives, and tries again with [`Backoff`]. What to ask for comes in
//! through a watch channel, updates go out through a queue, and the answer to each decides between ACK and NACK. When the
//! server is away the last good configuration stays in force, and a new stream begins with the versions that are known.
#![forbid(unsafe_code)]

mod backoff;
mod client;
mod session;
mod stats;

pub use backoff::Backoff;
pub use client::{ClientParams, Delivery, Service, run};
pub use session::{Incoming, Session, Verdict, Wanted};
pub use stats::StreamStats;
