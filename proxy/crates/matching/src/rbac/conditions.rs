//! Conditions of which one or all must hold.
//!
//! A scan's answers are words of 64 bits. Conditions that differ in their regular expressions only (a hundred rules on one
//! header) are decided together, those of a word at once, in place of one after the other.

use std::collections::HashMap;

use super::Subject;
use crate::scans::Shared;

/// A permission or principal.
pub(super) trait Condition {
    /// Whether it holds, and whether those do that [share](Condition::shared) the word with it: a bit for each. All bits are
    /// the same in a condition that shares none.
    fn holds(&self, subject: &Subject<'_>) -> u64;

    /// Which word it has its bit in, and that bit. None for one that is decided alone.
    fn shared(&self) -> Option<(Shared, u64)>;

    /// Joins the conditions that it is made of.
    fn join(&mut self);

    fn matches(&self, subject: &Subject<'_>) -> bool {
        self.holds(subject) & self.shared().map_or(u64::MAX, |(_, bit)| bit) != 0
    }
}

/// Conditions that are decided together.
#[derive(Clone, Debug)]
pub struct Conditions<C> {
    pub(super) all: Vec<C>,
    pub(super) questions: Vec<Question>,
}

/// The first of those conditions that share a word, and the bits of all of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    condition: usize,
    bits: u64,
}

impl<C> From<Vec<C>> for Conditions<C> {
    fn from(all: Vec<C>) -> Self {
        let alone = |condition| Question {
            condition,
            bits: u64::MAX,
        };
        let questions = (0..all.len()).map(alone).collect();
        Self { all, questions }
    }
}

impl<C> Conditions<C> {
    /// Puts conditions that share a word together. To be called when their places in sets are known.
    pub(super) fn join(&mut self)
    where
        C: Condition,
    {
        self.all.iter_mut().for_each(C::join);
        let mut places = HashMap::new();
        self.questions.clear();
        for (condition, of) in self.all.iter().enumerate() {
            let Some((word, bits)) = of.shared() else {
                let bits = u64::MAX;
                self.questions.push(Question { condition, bits });
                continue;
            };
            let place = *places.entry(word).or_insert(self.questions.len());
            match self.questions.get_mut(place) {
                Some(question) => question.bits |= bits,
                None => self.questions.push(Question { condition, bits }),
            }
        }
    }

    /// Whether one of them holds.
    pub(super) fn any(&self, subject: &Subject<'_>) -> bool
    where
        C: Condition,
    {
        let mut questions = self.questions.iter();
        questions.any(|question| self.answer(*question, subject) & question.bits != 0)
    }

    /// Whether all of them hold.
    pub(super) fn every(&self, subject: &Subject<'_>) -> bool
    where
        C: Condition,
    {
        let mut questions = self.questions.iter();
        questions.all(|question| self.answer(*question, subject) & question.bits == question.bits)
    }

    fn answer(&self, question: Question, subject: &Subject<'_>) -> u64
    where
        C: Condition,
    {
        self.all
            .get(question.condition)
            .map_or(0, |condition| condition.holds(subject))
    }
}
