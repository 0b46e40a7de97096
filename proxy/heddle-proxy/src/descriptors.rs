//! How many client connections the limit on open files leaves room for.
//!
//! Without a bound below that limit, clients could take every descriptor: no scrape would be answered, no certificate
//! renewed, no upstream reached.

/// Descriptors for the admin interface, discovery, logs, health checks and DNS, with those that traffic never gets
/// ([`heddle_net::is_spare`]).
const HEADROOM: u64 = 256;

/// The same for the event loop and the listening sockets of one worker.
const HEADROOM_PER_WORKER: u64 = 32;

/// The bound on connections over all listeners.
///
/// A configured one holds as far as there are descriptors. By default half of them are for clients, since each client
/// may need a connection to an upstream, and no more than `most`. Where the limit on open files is so low that the
/// headroom does not fit, half of it is headroom.
pub(crate) fn max_connections(descriptors: u64, workers: usize, configured: Option<u64>, most: u64) -> u64 {
    let workers = u64::try_from(workers).unwrap_or(u64::MAX);
    let headroom = HEADROOM.saturating_add(workers.saturating_mul(HEADROOM_PER_WORKER));
    let room = descriptors - headroom.min(descriptors / 2);
    match configured {
        Some(configured) => configured.min(room),
        None => (room / 2).clamp(1, most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 500_000;

    #[test]
    fn half_of_what_the_headroom_leaves_is_for_clients() {
        assert_eq!(max_connections(65_536, 2, None, MOST), (65_536 - 256 - 64) / 2);
        assert_eq!(max_connections(1024, 2, None, MOST), 352);
        assert_eq!(max_connections(1 << 30, 2, None, MOST), MOST);
    }

    #[test]
    fn a_configured_bound_holds_as_far_as_there_are_descriptors() {
        assert_eq!(max_connections(65_536, 2, Some(50_000), MOST), 50_000);
        // Istio's way to say "no bound".
        assert_eq!(max_connections(65_536, 2, Some(2_147_483_647), MOST), 65_216);
        assert_eq!(max_connections(65_536, 2, Some(0), MOST), 0);
    }

    #[test]
    fn a_low_limit_is_shared() {
        assert_eq!(max_connections(64, 2, None, MOST), 16);
        assert_eq!(max_connections(64, 64, Some(1000), MOST), 32);
        assert_eq!(max_connections(0, 1, None, MOST), 1);
    }
}
