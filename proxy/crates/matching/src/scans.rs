//! What the expressions of one configuration say about one request, each input scanned once at most.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;

use crate::set::lazy::MAX_EXPRESSIONS;
use crate::set::{MAX_MEMBERS, RegexSet};
use crate::{RegexEngine, StringMatcher, StringTest};

/// What tests say about the readings of an input: a bit for each test. All bits are the same for a test that is made alone,
/// and the bits of a set's other expressions stand beside that of one which is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// One reading matches.
    pub(crate) any: u64,
    /// Each does.
    pub(crate) every: u64,
}

/// A truth that holds for all tests of a word.
pub(crate) fn all_bits(truth: bool) -> u64 {
    if truth { u64::MAX } else { 0 }
}

impl Found {
    /// There are no readings.
    pub(crate) const NOTHING: Self = Self {
        any: 0,
        every: u64::MAX,
    };

    pub(crate) fn all(matched: bool) -> Self {
        Self {
            any: all_bits(matched),
            every: all_bits(matched),
        }
    }

    pub(crate) fn add(&mut self, matched: bool) {
        self.any |= all_bits(matched);
        self.every &= all_bits(matched);
    }

    /// Whether anything was added: no test matches and does not match.
    pub(crate) fn is_there(self) -> bool {
        self != Self::NOTHING
    }
}

/// What conditions look at. Those that look at the same have their expressions in one set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A header, by its name in lower case.
    Header(Box<str>),
    /// The path without its query.
    Path,
    /// A query parameter, by its name.
    Query(Box<str>),
    /// The server name of the ClientHello.
    ServerName,
    /// The names of the peer's certificate, those of one kind or those that `authenticated` looks at.
    Peer(Option<crate::rbac::SanType>),
}

/// Which readings of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readings {
    /// As it was sent.
    Sent,
    /// What the next reader may take for it as well; of a path, with escapes decoded.
    Others,
    /// Of a path, in normal form.
    Normal,
    /// Of a path, with other segments.
    Structural,
    /// Of a header that is absent: the empty text in its place.
    Empty,
}

impl Readings {
    /// How many kinds there are.
    const KINDS: usize = 5;
}

/// Where the answers for an expression are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    /// The number of its set, and of the word that says what has been scanned.
    set: usize,
    /// The word that has its bit, of those expressions that match any of the first kind of readings.
    at: usize,
    /// From there to the next kind of answer.
    step: usize,
    bit: u64,
}

/// A word of answers, and how it is read: the same for tests that differ in their expressions only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shared {
    word: usize,
    /// Tells tests apart that look at the same input and draw other conclusions.
    variant: u8,
}

impl Member {
    /// The word of a test, and its bit there.
    pub(crate) fn shared(self, variant: u8) -> (Shared, u64) {
        let word = self.at;
        (Shared { word, variant }, self.bit)
    }
}

/// How many expressions of a set of [`RegexSets::in_order`] a request tries alone before the set is scanned.
const TRIED_ALONE: u64 = 4;

/// The word of a set has the readings that were scanned in its lowest bits, and how often it was asked from here on.
const ASKED: u64 = 1 << 8;

/// The sets of one configuration, such as the rules of an RBAC filter or the routes of a virtual host.
#[derive(Debug, Default)]
pub struct RegexSets {
    sets: Vec<Input>,
    in_order: bool,
    /// Words of 64 bits that the answers take, and behind them those of the scan under way.
    words: usize,
}

/// The set of one input.
#[derive(Debug)]
struct Input {
    set: RegexSet,
    /// Where its answers are among those of all.
    at: usize,
}

/// Something that has expressions, and shows each matcher with what it looks at.
pub type Visit<'v> = &'v mut dyn FnMut(Subject, &mut StringMatcher);

impl RegexSets {
    /// Puts the expressions of all matchers that `each` shows into sets, one for each input (another behind it where one is
    /// full), and tells the matchers. From then on they are asked with [`Scans`] of these sets, or of none. Every one of
    /// them is answered when one is asked.
    pub(crate) fn of(each: impl FnMut(Visit<'_>)) -> Self {
        Self::compile(false, each)
    }

    /// [`RegexSets::of`] for matchers that are asked one after the other until one decides, so that most requests ask few:
    /// the first are tried alone, what an engine gives up is tried when it is asked, and sets are small. A client's worst text
    /// costs in proportion to what is asked, not to what there is.
    pub fn in_order(each: impl FnMut(Visit<'_>)) -> Self {
        Self::compile(true, each)
    }

    fn compile(in_order: bool, mut each: impl FnMut(Visit<'_>)) -> Self {
        let most = if in_order { MAX_EXPRESSIONS } else { MAX_MEMBERS };
        let rows = Self::rows(in_order);
        let engine = RegexEngine::current();
        let least = engine.least();
        // Each with how many tests there are of it.
        let mut sets: Vec<(RegexSet, u64)> = Vec::new();
        let mut by_subject: BTreeMap<Subject, Vec<usize>> = BTreeMap::new();
        each(&mut |subject, matcher| {
            if let StringTest::Regex(regex) = matcher.test() {
                let of_subject = by_subject.entry(subject).or_default();
                let mut add = |at: &usize| {
                    sets.get_mut(*at).is_some_and(|(set, tests)| {
                        let added = set.add(regex, most);
                        *tests += u64::from(added);
                        added
                    })
                };
                if !of_subject.iter().any(&mut add) {
                    of_subject.push(sets.len());
                    let mut set = RegexSet::default();
                    set.add(regex, most);
                    sets.push((set, 1));
                }
            }
        });
        // The first words are those that say what has been scanned.
        let mut at = sets.len();
        let mut row = 0;
        let inputs = sets.into_iter().map(|(mut set, tests)| {
            // What is tried alone before the set is asked would never ask it.
            let is_asked = !in_order || tests > TRIED_ALONE;
            set.compile(engine, if is_asked { least } else { usize::MAX });
            let input = Input { set, at };
            at += input.set.words() * rows * Readings::KINDS;
            row = row.max(input.set.words());
            input
        });
        let sets: Vec<_> = inputs.collect();
        each(&mut |subject, matcher| {
            let member = match matcher.test() {
                StringTest::Regex(regex) => by_subject.get(&subject).into_iter().flatten().find_map(|set| {
                    let Input { set: expressions, at } = sets.get(*set)?;
                    let place = expressions.place(regex)?;
                    Some(Member {
                        set: *set,
                        at: at + place / 64,
                        step: expressions.words(),
                        bit: 1 << (place % 64),
                    })
                }),
                _ => None,
            };
            matcher.enrol(member);
        });
        Self {
            sets,
            in_order,
            words: at + row,
        }
    }

    /// The rows of words that a set has for each kind of readings: any matches, each does, and which are open.
    fn rows(in_order: bool) -> usize {
        if in_order { 3 } else { 2 }
    }
}

thread_local! {
    /// The room that the last request's answers had, for the next one's.
    static ROOM: Cell<Vec<Cell<u64>>> = const { Cell::new(Vec::new()) };
}

/// The answers of sets about one request. They are found when they are first asked for.
pub struct Scans<'s> {
    sets: &'s RegexSets,
    /// For each set a word whose bits say which readings have been scanned, and how often it was asked; then for each set and
    /// readings the bits of those expressions that match any of them, of those that match each, and, in order, of those
    /// that an engine gave up.
    answers: OnceCell<Vec<Cell<u64>>>,
}

impl Drop for Scans<'_> {
    fn drop(&mut self) {
        if let Some(room) = self.answers.take() {
            ROOM.set(room);
        }
    }
}

/// For matchers that belong to no sets.
static NO_SETS: RegexSets = RegexSets {
    sets: Vec::new(),
    in_order: false,
    words: 0,
};

impl<'s> Scans<'s> {
    /// Nothing is scanned yet.
    pub fn of(sets: &'s RegexSets) -> Self {
        Self {
            sets,
            answers: OnceCell::new(),
        }
    }

    /// Each matcher is asked alone.
    pub fn none() -> Scans<'static> {
        Scans::of(&NO_SETS)
    }

    /// Whether a matcher matches an input that has one reading. All matchers of a set are asked about the same.
    #[inline]
    pub fn matches(&self, matcher: &StringMatcher, text: &str) -> bool {
        matcher.is_in(self.find(matcher, Readings::Sent, |see| see(text)).any)
    }

    /// What a matcher says about the readings that `visit` shows; its bit is that of [`StringMatcher::shared`]. For matchers of a set they are visited once, whichever
    /// asks first: they must be the same for all.
    #[inline]
    pub(crate) fn find(
        &self,
        matcher: &StringMatcher,
        readings: Readings,
        visit: impl Fn(&mut dyn FnMut(&str)),
    ) -> Found {
        let alone = || {
            let mut found = Found::NOTHING;
            visit(&mut |text| found.add(matcher.matches(text)));
            found
        };
        let Some(member) = matcher.member().filter(|_| self.sets.words > 0) else {
            return alone();
        };
        let answers = self.answers.get_or_init(|| self.room());
        let word = |at: usize| answers.get(at).map_or(0, Cell::get);
        let state = word(member.set);
        if state & 1 << readings as u32 == 0 {
            if self.sets.in_order && state / ASKED < TRIED_ALONE {
                if let Some(word) = answers.get(member.set) {
                    word.set(state + ASKED);
                }
                return alone();
            }
            self.scan(member.set, readings, answers, &visit);
        }
        let at = member.at + member.step * RegexSets::rows(self.sets.in_order) * readings as usize;
        if self.sets.in_order && word(at + 2 * member.step) & member.bit != 0 {
            return alone();
        }
        Found {
            any: word(at),
            every: word(at + member.step),
        }
    }

    fn room(&self) -> Vec<Cell<u64>> {
        let mut room = ROOM.take();
        room.clear();
        room.resize(self.sets.words, Cell::new(0));
        room
    }

    /// Fills in what a set says about all readings together.
    #[cold]
    fn scan(&self, set: usize, readings: Readings, answers: &[Cell<u64>], visit: impl Fn(&mut dyn FnMut(&str))) {
        let Some(input) = self.sets.sets.get(set) else { return };
        let words = input.set.words();
        let rows = |at: usize| answers.get(at..at + words).unwrap_or_default();
        let first = input.at + words * RegexSets::rows(self.sets.in_order) * readings as usize;
        let (any, every) = (rows(first), rows(first + words));
        let open = self.sets.in_order.then(|| rows(first + 2 * words));
        let row = rows(answers.len().saturating_sub(words));
        every.iter().for_each(|word| word.set(u64::MAX));
        visit(&mut |text| {
            row.iter().for_each(|word| word.set(0));
            input.set.scan(text, row, open);
            for ((any, every), matched) in any.iter().zip(every).zip(row) {
                any.set(any.get() | matched.get());
                every.set(every.get() & matched.get());
            }
        });
        if let Some(word) = answers.get(set) {
            word.set(word.get() | 1 << readings as u32);
        }
    }
}

#[cfg(test)]
mod tests;
