//! Expressions that look for words in order with anything between them, such as `.*select.+from.*`.
//!
//! One automaton over the expressions of a set would need a state for every combination of first words that a text may
//! have, and a client chooses the text. Here all words are looked for at once by Aho-Corasick, and each expression only
//! remembers how many of its words have come, and where the last one ended: the earliest end is never worse than another.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::ControlFlow;

use aho_corasick::automaton::Automaton;
use aho_corasick::automaton::StateID;
use aho_corasick::dfa::DFA;
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};
use heddle_hyperscan::Hyperscan;
use heddle_simd::{CHUNK, Chunk};

use super::sequence::{Place, Sequence};
use super::{Candidate, Engine, Taken};

/// Most bytes of all words of a set.
pub(super) const MAX_WORDS: usize = 256 << 10;

/// The automaton is a table where that takes no more bytes, and lists of transitions otherwise.
const MAX_TABLE: usize = 1 << 20;

/// Bytes of words from which on a table is not tried.
const TABLE_WORDS: usize = 16 << 10;

/// Parts ("lanes") of a text that are read at once. A step of the automaton waits for the one before it; those of other parts do
/// not. [`Literals::read_block`] names each of them.
const LANES: usize = 4;

/// Most bytes of a part.
const LONGEST_LANE: usize = 1 << 10;

/// So many times the longest word fits in a part at least, because that much before the part is read for it. What is shorter is
/// read from one end to the other.
const WORDS_PER_LANE: usize = 8;

/// Bytes of a part that are read before it is asked which of them end a word.
const BLOCK: usize = u64::BITS as usize;

/// Uses of words that any scan may find.
const HITS: usize = 256;

/// So many more it may find for each byte of its text. Only words that end in each other have more with one use each.
const HITS_PER_BYTE: usize = 2;

/// And one more for each byte and so many expressions that may begin anywhere, for words that many of them have: looking at a use
/// costs less than trying such an expression on as many bytes. One that the text must begin with is tried in no time.
const EXPRESSIONS_PER_HIT: usize = 4;

#[derive(Debug)]
struct Literals<A> {
    words: A,
    uses: Uses,
    /// Of how many expressions.
    expressions: usize,
    /// How many bytes before a place say what the automaton's state is there: one less than the longest word has.
    reach: usize,
}

/// Where words stand, each of which is there once: mostly in one place of one expression.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses {
    /// The first use of each word.
    first: Vec<Use>,
    /// The others of those words that have any.
    others: Vec<Vec<Use>>,
    /// How many of the expressions may begin anywhere in a text.
    floating: usize,
}

impl Uses {
    /// Those of the word of that number: the first, and the others. None if there is no such word.
    #[inline]
    pub(super) fn of(&self, word: usize) -> Option<(&Use, &[Use])> {
        let first = self.first.get(word)?;
        let others = match first.others {
            None => &[],
            Some(at) => self.others.get(at as usize).map(Vec::as_slice).unwrap_or_default(),
        };
        Some((first, others))
    }

    /// Words that may be there several times, each with a use, and each word once with all of its uses.
    fn by_word(words: Vec<(Vec<u8>, Use)>) -> (Vec<Vec<u8>>, Self) {
        let mut numbers = HashMap::new();
        let (mut once, mut uses) = (Vec::new(), Self::default());
        let mut begun = None;
        for (word, of_word) in words {
            // The words of an expression are next to each other, those that it begins with before the others.
            if of_word.place == 0 && !of_word.first && begun != Some(of_word.expression) {
                begun = Some(of_word.expression);
                uses.floating += 1;
            }
            let number = *numbers.entry(word.clone()).or_insert(once.len());
            let Some(first) = uses.first.get_mut(number) else {
                once.push(word);
                uses.first.push(of_word);
                continue;
            };
            // There are fewer than bytes of words.
            let at = *first.others.get_or_insert(uses.others.len() as u32) as usize;
            match uses.others.get_mut(at) {
                Some(others) => others.push(of_word),
                None => uses.others.push(vec![of_word]),
            }
        }
        (once, uses)
    }
}

/// Where a word stands.
#[derive(Clone, Debug)]
pub(super) struct Use {
    expression: u32,
    place: u16,
    length: u32,
    /// Must begin where the text does.
    first: bool,
    /// No word of the expression comes behind it.
    last: bool,
    /// Bytes that must be between it and the word before (or the text's begin): 0 or 1, because one character is enough.
    before: u32,
    /// Bytes that must be between it and the end of the text at least, where it is the last. None: it ends with it.
    behind: Option<u32>,
    /// Where the other uses of the word are, of the first one.
    others: Option<u32>,
}

/// How far an expression is in the scan of that number.
#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    scan: u64,
    place: u16,
    end: u32,
}

/// How far all expressions are.
#[derive(Default)]
pub(super) struct Course {
    scan: u64,
    /// Of the largest set that the thread has scanned with, at most [`super::MAX_MEMBERS`].
    progress: Vec<Progress>,
}

impl Course {
    /// Another scan begins, for so many expressions.
    pub(super) fn begin(&mut self, expressions: usize) {
        self.scan += 1;
        if self.progress.len() < expressions {
            self.progress.resize(expressions, Progress::default());
        }
    }
}

/// Where a word ends: the byte behind it, and the automaton's state there.
type End = (u32, StateID);

#[derive(Default)]
struct Scratch {
    course: Course,
    /// Of each part, in the text's order.
    ends: [Vec<End>; LANES],
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// An engine for those candidates that fit, if they are `least` or more, and the others. `hyperscan` looks for the words where
/// there is one.
pub(super) fn compile(
    candidates: Vec<Candidate>,
    least: usize,
    hyperscan: Option<Hyperscan>,
) -> (Option<Taken>, Vec<Candidate>) {
    let (mut rest, mut members) = (Vec::new(), Vec::new());
    let mut words = Vec::new();
    let mut bytes = 0;
    for mut candidate in candidates {
        let of_it = candidate
            .sequence
            .take_if(|sequence| sequence.floats())
            .filter(|of_it| {
                let fits = bytes + of_it.bytes() <= MAX_WORDS;
                bytes += if fits { of_it.bytes() } else { 0 };
                fits
            });
        let of_it = u32::try_from(members.len())
            .ok()
            .zip(of_it)
            .and_then(|(expression, of_it)| uses_of(expression, of_it));
        let Some(of_it) = of_it else {
            rest.push(candidate);
            continue;
        };
        members.push(candidate);
        words.extend(of_it);
    }
    let (words, uses) = Uses::by_word(words);
    let engine = if members.len() >= least {
        engine(&words, &uses, members.len())
    } else {
        None
    };
    let engine = engine.map(|portable| match hyperscan {
        Some(hyperscan) => super::hyperscan::words::compile(hyperscan, &words, &uses, members.len(), portable),
        None => portable,
    });
    let Some(engine) = engine else {
        rest.append(&mut members);
        return (None, rest);
    };
    let members = members.iter().map(|candidate| candidate.member).collect();
    (Some(Taken { engine, members }), rest)
}

/// The words of an expression with their places.
fn uses_of(expression: u32, sequence: Sequence) -> Option<Vec<(Vec<u8>, Use)>> {
    let Sequence { places, behind } = sequence;
    let last = places.len().checked_sub(1)?;
    let mut out = Vec::new();
    for (place, Place { before, words }) in places.into_iter().enumerate() {
        for word in words {
            let of_word = Use {
                expression,
                place: u16::try_from(place).ok()?,
                length: u32::try_from(word.len()).ok()?,
                first: before.is_none(),
                last: place == last,
                before: before.unwrap_or_default(),
                behind,
                others: None,
            };
            out.push((word, of_word));
        }
    }
    Some(out)
}

fn engine(words: &[Vec<u8>], uses: &Uses, expressions: usize) -> Option<Box<dyn Engine>> {
    let uses = uses.clone();
    let bytes: usize = words.iter().map(Vec::len).sum();
    let reach = words.iter().map(Vec::len).max()?.saturating_sub(1);
    let table = || {
        let mut builder = DFA::builder();
        builder
            .match_kind(MatchKind::Standard)
            .prefilter(false)
            .build(words)
            .ok()
    };
    let table = (bytes <= TABLE_WORDS).then(table).flatten();
    if let Some(table) = table.filter(|table| table.memory_usage() <= MAX_TABLE) {
        return Some(boxed(table, uses, expressions, reach));
    }
    let mut builder = NFA::builder();
    let lists = builder.match_kind(MatchKind::Standard).prefilter(false).build(words);
    Some(boxed(lists.ok()?, uses, expressions, reach))
}

fn boxed<A>(words: A, uses: Uses, expressions: usize, reach: usize) -> Box<dyn Engine>
where
    Literals<A>: Engine + 'static,
{
    Box::new(Literals {
        words,
        uses,
        expressions,
        reach,
    })
}

impl<A: Automaton + Send + Sync + std::fmt::Debug> Engine for Literals<A> {
    fn scan(&self, text: &str, see: &mut dyn FnMut(usize)) -> bool {
        if memchr::memchr(b'\n', text.as_bytes()).is_some() {
            return false;
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.course.begin(self.expressions);
            self.walk(text.as_bytes(), scratch, see).is_some()
        })
    }
}

impl<A: Automaton> Literals<A> {
    /// Reads to the end. None when too many uses of words were found, or the text is larger than any message.
    fn walk(&self, text: &[u8], scratch: &mut Scratch, see: &mut dyn FnMut(usize)) -> Option<()> {
        let end = u32::try_from(text.len()).ok()?;
        let per_byte = HITS_PER_BYTE + self.uses.floating / EXPRESSIONS_PER_HIT;
        let mut allowance = HITS + per_byte * text.len();
        let mut state = self.words.start_state(Anchored::No).ok()?;
        let mut begin = 0;
        loop {
            let lane = ((text.len() - begin) / LANES).min(LONGEST_LANE) / BLOCK * BLOCK;
            if lane < WORDS_PER_LANE * (self.reach + 1) {
                break;
            }
            let mut ends = std::mem::take(&mut scratch.ends);
            state = self.read_lanes(text, begin, lane, state, &mut ends)?;
            let found = self.found_in(&ends, end, &mut allowance, &mut scratch.course, see);
            scratch.ends = ends;
            found?;
            begin += lane * LANES;
        }
        while let Some((steps, ended)) = self.next_end(text.get(begin..)?, state) {
            (begin, state) = (begin + steps, ended);
            let at = (u32::try_from(begin).ok()?, end);
            self.found(state, at, &mut allowance, &mut scratch.course, see)?;
        }
        Some(())
    }

    /// After how many bytes a word ends, and the automaton's state there. Apart from what is done with it: with that around it, the loop
    /// would have its state in memory.
    #[inline(never)]
    fn next_end(&self, text: &[u8], mut state: StateID) -> Option<(usize, StateID)> {
        for (byte, steps) in text.iter().zip(1..) {
            state = self.words.next_state(Anchored::No, state, *byte);
            if self.is_end(state) {
                return Some((steps, state));
            }
        }
        None
    }

    /// Takes account of all words of the parts, in the text's order. None when they are too many.
    fn found_in(
        &self,
        parts: &[Vec<End>; LANES],
        end: u32,
        allowance: &mut usize,
        course: &mut Course,
        see: &mut dyn FnMut(usize),
    ) -> Option<()> {
        for ends in parts {
            for (ended, state) in ends {
                self.found(*state, (*ended, end), allowance, course, see)?;
            }
        }
        Some(())
    }

    /// Reads so many parts of that length from `begin`, where the automaton is in `state`, and notes where words end. Its state
    /// behind the last one.
    fn read_lanes(
        &self,
        text: &[u8],
        begin: usize,
        lane: usize,
        state: StateID,
        ends: &mut [Vec<End>; LANES],
    ) -> Option<StateID> {
        let next = |state, byte: &u8| self.words.next_state(Anchored::No, state, *byte);
        let mut states = [state; LANES];
        for (number, state) in states.iter_mut().enumerate().skip(1) {
            let from = begin + number * lane;
            let before = text.get(from - self.reach..from)?;
            *state = before.iter().fold(self.words.start_state(Anchored::No).ok()?, next);
        }
        ends.iter_mut().for_each(Vec::clear);
        let mut parts = text.get(begin..)?.chunks_exact(lane).map(|part| part.as_chunks().0);
        let mut part = || parts.next();
        let blocks = part()?.iter().zip(part()?).zip(part()?).zip(part()?);
        let mut behind = [[StateID::default(); BLOCK]; LANES];
        for (block, (((a, b), c), d)) in blocks.enumerate() {
            states = self.read_block([a, b, c, d], states, &mut behind);
            for (number, (behind, ends)) in behind.iter().zip(ends.iter_mut()).enumerate() {
                let first = u32::try_from(begin + number * lane + block * BLOCK).ok()? + 1;
                let mut hits = self.ends_among(behind);
                while hits != 0 {
                    let step = hits.trailing_zeros();
                    ends.push((first + step, behind[step as usize]));
                    hits &= hits - 1;
                }
            }
        }
        states.last().copied()
    }

    /// Reads a block of each part from its state on, and tells the states behind each byte. The last ones.
    #[inline(always)]
    fn read_block(
        &self,
        [a, b, c, d]: [&[u8; BLOCK]; LANES],
        [mut w, mut x, mut y, mut z]: [StateID; LANES],
        [to_w, to_x, to_y, to_z]: &mut [[StateID; BLOCK]; LANES],
    ) -> [StateID; LANES] {
        let next = |state, byte: u64| self.words.next_state(Anchored::No, state, byte as u8);
        // Bytes come by eight: the automaton has enough to load for each without them.
        let eights = |block: &[u8; BLOCK], at| u64::from_le_bytes(block.as_chunks().0[at]);
        for at in 0..BLOCK / 8 {
            let (mut a, mut b, mut c, mut d) = (eights(a, at), eights(b, at), eights(c, at), eights(d, at));
            for step in 8 * at..8 * at + 8 {
                (w, x, y, z) = (next(w, a), next(x, b), next(y, c), next(z, d));
                (a, b, c, d) = (a >> 8, b >> 8, c >> 8, d >> 8);
                (to_w[step], to_x[step], to_y[step], to_z[step]) = (w, x, y, z);
            }
        }
        [w, x, y, z]
    }

    /// In which of these states a word ends, a bit each. A branch for each would be mispredicted all the time.
    fn ends_among(&self, states: &[StateID; BLOCK]) -> u64 {
        let mut hits = 0;
        for (number, states) in states.as_chunks::<CHUNK>().0.iter().enumerate() {
            let ends = states.map(|state| u8::from(self.words.is_match(state)));
            hits |= u64::from(Chunk::at(&ends, 0).equal(1)) << (number * CHUNK);
        }
        hits
    }

    /// Whether a word ends there.
    fn is_end(&self, state: StateID) -> bool {
        self.words.is_special(state) && self.words.is_match(state)
    }

    /// Takes account of the words that end in a state: where, and where the text does. None when they are too many. A call
    /// for each would cost a tenth of a text that is full of words.
    #[inline(always)]
    fn found(
        &self,
        state: StateID,
        (ended, end): (u32, u32),
        allowance: &mut usize,
        course: &mut Course,
        see: &mut dyn FnMut(usize),
    ) -> Option<()> {
        let count = self.words.match_len(state);
        *allowance = allowance.checked_sub(count)?;
        for i in 0..count {
            let word = self.words.match_pattern(state, i).as_usize();
            let of_word = self.uses.first.get(word)?;
            if let ControlFlow::Break(expression) = of_word.came(ended, end, course) {
                see(expression);
            }
            if of_word.others.is_some() {
                self.found_others(word, (ended, end), allowance, course, see)?;
            }
        }
        Some(())
    }

    /// The same of a word's other uses. Not where most words are found, which have one.
    #[inline(never)]
    fn found_others(
        &self,
        word: usize,
        (ended, end): (u32, u32),
        allowance: &mut usize,
        course: &mut Course,
        see: &mut dyn FnMut(usize),
    ) -> Option<()> {
        let (_, others) = self.uses.of(word)?;
        *allowance = allowance.checked_sub(others.len())?;
        for of_word in others {
            if let ControlFlow::Break(expression) = of_word.came(ended, end, course) {
                see(expression);
            }
        }
        Some(())
    }
}

impl Use {
    /// The word ended there, and the text ends at `end`. The expression, when with that it matches. Words that end further on come
    /// later; those that end in the same place may come in any order, because none is empty.
    pub(super) fn came(&self, ended: u32, end: u32, course: &mut Course) -> ControlFlow<usize> {
        let Some(progress) = course.progress.get_mut(self.expression as usize) else {
            return ControlFlow::Continue(());
        };
        let before = match progress.scan == course.scan {
            true => *progress,
            false => Progress::default(),
        };
        // First, and without having written anything: most words of a text that is full of them come at the wrong place.
        if before.place != self.place {
            return ControlFlow::Continue(());
        }
        let begun = ended - self.length;
        let starts = match self.first {
            true => begun == 0,
            false => begun >= before.end + self.before,
        };
        let ends = !self.last
            || match self.behind {
                None => ended == end,
                Some(least) => ended + least <= end,
            };
        if !starts || !ends {
            return ControlFlow::Continue(());
        }
        *progress = Progress {
            scan: course.scan,
            place: before.place + 1,
            end: ended,
        };
        match self.last {
            true => ControlFlow::Break(self.expression as usize),
            false => ControlFlow::Continue(()),
        }
    }
}
