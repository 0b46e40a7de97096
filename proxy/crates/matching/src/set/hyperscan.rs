//! Hyperscan, in front of the portable engines. It decides nothing that they do not decide the same, and every text that would
//! cost it too much is theirs.
//!
//! Expressions that look for words ([`words`]) give it their words only: a database of expressions works for each first word
//! that comes, in a way that cannot be cut off, and a database of words calls back for each. Others ([`whole`]) are one
//! database, which is put aside when it was slow ([`pace`]).

mod pace;
mod size;
mod syntax;
pub(super) mod whole;
pub(super) mod words;

use std::cell::Cell;

use heddle_hyperscan::{Expression, Refused};

/// Why the portable engine had to read a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// More words in it than Hyperscan is to find.
    Words,
    /// An expression's database was slow not long ago.
    Slow,
    /// It has a line feed.
    LineFeed,
    /// There was no scratch space, or the library failed.
    Failed,
}

/// How many texts were held against databases on one thread, each once for each database of a set of expressions, and for each
/// reading of it, by who read them. Texts of less than 128 bytes are not among them where a database has words only, nor empty ones
/// elsewhere: they are the portable engine's anyway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HyperscanCounts {
    /// Hyperscan did, to the end.
    pub scanned: u64,
    /// The portable engine: more words were in the text than Hyperscan is to find: somebody may try to slow the proxy down.
    pub words: u64,
    /// The portable engine: the set's expressions had been slow on a text not long before.
    pub slow: u64,
    /// The portable engine: the text has a line feed.
    pub line_feed: u64,
    /// The portable engine: the library had no memory for scratch space, or failed.
    pub failed: u64,
}

thread_local! {
    static COUNTS: Cell<HyperscanCounts> = const { Cell::new(HyperscanCounts { scanned: 0, words: 0, slow: 0, line_feed: 0, failed: 0 }) };
}

/// What came on this thread since it was asked last.
pub fn hyperscan_counts() -> HyperscanCounts {
    COUNTS.take()
}

/// Hyperscan does not take expressions, which are the portable engine's then: one of them, or all.
fn refused(expressions: &[Expression], refused: &Refused) {
    let expression = match refused {
        Refused::Expression { place, .. } => expressions.get(*place),
        _ => None,
    };
    let pattern = expression.map_or("", |expression| expression.pattern.as_str());
    let several = expressions.len();
    if *refused == Refused::Memory {
        tracing::warn!(
            several,
            "no memory for Hyperscan; the portable engine finds these expressions"
        );
    } else {
        tracing::info!(%refused, pattern, several, "Hyperscan does not take expressions; the portable engine finds them");
    }
}

fn count_scan() {
    let mut counts = COUNTS.get();
    counts.scanned += 1;
    COUNTS.set(counts);
}

#[cold]
fn hand_over(reason: Reason) {
    let mut counts = COUNTS.get();
    match reason {
        Reason::Words => counts.words += 1,
        Reason::Slow => counts.slow += 1,
        Reason::LineFeed => counts.line_feed += 1,
        Reason::Failed => counts.failed += 1,
    }
    COUNTS.set(counts);
}

#[cfg(test)]
mod tests;
