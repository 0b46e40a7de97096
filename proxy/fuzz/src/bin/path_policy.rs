//! Paths that a policy lets pass, as the servers behind read them: none may be a path that the policy refuses.
#![no_main]

use heddle_config::snapshot::EscapedSlashes;
use heddle_http::parse::{Method, Normalized, PathRules, RequestHead, check_target, normalize_path};
use heddle_http::servers;
use heddle_matching::rbac::{Action, Permission, Policy, Principal, Rules};
use heddle_matching::{RequestView, StringMatcher};
use heddle_net::ConnectionInfo;
use libfuzzer_sys::fuzz_target;

fn allowed(matcher: StringMatcher, head: &RequestHead) -> bool {
    let address = "127.0.0.1:1".parse().expect("address");
    let policy = Policy {
        name: "p".into(),
        permissions: vec![Permission::UrlPath(matcher.into())].into(),
        principals: vec![Principal::Any].into(),
    };
    Rules::new(Action::Deny, vec![policy])
        .check(&ConnectionInfo::plain(address, address), Some(head))
        .allowed
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
        let escaped = allowed(StringMatcher::prefix("/%63%C3%a9"), &head);
        for (_, seen) in servers::readings(head.path()) {
            let inside = seen == "/admin" || seen.starts_with("/admin/");
            assert!(
                !(tree && inside),
                "{target:?} goes on as {path:?} and is read as {seen:?}"
            );
            assert!(
                !(escaped && seen.starts_with("/cé")),
                "{target:?} goes on as {path:?} and is read as {seen:?}"
            );
            assert!(
                !(leaf && seen == "/a/b"),
                "{target:?} goes on as {path:?} and is read as {seen:?}"
            );
        }
    }
});
