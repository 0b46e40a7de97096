//! Which worker takes a connection, a new one or one that is open: decisions alone, without sockets, clocks or threads.
//!
//! A worker accepts what the kernel's hash gives it, then [`fewest`] or [`least_loaded`] says which worker serves it. Both
//! see every worker that takes connections of that listener now; the others are `None`. Who asks counts the connection to
//! the worker named before anybody asks again, so that decisions of the same instant know of each other.
//!
//! A [`Giver`] says which open connections leave a worker that has more to do than others, between two requests: connection
//! migration, with thresholds and hysteresis (`BEGIN`, `END`, `HOLD`, `PAUSE` in `moving.rs`; of placing, `MARGIN` in `place.rs`).
#![forbid(unsafe_code)]

mod meter;
mod moving;
mod place;
#[cfg(test)]
mod simulator;

pub use meter::{Load, Meter, PERIOD, PERIOD_IDLE};
pub use moving::{EXCHANGE, Giver, Guest};
pub use place::{Candidate, fewest, least_loaded};
