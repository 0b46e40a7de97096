use std::ops::ControlFlow;

use super::*;

fn library() -> Hyperscan {
    Hyperscan::open().unwrap_or_else(|e| panic!("{e}"))
}

fn expression(pattern: &str) -> Expression {
    Expression {
        pattern: pattern.to_owned(),
        utf8: true,
        once: true,
    }
}

fn compiled(patterns: &[&str]) -> Database {
    let expressions: Vec<_> = patterns.iter().map(|pattern| expression(pattern)).collect();
    library().compile(&expressions).unwrap_or_else(|e| panic!("{e}"))
}

fn found(database: &Database, text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let scanned = database.scan(text.as_bytes(), &mut |place, end| {
        found.push((place, end));
        ControlFlow::Continue(())
    });
    assert_eq!(scanned, Ok(Scanned::Whole));
    found.sort_unstable();
    found
}

#[test]
fn a_library_that_is_not_there_is_an_error_with_the_packages_name() {
    let missing = library::Library::load(c"libhs-of-no-release.so")
        .err()
        .expect("not there");
    let text = missing.to_string();
    assert!(
        text.contains("libhs-of-no-release.so") && text.contains("libhyperscan5"),
        "{text}"
    );
    let other = library::Library::load(c"libc.so.6").err().expect("another library");
    assert_eq!(other, Unavailable::Function("hs_valid_platform".to_owned()));
    assert!(library().version().starts_with("5."), "{:?}", library());
}

#[test]
fn expressions_are_found_together() {
    let database = compiled(&[r"\A(?:.*a.+b.*)\z", r"\A(?:[^/]+)\z", "é"]);
    assert_eq!(found(&database, "xaxb"), [(0, 4), (1, 4)]);
    assert_eq!(found(&database, "é/"), [(2, 2)]);
    assert_eq!(found(&database, "/"), []);
    assert!(database.size() > 0 && database.size() < MAX_DATABASE);
}

#[test]
fn what_the_library_does_not_take_is_named() {
    let patterns = ["a", r"(a)\1", "b"].map(expression);
    let refused = library().compile(&patterns).expect_err("a back-reference");
    assert!(
        matches!(&refused, Refused::Expression { place: 1, reason } if !reason.is_empty()),
        "{refused}"
    );
    let zero = [expression("a"), expression("\0")];
    assert!(matches!(
        library().compile(&zero),
        Err(Refused::Expression { place: 1, .. })
    ));
    assert!(matches!(library().compile(&[]), Err(Refused::Together(_))));
}

/// Larger and smaller databases by turns, on several threads: each has a space that is large enough for all of them.
#[test]
fn threads_have_scratch_space_for_every_database() {
    let small = compiled(&["ab"]);
    assert_eq!(found(&small, "xab"), [(0, 3)]);
    let many: Vec<_> = (0..200).map(|i| format!("word{i}.+end{i}[ab]{{3,40}}")).collect();
    let large = compiled(&many.iter().map(String::as_str).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for i in 0..50 {
                    assert_eq!(found(&large, &format!("word{i} end{i}aaa"))[0].0, i);
                    assert_eq!(found(&small, "xab"), [(0, 3)]);
                }
            });
        }
    });
}

#[test]
fn a_scan_is_ended_by_who_sees_it() {
    let words = Expression {
        once: false,
        ..expression("a")
    };
    let database = library().compile(&[words]).expect("compiled");
    let mut seen = 0;
    let scanned = database.scan(&[b'a'; 1000], &mut |_, _| {
        seen += 1;
        match seen < 10 {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    assert_eq!((scanned, seen), (Ok(Scanned::Ended), 10));
    // One scan inside another has no space to write to.
    let mut inner = None;
    let _ = database.scan(b"a", &mut |_, _| {
        inner = Some(database.scan(b"a", &mut |_, _| ControlFlow::Continue(())));
        ControlFlow::Continue(())
    });
    assert_eq!(inner, Some(Err(Failed::Scratch)));
    // A panic ends the scan and reaches its caller; the space is there for the next one.
    let panicked = std::panic::catch_unwind(|| database.scan(b"a", &mut |_, _| panic!("seen")));
    assert!(panicked.is_err());
    assert_eq!(found(&database, "a"), [(0, 1)]);
}
