//! The method of dudect (Reparaz, Balasch, Verbauwhede 2017): two classes of inputs in random order, Welch's t-test on their
//! times, the slowest measurements cropped.

/// The method's bound: over it there is certainly a difference.
pub(crate) const CERTAIN: f64 = 10.0;

/// Welch's t of the times of two classes.
pub(crate) fn compare(batches: usize, mut batch: impl FnMut(bool) -> f64) -> f64 {
    let mut order = fastrand::Rng::with_seed(9);
    let mut times = Vec::with_capacity(batches);
    for _ in 0..batches {
        let first = order.bool();
        times.push((first, batch(first)));
    }
    // What an interrupt, or a fresh pair of blinding factors, stretched says nothing.
    let mut sorted: Vec<_> = times.iter().map(|(_, time)| *time).collect();
    sorted.sort_by(f64::total_cmp);
    let limit = sorted[sorted.len() * 9 / 10];
    let of = |class| {
        times
            .iter()
            .filter(move |(c, t)| *c == class && *t <= limit)
            .map(|(_, t)| *t)
    };
    welch(of(true), of(false))
}

fn welch(a: impl Iterator<Item = f64>, b: impl Iterator<Item = f64>) -> f64 {
    let ((mean_a, error_a), (mean_b, error_b)) = (moments(a), moments(b));
    (mean_a - mean_b) / (error_a + error_b).sqrt()
}

/// Mean, and variance of the mean.
fn moments(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values: Vec<_> = values.collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, variance / count)
}

/// The test can fail: it finds a difference of a thousandth in noise ten times as large.
#[test]
fn the_statistic_finds_a_difference() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut noisy = |mean: f64| (0..20_000).map(|_| mean + random.f64() * 0.01).collect::<Vec<_>>();
    let (a, b, c) = (noisy(1.0), noisy(1.001), noisy(1.0));
    assert!(welch(a.iter().copied(), b.iter().copied()).abs() > CERTAIN);
    assert!(welch(a.iter().copied(), c.iter().copied()).abs() < 5.0);
}
