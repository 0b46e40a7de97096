use std::time::Instant;

use super::super::tests::{Dice, agrees, compiled_by, pattern, sizes, text};
use super::super::{Candidate, RegexSet};
use super::words::SHORT;
use super::*;
use crate::{Regex, RegexEngine};

fn hyperscan() -> RegexEngine {
    RegexEngine::open_hyperscan().unwrap_or_else(|e| panic!("{e}"))
}

fn compiled(patterns: impl IntoIterator<Item = String>) -> RegexSet {
    compiled_by(hyperscan(), patterns)
}

fn malformed(around: &str) -> RegexSet {
    compiled((0..100).map(|i| format!("{around}malform{i:02}.+req(uest)?{i:02}{around}")))
}

#[test]
fn random_expressions_match_what_they_match_alone() {
    let mut dice = Dice(17);
    let mut taken = std::collections::HashMap::<String, usize>::new();
    let _ = hyperscan_counts();
    for _ in 0..120 {
        let count = 2 + dice.below(30);
        let set = compiled((0..count).map(|_| pattern(&mut dice)));
        for (name, size) in sizes(&set) {
            *taken.entry(name).or_default() += size;
        }
        for _ in 0..60 {
            let text = text(&mut dice);
            agrees(&set, &text);
        }
    }
    // Else the expressions were compared with themselves.
    assert!(taken["Words"] > 200 && taken["Whole"] > 200, "{taken:?}");
    let counts = hyperscan_counts();
    assert_eq!(counts.failed, 0);
    let handed_over = counts.words + counts.slow + counts.line_feed;
    assert!(counts.scanned > 10_000 && counts.scanned > handed_over, "{counts:?}");
}

/// What may be left out joins what is before it with what is behind.
#[test]
fn random_runs_of_optional_parts_match_what_they_match_alone() {
    let mut dice = Dice(29);
    let parts = ["a?", "b?", "(?:é)?", ".?", "(ab)?", "b*", ".{0,2}", "(a|b?c)?", "[^a]?"];
    let mut whole = 0;
    for _ in 0..10 {
        let set = compiled((0..4).map(|i| {
            let run: String = (0..20 + dice.below(10)).map(|_| dice.of(&parts)).collect();
            format!("{run}{}{i}?", dice.of(&["", "foo", "é"]))
        }));
        let sizes = sizes(&set).into_iter();
        whole += sizes.filter(|(name, _)| name == "Whole").map(|(_, n)| n).sum::<usize>();
        for _ in 0..40 {
            let text: String = (0..dice.below(40))
                .map(|_| dice.of(&["a", "b", "é", "c", "ab", "foo", "1"]))
                .collect();
            agrees(&set, &text);
        }
    }
    assert!(whole > 25, "{whole}");
}

/// Everything that an expression may be made of, in the syntax that the library reads.
#[test]
fn each_construct_means_the_same() {
    let patterns = [
        "",
        "()",
        "a",
        "a|",
        "(|a)b",
        "a*",
        "a+?",
        "a??b",
        "(ab){2}",
        "a{0}",
        "a{2,}",
        "a{1,3}b",
        "(a|b)*c",
        "[a-c]+",
        "[^a]",
        "[^a-z]+",
        "[^/]*/[^/]+",
        r"\d+",
        r"\D",
        r"\w\W\w",
        r"\s*",
        "(?i)ab",
        "(?i)straße",
        "(?i)k",
        ".",
        "..",
        ".{2}",
        ".{1,2}é",
        "(?s).",
        r"\C",
        "é+",
        "[à-ÿ]",
        "[^é]*",
        "😀.",
        r"\pL+",
        r"\PL",
        r"\p{Greek}+",
        "[[:alpha:]]+",
        "[[:^alpha:]]",
        r"\x41",
        r"\x{1F600}",
        r"\Qa.b\E",
        "^a$",
        r"\Aa\z",
        "(?m)^a$",
        r"a\b",
        r"\Ba",
        "(^a|b$)",
        r"[\]\-^\\]+",
        r"a\.b",
        "[.]",
        r"-",
        " ",
        "#a",
        r"\t",
        r"[\n]",
        r"(?-s).",
        "(?P<n>a)b",
        "x*y*z*",
        "(a*)*",
        "(a|a)*b",
        r"[^\n]+",
        "[\u{0}-\u{7f}]+",
        "\u{0}",
        "[\u{10000}-\u{10ffff}]",
        "(?U)a+",
    ];
    // What no text here has makes each of them another engine's than that of plain words.
    let compiled = compiled(patterns.map(|pattern| format!("(?:{pattern})(?:[0-9]{{5}}never)?")));
    let whole: usize = sizes(&compiled)
        .iter()
        .filter(|(name, _)| name == "Whole")
        .map(|(_, size)| size)
        .sum();
    assert!(whole > 55, "{:?}", sizes(&compiled));
    let mut texts: Vec<String> = [
        "",
        "a",
        "b",
        "A",
        "ab",
        "AB",
        "ba",
        "aab",
        "abab",
        "aaa",
        "abc",
        "c",
        "/",
        "a/b",
        "//",
        "12",
        "é",
        "éa",
        "aé",
        "àÿ",
        "éé",
        "STRASSE",
        "STRAßE",
        "strasse",
        "K",
        "\u{212a}",
        "😀",
        "😀a",
        "\u{3b1}\u{3b2}",
        "a.b",
        "axb",
        "]-^\\",
        "-",
        " ",
        "#a",
        "\t",
        "\n",
        "a\n",
        "a\nb",
        "xyz",
        "zyx",
        "\u{0}",
        "\u{1}\u{7f}",
        "\u{85}",
        "\u{2028}",
        "a ",
        "aa",
        "_",
        "a_b",
        "b\u{300}",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut dice = Dice(23);
    let letters = ["a", "b", "c", "A", "é", "/", "1", ".", " ", "😀", "z", "ß", "\u{0}"];
    for _ in 0..400 {
        texts.push((0..dice.below(7)).map(|_| dice.of(&letters)).collect());
    }
    for text in &texts {
        agrees(&compiled, text);
    }
}

#[test]
fn too_many_words_are_handed_over() {
    let set = malformed(".*");
    assert_eq!(sizes(&set), [("Words".to_owned(), 100)]);
    let _ = hyperscan_counts();
    let mut dice = Dice(3);
    for _ in 0..20 {
        let mut text: String = (0..450).map(|_| format!("malform{:02}", dice.below(100))).collect();
        assert_eq!(agrees(&set, &text), 1);
        text += "request42 req07";
        assert_eq!(agrees(&set, &text), 1);
    }
    // The set is asked twice for each text. A machine with much else to do may have put it aside.
    let counts = hyperscan_counts();
    assert!(counts.words > 0 && counts.words + counts.slow == 80, "{counts:?}");
    let long = "-".repeat(SHORT);
    agrees(&set, &format!("session=malform42; request42; malform07 req08{long}"));
    agrees(
        &set,
        &format!("malform42 malform43 malform44 malform45 malform46 req44{long}"),
    );
    let counts = hyperscan_counts();
    assert_eq!((counts.words, counts.line_feed), (0, 0));
    assert_eq!(agrees(&set, &format!("malform01\n req01{long}")), 0);
    assert_eq!(hyperscan_counts().line_feed, 2);
    // The portable engine's anyway.
    assert_eq!(agrees(&set, "malform01\n req01"), 0);
    assert_eq!(hyperscan_counts(), HyperscanCounts::default());
    // One word of all expressions.
    let set = compiled((0..1000).map(|i| format!(".*malform.+req{i}.*")));
    agrees(&set, &"malform".repeat(20));
    assert_eq!(hyperscan_counts().words, 2);
}

/// A database whose texts are slow is put aside, and what it was asked is answered all the same.
#[test]
fn a_slow_database_is_put_aside() {
    // Each of these remembers which of the last characters were an `a`.
    let hungry = compiled((0..100).map(|i| format!("[a-c]*a.{{{}}}b[a-c]*z{i}", 20 + i % 10)));
    assert_eq!(sizes(&hungry)[0].0, "Whole");
    let mut dice = Dice(5);
    let mut text = || (0..4_000).map(|_| dice.of(&["a", "b", "c"])).collect::<String>();
    let hostile = text();
    let _ = hyperscan_counts();
    let mut counts = HyperscanCounts::default();
    for _ in 0..10_000 {
        hungry.parts[0].engine.scan(&hostile, &mut |_| {});
        counts = hyperscan_counts();
        if counts.slow > 0 {
            break;
        }
    }
    assert!(counts.slow > 0, "{counts:?}");
    for i in 0..4 {
        agrees(&hungry, &format!("{}z{i}", text()));
    }
}

#[test]
fn what_hyperscan_does_not_take_is_the_portable_engines() {
    let patterns = [
        r"\bword\b.",
        r"a\B.b",
        "(^a|b$)c?",
        "(?m)x$", // Look at what is around a place.
        "a{600}",
        "(a{30}){30}", // Too large.
        r"\pL",
        r"(x\PL{6})*", // Classes of eight hundred sequences.
        "(.{200}a)*",  // What repeats without end is dear.
    ];
    let letters = |count: usize, before: &str, after: &str| -> String {
        let letter = |i: usize| char::from(b"ahovbqfwrcldeksu"[i % 16]);
        (0..count).map(|i| format!("{before}{}{after}", letter(i))).collect()
    };
    // What may be left out joins all before it with all behind.
    let runs = [
        letters(200, "", "?"),
        letters(505, "", "?"),
        letters(50, ".?", "?"),
        letters(125, ".{0,3}", "?"),
        letters(100, ".*", "?"),
        format!("({}){{5}}", letters(50, "", "?")),
        format!("({}){{0,5}}", letters(50, "", "?")),
        format!("({})?{}", letters(100, "", "?"), letters(100, "", "?")),
        "(a?){200}".to_owned(),
        "(a|b?c?){60}".to_owned(),
        format!("{}[a-h]{{0,420}}", letters(90, "", "?")),
    ];
    let set = compiled(patterns.map(str::to_owned).into_iter().chain(runs));
    assert_eq!(
        sizes(&set).iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["Lazy"]
    );
    let mixed = compiled(["[ab]+", "[bc]+", r"\bx.", r"\by."].map(str::to_owned));
    assert_eq!(sizes(&mixed), [("Whole".to_owned(), 2), ("Lazy".to_owned(), 2)]);
    for text in ["ab", "bc", "b", "x-", "y"] {
        agrees(&mixed, text);
    }
    // Words beyond what the library takes: they are an expression each.
    let long = compiled((0..3).map(|i| format!(".*{}{i}.*", "é".repeat(3_000))));
    assert_eq!(sizes(&long), [("Literals".to_owned(), 3)]);
}

#[test]
fn what_compiles_fast_is_hyperscans() {
    let letters: String = ('a'..='u').map(|c| format!("{c}?")).collect();
    let patterns = [
        "[^/]+",
        "/[^/]+/[^/]+/[^/]+/[^/]+/[^/]+",
        "(/[^/]+){1,9}",
        "([^a]+b[^c]*d)*",
        "[a-z0-9]{0,63}",
        r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*",
        ".{0,100}",
        ".{3,20}foo.{0,20}bar",
        r"(?i)mozilla/5\.0 \(.*(android|iphone).*\).*[0-9]",
        r"https?://([a-z]+\.)?example\.com(:[0-9]{1,5})?(/.*)?",
        &letters,
        "(ab?|cd?|ef?|gh?){12}",
    ];
    let set = compiled(patterns.map(str::to_owned));
    let found = sizes(&set);
    assert!(found.iter().all(|(name, _)| name == "Whole"), "{found:?}");
    for text in [
        "a/b",
        "/a/b/c/d/e",
        "bdbd",
        "x-1.example",
        "xyzfoobar",
        "abfh",
        "abefgh",
        "ab/",
    ] {
        agrees(&set, text);
    }
}

/// How long an expression compiles is not in its size: this one takes more than a second.
#[test]
fn an_expression_that_takes_too_long_is_not_compiled_with_others() {
    let slow = "([ab]{3,}c?.{0,27}.){4}x";
    let set = compiled(["[ab]+", "[bc]+", slow].map(str::to_owned));
    assert_eq!(sizes(&set)[0], ("Whole".to_owned(), 2));
    let long = format!("{}x", "abbc".repeat(9));
    for text in ["ab", "bc", &long] {
        agrees(&set, text);
    }
}

/// Thousands of expressions take several databases, and those with large ones are compiled within bounds.
#[test]
fn many_expressions() {
    let routes = compiled((0..600).map(|i| format!("/svc{i}/[^/]+(/.*)?")));
    let found: Vec<_> = sizes(&routes);
    assert!(found.iter().all(|(name, _)| name == "Whole"), "{found:?}");
    // Each is a scan of a text.
    assert!(found.len() <= 4, "{found:?}");
    assert_eq!(
        sizes(&compiled((0..256).map(|i| format!("/svc{i}/[^/]+(/.*)?")))).len(),
        2
    );
    assert_eq!(found.iter().map(|(_, size)| size).sum::<usize>(), 600);
    for text in ["/svc500/x", "/svc500/x/y", "/svc5000", "/svc1/"] {
        agrees(&routes, text);
    }
}

/// What is not compiled when the time is over is the portable engine's.
#[test]
fn a_set_is_compiled_within_a_time() {
    let engine = hyperscan().hyperscan().expect("it is Hyperscan");
    let candidates = || {
        let hir = |i| regex_syntax::parse(&format!("[ab]+{i}")).expect("an expression");
        (0..10).map(|i| Candidate::new(i, hir(i))).collect::<Vec<_>>()
    };
    let begun = Instant::now();
    let late = begun
        .checked_sub(whole::COMPILE_WITHIN)
        .expect("the machine runs for longer");
    for (begun, taken, left) in [(begun, 1, 0), (late, 0, 10)] {
        let (parts, rest) = whole::compile_since(begun, engine, candidates(), 2);
        assert_eq!((parts.len(), rest.len()), (taken, left));
    }
}

/// With Hyperscan an expression that is alone on its input is a set too.
#[test]
fn one_expression() {
    for pattern in [".*session=.*", "[0-9]+"] {
        let mut set = RegexSet::default();
        set.add(&Regex::new(pattern).expect("pattern"), 1);
        set.compile(hyperscan(), 1);
        assert_eq!(sizes(&set).len(), 1, "{pattern}");
        for text in ["", "a session=1", "42", "é"] {
            agrees(&set, text);
        }
    }
}

/// Each worker has its own scratch space, and sets of several configurations are used by turns.
#[test]
fn workers_share_a_set() {
    let whole = compiled((0..100).map(|i| format!("malform{i:02}[^;]+req(uest)?{i:02}")));
    let words = malformed(".*");
    assert_eq!((&*sizes(&whole)[0].0, &*sizes(&words)[0].0), ("Whole", "Words"));
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (whole, words) = (&whole, &words);
            scope.spawn(move || {
                for i in 0..50 {
                    agrees(whole, &format!("malform{i:02} {worker} req{i:02}"));
                    agrees(words, &format!("{worker} malform{i:02} request{i:02}!"));
                }
                assert_eq!(hyperscan_counts().failed, 0);
            });
        }
    });
}
