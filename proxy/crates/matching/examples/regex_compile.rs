//! How long Hyperscan compiles what is given to it, where its library is (`libhyperscan5`): the expressions that take longest for
//! what they stand for, alone and as many as a set may have.
//!
//!     cargo run --release -p heddle-matching --example regex_compile [expression]

use std::time::Instant;

use heddle_matching::rbac::{Action, Permission, Policy, Principal, Rules};
use heddle_matching::{HeaderMatcher, HeaderTest, Regex, RegexEngine, StringMatcher};

/// Classes of many sequences in UTF-8, repetitions within repetitions, what is as large as is taken, and what random expressions took
/// longest, whatever their size.
const EXPRESSIONS: [&str; 24] = [
    r"(\pL{6}ka)*",
    r"(.\PL{6}ka)*",
    r"(..+t\PL{3,}2bka)*",
    r"([^a]{12}b)*",
    r"([^a]{6}b[^c]*)*",
    r"\p{Cyrillic}{20}",
    r"(.{30}a)*",
    r"(.{1,30}a)*",
    r".{0,120}",
    r".*foo.{0,100}bar.*",
    r"(.*a.*b.*c){33}",
    r"([a-f].{3,9}[k-m]*){12}",
    r"(.{0,4}a){25}",
    r"(a|[^b]c|d[^e]f|.{9}g)*",
    r"((.{2,})t\PL{3,}2b)*",
    r"(c*|[ab]{6,}){1,28}",
    r"(k+|z{7,24}|(?:foo)+|k{3,15}){5}",
    r"(([ab]{4,16}a(?:ab)*[ab])?){4}",
    r"([ab]{3,}c?.{0,27}.){4}",
    r"((?:foo)*[c-m]{6,15}(?:foo)[ab]+)*",
    // Too small to be compiled alone first.
    r"([ab]{3,}c?[d-m]{0,9}[n-z]){4}",
    r"([ab]{2,}[bc]{0,7}[a-c]){5}",
    r"([ab]*c?[a-d]{0,5}.?){4}",
    r"(a?[ab]{2,}){18}",
];

/// Runs of what may be left out: how many, and what by turns, where `_` is a letter. As many as are taken, and many more.
const RUNS: [(usize, &[&str]); 8] = [
    (21, &["_?"]),
    (100, &["_?"]),
    (505, &["_?"]),
    (40, &["_?", ".?"]),
    (400, &["_?", ".?"]),
    (38, &["_?", ".*"]),
    (250, &["_?", ".*"]),
    (250, &[".{0,3}", "_?"]),
];

fn run((count, parts): (usize, &[&str])) -> String {
    let part = |i: usize| {
        let letter = char::from(b"ahovbqfwrcldeksu"[i % 16]);
        parts[i % parts.len()].replace('_', &letter.to_string())
    };
    (0..count).map(part).collect()
}

fn rules(patterns: &[String]) -> Rules {
    let header = |pattern: &String| {
        let test = HeaderTest::String(StringMatcher::regex(Regex::new(pattern).expect("an expression")));
        Permission::Header(HeaderMatcher::new("cookie", test, false, false))
    };
    let policy = Policy {
        name: "expressions".into(),
        permissions: vec![Permission::Or(patterns.iter().map(header).collect::<Vec<_>>().into())].into(),
        principals: vec![Principal::Any].into(),
    };
    Rules::new(Action::Deny, vec![policy])
}

fn main() {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let expressions: Vec<String> = if given.is_empty() {
        let expressions = EXPRESSIONS.map(str::to_owned).into_iter();
        expressions.chain(RUNS.map(run)).collect()
    } else {
        given
    };
    let engine = RegexEngine::open_hyperscan().expect("libhyperscan5");
    for expression in &expressions {
        for count in [1, 64, 1024] {
            // Each is another one.
            let patterns: Vec<_> = (0..count).map(|i| format!("{expression}x{i}")).collect();
            let begun = Instant::now();
            engine.compile(|| rules(&patterns));
            println!(
                "{:>9.1} ms  {count:>4} times {expression:.60}",
                begun.elapsed().as_secs_f64() * 1e3
            );
        }
    }
}
