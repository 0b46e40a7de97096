//! How long Hyperscan compiles what is given to it, where its library is (`libhyperscan5`): the expressions that take longest for
//! what they stand for, alone and as many as a set may have.
//!
//!     cargo run --release -p heddle-matching --example regex_compile [expression]

use std::time::Instant;

use heddle_matching::rbac::{Action, Permission, Policy, Principal, Rules};
use heddle_matching::{HeaderMatcher, HeaderTest, Regex, RegexEngine, StringMatcher};

/// Classes of many sequences in UTF-8, repetitions within repetitions, and what is as large as is taken.
const EXPRESSIONS: [&str; 12] = [
    r"(\pL{6}ka)*",
    r"(.\PL{6}ka)*",
    r"(..+t\PL{3,}2bka)*",
    r"([^a]{22}b)*",
    r"([^a]{20}b[^c]*)*",
    r"(\p{Greek}{2}a)*",
    r"(.{250}a)*",
    r"(.{1,250}a)*",
    r"(.*a.*b.*c){40}",
    r"([a-f].{3,9}[k-m]*){20}",
    r"(a|[^b]c|d[^e]f|.{9}g)*",
    r"((.{2,})t\PL{3,}2b)*",
];

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
        EXPRESSIONS.map(str::to_owned).to_vec()
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
                "{:>9.1} ms  {count:>4} times {expression}",
                begun.elapsed().as_secs_f64() * 1e3
            );
        }
    }
}
