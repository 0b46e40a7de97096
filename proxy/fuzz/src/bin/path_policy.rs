//! Paths that a policy lets pass, as the servers behind read them: none may be a path that the policy refuses.
#![no_main]

use heddle_config::snapshot::EscapedSlashes;
use heddle_http::parse::{Method, Normalized, PathRules, RequestHead, check_target, normalize_path};
use heddle_matching::rbac::{Action, Permission, Policy, Principal, Rules};
use heddle_matching::{RequestView, StringMatcher};
use heddle_net::ConnectionInfo;
use libfuzzer_sys::fuzz_target;

fn allowed(matcher: StringMatcher, head: &RequestHead) -> bool {
    let address = "127.0.0.1:1".parse().expect("address");
    let policy = Policy {
        name: "p".into(),
        permissions: vec![Permission::UrlPath(matcher)],
        principals: vec![Principal::Any],
    };
    Rules::new(Action::Deny, vec![policy])
        .check(&ConnectionInfo::plain(address, address), Some(head))
        .allowed
}

/// Every escape decoded once.
fn decoded(path: &str) -> String {
    let bytes = path.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = bytes
            .get(at + 1..at + 3)
            .filter(|h| h.iter().all(u8::is_ascii_hexdigit));
        match hex
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok())
        {
            Some(escaped) if *byte == b'%' => {
                out.push(escaped);
                at += 3;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Segments joined by single slashes, dot segments resolved; a slash at the end stays.
fn cleaned(path: &str) -> String {
    let mut kept = Vec::new();
    for segment in path.split('/').filter(|s| !s.is_empty() && *s != ".") {
        match segment {
            ".." => drop(kept.pop()),
            other => kept.push(other),
        }
    }
    let end = if kept.is_empty() || !path.ends_with('/') {
        ""
    } else {
        "/"
    };
    format!("/{}{end}", kept.join("/"))
}

/// Path parameters cut off.
fn bare(path: &str) -> String {
    let names: Vec<_> = path
        .split('/')
        .map(|s| s.split(';').next().unwrap_or_default())
        .collect();
    names.join("/")
}

/// nginx, Go's file server and Node's static files; the same on Windows; servlet containers that cut parameters off
/// before and after they decode; Node's URL against a base.
fn servers(path: &str) -> [String; 5] {
    let slashes = |p: &str| p.replace('\\', "/");
    let sent = slashes(path);
    let after_host = match sent.strip_prefix("//") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => &sent,
    };
    [
        cleaned(&decoded(path)),
        cleaned(&slashes(&decoded(path))),
        cleaned(&slashes(&decoded(&bare(path)))),
        cleaned(&bare(&slashes(&decoded(path)))),
        cleaned(after_host),
    ]
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(target) = std::str::from_utf8(bytes) else { return };
    if check_target(Method::Get, bytes).is_err() {
        return;
    }
    for escaped_slashes in [EscapedSlashes::Keep, EscapedSlashes::Forward] {
        let rules = PathRules {
            normalize: true,
            merge_slashes: false,
            escaped_slashes,
        };
        let path = match normalize_path(target, rules) {
            Err(_) => continue,
            Ok(Normalized::Unchanged) => target.to_owned(),
            Ok(Normalized::Changed(new) | Normalized::Redirect(new)) => new,
        };
        let mut head = RequestHead::default();
        head.set_target(&path);
        let tree = allowed(StringMatcher::exact("/admin"), &head) && allowed(StringMatcher::prefix("/admin/"), &head);
        let leaf = allowed(StringMatcher::exact("/a/b"), &head);
        for seen in servers(head.path()) {
            let inside = seen == "/admin" || seen.starts_with("/admin/");
            assert!(
                !(tree && inside),
                "{target:?} goes on as {path:?} and is read as {seen:?}"
            );
            assert!(
                !(leaf && seen == "/a/b"),
                "{target:?} goes on as {path:?} and is read as {seen:?}"
            );
        }
    }
});
