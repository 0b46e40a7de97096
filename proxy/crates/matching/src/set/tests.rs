use super::*;

/// Numbers that look random and are the same each time.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    pub(crate) fn of<'t>(&mut self, choices: &[&'t str]) -> &'t str {
        choices[self.below(choices.len())]
    }
}

const WORDS: &[&str] = &[
    "a", "b", "ab", "ba", "aab", "é", "bé", "x1", "-", "abab", "\u{7f}", "😀a",
];

pub(crate) fn pattern(dice: &mut Dice) -> String {
    let mut out = dice.of(&["", "", "", "^", "(?i)", "(?s)"]).to_owned();
    for _ in 0..=dice.below(5) {
        out += &match dice.below(14) {
            0..=4 => dice.of(WORDS).to_owned(),
            5..=8 => dice
                .of(&[".*", ".+", ".*", "(.*)", ".*?", "(?s:.*)", ".{2,}", r"\C*", "(?s:.)+"])
                .to_owned(),
            9 => format!("({}|{})", dice.of(WORDS), dice.of(WORDS)),
            10 => format!("({})?", dice.of(WORDS)),
            11 => dice
                .of(&[r"\d", "[ab]", "[^a]", r"\w+", "[a-é]*", ".", "a{2,3}", r"\s", r"\S+"])
                .to_owned(),
            12 => dice
                .of(&[r"\b", r"\B", "", "()", "(?:)", "^", "$", "(^a|b$)"])
                .to_owned(),
            _ => format!("({}.*{})", dice.of(WORDS), dice.of(WORDS)),
        };
    }
    out + dice.of(&["", "", "", "$", ".*"])
}

pub(crate) fn text(dice: &mut Dice) -> String {
    let mut out = String::new();
    for _ in 0..dice.below(12) {
        out += dice.of(WORDS);
        if dice.below(12) == 0 {
            out += dice.of(&["\n", " ", "7", "A", "AB", "É", "\r"]);
        }
    }
    out
}

pub(super) fn compiled(patterns: impl IntoIterator<Item = String>) -> RegexSet {
    compiled_by(RegexEngine::Portable, patterns)
}

pub(super) fn compiled_by(engine: RegexEngine, patterns: impl IntoIterator<Item = String>) -> RegexSet {
    let mut set = RegexSet::default();
    for pattern in patterns {
        if let Ok(regex) = Regex::new(&pattern) {
            set.add(&regex, MAX_MEMBERS);
        }
    }
    set.compile(engine, 2);
    set
}

/// Whether the set and each of its engines say what the expressions say alone. How many engines read it to its end.
pub(super) fn agrees(set: &RegexSet, text: &str) -> usize {
    let found = vec![Cell::new(0); set.words()];
    set.scan(text, &found, None);
    for (place, regex) in set.members.iter().enumerate() {
        let expected = set.place(regex) == Some(place) && regex.is_full_match(text);
        assert_eq!(
            found[place / 64].get() >> (place % 64) & 1 == 1,
            expected,
            "{regex:?} on {text:?}"
        );
    }
    let mut complete = 0;
    for part in &set.parts {
        let mut seen = vec![false; part.members.len()];
        let completed = part.engine.scan(text, &mut |place| seen[place] = true);
        complete += usize::from(completed);
        for (seen, member) in seen.into_iter().zip(&part.members) {
            let regex = &set.members[*member];
            let expected = regex.is_full_match(text);
            assert!(
                seen == expected || !completed && !seen,
                "{:?}: {regex:?} on {text:?}",
                part.engine
            );
        }
    }
    complete
}

/// By the names of their engines.
pub(crate) fn sizes(set: &RegexSet) -> Vec<(String, usize)> {
    let name = |part: &Taken| {
        format!("{:?}", part.engine)
            .split(' ')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    set.parts.iter().map(|part| (name(part), part.members.len())).collect()
}

#[test]
fn random_expressions_match_in_a_set_what_they_match_alone() {
    let mut dice = Dice(7);
    let (mut complete, mut engines, mut taken) = (0, 0, HashMap::<String, usize>::new());
    for _ in 0..150 {
        let count = 2 + dice.below(30);
        let set = compiled((0..count).map(|_| pattern(&mut dice)));
        for (name, size) in sizes(&set) {
            *taken.entry(name).or_default() += size;
        }
        for _ in 0..40 {
            complete += agrees(&set, &text(&mut dice));
            engines += set.parts.len();
        }
    }
    // Else the expressions were compared with themselves.
    assert!(
        ["Ends", "Literals", "Lazy"].iter().all(|engine| taken[*engine] > 200),
        "{taken:?}"
    );
    assert!(complete * 2 > engines, "{complete} of {engines} scans were complete");
}

#[test]
fn words_with_gaps() {
    let patterns = [
        ".*a.*",
        "a.*b.*c",
        ".*a.+a.*",
        ".*a.*a",
        ".*ab.*b.*",
        ".*(a|ab).*bc.*",
        "^.*x.*$",
        ".+a.+",
        ".*é.+é.*",
        "(.*)(ab|b)(.+)",
        ".*foo(bar)?.*baz.*",
        r".*\d.*",
        ".*(?i:ab).*",
        "a.*",
        ".*a",
        "",
        ".*",
        ".+",
        "a|b",
        ".*(a|).*",
        ".*a.{2,}b.*",
    ];
    let set = compiled(patterns.map(str::to_owned));
    let engines = [("Ends", 2), ("Literals", 13), ("Lazy", 6)];
    assert_eq!(sizes(&set), engines.map(|(name, size)| (name.to_owned(), size)));
    for text in [
        "",
        "a",
        "aa",
        "aaa",
        "ab",
        "abb",
        "abbc",
        "abc",
        "axbxc",
        "xax",
        "x",
        "é",
        "éé",
        "éaé",
        "foobaz",
        "foobarbaz",
        "a\nb",
        "\n",
        "a\n",
        "AB",
        "xABx",
        "7",
        "foo\nbaz",
        "aéb",
        "aééb",
        "a😀a",
    ] {
        agrees(&set, text);
    }
}

/// Words that end, begin or lie across where the parts of a long text meet are found, each once and in order.
#[test]
fn long_texts_are_read_in_parts() {
    let mut dice = Dice(13);
    let words = ["aba", "abab", "baabab", "aabb", "bbbb"];
    let (mut complete, mut matched) = (0, 0);
    for _ in 0..40 {
        let pattern = |dice: &mut Dice| {
            let mut pattern = dice.of(&["", ".*", ".*"]).to_owned();
            for _ in 0..2 + dice.below(12) {
                pattern += &format!("{}{}{{0,1}}.+", dice.of(&words), dice.of(&words));
            }
            pattern + dice.of(&["", "", "a", "bb"])
        };
        let set = compiled((0..6).map(|_| pattern(&mut dice)));
        for _ in 0..20 {
            let length = dice.below(700) * (1 + dice.below(8));
            let letters = if dice.below(2) == 0 { "abc" } else { "ab" };
            let letter = |dice: &mut Dice| char::from(letters.as_bytes()[dice.below(letters.len())]);
            let text: String = (0..length).map(|_| letter(&mut dice)).collect();
            complete += agrees(&set, &text);
            matched += set.members.iter().filter(|regex| regex.is_full_match(&text)).count();
        }
    }
    assert!(
        complete > 600 && matched > 300,
        "{complete} complete, {matched} matches"
    );
}

pub(super) fn malformed(around: &str, count: usize) -> RegexSet {
    compiled((0..count).map(|i| format!("{around}malform{i:02}.+req(uest)?{i:02}{around}")))
}

/// First words in any order, and never a second one behind them: as many states of one automaton as there are subsets.
#[test]
fn first_words_without_second_ones_are_scanned_to_the_end() {
    let set = malformed(".*", 100);
    assert_eq!(sizes(&set), [("Literals".to_owned(), 100)]);
    let mut dice = Dice(3);
    for _ in 0..20 {
        let words = |dice: &mut Dice| format!("malform{:02}", dice.below(100));
        let mut text: String = (0..450).map(|_| words(&mut dice)).collect();
        assert_eq!(agrees(&set, &text), 1);
        text += "request42 req07";
        assert_eq!(agrees(&set, &text), 1);
    }
}

/// A word that all expressions have comes for each of them, and again and again.
#[test]
fn words_that_many_expressions_have_are_scanned_to_the_end() {
    let mut dice = Dice(5);
    for patterns in [0, 1].map(|side| {
        (0..1000).map(move |i| match side {
            0 => format!(".*select.+table{i:03}.*"),
            _ => format!(".*table{i:03}.+select.*"),
        })
    }) {
        let set = compiled(patterns);
        assert_eq!(sizes(&set), [("Literals".to_owned(), 1000)]);
        for many in [1, 2, 100] {
            let mut text = "select ".repeat(many);
            assert_eq!(agrees(&set, &text), 1, "{many}");
            for _ in 0..many {
                text += &format!("table{:03} select ", dice.below(1000));
            }
            assert_eq!(agrees(&set, &text), 1, "{many}");
        }
    }
}

/// An expression that the text must begin with is tried in no time, so its other words may not be looked at again and again.
#[test]
fn words_of_expressions_that_a_text_must_begin_with_are_given_up() {
    let set = compiled((0..256).map(|i| format!("/tenant{i:03}/.*admin.*")));
    assert_eq!(sizes(&set), [("Literals".to_owned(), 256)]);
    assert_eq!(agrees(&set, "/tenant042/an/admin/page"), 1);
    assert_eq!(agrees(&set, &format!("/{}", "admin".repeat(1000))), 0);
}

/// What stands between the two words of an expression is not read, but for line feeds.
#[test]
fn both_ends_decide() {
    let set = malformed("", 100);
    assert_eq!(sizes(&set), [("Ends".to_owned(), 100)]);
    let between = "malform07 req07".repeat(200);
    let texts = [
        format!("malform42{between}request42"),
        format!("malform42{between}request43"),
        format!("malform4{between}request42"),
        "malform42request42".to_owned(), // `.+` has `uest`.
        "malform42req42".to_owned(),
        "malform42 req42 ".to_owned(),
    ];
    for text in &texts {
        assert_eq!(agrees(&set, text), 1, "{text:?}");
    }
    assert_eq!(agrees(&set, "malform42\nreq42"), 0);
    assert_eq!(agrees(&set, "another\nmalform42 req42"), 1, "nothing begins so");
    // Words that begin or end in each other, that are the text itself, and that texts have only part of.
    let patterns = [
        "a",
        "ab|abc",
        "a.*",
        "ab.+",
        "(a|ab).*(b|bb)",
        "abab.*ab",
        "é.+é",
        "b.*",
        "bab",
        "(?s)a.*c",
    ];
    let set = compiled(patterns.map(str::to_owned));
    assert_eq!(sizes(&set), [("Ends".to_owned(), patterns.len())]);
    let mut dice = Dice(19);
    for text in [
        "a", "ab", "abc", "abb", "abab", "ababab", "éé", "éaé", "é", "", "bab", "ba", "abxbb",
    ] {
        assert_eq!(agrees(&set, text), 1, "{text:?}");
    }
    for _ in 0..200 {
        agrees(&set, &text(&mut dice));
    }
}

/// What all words begin with is looked at once. One of them may begin all others.
#[test]
fn words_with_a_common_beginning() {
    for patterns in [
        &["/api/", "/api/.*", "/api/a", "/api/b.+", "/api/é|/api/è"][..],
        &["/api/users/.+", "/api/users"],
        &["one", "one.*"],
        &["a.*", "a"],
    ] {
        let set = compiled(patterns.iter().map(ToString::to_string));
        assert_eq!(sizes(&set), [("Ends".to_owned(), patterns.len())]);
        for pattern in patterns {
            let whole = pattern.replace(['.', '*', '+', '|'], "");
            for end in (0..=whole.len()).filter(|end| whole.is_char_boundary(*end)) {
                for behind in ["", "x", "é", "\n", "/api/a"] {
                    agrees(&set, &format!("{}{behind}", &whole[..end]));
                }
            }
        }
    }
}

/// A word that many expressions begin with has each of them looked at where a text begins with it, so that only some may.
#[test]
fn expressions_that_begin_with_the_same_word() {
    let set = compiled((0..100).map(|i| format!("/api/.+/res{i}")));
    let engines = [("Ends", ends::MAX_OF_WORD), ("Lazy", 100 - ends::MAX_OF_WORD)];
    assert_eq!(sizes(&set), engines.map(|(name, size)| (name.to_owned(), size)));
    for text in ["/api/v1/res3", "/api/v1/res99", "/api//res3", "/api/res3", "/ap"] {
        agrees(&set, text);
    }
}

/// What no engine reads in its bounds is answered all the same.
#[test]
fn texts_beyond_an_engine() {
    // Each of these remembers which of the last thirty characters were an `a`.
    let hungry = compiled((0..20).map(|i| format!(".*a.{{30}}b.*z{i}")));
    assert_eq!(sizes(&hungry), [("Lazy".to_owned(), 20)]);
    let mut dice = Dice(5);
    let mut given_up = 0;
    for i in 0..20 {
        let mut text: String = (0..2_000).map(|_| dice.of(&["a", "b", "c"])).collect();
        text += &format!("z{i}");
        given_up += 1 - agrees(&hungry, &text);
    }
    assert!(given_up > 0, "the budget was never reached");
    // Words that end in each other.
    let nested = compiled((1..60).map(|i| format!(".*{}.*", "a".repeat(i))));
    assert_eq!(sizes(&nested), [("Literals".to_owned(), 59)]);
    assert_eq!(agrees(&nested, &"a".repeat(4_000)), 0);
    assert_eq!(agrees(&nested, "aaaab"), 1);
    assert_eq!(agrees(&malformed(".*", 100), "malform01\n req01"), 0);
}

#[test]
fn thousands_of_expressions_and_bounds() {
    for around in [".*", ""] {
        let set = malformed(around, 1_200);
        assert_eq!(sizes(&set).iter().map(|(_, size)| size).sum::<usize>(), 1_200);
        agrees(&set, "malform1134 request1134");
        agrees(&set, &"malform99".repeat(400));
    }
    let full = compiled((0..=MAX_MEMBERS).map(|i| format!("{i}")));
    assert_eq!(full.members.len(), MAX_MEMBERS);
    let mut full = full;
    assert!(!full.add(&Regex::new("one more").expect("pattern"), MAX_MEMBERS));
    assert!(full.add(&full.members[7].clone(), MAX_MEMBERS), "it is there already");
    assert_eq!(sizes(&full), [("Ends".to_owned(), MAX_MEMBERS)]);
    agrees(&full, "4095");
    let digits = compiled((0..MAX_MEMBERS).map(|i| format!("[0-9]{i}")));
    assert!(sizes(&digits).len() <= lazy::MAX_AUTOMATA);
    // Words above the bound go to the other engine, and what that cannot hold stays alone.
    let long = compiled((0..40).map(|i| format!(".*{i}{}.*", "x".repeat(10_000))));
    let literals = sizes(&long)[0].clone();
    assert_eq!(literals, ("Literals".to_owned(), literals::MAX_WORDS / 10_002));
    agrees(&long, &format!("7{}", "x".repeat(10_000)));
    // Too large for one automaton together, and far too large.
    let large = compiled((0..30).map(|i| format!("{i}(a{{50}}){{50}}[^b]*")));
    agrees(&large, &format!("3{}", "a".repeat(2_500)));
}

#[test]
fn the_same_expression_has_one_place_and_one_alone_needs_no_set() {
    let regex = Regex::new("a+").expect("pattern");
    let mut set = RegexSet::default();
    set.add(&regex, MAX_MEMBERS);
    set.add(&regex, MAX_MEMBERS);
    assert_eq!(set.members.len(), 1);
    set.compile(RegexEngine::Portable, 2);
    assert!(set.place(&regex).is_none() && set.parts.is_empty());
}
