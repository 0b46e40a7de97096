//! Shares of requests.

/// `envoy.type.v3.FractionalPercent`: a share of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fraction {
    numerator: u32,
    /// What one of the numerator is worth, in millionths.
    unit: u32,
}

impl Fraction {
    /// All requests.
    pub const ALL: Self = Self::new(1, 1_000_000);

    /// So many times `unit` millionths; more than a million is all.
    pub const fn new(numerator: u32, unit: u32) -> Self {
        Self { numerator, unit }
    }

    /// The same, with a smaller numerator; a larger one changes nothing.
    #[must_use]
    pub fn at_most(self, numerator: u32) -> Self {
        Self {
            numerator: self.numerator.min(numerator),
            ..self
        }
    }

    /// In millionths of requests.
    pub fn millionths(self) -> u32 {
        self.numerator.saturating_mul(self.unit).min(1_000_000)
    }

    /// Whether a request belongs to the share; `dice` gives a random number below one million, and is asked only where
    /// there is a choice.
    pub fn holds(self, dice: impl FnOnce() -> u32) -> bool {
        match self.millionths() {
            0 => false,
            1_000_000 => true,
            share => dice() < share,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        let never = || -> u32 { unreachable!("nothing to choose") };
        assert!(Fraction::ALL.holds(never));
        assert!(Fraction::new(200, 10_000).holds(never), "above all is all");
        assert!(!Fraction::default().holds(never));
        let quarter = Fraction::new(25, 10_000);
        assert!(quarter.holds(|| 249_999) && !quarter.holds(|| 250_000));
        assert_eq!(quarter.at_most(10).millionths(), 100_000);
        assert_eq!(quarter.at_most(90), quarter);
    }
}
