//! Expressions that look for words: Hyperscan finds the words, and how far each expression is follows from where they end.
//!
//! A word found costs about as much as 20 bytes of the portable engine's reading, so a scan may find few for its length. Above
//! that it ends, and the portable engine reads the text, whose cost no word changes much.

use std::cell::RefCell;
use std::fmt::Write;
use std::ops::ControlFlow;

use heddle_hyperscan::{Database, Expression, Hyperscan, Scanned};

use super::super::Engine;
use super::super::literals::{Course, Uses};
use super::pace::{self, Pace};
use super::{Reason, count_scan, hand_over};

/// Words that a scan may find, and one more for so many bytes of its text: 4 kB cost about 1.5 us until the scan ends.
const FOUND: usize = 16;
const BYTES_PER_FOUND: usize = 128;

/// How many expressions all that are found together may be of, for each of them on average.
const USES_PER_FOUND: usize = 16;

/// Shorter texts are the portable engine's: it is as fast there, and what it reads is a tenth as large, so more of it stays in the
/// processor's cache from one request to the next.
pub(super) const SHORT: usize = 128;

/// Texts from so many bytes on are timed: finding nothing takes time too, where almost a word stands everywhere.
const TIMED: usize = 512;

#[derive(Debug)]
struct Words {
    database: Database,
    uses: Uses,
    /// Of how many expressions.
    expressions: usize,
    portable: Box<dyn Engine>,
    pace: Pace,
}

#[derive(Default)]
struct Scratch {
    course: Course,
    /// Where words end, and which.
    found: Vec<(u32, u32)>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// An engine for the words of expressions, in front of `portable`. That alone, where Hyperscan does not take them.
pub(in super::super) fn compile(
    hyperscan: Hyperscan,
    words: &[Vec<u8>],
    uses: &Uses,
    expressions: usize,
    portable: Box<dyn Engine>,
) -> Box<dyn Engine> {
    let patterns: Vec<_> = words
        .iter()
        .map(|word| Expression {
            pattern: literal(word),
            utf8: false,
            once: false,
        })
        .collect();
    match hyperscan.compile(&patterns) {
        Ok(database) => Box::new(Words {
            database,
            uses: uses.clone(),
            expressions,
            portable,
            pace: Pace::default(),
        }),
        Err(refused) => {
            super::refused(&patterns, &refused);
            portable
        }
    }
}

/// An expression for these bytes.
fn literal(word: &[u8]) -> String {
    word.iter().fold(String::new(), |mut out, byte| {
        match byte.is_ascii_alphanumeric() {
            true => out.push(char::from(*byte)),
            // Writing to a text does not fail.
            false => drop(write!(out, "\\x{byte:02x}")),
        }
        out
    })
}

impl Engine for Words {
    fn scan(&self, text: &str, see: &mut dyn FnMut(usize)) -> bool {
        if text.len() < SHORT {
            return self.portable.scan(text, see);
        }
        if memchr::memchr(b'\n', text.as_bytes()).is_some() {
            hand_over(Reason::LineFeed);
            return self.portable.scan(text, see);
        }
        let open = match text.len() < TIMED {
            true => self.find(text, see),
            false => self.find_in_time(text, see),
        };
        match open {
            None => {
                count_scan();
                true
            }
            Some(reason) => {
                hand_over(reason);
                self.portable.scan(text, see)
            }
        }
    }
}

impl Words {
    fn find_in_time(&self, text: &str, see: &mut dyn FnMut(usize)) -> Option<Reason> {
        let begun = pace::now();
        if self.pace.is_aside(begun) {
            return Some(Reason::Slow);
        }
        let open = self.find(text, see);
        let times = (begun, pace::now());
        if open.is_some() {
            self.pace.wasted(times, text.len());
            return open;
        }
        self.pace.scanned(times, text.len(), || {
            let begun = pace::now();
            // What it says is known.
            self.find(text, &mut |_| {});
            (begun, pace::now())
        });
        open
    }

    fn find(&self, text: &str, see: &mut dyn FnMut(usize)) -> Option<Reason> {
        SCRATCH.with_borrow_mut(|scratch| self.find_with(scratch, text, see))
    }

    /// None when everything was shown; why not, when nothing was. Neither depends on how long it took.
    fn find_with(&self, scratch: &mut Scratch, text: &str, see: &mut dyn FnMut(usize)) -> Option<Reason> {
        let Scratch { course, found } = scratch;
        let Ok(end) = u32::try_from(text.len()) else {
            return Some(Reason::Failed);
        };
        found.clear();
        let most = FOUND + text.len() / BYTES_PER_FOUND;
        let (mut sorted, mut uses) = (true, 0);
        let scanned = self.database.scan(text.as_bytes(), &mut |word, ended| {
            // Neither is larger than the text's length and the words of a set.
            let here = (ended as u32, word as u32);
            sorted &= found.last().is_none_or(|last| last.0 <= here.0);
            found.push(here);
            uses += self.uses.of(word).map_or(0, |(_, others)| 1 + others.len());
            match found.len() <= most && uses <= most * USES_PER_FOUND {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        match scanned {
            Ok(Scanned::Whole) => {}
            Ok(Scanned::Ended) => return Some(Reason::Words),
            Err(_) => return Some(Reason::Failed),
        }
        if found.is_empty() {
            return None;
        }
        // The library promises no order, though it keeps one.
        if !sorted {
            found.sort_unstable();
        }
        course.begin(self.expressions);
        for (ended, word) in &*found {
            let Some((first, others)) = self.uses.of(*word as usize) else {
                continue;
            };
            for of_word in std::iter::once(first).chain(others) {
                if let ControlFlow::Break(expression) = of_word.came(*ended, end, course) {
                    see(expression);
                }
            }
        }
        None
    }
}
