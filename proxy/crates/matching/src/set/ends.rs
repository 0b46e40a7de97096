//! Expressions that begin with a word and have another one at their end, or nothing, or anything: `/api/.*`, `a.+b`, `exactly`.
//!
//! What is between does not matter, so a scan reads the words at both ends and nothing else, however long the text is. Words that texts
//! begin with are looked for all at once; what then may be behind them is held against the text's end.

use std::collections::HashMap;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};

use super::literals::MAX_WORDS;
use super::sequence::{Place, Sequence};
use super::{Candidate, Engine, Taken};

/// Most expressions that begin with the same word: each is looked at where a text begins with it. Those above are another engine's.
pub(super) const MAX_OF_WORD: usize = 16;

#[derive(Debug)]
struct Ends {
    heads: NFA,
    /// What all words begin with, and the state of `heads` behind it. Shorter than each of them.
    common: Vec<u8>,
    behind_common: StateID,
    /// What the words of the same number begin.
    uses: Vec<Head>,
    /// What is behind the words that expressions begin with, for each.
    rests: Vec<Rest>,
}

/// A word that an expression begins with.
#[derive(Debug)]
struct Head {
    expression: usize,
    length: usize,
}

/// What must be behind the first word of an expression.
#[derive(Debug)]
enum Rest {
    Nothing,
    /// So many bytes or more.
    Gap(u32),
    /// So many bytes or more, and then one of these words.
    Tail(u32, Vec<Vec<u8>>),
}

impl Rest {
    fn is(&self, rest: &[u8]) -> bool {
        match self {
            Self::Nothing => rest.is_empty(),
            Self::Gap(least) => rest.len() >= *least as usize,
            Self::Tail(least, words) => words
                .iter()
                .any(|word| rest.len() >= *least as usize + word.len() && rest.ends_with(word)),
        }
    }
}

/// An engine for those candidates that fit, if they are `least` or more, and the others.
pub(super) fn compile(candidates: Vec<Candidate>, least: usize) -> (Option<Taken>, Vec<Candidate>) {
    let (mut rest, mut members) = (Vec::new(), Vec::new());
    let (mut words, mut uses, mut rests) = (Vec::new(), Vec::new(), Vec::new());
    let mut of_word: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut bytes = 0;
    for candidate in candidates {
        let Some((heads, behind)) = candidate.sequence.as_ref().and_then(ends) else {
            rest.push(candidate);
            continue;
        };
        let more: usize = heads.iter().map(Vec::len).sum();
        let is_full = |word| of_word.get(word).is_some_and(|uses| *uses == MAX_OF_WORD);
        if bytes + more > MAX_WORDS || heads.iter().any(is_full) {
            rest.push(candidate);
            continue;
        }
        bytes += more;
        for word in heads {
            *of_word.entry(word.clone()).or_default() += 1;
            uses.push(Head {
                expression: rests.len(),
                length: word.len(),
            });
            words.push(word.clone());
        }
        rests.push(behind);
        members.push(candidate);
    }
    let heads = || {
        let mut builder = NFA::builder();
        builder
            .match_kind(MatchKind::Standard)
            .prefilter(false)
            .build(&words)
            .ok()
    };
    let engine = || {
        let heads = heads()?;
        let common = common_beginning(&words);
        let start = heads.start_state(Anchored::Yes).ok()?;
        let walk = |state, byte: &u8| heads.next_state(Anchored::Yes, state, *byte);
        Some(Ends {
            behind_common: common.iter().fold(start, walk),
            common,
            heads,
            uses,
            rests,
        })
    };
    let Some(engine) = (members.len() >= least).then(engine).flatten() else {
        rest.append(&mut members);
        return (None, rest);
    };
    let taken = Taken {
        engine: Box::new(engine),
        members: members.iter().map(|candidate| candidate.member).collect(),
    };
    (Some(taken), rest)
}

/// What all words begin with, without the last byte of the shortest.
fn common_beginning(words: &[Vec<u8>]) -> Vec<u8> {
    let Some((first, others)) = words.split_first() else {
        return Vec::new();
    };
    let same = |word: &Vec<u8>| first.iter().zip(word).take_while(|(a, b)| a == b).count();
    let of_all = others.iter().map(same).min().unwrap_or(first.len());
    let shortest = words.iter().map(Vec::len).min().unwrap_or_default();
    let length = of_all.min(shortest.saturating_sub(1));
    first.iter().take(length).copied().collect()
}

/// The words that an expression begins with, and what is behind them. None when it does not begin with a word, or has words between its
/// ends.
fn ends(sequence: &Sequence) -> Option<(&[Vec<u8>], Rest)> {
    let (head, rest) = match (&sequence.places[..], sequence.behind) {
        ([head], None) => (head, Rest::Nothing),
        ([head], Some(least)) => (head, Rest::Gap(least)),
        ([head, Place { before, words }], None) => (head, Rest::Tail((*before)?, words.clone())),
        _ => return None,
    };
    head.before.is_none().then_some((&head.words, rest))
}

impl Engine for Ends {
    fn scan(&self, text: &str, see: &mut dyn FnMut(usize)) -> bool {
        let bytes = text.as_bytes();
        let Some(behind) = bytes.strip_prefix(&*self.common) else {
            return true;
        };
        let mut state = self.behind_common;
        let mut one_line = false;
        for (ended, byte) in (self.common.len() + 1..).zip(behind) {
            state = self.heads.next_state(Anchored::Yes, state, *byte);
            if !self.heads.is_special(state) {
                continue;
            }
            if self.heads.is_dead(state) {
                break;
            }
            if !self.heads.is_match(state) {
                continue;
            }
            // A gap may not be one then.
            if !one_line && memchr::memchr(b'\n', bytes).is_some() {
                return false;
            }
            one_line = true;
            for i in 0..self.heads.match_len(state) {
                let head = self.uses.get(self.heads.match_pattern(state, i).as_usize());
                // Not those that only end there.
                let head = head.filter(|head| head.length == ended);
                let rest = head.and_then(|head| self.rests.get(head.expression));
                if let (Some(head), Some(rest)) = (head, rest)
                    && rest.is(bytes.get(ended..).unwrap_or_default())
                {
                    see(head.expression);
                }
            }
        }
        true
    }
}
