use heddle_matching::rbac::{Action, Permission, Policy, Principal, Rules};
use heddle_matching::{RequestView, StringMatcher};
use heddle_net::ConnectionInfo;

use super::*;
use crate::head::RequestHead;
use crate::servers;

/// What the controller configures.
const MESH: PathRules = PathRules {
    normalize: true,
    merge_slashes: false,
    escaped_slashes: EscapedSlashes::Keep,
};

fn merging() -> PathRules {
    PathRules {
        merge_slashes: true,
        ..MESH
    }
}

fn after(target: &str, rules: PathRules) -> Result<String, PathError> {
    normalize(target, rules).map(|normalized| match normalized {
        Normalized::Unchanged => target.to_owned(),
        Normalized::Changed(new) => new,
        Normalized::Redirect(new) => format!("307 {new}"),
    })
}

#[test]
fn normal_form() {
    for (input, output) in [
        ("/a/b", "/a/b"),
        ("/a/./b/../c", "/a/c"),
        ("/../../etc/passwd", "/etc/passwd"),
        ("/a/..", "/"),
        ("/a/.", "/a/"),
        ("/%2e%2E/secret?x=/../y", "/secret?x=/../y"),
        ("/a%2fb", "/a%2fb"),
        ("/%41%7e", "/A~"),
        ("/a\\..\\b", "/b"),
        ("/a//b", "/a/b"),
        ("//a///b//", "/a/b/"),
        ("/..", "/"),
        ("*", "*"),
        ("/100%", "/100%"),
        ("/%zz/%", "/%zz/%"),
        ("/a/%%32e%2%65/b", "/a/%252e%252e/b"),
        ("/%%30%30", "/%2500"),
        // Dot segments with parameters; Envoy leaves those whose dots were escaped.
        ("/x/..;/admin", "/admin"),
        ("/..;/admin", "/admin"),
        ("/.;/admin", "/admin"),
        ("/x/..;a=b;c/admin", "/admin"),
        ("/x/%2e%2e;/admin", "/admin"),
        ("/x/.%2E;/admin", "/admin"),
        ("/x/..\\;/admin", "/;/admin"),
        ("/x/..;", "/"),
        ("/x/.;v", "/x/"),
        // Matrix parameters are legal, and so are names that begin with dots.
        ("/a;v=1/b", "/a;v=1/b"),
        ("/a;v=../b", "/a;v=../b"),
        ("/.well-known/..x;y/...", "/.well-known/..x;y/..."),
        ("/a%2Fb%5Cc%3Bd", "/a%2Fb%5Cc%3Bd"),
        ("/a%2f.hidden/b%3b..", "/a%2f.hidden/b%3b.."),
        // Encoded twice is data.
        ("/x/%252e%252e/admin", "/x/%252e%252e/admin"),
        ("/x/..%252fadmin", "/x/..%252fadmin"),
    ] {
        assert_eq!(after(input, merging()).as_deref(), Ok(output), "{input}");
    }
    assert_eq!(normalize("/a//b", MESH), Ok(Normalized::Unchanged));
    assert_eq!(normalize("/a/../b", PathRules::default()), Ok(Normalized::Unchanged));
    assert_eq!(after("/%00", MESH), Err(PathError::Nul));
    for hidden in [
        "/x/..%2fadmin",
        "/x%2f..%2Fadmin",
        "/x%5c..%5Cadmin",
        "/x%2f..",
        "/x/.%2fadmin",
        "/x%2f.%2fadmin",
        "/x/..%3b/admin",
        "/x/%2e%2e%3Ba=b/admin",
        "/x/.%3b",
        "/x%2f..;/admin",
        "/x;a%2f..%2fadmin",
    ] {
        assert_eq!(after(hidden, MESH), Err(PathError::HiddenDots), "{hidden}");
    }
}

#[test]
fn escaped_slashes() {
    let with = |target, escaped_slashes| {
        after(
            target,
            PathRules {
                escaped_slashes,
                ..MESH
            },
        )
    };
    for (target, forwarded) in [
        ("/x%2f..%2fadmin?a%2fb", "/admin?a%2fb"),
        ("/x/..%2Fadmin", "/admin"),
        ("/x%5c..%5Cadmin", "/admin"),
        ("/%2fadmin", "//admin"),
        ("/a%2Fb", "/a/b"),
        ("/%%2fa", "/%/a"),
    ] {
        assert_eq!(
            with(target, EscapedSlashes::Forward).as_deref(),
            Ok(forwarded),
            "{target}"
        );
        let redirect = format!("307 {forwarded}");
        assert_eq!(with(target, EscapedSlashes::Redirect), Ok(redirect), "{target}");
        assert_eq!(
            with(target, EscapedSlashes::Reject),
            Err(PathError::EscapedSlash),
            "{target}"
        );
    }
    for (target, same) in [
        ("/a?b%2fc", "/a?b%2fc"),
        ("/a%20b", "/a%20b"),
        ("/a%252fb", "/a%252fb"),
        ("/%2%66", "/%252f"),
        ("/a/../b", "/b"),
    ] {
        for action in [
            EscapedSlashes::Forward,
            EscapedSlashes::Redirect,
            EscapedSlashes::Reject,
        ] {
            assert_eq!(with(target, action).as_deref(), Ok(same), "{target} {action:?}");
        }
    }
    // Without normalisation too.
    let raw = PathRules {
        escaped_slashes: EscapedSlashes::Forward,
        ..PathRules::default()
    };
    assert_eq!(after("/a%2f../b", raw).as_deref(), Ok("/a/../b"));
    assert_eq!(after("/a%5Cb", raw).as_deref(), Ok("/a\\b"));
}

fn denying(matcher: StringMatcher) -> Rules {
    let policy = Policy {
        name: "p".into(),
        permissions: vec![Permission::UrlPath(matcher.into())].into(),
        principals: vec![Principal::Any].into(),
    };
    Rules::new(Action::Deny, vec![policy])
}

/// Random paths of what is suspicious: what no rule refuses is no refused path to any server behind.
#[test]
fn no_server_sees_a_refused_path() {
    const PIECES: &[&str] = &[
        "/", "/", "/", "//", "\\", ".", "..", ";", ";v=1", "%2e", "%2E", "%2f", "%2F", "%5c", "%3b", "%25", "%252e",
        "2e", "2f", "3b", "%", "%%32e", "%c0%ae", "%20", "%c3%a9", "%C3%A9", "%c3%A9", "caf", "admin", "admin",
        "adm%69n", "secret", "x", "/..;/", "/..", "/.;",
    ];
    let address = "127.0.0.1:1".parse().expect("address");
    let connection = ConnectionInfo::plain(address, address);
    let tree = [
        denying(StringMatcher::exact("/admin")),
        denying(StringMatcher::prefix("/admin/")),
    ];
    let leaf = denying(StringMatcher::exact("/admin/secret"));
    let escaped = denying(StringMatcher::exact("/%63af%C3%a9"));
    let mut random = fastrand::Rng::with_seed(7);
    let (mut passed, mut refused) = (0, 0);
    for _ in 0..200_000 {
        let mut target = String::from("/");
        for _ in 0..random.usize(1..9) {
            target.push_str(PIECES[random.usize(..PIECES.len())]);
        }
        let Ok(path) = after(&target, MESH) else {
            refused += 1;
            continue;
        };
        assert_eq!(
            after(&path, MESH).as_ref(),
            Ok(&path),
            "{target} is normal after one pass"
        );
        let mut head = RequestHead::default();
        head.set_target(&path);
        let lets_in = |rules: &Rules| rules.check(&connection, Some(&head)).allowed;
        let outside_tree = tree.iter().all(lets_in);
        let not_leaf = lets_in(&leaf);
        let not_escaped = lets_in(&escaped);
        for (server, seen) in servers::readings(head.path()) {
            let inside = seen == "/admin" || seen.starts_with("/admin/");
            assert!(!(outside_tree && inside), "{target} passes as {path}; {server}: {seen}");
            assert!(
                !(not_leaf && seen == "/admin/secret"),
                "{target} passes as {path}; {server}: {seen}"
            );
            assert!(
                !(not_escaped && seen == "/café"),
                "{target} passes as {path}; {server}: {seen}"
            );
        }
        passed += usize::from(outside_tree && not_leaf);
    }
    assert!(passed > 50_000 && refused > 5_000, "{passed} passed, {refused} refused");
}
