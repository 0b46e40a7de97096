//! Any expressions, by an automaton whose states are worked out when a text first needs them.
//!
//! A client that knows the expressions can send texts that need new states at every byte. Working one out costs as much as
//! a few bytes of trying the expressions one by one, so a scan gets a number of them that grows with its text and then
//! gives up: the worst text costs about twice what trying them all would.

use regex_automata::hybrid::dfa::Config;
use regex_automata::nfa::thompson;
use regex_automata::{Anchored, Input, MatchKind};
use regex_syntax::hir::{Hir, Look};

use super::{Candidate, Engine, Taken};
use crate::lazy_dfa::LazyDfa;

/// Most expressions of one automaton.
pub(crate) const MAX_EXPRESSIONS: usize = 256;

/// Most automata of one set. Expressions above it are tried alone.
pub(super) const MAX_AUTOMATA: usize = 16;

/// Most attempts to compile them. Large expressions make an automaton fail, and are tried in halves.
const ATTEMPTS: usize = 64;

/// Most bytes of one automaton, without its states.
const MAX_PROGRAM: usize = 1 << 20;

/// Bytes of states that each worker keeps of one automaton; above it, it begins anew.
pub(super) const MAX_STATES: usize = 512 << 10;

/// States that a scan may work out, and one more for so many bytes of its text.
const NEW_STATES: usize = 8;
const BYTES_PER_NEW_STATE: usize = 64;

struct Lazy(LazyDfa);

impl std::fmt::Debug for Lazy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lazy")
            .field("patterns", &self.0.dfa.pattern_len())
            .finish()
    }
}

/// Automata for as many candidates as the bounds allow. One that would be alone in an automaton has none.
pub(super) fn compile(candidates: Vec<Candidate>) -> Vec<Taken> {
    // What the automaton cannot do is not offered: it knows word boundaries of ASCII only.
    let mut open: Vec<_> = candidates
        .into_iter()
        .filter(|candidate| !candidate.hir.properties().look_set().contains_word_unicode())
        .collect();
    let mut parts = Vec::new();
    let mut most = MAX_EXPRESSIONS;
    for _ in 0..ATTEMPTS {
        if open.len() < 2 || parts.len() == MAX_AUTOMATA {
            break;
        }
        let chunk: Vec<_> = open.drain(..open.len().min(most)).collect();
        if let [_] = chunk[..] {
            // Too large to go with another; the one behind it may not be.
            most = MAX_EXPRESSIONS;
            continue;
        }
        match Lazy::new(&chunk) {
            Some(lazy) => parts.push(Taken {
                engine: Box::new(lazy),
                members: chunk.iter().map(|candidate| candidate.member).collect(),
            }),
            None => {
                most = chunk.len() / 2;
                open.splice(0..0, chunk);
            }
        }
    }
    parts
}

impl Lazy {
    fn new(candidates: &[Candidate]) -> Option<Self> {
        let whole = candidates
            .iter()
            .map(|c| Hir::concat(vec![c.hir.clone(), Hir::look(Look::End)]));
        let nfa = thompson::Compiler::new()
            .configure(
                thompson::Config::new()
                    .nfa_size_limit(Some(MAX_PROGRAM))
                    .which_captures(thompson::WhichCaptures::None),
            )
            .build_many_from_hir(&whole.collect::<Vec<_>>())
            .ok()?;
        let config = Config::new().match_kind(MatchKind::All).cache_capacity(MAX_STATES);
        LazyDfa::new(config, nfa).map(Self)
    }
}

impl Engine for Lazy {
    fn scan(&self, text: &str, see: &mut dyn FnMut(usize)) -> bool {
        let dfa = &self.0.dfa;
        let mut cache = self.0.cache();
        let mut budget = NEW_STATES + text.len() / BYTES_PER_NEW_STATE;
        let input = Input::new(text).anchored(Anchored::Yes);
        let Ok(mut state) = dfa.start_state_forward(&mut cache, &input) else {
            return false;
        };
        // Expressions end at the end of the text, so no state before it tells of a match, and none but these has a tag.
        if state.is_dead() {
            return true;
        }
        for byte in text.bytes() {
            let mut next = dfa.next_state_untagged(&cache, state, byte);
            if next.is_tagged() {
                if next.is_unknown() {
                    if budget == 0 {
                        return false;
                    }
                    budget -= 1;
                    match dfa.next_state(&mut cache, state, byte) {
                        Ok(worked_out) => next = worked_out,
                        Err(_) => return false,
                    }
                }
                if next.is_dead() {
                    return true;
                }
                if next.is_tagged() {
                    return false;
                }
            }
            state = next;
        }
        let Ok(end) = dfa.next_eoi_state(&mut cache, state) else {
            return false;
        };
        if end.is_match() {
            let matched = 0..dfa.match_len(&cache, end);
            matched.for_each(|i| see(dfa.match_pattern(&cache, end, i).as_usize()));
        }
        true
    }
}
