//! How the examples measure: in processor time of one thread, which other work on the machine disturbs little.

use std::hint::black_box;
use std::time::Duration;

/// How long a round takes at least: the first argument, in milliseconds, 100 by default.
pub(crate) fn round() -> Duration {
    let argument = std::env::args().nth(1);
    Duration::from_millis(argument.map_or(100, |text| text.parse().expect("a number")))
}

/// What the thread has had of a processor. The kernel brings it up to date every few milliseconds.
pub(crate) fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanoseconds.expect("Linux, with schedstat"))
}

/// Nanoseconds per input, the best of five rounds.
pub(crate) fn measure<I, A>(inputs: &[I], round: Duration, mut check: impl FnMut(&I) -> A) -> f64 {
    let mut best = f64::INFINITY;
    let mut inputs = inputs.iter().cycle();
    for _ in 0..5 {
        let (begun, mut count) = (processor_time(), 0);
        let taken = loop {
            // Twice as many each time: reading the clock costs as much as dozens of checks.
            let more = count.max(1);
            for input in inputs.by_ref().take(more) {
                black_box(check(black_box(input)));
            }
            count += more;
            let taken = processor_time() - begun;
            if taken >= round {
                break taken;
            }
        };
        best = best.min(taken.as_nanos() as f64 / count as f64);
    }
    best
}
