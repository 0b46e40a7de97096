//! Expressions that test the same input, found in one scan of it.
//!
//! A hundred rules on one header would read it a hundred times. A set reads it once for each of its engines, and says what
//! each expression would say alone. An engine takes the expressions that it is good at: [`ends`] those that only the ends of a text
//! decide; [`literals`] those that look for words with anything between them, whose automaton cannot grow with the input; [`lazy`]
//! all others, within a budget.
//! Where an engine gives a text up, its expressions are tried one by one, which is linear too. Where the configuration asks for
//! it, [`hyperscan`] stands before the last two and hands over to them what a client makes dear.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt;

use regex_syntax::hir::Hir;

use crate::{Regex, RegexEngine};

mod ends;
pub(crate) mod hyperscan;
pub(crate) mod lazy;
mod literals;
mod sequence;

use sequence::Sequence;

/// Most expressions of one set. Those above it have another.
pub(crate) const MAX_MEMBERS: usize = 4096;

/// Finds which of its expressions match a text. Shared by all workers.
pub(crate) trait Engine: Send + Sync + fmt::Debug {
    /// Shows every expression, by its place among those that the engine was built of, that matches `text` from end to end;
    /// some maybe more than once.
    /// Time is linear in the text's length. False when the text is beyond the engine: then what was shown holds, and
    /// what was not is open.
    fn scan(&self, text: &str, see: &mut dyn FnMut(usize)) -> bool;
}

/// An engine and the expressions it took, by their places in what was offered.
#[derive(Debug)]
pub(crate) struct Taken {
    engine: Box<dyn Engine>,
    members: Vec<usize>,
}

/// An expression that is offered to engines.
struct Candidate {
    /// Its place in the set.
    member: usize,
    hir: Hir,
    /// What it is as words and gaps, until an engine takes that.
    sequence: Option<Sequence>,
}

impl Candidate {
    fn new(member: usize, hir: Hir) -> Self {
        let sequence = Sequence::of(&hir);
        Self { member, hir, sequence }
    }
}

/// Expressions of which each scan tells which match. Built once per configuration and then only read.
#[derive(Default)]
pub(crate) struct RegexSet {
    members: Vec<Regex>,
    /// By their patterns; once it is compiled, of those that an engine took.
    places: HashMap<Box<str>, usize>,
    parts: Vec<Taken>,
}

impl fmt::Debug for RegexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.members).finish()
    }
}

impl RegexSet {
    /// Adds an expression, if it is not there. False when the set has `most` already.
    pub(crate) fn add(&mut self, regex: &Regex, most: usize) -> bool {
        let place = self.members.len();
        if self.places.contains_key(regex.pattern()) {
            return true;
        }
        if place == most {
            return false;
        }
        self.places.insert(regex.pattern().into(), place);
        self.members.push(regex.clone());
        true
    }

    /// Compiles what was added, if that is `least` or more.
    pub(crate) fn compile(&mut self, engine: RegexEngine, least: usize) {
        if self.members.len() < least {
            self.places.clear();
            return;
        }
        let candidates = self.members.iter().enumerate();
        let candidates = candidates.filter_map(|(member, regex)| {
            let hir = regex.hir()?;
            Some(Candidate::new(member, hir))
        });
        let hyperscan = engine.hyperscan();
        let (ends, rest) = ends::compile(candidates.collect(), least);
        let (literals, mut rest) = literals::compile(rest, least, hyperscan);
        self.parts = ends.into_iter().chain(literals).collect();
        if let Some(hyperscan) = hyperscan {
            let (parts, others) = hyperscan::whole::compile(hyperscan, rest, least);
            self.parts.extend(parts);
            rest = others;
        }
        self.parts.extend(lazy::compile(rest));
        let taken: HashSet<_> = self.parts.iter().flat_map(|part| &part.members).collect();
        self.places.retain(|_, place| taken.contains(place));
    }

    /// The bit of an expression in an answer. None for one that is not in the set, or that no engine took: it is asked alone.
    pub(crate) fn place(&self, regex: &Regex) -> Option<usize> {
        self.places.get(regex.pattern()).copied()
    }

    /// Words of 64 bits that an answer takes; none for a set that no engine is of, which is never scanned.
    pub(crate) fn words(&self) -> usize {
        if self.parts.is_empty() {
            return 0;
        }
        self.members.len().div_ceil(64)
    }

    /// Sets the bits of those expressions that match `text` from end to end. `found` has [`RegexSet::words`] words, all zero.
    /// Those that an engine gave up are tried one by one, or have their bits set in `open`.
    pub(crate) fn scan(&self, text: &str, found: &[Cell<u64>], open: Option<&[Cell<u64>]>) {
        for Taken { engine, members } in &self.parts {
            let complete = engine.scan(text, &mut |place| {
                if let Some(member) = members.get(place) {
                    set(found, *member);
                }
            });
            if complete {
                continue;
            }
            if let Some(open) = open {
                members.iter().for_each(|member| set(open, *member));
                continue;
            }
            for member in members {
                if self.members.get(*member).is_some_and(|regex| regex.is_full_match(text)) {
                    set(found, *member);
                }
            }
        }
    }
}

fn set(words: &[Cell<u64>], bit: usize) {
    if let Some(word) = words.get(bit / 64) {
        word.set(word.get() | 1 << (bit % 64));
    }
}

#[cfg(test)]
pub(crate) mod tests;
