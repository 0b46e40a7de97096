//! Which routes of a virtual host a path can have, found without asking each of them.

use std::collections::BTreeMap;

/// Paths that routes want, and what begins with what.
///
/// They are in alphabetical order, so what stands before a place where a path would stand is the longest of them that the path
/// begins with, or begins with that one. Each names the longest other one that it begins with itself: from there on all are found.
#[derive(Debug, Default)]
pub(super) struct ByPath {
    texts: Vec<Text>,
    /// Routes that any path can have, in order.
    others: Vec<usize>,
}

#[derive(Debug)]
struct Text {
    text: Box<str>,
    /// The longest of the others that it begins with.
    within: Option<usize>,
    /// Routes that want paths which are this one, or begin with it; in order.
    routes: Vec<usize>,
}

impl ByPath {
    /// `beginnings` are what the paths of the first, second, … route begin with; None for a route that must always be asked.
    pub(super) fn new<'r>(beginnings: impl Iterator<Item = Option<&'r str>>) -> Self {
        let mut wanted: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut others = Vec::new();
        for (route, beginning) in beginnings.enumerate() {
            match beginning {
                Some(text) => wanted.entry(text).or_default().push(route),
                None => others.push(route),
            }
        }
        let mut texts: Vec<Text> = Vec::with_capacity(wanted.len());
        for (text, routes) in wanted {
            // The one before, or one that it is within.
            let mut within = texts.len().checked_sub(1);
            while let Some(other) = within.and_then(|at| texts.get(at))
                && !text.starts_with(&*other.text)
            {
                within = other.within;
            }
            texts.push(Text {
                text: text.into(),
                within,
                routes,
            });
        }
        Self { texts, others }
    }

    /// The routes that this path can have, in order.
    pub(super) fn candidates(&self, path: &str) -> impl Iterator<Item = usize> {
        let mut found = Vec::new();
        let mut next = self.texts.partition_point(|text| *text.text <= *path).checked_sub(1);
        while let Some(text) = next.and_then(|at| self.texts.get(at)) {
            if path.starts_with(&*text.text) {
                found.extend_from_slice(&text.routes);
            }
            next = text.within;
        }
        found.sort_unstable();
        let (mut found, mut others) = (found.into_iter().peekable(), self.others.iter().copied().peekable());
        std::iter::from_fn(move || match (found.peek(), others.peek()) {
            (Some(a), Some(b)) if a > b => others.next(),
            (Some(_), _) => found.next(),
            (None, _) => others.next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_candidates_are_those_whose_text_the_path_begins_with() {
        let letters = ["", "/", "a", "b", "/a", "é"];
        let mut state = 1_usize;
        let mut below = |n| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut text = |most: usize| -> String { (0..below(most)).map(|_| letters[below(letters.len())]).collect() };
        let (mut asked, mut found) = (0, 0);
        for _ in 0..2_000 {
            let wanted: Vec<_> = (0..40).map(|i| (i % 9 != 8).then(|| text(6))).collect();
            let by_path = ByPath::new(wanted.iter().map(Option::as_deref));
            for _ in 0..10 {
                let path = text(9);
                let expected = wanted.iter().enumerate();
                let expected: Vec<_> = expected
                    .filter(|(_, wanted)| wanted.as_ref().is_none_or(|wanted| path.starts_with(wanted)))
                    .map(|(route, _)| route)
                    .collect();
                let candidates: Vec<_> = by_path.candidates(&path).collect();
                assert_eq!(candidates, expected, "{path} by {wanted:?}");
                asked += wanted.len();
                found += candidates.len();
            }
        }
        assert!(found * 10 > asked && found * 2 < asked, "{found} of {asked}");
        assert_eq!(ByPath::default().candidates("/").count(), 0);
    }
}
