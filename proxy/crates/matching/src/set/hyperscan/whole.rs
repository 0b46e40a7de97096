//! Expressions of any kind, as one database.

use std::iter::Peekable;
use std::time::{Duration, Instant};

use heddle_hyperscan::{Database, Expression, Hyperscan, Refused, Scanned};
use std::ops::ControlFlow;

use super::super::lazy::{self, MAX_EXPRESSIONS};
use super::super::{Candidate, Engine, Taken};
use super::pace::{self, Pace};
use super::{Reason, count_scan, hand_over, syntax};

/// Most places that the expressions of one database stand for.
pub(super) const MAX_TOGETHER: usize = 4096;

/// Places from which on an expression is compiled alone before it is with others. How long that takes is not in its size: for some
/// of a hundred places it is a hundred times what it is for most.
const LARGE: usize = 64;

/// What that may take for one expression, and for all of a database until others have another: it takes about as long as they
/// did alone.
pub(super) const TRY_WITHIN: Duration = Duration::from_millis(250);

/// Time after which a set's other expressions are left to the portable engines. What is compiled then goes on to its end.
pub(super) const COMPILE_WITHIN: Duration = Duration::from_secs(2);

/// Most databases of a set: each is a scan of a text, and has portable engines of its own.
const MAX_DATABASES: usize = 16;

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
    // Small ones first: those that take long take nobody's time but that of others like them.
    open.sort_by_key(|offered| offered.positions >= LARGE);
    let mut open = open.into_iter().peekable();
    while open.peek().is_some() && begun.elapsed() < COMPILE_WITHIN && parts.len() < MAX_DATABASES {
        let mut chunk = next(begun, hyperscan, &mut open, &mut rest);
        if let Some(engine) = database(begun, hyperscan, &mut chunk, least, &mut rest) {
            parts.push(Taken {
                engine: Box::new(engine),
                members: chunk.iter().map(|offered| offered.candidate.member).collect(),
            });
        } else {
            rest.extend(chunk.into_iter().map(|offered| offered.candidate));
        }
    }
    let open: Vec<_> = open.collect();
    if let Some(first) = open.first() {
        let (pattern, several) = (&first.candidate.hir, open.len());
        tracing::warn!(%pattern, several, "Hyperscan has {MAX_DATABASES} databases of a set, or compiled for {COMPILE_WITHIN:?}; the portable engine finds the other expressions");
    }
    rest.extend(open.into_iter().map(|offered| offered.candidate));
    (parts, rest)
}

/// Expressions for one database. Those that take too long or are refused alone are in the rest.
fn next(
    begun: Instant,
    hyperscan: Hyperscan,
    open: &mut Peekable<impl Iterator<Item = Offered>>,
    rest: &mut Vec<Candidate>,
) -> Vec<Offered> {
    let (mut chunk, mut left) = (Vec::new(), Vec::new());
    let (mut room, mut time) = (MAX_TOGETHER, TRY_WITHIN);
    while chunk.len() < MAX_EXPRESSIONS && !time.is_zero() {
        let Some(offered) = open.next_if(|offered| offered.positions <= room) else {
            break;
        };
        if offered.positions >= LARGE {
            match tried(begun, hyperscan, &offered.expression) {
                Ok(took) => time = time.saturating_sub(took),
                Err(why) => {
                    left.push((offered, why));
                    continue;
                }
            }
        }
        room -= offered.positions;
        chunk.push(offered);
    }
    if let Some((first, why)) = left.first() {
        let (pattern, several) = (&first.candidate.hir, left.len());
        tracing::warn!(%pattern, why, several, "Hyperscan is not given expressions, each for a reason such as the first one's; the portable engine finds them");
    }
    rest.extend(left.into_iter().map(|(offered, _)| offered.candidate));
    chunk
}

/// How long an expression compiles alone.
///
/// # Errors
/// Why it is not compiled with others.
fn tried(begun: Instant, hyperscan: Hyperscan, expression: &Expression) -> Result<Duration, String> {
    if begun.elapsed() >= COMPILE_WITHIN {
        return Err(format!("those before took {COMPILE_WITHIN:?}"));
    }
    let begun = Instant::now();
    let compiled = hyperscan.compile(std::slice::from_ref(expression));
    let took = begun.elapsed();
    match compiled {
        Err(refused) => Err(refused.to_string()),
        Ok(_) if took > TRY_WITHIN => Err(format!("it takes {took:?} alone")),
        Ok(_) => Ok(took),
    }
}

/// A database of a chunk. Expressions that the library refuses leave the chunk.
fn database(
    begun: Instant,
    hyperscan: Hyperscan,
    chunk: &mut Vec<Offered>,
    least: usize,
    rest: &mut Vec<Candidate>,
) -> Option<Whole> {
    for refusals in 0..REFUSALS {
        if chunk.len() < least.max(1) || refusals > 0 && begun.elapsed() >= COMPILE_WITHIN {
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
            Ok(Scanned::Whole) => {
                count_scan();
                true
            }
            _ => self.hand_over(Reason::Failed, text, see),
        }
    }
}
