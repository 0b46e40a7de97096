//! Bounds on log lines: peers must not be able to fill a disk.
//!
//! Most lines have a cause outside: a discovery server that sends nonsense, descriptors that run out, a library's
//! complaint about a frame. So each place in the code that writes lines has a bucket of [`BURST`] tokens which refills
//! by one a second; what finds it empty is counted and left out, and the next line that is written says how many were.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Lines that one place may write at once.
const BURST: u64 = 10;

/// A place that wrote its burst may write one more line in this time.
const REFILL: Duration = Duration::from_secs(1);

/// Longest line in bytes. A refusal of a large configuration lists many findings; a text that a peer chose has no bound
/// of its own.
const MAX_LINE: usize = 16 * 1024;

/// Lines left out so far, `heddle_log_suppressed_total`. Cloning shares the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Suppressed(Arc<AtomicU64>);

impl Suppressed {
    pub(crate) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Tokens of one place.
struct Bucket {
    tokens: u64,
    refilled: Instant,
    left_out: u64,
}

/// The buckets: one for each place in the code that has written, so their number is bounded by the code.
struct Buckets {
    places: Mutex<HashMap<Identifier, Bucket>>,
    suppressed: Suppressed,
}

impl Buckets {
    /// Takes a token: `Some` with the number of lines left out since the last one, `None` when the line is to be left
    /// out too.
    fn admit(&self, place: Identifier, now: Instant) -> Option<u64> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = places.entry(place).or_insert(Bucket {
            tokens: BURST,
            refilled: now,
            left_out: 0,
        });
        let periods = now.saturating_duration_since(bucket.refilled).as_secs() / REFILL.as_secs();
        if bucket.tokens.saturating_add(periods) >= BURST {
            bucket.tokens = BURST;
            bucket.refilled = now;
        } else {
            bucket.tokens += periods;
            bucket.refilled += Duration::from_secs(periods * REFILL.as_secs());
        }
        if bucket.tokens == 0 {
            bucket.left_out += 1;
            self.suppressed.0.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        bucket.tokens -= 1;
        Some(std::mem::take(&mut bucket.left_out))
    }
}

/// Formats events with `F` as long as their place has tokens, and no line longer than [`MAX_LINE`].
pub(crate) struct Limited<F> {
    format: F,
    buckets: Buckets,
    clock: Box<dyn Fn() -> Instant + Send + Sync>,
}

impl<F> Limited<F> {
    pub(crate) fn new(format: F, suppressed: Suppressed, clock: impl Fn() -> Instant + Send + Sync + 'static) -> Self {
        Self {
            format,
            buckets: Buckets {
                places: Mutex::default(),
                suppressed,
            },
            clock: Box::new(clock),
        }
    }
}

impl<S, N, F> FormatEvent<S, N> for Limited<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let Some(left_out) = self.buckets.admit(event.metadata().callsite(), (self.clock)()) else {
            // Nothing formatted is nothing written.
            return Ok(());
        };
        if left_out > 0 {
            writeln!(writer, "({left_out} lines like the next one were left out)")?;
        }
        let mut line = Bounded {
            writer: writer.by_ref(),
            left: MAX_LINE,
            cut: 0,
        };
        self.format.format_event(context, Writer::new(&mut line), event)?;
        match line.cut {
            0 => Ok(()),
            cut => writeln!(writer, "… ({cut} bytes more)"),
        }
    }
}

/// Passes on so many bytes and counts the rest.
struct Bounded<'a> {
    writer: Writer<'a>,
    left: usize,
    cut: usize,
}

impl fmt::Write for Bounded<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = text.floor_char_boundary(self.left);
        let (kept, rest) = text.split_at(end);
        self.left = if rest.is_empty() { self.left - end } else { 0 };
        self.cut += rest.len();
        self.writer.write_str(kept)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tracing_subscriber::fmt::MakeWriter;
    use tracing_subscriber::fmt::format::Format;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// What was written, and a clock that stands still.
    #[derive(Clone)]
    struct Rig {
        text: Arc<Mutex<Vec<u8>>>,
        now: Arc<Mutex<Instant>>,
    }

    impl io::Write for Rig {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.text.lock().expect("unpoisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Rig {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    impl Rig {
        fn run(test: impl FnOnce(&Self, &Suppressed)) {
            let rig = Self {
                text: Arc::default(),
                now: Arc::new(Mutex::new(Instant::now())),
            };
            let suppressed = Suppressed::default();
            let clock = rig.now.clone();
            let format = Format::default()
                .without_time()
                .with_target(false)
                .with_level(false)
                .with_ansi(false);
            let lines = tracing_subscriber::fmt::layer()
                .with_writer(rig.clone())
                .event_format(Limited::new(format, suppressed.clone(), move || {
                    *clock.lock().expect("unpoisoned")
                }));
            let subscriber = tracing_subscriber::registry().with(lines);
            tracing::subscriber::with_default(subscriber, || test(&rig, &suppressed));
        }

        fn pass(&self, time: Duration) {
            *self.now.lock().expect("unpoisoned") += time;
        }

        /// The lines written since the last call.
        fn lines(&self) -> Vec<String> {
            let text = std::mem::take(&mut *self.text.lock().expect("unpoisoned"));
            String::from_utf8(text)
                .expect("UTF-8")
                .lines()
                .map(str::to_owned)
                .collect()
        }
    }

    fn complain(times: usize) {
        for _ in 0..times {
            tracing::warn!("nonsense");
        }
    }

    #[test]
    fn a_place_writes_its_burst_and_then_one_line_a_second() {
        Rig::run(|rig, suppressed| {
            complain(1000);
            assert_eq!(rig.lines(), vec!["nonsense"; 10]);
            assert_eq!(suppressed.total(), 990);
            rig.pass(Duration::from_millis(999));
            complain(1);
            assert!(rig.lines().is_empty());
            rig.pass(Duration::from_millis(1));
            complain(3);
            assert_eq!(rig.lines(), ["(991 lines like the next one were left out)", "nonsense"]);
            assert_eq!(suppressed.total(), 993);
        });
    }

    #[test]
    fn a_place_that_was_quiet_has_its_burst_again_and_no_more() {
        Rig::run(|rig, suppressed| {
            complain(10);
            rig.pass(Duration::from_secs(3600));
            complain(11);
            assert_eq!((rig.lines().len(), suppressed.total()), (20, 1));
        });
    }

    #[test]
    fn places_do_not_take_each_others_lines() {
        Rig::run(|rig, _| {
            complain(100);
            rig.lines();
            tracing::warn!("something else");
            assert_eq!(rig.lines(), ["something else"]);
        });
    }

    #[test]
    fn lines_are_cut() {
        Rig::run(|rig, _| {
            tracing::warn!("{}é{}", "x".repeat(MAX_LINE - 1), "y".repeat(100));
            let written = rig.lines().concat();
            let (line, note) = written.split_once('…').expect("cut");
            assert_eq!((line.len(), note), (MAX_LINE - 1, " (103 bytes more)"));
        });
    }
}
