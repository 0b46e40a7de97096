use crate::regex::Regex;

/// Pattern, text, and whether RE2 matches the whole of it. Go's `regexp`, which is RE2's own, says the same of each:
/// `control/objects/regex_test.go` reads this file.
const AS_RE2: &str = include_str!("as_re2.txt");

/// A line's fields: `match`, `none` or `refuse`, the pattern and the text as strings of JSON.
fn cases() -> impl Iterator<Item = (&'static str, String, String)> {
    let lines = AS_RE2.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let (verdict, rest) = line.split_once(' ').expect("a verdict");
        let (pattern, text): (String, String) = serde_json::from_str(&format!("[{rest}]")).expect("two strings");
        (verdict, pattern, text)
    })
}

#[test]
fn patterns_mean_what_they_mean_to_re2() {
    let mut seen = 0;
    for (verdict, pattern, text) in cases() {
        seen += 1;
        if verdict == "refuse" {
            assert!(
                Regex::new(&pattern).is_err(),
                "{pattern} need not be refused by the controller"
            );
            continue;
        }
        let regex = Regex::new(&pattern).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(regex.is_full_match(&text), verdict == "match", "{pattern} on {text:?}");
    }
    assert!(seen > 60);
}

#[test]
fn what_is_left_open_is_refused() {
    for pattern in [
        r"a\",
        "[a",
        "[^",
        "[a-",
        r"[\",
        r"\x",
        r"\x{",
        r"[\x{41",
        r"\p{",
        r"\p",
        "[[:alpha:",
        "[]",
    ] {
        assert!(Regex::new(pattern).is_err(), "{pattern}");
    }
}
