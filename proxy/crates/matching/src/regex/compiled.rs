//! One expression that must match a text from end to end.

use regex_automata::hybrid::dfa::Config;
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::nfa::thompson::{self, BuildError};
use regex_automata::{Anchored, Input};
use regex_syntax::hir::{Hir, Look};

use super::MAX_COMPILED;
use crate::lazy_dfa::LazyDfa;

/// Bytes of states that each worker keeps of one expression; above it, it begins anew. There may be very many expressions, each of
/// which is tried alone now and then.
const MAX_STATES: usize = 64 << 10;

/// So many bytes for each step of the expression's program, where that is more: enough for some states that have all of them.
const PER_STEP: usize = 48;

/// They may begin anew where each has served for so many bytes on average. Otherwise they do not pay for the text.
const BYTES_PER_STATE: usize = 10;

pub(super) struct Compiled {
    /// None where the automaton cannot be built.
    lazy: Option<LazyDfa>,
    /// Follows the program without states, for texts that these do not pay for. It needs memory for a scan only.
    steps: PikeVM,
}

impl Compiled {
    pub(super) fn new(hir: Hir) -> Result<Self, Box<BuildError>> {
        let whole = Hir::concat(vec![hir, Hir::look(Look::End)]);
        let config = thompson::Config::new()
            .nfa_size_limit(Some(MAX_COMPILED))
            .which_captures(thompson::WhichCaptures::None);
        let program = thompson::Compiler::new()
            .configure(config)
            .build_from_hir(&whole)
            .map_err(Box::new)?;
        let config = Config::new()
            .cache_capacity(MAX_STATES.max(PER_STEP * program.states().len()))
            .skip_cache_capacity_check(true)
            .minimum_cache_clear_count(Some(0))
            .minimum_bytes_per_state(Some(BYTES_PER_STATE));
        Ok(Self {
            lazy: LazyDfa::new(config, program.clone()),
            steps: PikeVM::new_from_nfa(program).map_err(Box::new)?,
        })
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        let input = Input::new(text).anchored(Anchored::Yes).earliest(true);
        if let Some(lazy) = &self.lazy {
            let mut cache = lazy.cache();
            match lazy.dfa.try_search_fwd(&mut cache, &input) {
                Ok(found) => return found.is_some(),
                // Full as it is, no other text could use it: one client would have slowed all down.
                Err(_) => cache.reset(&lazy.dfa),
            }
        }
        self.steps.is_match(&mut self.steps.create_cache(), input)
    }

    /// Bytes that it takes, without states.
    pub(super) fn memory(&self) -> usize {
        let automaton = self.lazy.as_ref().map_or(0, |lazy| lazy.dfa.memory_usage());
        self.steps.get_nfa().memory_usage() + automaton
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::re2;
    use crate::set::tests::{Dice, pattern, text};

    fn compiled(pattern: &str) -> Compiled {
        let hir = regex_syntax::parse(&re2::translate(pattern)).expect(pattern);
        Compiled::new(hir).expect(pattern)
    }

    #[test]
    fn an_expression_matches_what_another_engine_says() {
        let mut dice = Dice(29);
        let (mut matched, mut tried) = (0, 0);
        for _ in 0..2000 {
            let pattern = pattern(&mut dice);
            let Ok(anchored) = regex::Regex::new(&format!(r"\A(?:{})\z", re2::translate(&pattern))) else {
                continue;
            };
            let compiled = compiled(&pattern);
            for _ in 0..10 {
                let text = text(&mut dice);
                assert_eq!(
                    compiled.matches(&text),
                    anchored.is_match(&text),
                    "{pattern} on {text:?}"
                );
                matched += usize::from(compiled.matches(&text));
                tried += 1;
            }
        }
        assert!(tried > 10_000 && matched > 1000, "{matched} of {tried}");
    }

    /// Each byte needs another state, so that they are given up, and the text is read to its end all the same.
    #[test]
    fn texts_that_states_do_not_pay_for_are_followed_without() {
        let compiled = compiled(".*a.{14}b");
        let mut dice = Dice(31);
        for ending in ["b", "c"] {
            let mut text: String = (0..20_000).map(|_| dice.of(&["a", "c"])).collect();
            text += "a";
            text += &"c".repeat(14);
            text += ending;
            let search = |text: &str| {
                let input = Input::new(text).anchored(Anchored::Yes);
                let lazy = compiled.lazy.as_ref().expect("an automaton");
                let found = lazy.dfa.try_search_fwd(&mut lazy.cache(), &input);
                assert!(lazy.cache().memory_usage() <= 2 * MAX_STATES);
                found
            };
            assert_eq!(compiled.matches(&text), ending == "b");
            // The next one has states again.
            assert!(search(&"ac".repeat(20)).is_ok_and(|found| found.is_none()));
            assert!(search(&text).is_err());
            assert_eq!(compiled.matches(&text), ending == "b");
        }
        assert!(!compiled.matches("é\u{1F600}a"));
    }
}
