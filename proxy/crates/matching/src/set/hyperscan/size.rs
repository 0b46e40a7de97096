//! How large an expression is to Hyperscan, which decides how long it compiles.
//!
//! The library makes an automaton of places, as Glushkov's is: for each character of the expression, and an edge from each
//! place to all that may come next. What may be left out joins all that is before it with all that is behind it, so a hundred
//! optional letters have five thousand edges, and compiling goes on for more than a minute well below the longest text that is
//! taken.

use regex_syntax::hir::{Class, Dot, Hir, HirKind, Repetition};
use regex_syntax::utf8::Utf8Sequences;

/// Most places that one expression may stand for when its repetitions are written out. Compiling takes time that grows faster
/// than them, and cannot be stopped.
pub(super) const MAX_POSITIONS: usize = 512;

/// What a place within a repetition without end counts, unless one class is all that is repeated: `(.{100}a)*` takes thirty times as
/// long to compile as `.{100}a`.
const ENDLESS: usize = 4;

/// Places of any character: one for each length in UTF-8.
const DOT: usize = 4;

/// So many edges take as long as a place does.
const EDGES: usize = 10;

/// Places that `hir` counts as: characters, of a class its sequences in UTF-8 (of which all letters have eight hundred), or a part of
/// the edges, whichever are more.
pub(super) fn positions(hir: &Hir) -> usize {
    let size = Size::of(hir);
    size.places.max(size.edges / EDGES)
}

/// The automaton of a part of an expression. Sizes beyond any bound stay there.
#[derive(Clone, Copy, Debug)]
struct Size {
    places: usize,
    edges: usize,
    /// Places that it may begin with.
    first: usize,
    /// Places that it may end with.
    last: usize,
    /// Whether it may be left out.
    optional: bool,
}

impl Size {
    /// What matches without a character.
    const EMPTY: Self = Self {
        places: 0,
        edges: 0,
        first: 0,
        last: 0,
        optional: true,
    };

    /// Sequences side by side, which have so many places together.
    fn sequences(side_by_side: usize, places: usize) -> Self {
        Self {
            places,
            edges: places.saturating_sub(side_by_side),
            first: side_by_side,
            last: side_by_side,
            optional: false,
        }
    }

    fn of(hir: &Hir) -> Self {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => Self::EMPTY,
            HirKind::Literal(literal) => Self::sequences(1, literal.0.len()),
            HirKind::Class(_) if is_dot(hir) => Self::sequences(DOT, DOT),
            HirKind::Class(Class::Unicode(class)) if hir.properties().maximum_len() != Some(1) => {
                let ranges = class.ranges().iter();
                let sequences = ranges.flat_map(|range| Utf8Sequences::new(range.start(), range.end()));
                let count = sequences.count();
                Self::sequences(count, count)
            }
            HirKind::Class(_) => Self::sequences(1, 1),
            HirKind::Repetition(repetition) => Self::of(&repetition.sub).repeated(repetition),
            HirKind::Capture(group) => Self::of(&group.sub),
            HirKind::Concat(parts) => parts.iter().fold(Self::EMPTY, |all, part| all.then(Self::of(part))),
            HirKind::Alternation(parts) => {
                let parts = parts.iter().map(Self::of);
                parts.reduce(Self::or).unwrap_or(Self::EMPTY)
            }
        }
    }

    fn then(self, next: Self) -> Self {
        let between = self.last.saturating_mul(next.first);
        Self {
            places: self.places.saturating_add(next.places),
            edges: self.edges.saturating_add(next.edges).saturating_add(between),
            first: if self.optional {
                self.first.saturating_add(next.first)
            } else {
                self.first
            },
            last: if next.optional {
                self.last.saturating_add(next.last)
            } else {
                next.last
            },
            optional: self.optional && next.optional,
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            places: self.places.saturating_add(other.places),
            edges: self.edges.saturating_add(other.edges),
            first: self.first.saturating_add(other.first),
            last: self.last.saturating_add(other.last),
            optional: self.optional || other.optional,
        }
    }

    fn repeated(self, Repetition { min, max, sub, .. }: &Repetition) -> Self {
        // One more than are allowed is too many, whatever is repeated.
        let bounded = |times: u32| usize::try_from(times).map_or(usize::MAX, |times| times.min(MAX_POSITIONS + 1));
        let (min, times) = (bounded(*min), bounded(max.unwrap_or(*min).max(1)));
        let mut all = (0..times).fold(Self::EMPTY, |all, _| all.then(self));
        if !self.optional {
            // It may end with each from the last that is required on.
            let ends = times - min.clamp(1, times) + 1;
            all.last = self.last.saturating_mul(ends);
            // The library enters one that may be left out at each instead, and those beyond the required from the last of these too.
            if min == 0 {
                all.first = self.first.saturating_mul(times);
            } else {
                let joined = self.last.saturating_mul(self.first);
                all.edges = all.edges.saturating_add(joined.saturating_mul(ends.saturating_sub(2)));
            }
        }
        all.optional |= min == 0;
        if max.is_none() {
            all.edges = all.edges.saturating_add(self.last.saturating_mul(self.first));
            if self.places > 1 && !is_class(sub) {
                all.places = all.places.saturating_mul(ENDLESS);
            }
        }
        all
    }
}

/// Whether it is a class, within groups or not.
fn is_class(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Capture(group) => is_class(&group.sub),
        kind => matches!(kind, HirKind::Class(_)),
    }
}

/// Any character, or any but a line feed: the same, as texts have none.
pub(super) fn is_dot(hir: &Hir) -> bool {
    [Dot::AnyChar, Dot::AnyCharExceptLF]
        .into_iter()
        .any(|dot| *hir == Hir::dot(dot))
}
