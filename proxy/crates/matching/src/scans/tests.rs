use super::*;
use crate::set::MAX_MEMBERS;
use crate::set::tests::{Dice, sizes};
use crate::{Regex, RegexEngine};

fn regex(pattern: &str) -> StringMatcher {
    StringMatcher::regex(Regex::new(pattern).expect(pattern))
}

/// An input has as many sets as it needs, and each answers for its own expressions.
#[test]
fn expressions_above_the_bound_of_a_set_have_another() {
    let several = MAX_MEMBERS + 100;
    let pattern = |i: usize| format!("/shop/{i}/[^/]+");
    // A few come twice, from both sets.
    let twice = [3, MAX_MEMBERS - 1, MAX_MEMBERS, several - 1];
    let mut matchers: Vec<_> = (0..several).chain(twice).map(|i| regex(&pattern(i))).collect();
    let sets = RegexSets::of(|see| matchers.iter_mut().for_each(|m| see(Subject::Path, m)));
    assert_eq!(sets.sets.len(), 2);
    let set_of = |at: usize| matchers[at].member().map(|member| member.set);
    assert!((0..MAX_MEMBERS).all(|at| set_of(at) == Some(0)));
    assert!((MAX_MEMBERS..several).all(|at| set_of(at) == Some(1)));
    assert_eq!([0, 1, 2, 3].map(|at| set_of(several + at)), [0, 0, 1, 1].map(Some));
    for wanted in twice {
        let scans = Scans::of(&sets);
        let text = format!("/shop/{wanted}/x");
        let matching = (0..several).filter(|at| scans.matches(&matchers[*at], &text));
        assert_eq!(matching.collect::<Vec<_>>(), [wanted]);
    }
}

/// Inputs with one expression each, which is asked alone, cost a request no room for answers.
#[test]
fn lone_expressions_take_no_room() {
    let several = 1_000;
    let mut matchers: Vec<_> = (0..several).map(|i| regex(&format!("a{i}.*"))).collect();
    let sets = RegexSets::of(|see| {
        let each = matchers.iter_mut().enumerate();
        each.for_each(|(i, matcher)| see(Subject::Header(format!("x-{i}").into()), matcher));
    });
    assert_eq!((sets.sets.len(), sets.words), (several, several));
    assert!(matchers.iter().all(|matcher| matcher.member().is_none()));
    assert!(Scans::of(&sets).matches(&matchers[7], "a7!"));
}

/// Expressions on different inputs do not answer for each other, whatever order they are asked in.
#[test]
fn each_input_has_its_own_answers() {
    let subjects = [
        Subject::Path,
        Subject::Query("q".into()),
        Subject::Query("Q".into()),
        Subject::Header("q".into()),
    ];
    let mut matchers: Vec<_> = subjects
        .iter()
        .flat_map(|s| [(s, regex("a.*")), (s, regex(".*b"))])
        .collect();
    let sets = RegexSets::of(|see| {
        let each = matchers.iter_mut();
        each.for_each(|(subject, matcher)| see(Subject::clone(subject), matcher));
    });
    let texts = ["a", "b", "ab", "-"];
    let expected = [true, false, false, true, true, true, false, false];
    let scans = Scans::of(&sets);
    for at in (0..matchers.len()).rev() {
        assert_eq!(
            scans.matches(&matchers[at].1, texts[at / 2]),
            expected[at],
            "{:?}",
            matchers[at]
        );
    }
    // Without sets, what is shown is looked at.
    assert!(Scans::none().matches(&matchers[0].1, "ac"));
}

/// Asked in order, the first are tried alone, and what an engine gives up is tried when it is asked: a text costs in
/// proportion to what is asked of it.
#[test]
fn in_order_a_text_costs_what_is_asked() {
    let mut matchers: Vec<_> = (0..10).map(|n| regex(&format!("[ab]*a[ab]{{{}}}", 8 + n))).collect();
    let sets = RegexSets::in_order(|see| matchers.iter_mut().for_each(|m| see(Subject::Path, m)));
    let mut dice = Dice(1);
    let hostile: String = (0..500).map(|_| ["a", "b"][dice.below(2)]).collect();
    // One scan answers for all that follow; beside it, each of those is tried.
    for (text, most, matches) in [("b".repeat(20), 4 + 1, false), (hostile, 4 + 1 + 6, true)] {
        let scans = Scans::of(&sets);
        let reads = Cell::new(0);
        let mut matched = false;
        for matcher in &matchers {
            let found = scans.find(matcher, Readings::Sent, |see| {
                reads.set(reads.get() + 1);
                see(&text);
            });
            assert_eq!(matcher.is_in(found.any), matcher.matches(&text), "{matcher:?}");
            matched |= matcher.matches(&text);
        }
        assert_eq!((reads.get(), matched), (most, matches), "{text}");
    }
}

/// A set of routes is as large as one automaton, so that a request which is decided early scans no more.
#[test]
fn in_order_sets_are_small() {
    let mut matchers: Vec<_> = (0..1_000).map(|i| regex(&format!("/svc{i}/[^/]+"))).collect();
    let sets = RegexSets::in_order(|see| matchers.iter_mut().for_each(|m| see(Subject::Path, m)));
    assert_eq!(sets.sets.len(), 4);
    let scans = Scans::of(&sets);
    let matching = matchers.iter().position(|m| scans.matches(m, "/svc700/x"));
    assert_eq!(matching, Some(700));
}

/// Sets that are made in its scope have the engine, and no others; one expression is a set of it, where all are asked.
#[test]
fn an_engine_compiles_what_is_made_in_its_scope() {
    let hyperscan = RegexEngine::open_hyperscan().unwrap_or_else(|e| panic!("{e}"));
    let engines = |patterns: &[&str], in_order: bool| {
        let mut matchers: Vec<_> = patterns.iter().map(|pattern| regex(pattern)).collect();
        let each = |see: Visit<'_>| matchers.iter_mut().for_each(|m| see(Subject::Path, m));
        let sets = match in_order {
            true => RegexSets::in_order(each),
            false => RegexSets::of(each),
        };
        sets.sets
            .iter()
            .flat_map(|input| sizes(&input.set))
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
    };
    let patterns = [".*a.+b.*", ".*c.*", "[ab]+", "[cd]+", "[ef]+"];
    assert_eq!(engines(&patterns, false), ["Literals", "Lazy"]);
    for in_order in [false, true] {
        assert_eq!(hyperscan.compile(|| engines(&patterns, in_order)), ["Words", "Whole"]);
    }
    assert_eq!(hyperscan.compile(|| engines(&patterns[..1], false)), ["Words"]);
    // Four are tried alone before a set is asked: it would never be.
    assert!(hyperscan.compile(|| engines(&patterns[..4], true)).is_empty());
    assert!(engines(&patterns[..4], true).is_empty());
    let panicked = std::panic::catch_unwind(|| hyperscan.compile(|| panic!("while compiling")));
    assert!(panicked.is_err());
    assert_eq!(engines(&patterns, false), ["Literals", "Lazy"]);
}
