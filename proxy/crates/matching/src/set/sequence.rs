//! Expressions as words in order, with gaps between them.

use regex_syntax::hir::literal::Extractor;
use regex_syntax::hir::{Dot, Hir, HirKind, Look};

/// Most words that may stand in one place of an expression (`req(uest)?` are two).
const MAX_CHOICES: usize = 64;

/// An expression that is made of words and gaps, and of one word at least.
pub(super) struct Sequence {
    pub(super) places: Vec<Place>,
    /// Bytes that must be behind the last word at least: 0 or 1. None: nothing is.
    pub(super) behind: Option<u32>,
}

/// Where one of several words stands.
pub(super) struct Place {
    /// Bytes that must be between it and the word before (or the text's begin) at least: 0 or 1, because one character is enough. None:
    /// it begins where the text does.
    pub(super) before: Option<u32>,
    /// Of whole characters, none empty.
    pub(super) words: Vec<Vec<u8>>,
}

impl Sequence {
    /// None when the expression is not made of words and gaps.
    pub(super) fn of(hir: &Hir) -> Option<Self> {
        let mut parts = Vec::new();
        flatten(hir, &mut parts);
        let is_look = |part: &Part<'_>, look| matches!(part, Part::Other(hir) if *hir.kind() == HirKind::Look(look));
        // The whole text is matched anyway.
        if parts.first().is_some_and(|part| is_look(part, Look::Start)) {
            parts.remove(0);
        }
        if parts.last().is_some_and(|part| is_look(part, Look::End)) {
            parts.pop();
        }
        let mut places = Vec::new();
        let mut gap = None;
        let mut at = 0;
        while at < parts.len() {
            match parts.get(at)? {
                Part::Gap(least) => {
                    gap = Some(gap.unwrap_or_default() + least).filter(|least| *least <= 1);
                    gap?;
                    at += 1;
                }
                Part::Other(_) => {
                    let of_word: Vec<Hir> = parts
                        .get(at..)?
                        .iter()
                        .map_while(|part| match part {
                            Part::Other(hir) => Some((*hir).clone()),
                            Part::Gap(_) => None,
                        })
                        .collect();
                    at += of_word.len();
                    let words = choices(Hir::concat(of_word))?;
                    places.push(Place {
                        before: gap.take(),
                        words,
                    });
                }
            }
        }
        (!places.is_empty()).then_some(Self { places, behind: gap })
    }

    /// Whether a word has gaps on both sides. Otherwise an automaton without counting is small, and may be done before the text is.
    pub(super) fn floats(&self) -> bool {
        let last = self.places.len() - 1;
        let floats = |(at, place): (usize, &Place)| place.before.is_some() && (at < last || self.behind.is_some());
        self.places.iter().enumerate().any(floats)
    }

    /// Of all its words together.
    pub(super) fn bytes(&self) -> usize {
        self.places.iter().flat_map(|place| &place.words).map(Vec::len).sum()
    }
}

/// A part of an expression.
enum Part<'h> {
    /// So many characters or more, of any kind but perhaps line feeds.
    Gap(u32),
    /// Something else.
    Other(&'h Hir),
}

fn flatten<'h>(hir: &'h Hir, parts: &mut Vec<Part<'h>>) {
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Concat(inner) => inner.iter().for_each(|hir| flatten(hir, parts)),
        HirKind::Capture(group) => flatten(&group.sub, parts),
        HirKind::Repetition(many) if many.max.is_none() && many.min <= 1 && is_dot(&many.sub) => {
            parts.push(Part::Gap(many.min));
        }
        _ => parts.push(Part::Other(hir)),
    }
}

/// Any character, or any but a line feed. Both are the same in texts without one, and no others are scanned.
fn is_dot(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Capture(group) => is_dot(&group.sub),
        _ => [Dot::AnyChar, Dot::AnyCharExceptLF]
            .into_iter()
            .any(|dot| *hir == Hir::dot(dot)),
    }
}

/// All texts that match, where they are few and none is empty.
fn choices(hir: Hir) -> Option<Vec<Vec<u8>>> {
    if !hir.properties().look_set().is_empty() {
        return None;
    }
    let found = Extractor::new()
        .limit_total(MAX_CHOICES)
        .limit_literal_len(crate::MAX_PATTERN)
        .extract(&hir);
    let words = found.literals().filter(|_| found.is_exact())?;
    let words = words.iter().map(|word| word.as_bytes().to_vec());
    // Words of whole characters begin and end between characters.
    let words: Vec<_> = words.collect();
    (!words.is_empty() && words.iter().all(|w| !w.is_empty() && std::str::from_utf8(w).is_ok())).then_some(words)
}
