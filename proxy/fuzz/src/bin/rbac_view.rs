//! What a policy sees of a request head against what goes upstream: whoever is refused by the value of a field that the
//! next reader finds must be refused here.
#![no_main]

use std::collections::BTreeMap;

use heddle_fuzz::{head_end, request_bytes};
use heddle_http::parse::{Method, RequestHead, parse_request};
use heddle_matching::rbac::{Action, Permission, Policy, Principal, Rules};
use heddle_matching::{HeaderMatcher, HeaderTest, StringMatcher, is_other_spelling};
use heddle_net::ConnectionInfo;
use libfuzzer_sys::fuzz_target;

/// Whether rules with this one permission let the request through.
fn lets_in(action: Action, permission: Permission, head: &RequestHead) -> bool {
    let address = "127.0.0.1:1".parse().expect("address");
    let policy = Policy {
        name: "p".into(),
        permissions: vec![permission].into(),
        principals: vec![Principal::Any].into(),
    };
    Rules::new(action, vec![policy])
        .check(&ConnectionInfo::plain(address, address), Some(head))
        .allowed
}

fn exact(name: &str, value: &str) -> Permission {
    let test = HeaderTest::String(StringMatcher::exact(value));
    Permission::Header(HeaderMatcher::new(name, test, false, false))
}

/// The texts that a reader may take bytes for.
fn texts(bytes: &[u8]) -> Vec<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => vec![text.to_owned()],
        Err(_) => vec![bytes.iter().map(|b| char::from(*b)).collect()],
    }
}

/// Start line and fields, read in the most obvious way.
fn plainly(bytes: &[u8]) -> (Vec<&[u8]>, BTreeMap<Vec<u8>, Vec<&[u8]>>) {
    let mut lines = bytes
        .split(|b| *b == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let start = lines.next().unwrap_or_default().split(|b| *b == b' ').collect();
    let mut fields: BTreeMap<Vec<u8>, Vec<&[u8]>> = BTreeMap::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let colon = line.iter().position(|b| *b == b':').expect("a field has a colon");
        let value = line[colon + 1..].trim_ascii();
        fields
            .entry(line[..colon].to_ascii_lowercase())
            .or_default()
            .push(value);
    }
    (start, fields)
}

fuzz_target!(|bytes: &[u8]| {
    let Some(end) = head_end(bytes) else { return };
    let mut head = RequestHead::default();
    if parse_request(&bytes[..end], true, &mut head).is_err() || head.method == Method::Connect {
        return;
    }
    let sent = request_bytes(&head, head.target());
    let (start, fields) = plainly(&sent);
    assert_eq!(start.len(), 3, "method, target, version");
    for (name, value) in [(":method", start[0]), (":path", start[1])] {
        for value in texts(value) {
            assert!(!lets_in(Action::Deny, exact(name, &value), &head), "{name} {value:?}");
        }
    }
    for (name, values) in &fields {
        let name = std::str::from_utf8(name).expect("a name is ASCII");
        let separator: &[u8] = if name == "cookie" { b"; " } else { b"," };
        let joined = values.join(separator);
        for value in values.iter().copied().chain([&joined[..]]) {
            if name == "host" && value.is_empty() {
                continue; // HTTP/1.0 alone; the router answers for it.
            }
            for value in texts(value) {
                let is = || exact(name, &value);
                assert!(!lets_in(Action::Deny, is(), &head), "deny {name}: {value:?}");
                let not = Permission::Not(Box::new(is()));
                assert!(!lets_in(Action::Allow, not, &head), "allow not {name}: {value:?}");
                // Who lets in by one value lets in nobody with another one beside it.
                if values.iter().any(|other| *other != values[0]) {
                    assert!(!lets_in(Action::Allow, is(), &head), "allow {name}: {value:?}");
                }
            }
        }
    }
    let absent = HeaderMatcher::new("x-absent-field", HeaderTest::Present(true), false, false);
    // A server may read another spelling of the name as this one, so a rule that denies does.
    let is_absent = |name: &Vec<u8>| name != b"x-absent-field" && !is_other_spelling(name, b"x-absent-field");
    if fields.keys().all(is_absent) {
        assert!(lets_in(Action::Deny, Permission::Header(absent), &head));
    }
});
