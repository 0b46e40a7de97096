//! When connections began.

use std::time::SystemTime;

use tokio::time::Instant;

/// When something began, by both clocks.
#[derive(Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) at: Instant,
    pub(crate) wall: SystemTime,
}

impl Begun {
    pub(crate) fn now() -> Self {
        Self {
            at: Instant::now(),
            wall: SystemTime::now(),
        }
    }
}
