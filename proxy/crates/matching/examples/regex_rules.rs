//! What a hundred DENY rules by regular expression on one header cost per request: as one set of the portable engine, as one of
//! Hyperscan where its library is (`libhyperscan5`), and tried one by one.
//!
//!     cargo run --release -p heddle-matching --example regex_rules [milliseconds of a round]
//!
//! Each figure is the best of five rounds. `hostile` holds the first words of all expressions and
//! never their second ones, the same text each time; `hostile, varied` holds them in another order each time.

mod measured;
mod request;

use heddle_matching::rbac::{Action, Permission, Policy, Principal, Rules};
use heddle_matching::{
    HeaderMatcher, HeaderTest, HyperscanCounts, Regex, RegexEngine, StringMatcher, hyperscan_counts,
};
use heddle_net::ConnectionInfo;
use measured::{measure, processor_time};
use request::Request;

const RULES: usize = 100;

/// Cookies of that many bytes that begin with `text`.
fn filled(text: &str, bytes: usize) -> Request {
    let mut value = text.to_owned();
    let mut state = 1_u32;
    while value.len() < bytes {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        value.push(char::from(
            b"abcdefghijklmnopqrstuvwxyz0123456789=;-_"[(state >> 16) as usize % 40],
        ));
    }
    Request(value)
}

/// First words of all rules, in an order that the number gives.
fn hostile(order: usize, bytes: usize) -> Request {
    let mut value = String::new();
    let mut at = order;
    while value.len() + 9 <= bytes {
        at = at
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        value += &format!("malform{:02}", (at >> 33) % RULES);
    }
    filled(&value, bytes)
}

/// Second words of all rules, behind one first word or none: `first` is the text in front.
fn seconds(first: &str, order: usize, bytes: usize) -> Request {
    let mut value = first.to_owned();
    let mut at = order;
    while value.len() + 5 <= bytes {
        at = at
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        value += &format!("req{:02}", (at >> 33) % RULES / 2 * 2 + 1);
    }
    filled(&value, bytes)
}

/// The ends of words, again and again: what an engine that looks for ends first must look at.
fn ends(end: &str, bytes: usize) -> Request {
    Request(end.repeat(bytes / end.len()))
}

/// Kilobytes that the process has for itself.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Private_Dirty:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or_default()
}

fn main() {
    let round = measured::round();
    let address = "127.0.0.1:1".parse().expect("address");
    let connection = ConnectionInfo::plain(address, address);
    for (style, around) in [("with .* around", ".*"), ("without", "")] {
        let pattern = |i: usize| format!("{around}malform{i:02}.+req(uest)?{i:02}{around}");
        let alone: Vec<_> = (0..RULES).map(|i| Regex::new(&pattern(i)).expect("pattern")).collect();
        let header = |regex: &Regex| {
            let test = HeaderTest::String(StringMatcher::regex(regex.clone()));
            Permission::Header(HeaderMatcher::new("cookie", test, false, false))
        };
        let policy = || Policy {
            name: "malformed".into(),
            permissions: vec![Permission::Or(alone.iter().map(header).collect::<Vec<_>>().into())].into(),
            principals: vec![Principal::Any].into(),
        };
        let compiled = |name, engine: RegexEngine| {
            let (before, begun) = (resident(), processor_time());
            let rules = engine.compile(|| Rules::new(Action::Deny, vec![policy()]));
            println!(
                "{style}: compiled by {name} in {:.1} ms, {} KiB",
                (processor_time() - begun).as_secs_f64() * 1e3,
                resident().saturating_sub(before)
            );
            rules
        };
        let portable = compiled("the portable engine", RegexEngine::Portable);
        let hyperscan = match RegexEngine::open_hyperscan() {
            Ok(engine) => Some(compiled("Hyperscan", engine)),
            Err(unavailable) => {
                println!("{unavailable}");
                None
            }
        };
        let before = resident();
        let texts = |make: &dyn Fn(usize) -> Request, several| (0..several).map(make).collect::<Vec<_>>();
        for (name, requests) in [
            ("no cookie", texts(&|_| Request(String::new()), 1)),
            ("60 B miss", texts(&|_| filled("session=", 60), 1)),
            ("60 B hit at end", texts(&|_| filled("malform99; a=request99", 22), 1)),
            ("60 B hostile", texts(&|i| hostile(i, 60), 1)),
            ("60 B hostile, varied", texts(&|i| hostile(i, 60), 4_096)),
            ("4 kB miss", texts(&|_| filled("session=", 4_096), 1)),
            (
                "4 kB hit",
                texts(&|_| Request(format!("malform99{}request99", filled("", 4_078).0)), 1),
            ),
            ("4 kB hostile", texts(&|i| hostile(i, 4_096), 1)),
            ("4 kB hostile, varied", texts(&|i| hostile(i, 4_096), 4_096)),
            ("60 B second words", texts(&|i| seconds("", i, 60), 256)),
            ("4 kB second words", texts(&|i| seconds("", i, 4_096), 256)),
            ("4 kB one first word", texts(&|i| seconds("malform42", i, 4_096), 256)),
            ("4 kB almost words", texts(&|_| ends("malform7x", 4_096), 1)),
            ("4 kB ends of words", texts(&|_| ends("eq07", 4_096), 1)),
            ("4 kB shorter ends", texts(&|_| ends("m07", 4_096), 1)),
        ] {
            let cost = |rules: &Rules| {
                measure(&requests, round, |request| {
                    rules.check(&connection, Some(request)).allowed
                })
            };
            let set = cost(&portable);
            let _ = hyperscan_counts();
            let by_hyperscan = hyperscan.as_ref().map(cost);
            let HyperscanCounts { words, slow, .. } = hyperscan_counts();
            let one_by_one = measure(&requests, round, |request| {
                alone.iter().any(|r| r.is_full_match(&request.0))
            });
            let by_hyperscan = by_hyperscan.map_or("-".to_owned(), |ns| format!("{ns:.0}"));
            println!(
                "  {name:22} portable {set:8.0} ns   Hyperscan {by_hyperscan:>8} ns (handed over: words {words}, slow {slow})   \
                 one by one {one_by_one:8.0} ns"
            );
        }
        println!("  caches and texts: {} KiB", resident().saturating_sub(before));
    }
}
