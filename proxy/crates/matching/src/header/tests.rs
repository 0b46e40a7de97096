use std::cell::Cell;

use super::*;
use crate::{Regex, RequestView};

/// A request with nothing but values of one header.
struct Values<'v>(&'v [&'v [u8]]);

impl RequestView for Values<'_> {
    fn method(&self) -> &str {
        "GET"
    }
    fn path_and_query(&self) -> &str {
        "/"
    }
    fn authority(&self) -> &str {
        "a"
    }
    fn scheme(&self) -> &str {
        "http"
    }
    fn visit_header<'s>(&'s self, name: &str, see: &mut dyn FnMut(&'s [u8])) {
        if matches!(name, "x-a" | "cookie") {
            self.0.iter().for_each(|value| see(value));
        }
    }
    fn visit_fields<'s>(&'s self, see: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        self.0.iter().for_each(|value| see(b"x-a", value));
    }
}

fn exact(value: &str) -> HeaderTest {
    HeaderTest::String(StringMatcher::exact(value))
}

fn regex(pattern: &str) -> HeaderTest {
    HeaderTest::String(StringMatcher::regex(Regex::new(pattern).expect("pattern")))
}

const RANGE: HeaderTest = HeaderTest::Range { start: 1, end: 10 };

/// Of a test that is made alone.
fn matches_in(
    matcher: &HeaderMatcher,
    reading: Reading,
    headers: Option<&HeaderReadings<'_>>,
    scans: &Scans<'_>,
) -> bool {
    matcher.holds(reading, headers, scans) == all_bits(true)
}

#[test]
fn one_value_or_none() {
    for (test, invert, missing_as_empty, value, expected) in [
        (exact("a"), false, false, Some("a"), true),
        (exact("a"), false, false, Some("b"), false),
        (exact("a"), true, false, Some("b"), true),
        (exact("a"), true, false, Some("a"), false),
        // Absent: no match either way, unless it counts as empty.
        (exact("a"), false, false, None, false),
        (exact("a"), true, false, None, false),
        (exact("a"), true, true, None, true),
        (exact(""), false, true, None, true),
        (HeaderTest::Present(true), false, false, Some(""), true),
        (HeaderTest::Present(true), false, false, None, false),
        (HeaderTest::Present(true), true, false, None, true),
        (HeaderTest::Present(true), true, false, Some("x"), false),
        (HeaderTest::Present(false), false, false, None, true),
        (HeaderTest::Present(false), false, false, Some("x"), false),
        (HeaderTest::Present(false), true, false, Some("x"), true),
        (HeaderTest::Present(false), false, true, None, false),
        (RANGE, false, false, Some("1"), true),
        (RANGE, false, false, Some("10"), false),
        (RANGE, false, false, Some("-1"), false),
        (RANGE, false, false, Some("x"), false),
        (RANGE, false, false, Some(""), false),
        (RANGE, true, false, Some("x"), true),
        (RANGE, false, false, None, false),
    ] {
        let said = format!("{test:?} invert={invert} empty={missing_as_empty} on {value:?}");
        let matcher = HeaderMatcher::new("X-A", test, invert, missing_as_empty);
        let values: Vec<&[u8]> = value.iter().map(|v| v.as_bytes()).collect();
        let request = Values(&values);
        let headers = HeaderReadings::of(&request);
        assert_eq!(matcher.matches(&headers, &Scans::none()), expected, "{said}");
        // One value has one reading.
        for reading in [Reading::Any, Reading::Every] {
            assert_eq!(
                matches_in(&matcher, reading, Some(&headers), &Scans::none()),
                expected,
                "{said}"
            );
            if value.is_none() {
                assert_eq!(matches_in(&matcher, reading, None, &Scans::none()), expected, "{said}");
            }
        }
    }
    assert_eq!(HeaderMatcher::new("X-A", exact("a"), false, false).name(), "x-a");
}

/// For each kind of test: whether a route takes it (Envoy's answer, and joined values besides), whether a DENY does, and
/// whether an ALLOW does.
#[test]
fn repeated_values() {
    let string = HeaderTest::String;
    let two: &[&[u8]] = &[b"user", b"admin"];
    let same: &[&[u8]] = &[b"admin", b"admin"];
    let empty: &[&[u8]] = &[b"admin", b""];
    let five: &[&[u8]] = &[b"50", b"5"];
    for (test, invert, values, route, deny, allow) in [
        (exact("admin"), false, two, true, true, false),
        (exact("admin"), false, empty, true, true, false),
        (exact("admin"), false, same, true, true, false),
        (exact("user,admin"), false, two, true, true, false),
        (exact("user, admin"), false, two, true, true, false),
        (exact("nobody"), false, two, false, false, false),
        (exact(""), false, empty, true, true, false),
        (string(StringMatcher::prefix("adm")), false, two, true, true, false),
        (string(StringMatcher::prefix("adm")), false, same, true, true, true),
        (string(StringMatcher::suffix("min")), false, two, true, true, false),
        (string(StringMatcher::suffix("min")), false, same, true, true, true),
        (string(StringMatcher::contains("dmi")), false, empty, true, true, false),
        (string(StringMatcher::contains("r,a")), false, two, true, true, false),
        (regex("admin|user"), false, two, true, true, false),
        (regex("user,admin"), false, two, true, true, false),
        (regex("[a-z, ]*"), false, two, true, true, true),
        (HeaderTest::Present(true), false, two, true, true, true),
        (HeaderTest::Present(false), false, two, false, false, false),
        (RANGE, false, five, true, true, false),
        // Inverted: a route needs that none matches, a DENY that one does not, an ALLOW that none does.
        (exact("admin"), true, two, false, true, false),
        (exact("admin"), true, same, false, true, false),
        (exact("nobody"), true, two, true, true, true),
        (string(StringMatcher::prefix("adm")), true, same, false, false, false),
        (RANGE, true, five, false, true, false),
        (HeaderTest::Present(true), true, two, false, false, false),
    ] {
        let said = format!("{test:?} invert={invert} on {values:?}");
        let matcher = HeaderMatcher::new("x-a", test, invert, false);
        let request = Values(values);
        let headers = HeaderReadings::of(&request);
        assert_eq!(matcher.matches(&headers, &Scans::none()), route, "route: {said}");
        assert_eq!(
            matches_in(&matcher, Reading::Any, Some(&headers), &Scans::none()),
            deny,
            "deny: {said}"
        );
        assert_eq!(
            matches_in(&matcher, Reading::Every, Some(&headers), &Scans::none()),
            allow,
            "allow: {said}"
        );
    }
}

#[test]
fn cookies_are_joined_as_cookies() {
    let matcher = HeaderMatcher::new("cookie", exact("a=1; b=2"), false, false);
    assert!(matches_in(
        &matcher,
        Reading::Any,
        Some(&HeaderReadings::of(&Values(&[b"a=1", b"b=2"]))),
        &Scans::none()
    ));
    let matcher = HeaderMatcher::new("cookie", exact("a=1,b=2"), false, false);
    assert!(!matches_in(
        &matcher,
        Reading::Any,
        Some(&HeaderReadings::of(&Values(&[b"a=1", b"b=2"]))),
        &Scans::none()
    ));
}

#[test]
fn bytes_outside_utf8_have_two_readings() {
    let value: &[&[u8]] = &[b"caf\xe9"];
    let request = Values(value);
    let headers = HeaderReadings::of(&request);
    for (test, deny, allow) in [
        (exact("caf\u{e9}"), true, false),
        (exact("caf\u{fffd}"), true, false),
        (exact("caf"), false, false),
        (HeaderTest::String(StringMatcher::prefix("caf")), true, true),
        (regex("caf."), true, true),
        (regex("caf"), false, false),
    ] {
        let said = format!("{test:?}");
        let matcher = HeaderMatcher::new("x-a", test, false, false);
        assert_eq!(
            matches_in(&matcher, Reading::Any, Some(&headers), &Scans::none()),
            deny,
            "{said}"
        );
        assert_eq!(
            matches_in(&matcher, Reading::Every, Some(&headers), &Scans::none()),
            allow,
            "{said}"
        );
    }
    assert_eq!(request.header("x-a").as_deref(), Some("caf\u{fffd}"));
}

/// A request whose one header says how often it was looked through.
struct Counted<'v>(&'v [&'v [u8]], Cell<usize>, Cell<usize>);

impl RequestView for Counted<'_> {
    fn method(&self) -> &str {
        "GET"
    }
    fn path_and_query(&self) -> &str {
        "/"
    }
    fn authority(&self) -> &str {
        "a"
    }
    fn scheme(&self) -> &str {
        "http"
    }
    fn visit_header<'s>(&'s self, _: &str, see: &mut dyn FnMut(&'s [u8])) {
        self.1.set(self.1.get() + 1);
        self.0.iter().for_each(|value| see(value));
    }
    fn visit_fields<'s>(&'s self, see: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        self.2.set(self.2.get() + 1);
        see(b"x_a", b"b");
        self.0.iter().for_each(|value| see(b"x_a", value));
    }
}

#[test]
fn what_is_dear_to_read_is_read_once_for_all_conditions() {
    let long = [b'v'; 300];
    for values in [&[b"a".as_slice(), b"b"][..], &[&[0xff, 0xfe]], &[&long]] {
        let request = Counted(values, Cell::new(0), Cell::new(0));
        let headers = HeaderReadings::of(&request);
        for i in 0..1000 {
            let matcher = HeaderMatcher::new("x-a", exact(&i.to_string()), false, false);
            assert!(!matcher.matches(&headers, &Scans::none()));
        }
        assert_eq!(request.1.get(), 1, "{values:?}");
        for i in 0..1000 {
            let matcher = HeaderMatcher::new("x-a", exact(&i.to_string()), false, false);
            assert!(!matches_in(&matcher, Reading::Any, Some(&headers), &Scans::none()));
        }
        assert_eq!(request.1.get(), 1, "{values:?}");
        assert_eq!(
            request.2.get(),
            2,
            "once for separators, once for this name: {values:?}"
        );
    }
}

#[test]
fn equal_values_are_one_reading() {
    let mut seen = Vec::new();
    let values = [b"user".as_slice(); 500];
    HeaderReadings::of(&Values(&values)).visit("x-a", None, &mut |text| seen.push(text.len()));
    seen.sort_unstable();
    assert_eq!(seen, [4, 500 * 4 + 499, 500 * 4 + 499 * 2]);
}

/// Tests on how a text begins are decided by three of many readings as by all of them.
#[test]
fn a_few_readings_decide_for_many() {
    let texts: Vec<String> = (0..40_u32)
        .map(|i| format!("{}{}", ["a", "ab", "b", ""][i as usize % 4], i % 7))
        .collect();
    for many in 0..texts.len() {
        for from in 0..texts.len() - many {
            let values: Vec<&[u8]> = texts[from..from + many].iter().map(String::as_bytes).collect();
            let request = Values(&values);
            let headers = HeaderReadings::of(&request);
            for wanted in ["", "a", "ab", "ab1", "b2", "b", "c", "0"] {
                for matcher in [StringMatcher::exact(wanted), StringMatcher::prefix(wanted)] {
                    let (mut few, mut all, mut looks) = (Found::NOTHING, Found::NOTHING, 0);
                    // The second time, as every later test: the first one reads.
                    for _ in 0..2 {
                        (few, looks) = (Found::NOTHING, 0);
                        headers.visit("x-a", matcher.beginning(), &mut |text| {
                            looks += 1;
                            few.add(matcher.matches(text));
                        });
                    }
                    headers.visit("x-a", None, &mut |text| all.add(matcher.matches(text)));
                    let said = format!("{matcher:?} of {:?}", &texts[from..from + many]);
                    assert_eq!((few.any, few.every), (all.any, all.every), "{said}");
                    assert!(looks <= 3, "{looks} looks: {said}");
                }
            }
        }
    }
}

/// A request with one host, and one field with one value.
struct Spelled(&'static str, &'static str, &'static str);

impl RequestView for Spelled {
    fn method(&self) -> &str {
        "GET"
    }
    fn path_and_query(&self) -> &str {
        "/"
    }
    fn authority(&self) -> &str {
        self.0
    }
    fn scheme(&self) -> &str {
        "http"
    }
    fn visit_header<'s>(&'s self, name: &str, see: &mut dyn FnMut(&'s [u8])) {
        match name {
            ":authority" => see(self.0.as_bytes()),
            _ if name == self.1 => see(self.2.as_bytes()),
            _ => {}
        }
    }
    fn visit_fields<'s>(&'s self, see: &mut dyn FnMut(&'s [u8], &'s [u8])) {
        see(self.1.as_bytes(), self.2.as_bytes());
    }
}

#[test]
fn names_in_other_spelling_refuse_and_let_nobody_in() {
    for (rule, field, value, test, invert, deny, allow) in [
        ("x-role", "x_role", "admin", exact("admin"), false, true, false),
        ("x_role", "x-role", "admin", exact("admin"), false, true, false),
        (
            "x-user-role",
            "x_user-role",
            "admin",
            exact("admin"),
            false,
            true,
            false,
        ),
        ("x-role", "x_role", "user", exact("admin"), false, false, false),
        ("x-role", "x_role", "user", exact("admin"), true, true, false),
        ("x-role", "x_role", "admin", exact("admin"), true, false, false),
        ("x-role", "x_role", "", HeaderTest::Present(true), false, true, false),
        ("x-role", "x_roles", "admin", exact("admin"), false, false, false),
        ("x-role", "x.role", "admin", exact("admin"), false, true, false),
        ("x-role", "x+role", "admin", exact("admin"), false, true, false),
        ("x-role", "x0role", "admin", exact("admin"), false, false, false),
        (":method", "-method", "POST", exact("POST"), false, false, false),
    ] {
        let request = Spelled("h", field, value);
        let headers = HeaderReadings::of(&request);
        let said = format!("{rule} {test:?} invert={invert} on {field}: {value}");
        let matcher = HeaderMatcher::new(rule, test, invert, false);
        assert_eq!(
            matches_in(&matcher, Reading::Any, Some(&headers), &Scans::none()),
            deny,
            "deny: {said}"
        );
        assert_eq!(
            matches_in(&matcher, Reading::Every, Some(&headers), &Scans::none()),
            allow,
            "allow: {said}"
        );
        assert!(
            !matcher.matches(&headers, &Scans::none()) || field == rule,
            "routes see names as they are: {said}"
        );
    }
}

#[test]
fn hosts_are_refused_without_their_ports_too() {
    for (wanted, host, invert, deny, allow) in [
        ("a.example", "a.example", false, true, true),
        ("a.example", "a.example:80", false, true, false),
        ("a.example", "a.example:", false, true, false),
        ("a.example", "a.example.", false, true, false),
        ("a.example", "a.example.:81", false, true, false),
        ("a.example", "b.example:80", false, false, false),
        ("a.example:80", "a.example:80", false, true, true),
        ("[::1]", "[::1]:80", false, true, false),
        ("[::1]", "[::1]", false, true, true),
        // Whoever refuses all others, or lets all others in.
        ("a.example:80", "a.example:80", true, false, false),
        ("a.example", "a.example:80", true, true, false),
        ("a.example", "b.example:80", true, true, true),
    ] {
        let request = Spelled(host, "x-a", "");
        let headers = HeaderReadings::of(&request);
        let matcher = HeaderMatcher::new(":authority", exact(wanted), invert, false);
        let said = format!("{wanted} invert={invert} on {host}");
        assert_eq!(
            matches_in(&matcher, Reading::Any, Some(&headers), &Scans::none()),
            deny,
            "deny: {said}"
        );
        assert_eq!(
            matches_in(&matcher, Reading::Every, Some(&headers), &Scans::none()),
            allow,
            "allow: {said}"
        );
    }
}

/// Every byte at every place of names of every length up to two chunks and a half.
#[test]
fn a_name_is_respelled_by_one_byte_anywhere() {
    for length in 0..40 {
        assert!(!is_respelled(&vec![b'a'; length]), "{length}");
        for at in 0..length {
            for byte in 0..=u8::MAX {
                let mut name = vec![b'a'; length];
                name[at] = byte;
                let separates = is_separator(byte) && byte != b'-';
                assert_eq!(is_respelled(&name), separates, "{byte:#x} at {at} of {length}");
            }
        }
    }
}
