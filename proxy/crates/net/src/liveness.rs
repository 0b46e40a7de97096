//! Telling a dead peer from a slow one while bytes are under way.
//!
//! Keep-alive probes are sent on idle connections only. When data is on its way to a peer that vanished without a word (a
//! cut link, a host without power), the kernel repeats it for about a quarter of an hour (`tcp_retries2`, RFC 1122
//! §4.2.3.5). `TCP_USER_TIMEOUT` would shorten that, but it also ends connections whose peer is there and takes its time
//! to read. Acknowledgements tell the two apart: a slow peer sends them, even for probes of its closed window.

use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::tcp_info::TcpInfo;

/// How often a connection is looked at, as a part of the patience.
const LOOKS: u32 = 3;

/// Watches one connection. Costs one system call per look; look while something is expected of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Liveness {
    patience: Duration,
    /// Since when the peer has owed an acknowledgement without sending any, as far as was seen.
    owed_since: Option<Instant>,
}

impl Liveness {
    /// A watch that gives the peer up after so long without an acknowledgement that it owes.
    pub fn new(patience: Duration) -> Self {
        Self {
            patience,
            owed_since: None,
        }
    }

    /// Time between looks. The end is noticed at most that much later than the patience is over.
    pub fn period(&self) -> Duration {
        (self.patience / LOOKS).max(Duration::from_millis(100))
    }

    /// Looks at the connection; true when its peer is to be taken for dead. A socket that cannot be asked is not.
    pub fn is_dead(&mut self, tcp: &TcpStream, now: Instant) -> bool {
        TcpInfo::of(tcp).is_ok_and(|info| self.judge(info, now))
    }

    fn judge(&mut self, info: TcpInfo, now: Instant) -> bool {
        if !info.outstanding {
            self.owed_since = None;
            return false;
        }
        // The silence alone says nothing: the last acknowledgement may be old because nothing was sent for long.
        let seen = *self.owed_since.get_or_insert(now);
        let since = match now.checked_sub(info.silence) {
            Some(last) if last > seen => last,
            _ => seen,
        };
        self.owed_since = Some(since);
        now.saturating_duration_since(since) >= self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(outstanding: bool, silence_ms: u64) -> TcpInfo {
        TcpInfo {
            outstanding,
            silence: Duration::from_millis(silence_ms),
        }
    }

    #[test]
    fn silence_counts_only_while_an_answer_is_owed() {
        let start = Instant::now() + Duration::from_secs(1000);
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut watch = Liveness::new(Duration::from_secs(3));
        assert_eq!(watch.period(), Duration::from_secs(1));
        // Quiet for minutes, then something was sent just now: it is not dead yet.
        assert!(!watch.judge(info(true, 300_000), at(0)));
        assert!(!watch.judge(info(true, 301_000), at(1000)));
        assert!(!watch.judge(info(true, 302_000), at(2000)));
        assert!(watch.judge(info(true, 303_000), at(3000)));
    }

    #[test]
    fn acknowledgements_and_rest_start_it_anew() {
        let start = Instant::now() + Duration::from_secs(1000);
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut watch = Liveness::new(Duration::from_secs(3));
        assert!(!watch.judge(info(true, 0), at(0)));
        // A slow reader acknowledges probes of its closed window.
        assert!(!watch.judge(info(true, 500), at(2500)));
        assert!(!watch.judge(info(true, 3000), at(4900)));
        assert!(watch.judge(info(true, 3000), at(5000)));
        assert!(!watch.judge(info(false, 9000), at(8000)));
        assert!(!watch.judge(info(true, 9000), at(9000)));
    }
}
