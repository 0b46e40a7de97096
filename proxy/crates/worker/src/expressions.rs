//! What Hyperscan read on this worker and what it left to the portable engine, for the metrics.

use heddle_matching::{HyperscanCounts, hyperscan_counts};
use heddle_telemetry::{Counter, Stats};

/// `heddle_regex_hyperscan_scans_total` and `heddle_regex_hyperscan_handed_over_total{reason}`: texts, each once for each database
/// of a set of expressions that it was held against, and for each reading of it.
pub(crate) struct Scans {
    /// Read to the end by Hyperscan.
    scanned: Counter,
    /// More words of the expressions in it than Hyperscan is to find.
    words: Counter,
    /// The set had been slow on texts just before.
    slow: Counter,
    /// Its line feeds.
    line_feed: Counter,
    /// No memory for scratch space, or the library failed.
    failed: Counter,
}

impl Scans {
    pub(crate) fn new(stats: &Stats) -> Self {
        let of = |reason| stats.counter("heddle_regex_hyperscan_handed_over_total", &[("reason", reason)]);
        Self {
            scanned: stats.counter("heddle_regex_hyperscan_scans_total", &[]),
            words: of("words"),
            slow: of("slow"),
            line_feed: of("line_feed"),
            failed: of("failed"),
        }
    }

    /// Adds what came since the last time.
    pub(crate) fn count(&self) {
        let HyperscanCounts {
            scanned,
            words,
            slow,
            line_feed,
            failed,
        } = hyperscan_counts();
        self.scanned.add(scanned);
        self.words.add(words);
        self.slow.add(slow);
        self.line_feed.add(line_feed);
        self.failed.add(failed);
    }
}
