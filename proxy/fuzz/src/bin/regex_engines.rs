//! Expressions and a text: rules refuse the same whoever finds the expressions, and what an expression matches alone.
//!
//! Before the first zero byte are expressions, one in a line; behind it the text. Without one it is all text, for expressions of ours.
#![no_main]

use std::sync::OnceLock;

use heddle_matching::rbac::{Action, Permission, Policy, Principal, Rules};
use heddle_matching::{HeaderMatcher, HeaderTest, Regex, RegexEngine, RequestView, StringMatcher};
use heddle_net::ConnectionInfo;
use libfuzzer_sys::fuzz_target;

/// Most expressions of one input: Hyperscan compiles each for about a millisecond.
const MOST: usize = 8;

const OURS: &[&str] = &[
    ".*a.*",
    ".*ab.+b.*",
    "a.*b.*c",
    ".*(a|ab).*bc.*",
    ".+a.+",
    ".*é.+é.*",
    "(.*)(ab|b)(.+)",
    ".*foo(bar)?.*baz.*",
    ".*malform.+req(uest)?.*",
    "malform.+req(uest)?",
    "[a-c]+",
    "[^/]*/[^/]+",
    "(a|b)*c",
    r"\d+",
    r"\w\W\w",
    "(?i)straße",
    ".{1,2}é",
    "(?s)..",
    "[à-ÿ]+",
    r"\bab\b.*",
    "(a{2}|b)+",
    "/shop/[0-9]+(/.*)?",
    "",
    "[^a]",
    ".*a.{2,}b.*",
    "a?b?.?c?a?b?c?.?a?b?c?a?.?b?c?a?b?c?.*a?b?c?a?",
];

struct Request<'t>(&'t str);

impl RequestView for Request<'_> {
    fn method(&self) -> &str {
        "GET"
    }
    fn path_and_query(&self) -> &str {
        "/"
    }
    fn authority(&self) -> &str {
        "shop"
    }
    fn scheme(&self) -> &str {
        "https"
    }
    fn visit_header<'s>(&'s self, name: &str, see: &mut dyn FnMut(&'s [u8])) {
        if name == "x-text" {
            see(self.0.as_bytes());
        }
    }
    fn visit_fields<'s>(&'s self, see: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        see(b"x-text", self.0.as_bytes());
    }
}

/// The same rules by both engines. A policy for each expression, so that a verdict names the first that matches: once in their
/// order and once from behind.
struct Engines {
    regexes: Vec<Regex>,
    rules: [[Rules; 2]; 2],
}

impl Engines {
    fn new(regexes: Vec<Regex>) -> Self {
        let hyperscan = RegexEngine::open_hyperscan().unwrap_or_else(|e| panic!("{e}"));
        let rules = |engine: RegexEngine| {
            [true, false].map(|forward| {
                let policy = |(i, regex): (usize, &Regex)| {
                    let number = if forward { i } else { regexes.len() - i };
                    let test = HeaderTest::String(StringMatcher::regex(regex.clone()));
                    Policy {
                        name: format!("{number:03}").into(),
                        permissions: vec![Permission::Header(HeaderMatcher::new("x-text", test, false, false))].into(),
                        principals: vec![Principal::Any].into(),
                    }
                };
                engine.compile(|| Rules::new(Action::Deny, regexes.iter().enumerate().map(policy).collect()))
            })
        };
        Self {
            rules: [RegexEngine::Portable, hyperscan].map(rules),
            regexes,
        }
    }

    fn check(&self, text: &str) {
        let address = "127.0.0.1:1".parse().expect("address");
        let connection = ConnectionInfo::plain(address, address);
        let request = Request(text);
        let [portable, hyperscan] = self.rules.each_ref().map(|rules| {
            rules.each_ref().map(|rules| {
                let verdict = rules.check(&connection, Some(&request));
                (verdict.allowed, verdict.policy.map(str::to_owned))
            })
        });
        assert_eq!(portable, hyperscan, "{:?} on {text:?}", self.regexes);
        let alone = self.regexes.iter().find(|regex| regex.is_full_match(text));
        assert!(alone.is_none() || !hyperscan[0].0, "{alone:?} on {text:?} is let pass");
    }
}

fuzz_target!(|bytes: &[u8]| {
    static FIXED: OnceLock<Engines> = OnceLock::new();
    let compiled = |patterns: &mut dyn Iterator<Item = &str>| patterns.filter_map(|p| Regex::new(p).ok()).collect();
    let Ok(input) = std::str::from_utf8(bytes) else { return };
    match input.split_once('\0') {
        None => FIXED
            .get_or_init(|| Engines::new(compiled(&mut OURS.iter().copied())))
            .check(input),
        Some((patterns, text)) => Engines::new(compiled(&mut patterns.split('\n').take(MOST))).check(text),
    }
});
