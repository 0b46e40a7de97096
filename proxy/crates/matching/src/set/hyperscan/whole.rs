//! Expressions of any kind, as one database.

use std::time::{Duration, Instant};

use heddle_hyperscan::{Database, Expression, Hyperscan, Refused, Scanned};
use std::ops::ControlFlow;

use super::super::lazy::{self, MAX_EXPRESSIONS};
use super::super::{Candidate, Engine, Taken};
use super::pace::{self, Pace};
use super::{Reason, hand_over, syntax};

/// Most characters that the expressions of one database stand for.
pub(super) const MAX_TOGETHER: usize = 8192;

/// Time after which a set's other expressions are left to the portable engines. What is compiled then goes on to its end.
pub(super) const COMPILE_WITHIN: Duration = Duration::from_secs(2);

/// Expressions of a database that the library may refuse one by one, until it is not tried again.
const REFUSALS: usize = 4;

#[derive(Debug)]
struct Whole {
    database: Database,
    /// Those that match the empty text, which is not scanned.
    empty: Vec<usize>,
    /// Who is handed over to. What they do not have is tried alone.
    portable: Vec<Taken>,
    /// Whether they have all.
    complete: bool,
    pace: Pace,
}

/// An expression that Hyperscan may take.
struct Offered {
    candidate: Candidate,
    expression: Expression,
    positions: usize,
}

/// Databases of `least` expressions or more for candidates that Hyperscan takes, and the other candidates.
pub(in super::super) fn compile(
    hyperscan: Hyperscan,
    candidates: Vec<Candidate>,
    least: usize,
) -> (Vec<Taken>, Vec<Candidate>) {
    compile_since(Instant::now(), hyperscan, candidates, least)
}

/// [`compile`] that has begun then.
pub(super) fn compile_since(
    begun: Instant,
    hyperscan: Hyperscan,
    candidates: Vec<Candidate>,
    least: usize,
) -> (Vec<Taken>, Vec<Candidate>) {
    let (mut rest, mut open, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    for candidate in candidates {
        match syntax::whole(&candidate.hir) {
            Some((expression, positions)) => open.push(Offered {
                candidate,
                expression,
                positions,
            }),
            None => rest.push(candidate),
        }
    }
    if let Some(first) = rest.first() {
        let (pattern, several) = (&first.hir, rest.len());
        tracing::info!(%pattern, several, "Hyperscan is not given expressions that are too large or look around; the portable engine finds them");
    }
    while !open.is_empty() && begun.elapsed() < COMPILE_WITHIN {
        let mut room = MAX_TOGETHER;
        let fits = |offered: &&Offered| {
            let fits = room.checked_sub(offered.positions);
            room = fits.unwrap_or_default();
            fits.is_some()
        };
        let several = open.iter().take(MAX_EXPRESSIONS).take_while(fits).count();
        let mut chunk: Vec<_> = open.drain(..several).collect();
        if let Some(engine) = database(hyperscan, &mut chunk, least, &mut rest) {
            parts.push(Taken {
                engine: Box::new(engine),
                members: chunk.iter().map(|offered| offered.candidate.member).collect(),
            });
        } else {
            rest.extend(chunk.into_iter().map(|offered| offered.candidate));
        }
    }
    if let Some(first) = open.first() {
        let (pattern, several) = (&first.candidate.hir, open.len());
        tracing::warn!(%pattern, several, "Hyperscan compiles for {COMPILE_WITHIN:?}; the portable engine finds the other expressions");
    }
    rest.extend(open.into_iter().map(|offered| offered.candidate));
    (parts, rest)
}

/// A database of a chunk. Expressions that the library refuses leave the chunk.
fn database(hyperscan: Hyperscan, chunk: &mut Vec<Offered>, least: usize, rest: &mut Vec<Candidate>) -> Option<Whole> {
    for _ in 0..REFUSALS {
        if chunk.len() < least.max(1) {
            return None;
        }
        let expressions: Vec<_> = chunk.iter().map(|offered| offered.expression.clone()).collect();
        match hyperscan.compile(&expressions) {
            Ok(database) => return Some(Whole::new(database, chunk)),
            Err(refused) => {
                super::refused(&expressions, &refused);
                match refused {
                    Refused::Expression { place, .. } if place < chunk.len() => {
                        rest.push(chunk.remove(place).candidate)
                    }
                    _ => return None,
                }
            }
        }
    }
    None
}

impl Whole {
    fn new(database: Database, chunk: &[Offered]) -> Self {
        let hirs = chunk.iter().map(|offered| &offered.candidate.hir);
        let candidates = hirs.clone().cloned().enumerate();
        let candidate = |(member, hir)| Candidate {
            member,
            hir,
            sequence: None,
        };
        let portable = lazy::compile(candidates.map(candidate).collect());
        let taken: usize = portable.iter().map(|part| part.members.len()).sum();
        // No expression here looks at what is around a place, so one that needs no character matches without any.
        let matches_empty = |hir: &regex_syntax::hir::Hir| hir.properties().minimum_len() == Some(0);
        Self {
            database,
            empty: hirs
                .enumerate()
                .filter(|(_, hir)| matches_empty(hir))
                .map(|(i, _)| i)
                .collect(),
            complete: taken == chunk.len(),
            portable,
            pace: Pace::default(),
        }
    }

    fn hand_over(&self, reason: Reason, text: &str, see: &mut dyn FnMut(usize)) -> bool {
        hand_over(reason);
        let mut complete = self.complete;
        for Taken { engine, members } in &self.portable {
            complete &= engine.scan(text, &mut |place| {
                if let Some(member) = members.get(place) {
                    see(*member);
                }
            });
        }
        complete
    }
}

impl Engine for Whole {
    fn scan(&self, text: &str, see: &mut dyn FnMut(usize)) -> bool {
        if text.is_empty() {
            self.empty.iter().for_each(|place| see(*place));
            return true;
        }
        if memchr::memchr(b'\n', text.as_bytes()).is_some() {
            return self.hand_over(Reason::LineFeed, text, see);
        }
        let begun = pace::now();
        if self.pace.is_aside(begun) {
            return self.hand_over(Reason::Slow, text, see);
        }
        let scanned = self.database.scan(text.as_bytes(), &mut |place, _| {
            see(place);
            ControlFlow::Continue(())
        });
        self.pace.scanned((begun, pace::now()), text.len(), || {
            let begun = pace::now();
            // What it says is known.
            let _ = self
                .database
                .scan(text.as_bytes(), &mut |_, _| ControlFlow::Continue(()));
            (begun, pace::now())
        });
        match scanned {
            Ok(Scanned::Whole) => true,
            _ => self.hand_over(Reason::Failed, text, see),
        }
    }
}
