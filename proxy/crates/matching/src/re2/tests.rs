use crate::regex::Regex;

/// Pattern, text, and whether RE2 matches the whole of it. Go's `regexp`, which is RE2's own, says the same of each:
/// `control/objects/regex_test.go` reads this file.
const AS_RE2: &str = include_str!("as_re2.txt");

/// A line's fields: `match` or `none`, the pattern and the text as strings of JSON.
fn cases() -> impl Iterator<Item = (bool, String, String)> {
    let lines = AS_RE2.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let (verdict, rest) = line.split_once(' ').expect("a verdict");
        let (pattern, text): (String, String) = serde_json::from_str(&format!("[{rest}]")).expect("two strings");
        (verdict == "match", pattern, text)
    })
}

#[test]
fn patterns_mean_what_they_mean_to_re2() {
    let mut seen = 0;
    for (expected, pattern, text) in cases() {
        let regex = Regex::new(&pattern).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(regex.is_full_match(&text), expected, "{pattern} on {text:?}");
        seen += 1;
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
