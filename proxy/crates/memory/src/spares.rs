//! What a thread keeps to use it again.

/// Things kept to be used again instead of being allocated anew: so many at most, and of these only what is used.
#[derive(Debug)]
pub struct Spares<T> {
    kept: Vec<T>,
    most: usize,
    /// Fewest there were since the last [`Spares::trim`]: so many were not needed.
    unused: usize,
    used: bool,
}

impl<T> Spares<T> {
    /// None yet, and never more than `most`.
    pub const fn new(most: usize) -> Self {
        Self {
            kept: Vec::new(),
            most,
            unused: 0,
            used: false,
        }
    }

    /// The one kept last, whose memory is most likely in the processor's cache.
    pub fn take(&mut self) -> Option<T> {
        let taken = self.kept.pop();
        self.unused = self.unused.min(self.kept.len());
        self.used = true;
        taken
    }

    /// Keeps it, or drops it where there are enough.
    pub fn keep(&mut self, spare: T) {
        if self.kept.len() < self.most {
            self.kept.push(spare);
        }
    }

    /// Drops those that were not needed since the last call, so that the surplus of a burst does not outlive it: to be called
    /// every few seconds. Returns whether there was a need of any.
    pub fn trim(&mut self) -> bool {
        // The ones in front are those that were kept first: none of them was taken.
        self.kept.drain(..self.unused);
        self.unused = self.kept.len();
        std::mem::take(&mut self.used)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_kept_is_used_first_and_the_bound_holds() {
        let mut spares = Spares::new(2);
        assert_eq!(spares.take(), None);
        (1..=3).for_each(|n| spares.keep(n));
        assert_eq!(spares.len(), 2);
        assert_eq!((spares.take(), spares.take(), spares.take()), (Some(2), Some(1), None));
    }

    #[test]
    fn what_only_a_burst_needed_is_dropped() {
        let mut spares = Spares::new(100);
        (0..100).for_each(|n| spares.keep(n));
        assert!(!spares.trim(), "none was taken");
        // Since then three at a time are needed.
        for _ in 0..2 {
            for _ in 0..5 {
                let taken = [spares.take(), spares.take(), spares.take()];
                taken.into_iter().flatten().for_each(|n| spares.keep(n));
            }
            assert!(spares.trim());
            assert_eq!(spares.len(), 3);
        }
        assert!(!spares.trim());
        assert!(spares.is_empty(), "nobody needs any");
    }
}
