//! What DENY rules by regular expression cost a request where all of them have a word in common, as `.*select.+table0042.*`.
//!
//!     cargo run --release -p heddle-matching --example regex_shared_words [milliseconds of a round]

mod measured;
mod request;

use heddle_matching::rbac::{Action, Permission, Policy, Principal, Rules};
use heddle_matching::{HeaderMatcher, HeaderTest, Regex, StringMatcher};
use heddle_net::ConnectionInfo;
use measured::measure;
use request::Request;

fn main() {
    let round = measured::round();
    let address = "127.0.0.1:1".parse().expect("address");
    let connection = ConnectionInfo::plain(address, address);
    for rules in [400, 4000] {
        let pattern = |i: usize| format!(".*select.+table{i:04}.*");
        let alone: Vec<_> = (0..rules).map(|i| Regex::new(&pattern(i)).expect("pattern")).collect();
        let header = |regex: &Regex| {
            let test = HeaderTest::String(StringMatcher::regex(regex.clone()));
            Permission::Header(HeaderMatcher::new("cookie", test, false, false))
        };
        let policy = Policy {
            name: "injected".into(),
            permissions: vec![Permission::Or(alone.iter().map(header).collect::<Vec<_>>().into())].into(),
            principals: vec![Principal::Any].into(),
        };
        let set = Rules::new(Action::Deny, vec![policy]);
        println!("{rules} rules .*select.+tableNNNN.*");
        for (name, text) in [
            ("60 B without", "x".repeat(60)),
            ("60 B, select once", format!("{}select * from it", "x".repeat(44))),
            ("4 kB, select once", format!("{}select * from it", "x".repeat(4080))),
            ("4 kB of select", "select ".repeat(585)),
        ] {
            let requests = [Request(text)];
            let of_set = measure(&requests, round, |request| {
                set.check(&connection, Some(request)).allowed
            });
            let one_by_one = measure(&requests, round, |request| {
                alone.iter().any(|regex| regex.is_full_match(&request.0))
            });
            println!("  {name:20} set {of_set:10.0} ns   one by one {one_by_one:10.0} ns");
        }
    }
}
