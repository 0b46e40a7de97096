//! The end of a connection.

use std::future::poll_fn;
use std::time::Duration;

use super::connection::Connection;

/// How long the last frames of a connection, and the peer's end of it, may take. Envoy's `delayed_close_timeout`.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends what a connection still has to say and waits for its peer to close too, within a bound.
pub(crate) async fn close(connection: &Connection) {
    // A peer that is gone, or does not read, is not waited for.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, poll_fn(|cx| connection.poll_close(cx))).await;
}
