//! Domains of virtual hosts with a star.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

/// Domains with a star at the same end, each with the place of its virtual host. What a look-up costs depends on how many
/// lengths there are, not on how many domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wildcards(BTreeMap<Reverse<usize>, HashMap<Box<str>, usize>>);

impl Wildcards {
    /// Adds a domain without its star, in lower case. The place that it had before, when it was there.
    pub fn insert(&mut self, rest: &str, place: usize) -> Option<usize> {
        self.0
            .entry(Reverse(rest.len()))
            .or_default()
            .insert(rest.into(), place)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The longest domain `*.suffix` that stands for the host, which is in lower case. A star stands for at least one
    /// character.
    pub fn by_suffix(&self, host: &str) -> Option<usize> {
        self.longest(host, |length| host.get(host.len() - length..))
    }

    /// The same for `prefix.*`.
    pub fn by_prefix(&self, host: &str) -> Option<usize> {
        self.longest(host, |length| host.get(..length))
    }

    fn longest<'h>(&self, host: &str, part: impl Fn(usize) -> Option<&'h str>) -> Option<usize> {
        self.0
            .range(Reverse(host.len().checked_sub(1)?)..)
            .find_map(|(Reverse(length), places)| places.get(part(*length)?).copied())
    }
}

impl<'d> FromIterator<(&'d str, usize)> for Wildcards {
    fn from_iter<I: IntoIterator<Item = (&'d str, usize)>>(domains: I) -> Self {
        let mut wildcards = Self::default();
        for (rest, place) in domains {
            wildcards.insert(rest, place);
        }
        wildcards
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wins_and_a_star_is_a_character_at_least() {
        let suffixes: Wildcards = [(".example", 1), (".api.example", 2), ("x", 3)].into_iter().collect();
        for (host, place) in [
            ("a.api.example", Some(2)),
            (".api.example", Some(1)),
            ("b.example", Some(1)),
            (".example", None),
            ("é.example", Some(1)),
            ("ax", Some(3)),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(suffixes.by_suffix(host), place, "{host}");
        }
        let prefixes: Wildcards = [("shop.", 1), ("shop.a", 2)].into_iter().collect();
        assert_eq!(prefixes.by_prefix("shop.ab"), Some(2));
        assert_eq!(prefixes.by_prefix("shop.a"), Some(1));
        assert_eq!(prefixes.by_prefix("shop."), None);
        assert_eq!(prefixes.by_prefix("shopé"), None, "no boundary of a character");
    }

    #[test]
    fn a_second_place_is_told() {
        let mut wildcards = Wildcards::default();
        assert_eq!(wildcards.insert(".example", 1), None);
        assert_eq!(wildcards.insert(".example", 2), Some(1));
    }
}
