//! Earliest deadline first: picks entries in proportion to their weights, as evenly spread as can be.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Debug)]
struct Entry {
    deadline: f64,
    /// Ties go to the entry put in first.
    order: u64,
    index: usize,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // Reversed: the heap's greatest is the earliest.
        other
            .deadline
            .total_cmp(&self.deadline)
            .then(other.order.cmp(&self.order))
    }
}

/// A schedule over the indexes of a list.
#[derive(Debug, Default)]
pub(crate) struct Edf {
    heap: BinaryHeap<Entry>,
    now: f64,
    order: u64,
}

impl Edf {
    /// A schedule in which index `i` begins with `weights[i]`; weights of zero or less are left out.
    pub(crate) fn new(weights: impl IntoIterator<Item = f64>) -> Self {
        let mut edf = Self::default();
        for (index, weight) in weights.into_iter().enumerate() {
            if weight > 0.0 {
                edf.add(index, weight);
            }
        }
        edf
    }

    fn add(&mut self, index: usize, weight: f64) {
        self.order += 1;
        self.heap.push(Entry {
            deadline: self.now + 1.0 / weight,
            order: self.order,
            index,
        });
    }

    /// The next index, put back with the weight that `weight` gives it now.
    pub(crate) fn pick(&mut self, weight: impl FnOnce(usize) -> f64) -> Option<usize> {
        let entry = self.heap.pop()?;
        self.now = entry.deadline;
        self.add(entry.index, weight(entry.index).max(f64::MIN_POSITIVE));
        Some(entry.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_proportion_and_spread() {
        let weights = [3.0, 1.0, 0.0, 2.0];
        let mut edf = Edf::new(weights);
        let picks: Vec<_> = (0..60).filter_map(|_| edf.pick(|i| weights[i])).collect();
        for (index, expected) in [(0, 30), (1, 10), (2, 0), (3, 20)] {
            assert_eq!(picks.iter().filter(|p| **p == index).count(), expected, "index {index}");
        }
        assert!(
            picks.windows(3).all(|w| w.iter().filter(|p| **p == 0).count() <= 2),
            "bunched: {picks:?}"
        );
        assert_eq!(Edf::new([0.0]).pick(|_| 1.0), None);
    }
}
