use super::super::known::ALL;
use super::*;

fn written(fields: &Fields) -> String {
    let mut out = Vec::new();
    fields.write(&mut out);
    String::from_utf8(out).expect("text")
}

#[test]
fn unchanged_runs_and_changes_keep_order() {
    let raw = b"Host: a\r\nX-One:1\r\nAccept: *\r\n\r\n";
    let mut fields = Fields::new();
    fields.load(raw);
    fields
        .index_lines(0, 3, |_, _| Ok::<_, LineError>(true))
        .expect("field lines");
    assert_eq!(written(&fields), "host: a\r\nx-one: 1\r\naccept: *\r\n");
    fields.remove(b"x-one");
    fields.push(b"x-two", b"2");
    assert_eq!(written(&fields), "host: a\r\naccept: *\r\nx-two: 2\r\n");
    fields.set_known(Known::Host, b"b");
    assert_eq!(written(&fields), "accept: *\r\nx-two: 2\r\nhost: b\r\n");
    assert_eq!(fields.len(), 3);
}

#[test]
fn a_removed_name_can_come_again() {
    let mut fields = Fields::new();
    fields.push(b"te", b"trailers");
    fields.remove_set(KnownSet::of(&[Known::Te, Known::Host]));
    assert!(!fields.has_known(Known::Te));
    assert_eq!(fields.joined(b"te"), None);
    fields.push_known(Known::Te, b"again");
    assert_eq!(fields.get_known(Known::Te), Some(&b"again"[..]));
    fields.remove_known(Known::Te);
    assert_eq!(fields.get_known(Known::Te), None);
    assert!(fields.is_empty());
}

/// What a list without an index would answer.
#[derive(Clone, Default)]
struct Plain(Vec<(Vec<u8>, Vec<u8>)>);

impl Plain {
    fn values<'p>(&'p self, name: &'p [u8]) -> impl Iterator<Item = &'p [u8]> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| &v[..])
    }

    fn push(&mut self, name: &[u8], value: &[u8]) {
        self.0.push((name.to_vec(), value.to_vec()));
    }

    fn remove(&mut self, name: &[u8]) {
        self.0.retain(|(n, _)| n != name);
    }

    fn check(&self, fields: &Fields, names: &[&[u8]]) {
        for name in names {
            let values: Vec<_> = self.values(name).collect();
            let joined = (!values.is_empty()).then(|| String::from_utf8_lossy(&values.join(&b","[..])).into_owned());
            assert_eq!(fields.joined(name).as_deref(), joined.as_deref());
            assert_eq!(fields.get(name), values.first().copied());
            assert_eq!(fields.all(name).collect::<Vec<_>>(), values);
            let mut seen = Vec::new();
            fields.visit(name, &mut |value| seen.push(value));
            assert_eq!(seen, values);
            let known = Known::of(name);
            if known != Known::Other {
                assert_eq!(fields.has_known(known), !values.is_empty(), "{known:?}");
                assert_eq!(fields.get_known(known), values.first().copied(), "{known:?}");
                assert_eq!(fields.all_known(known).collect::<Vec<_>>(), values, "{known:?}");
            }
        }
        let all: Vec<_> = fields.iter().map(|(_, n, v)| (n.to_vec(), v.to_vec())).collect();
        assert_eq!(all, self.0);
        assert!(fields.iter().all(|(known, name, _)| known == Known::of(name)));
        assert_eq!((fields.len(), fields.is_empty()), (all.len(), all.is_empty()));
    }
}

/// Whoever is told that a field is absent forwards what it should have refused.
#[test]
fn what_is_known_to_be_absent_is_absent() {
    let mut names: Vec<&[u8]> = ALL.iter().map(|known| known.name().as_bytes()).collect();
    names.extend([&b"x-a"[..], b"x-b", b"hos", b"hosts"]);
    let mut random = fastrand::Rng::with_seed(1);
    let mut fields = Fields::new();
    let mut plain = Plain::default();
    for _ in 0..20_000 {
        let name = *random.choice(&names).expect("a name");
        let known = Known::of(name);
        let other = *random.choice(ALL).expect("a name");
        let text = format!("v{}", random.u8(..));
        let value = text.as_bytes();
        match random.u8(..16) {
            0 | 1 => {
                fields.push(name, value);
                plain.push(name, value);
            }
            2 => {
                fields.push_parsed(known, name, value);
                plain.push(name, value);
            }
            3 => {
                fields.push_number(other, 7);
                plain.push(other.name().as_bytes(), b"7");
            }
            4 => {
                fields.set(name, value);
                plain.remove(name);
                plain.push(name, value);
            }
            5 => {
                fields.set_known(other, value);
                plain.remove(other.name().as_bytes());
                plain.push(other.name().as_bytes(), value);
            }
            6 => {
                fields.append_known(other, b",", value);
                let name = other.name().as_bytes();
                let mut values: Vec<_> = plain.values(name).collect();
                values.push(value);
                let whole = values.join(&b","[..]);
                plain.remove(name);
                plain.push(name, &whole);
            }
            7 => {
                fields.remove(name);
                plain.remove(name);
            }
            8 => {
                fields.remove_known(other);
                plain.remove(other.name().as_bytes());
            }
            9 | 10 => {
                fields.remove_set(KnownSet::of(&[known, other]));
                plain.0.retain(|(n, _)| ![known, other].contains(&Known::of(n)));
            }
            11 => {
                let there = plain.values(name).count();
                assert_eq!(fields.remove_named(|n| n == name), there);
                plain.remove(name);
            }
            12 if random.u8(..8) == 0 => {
                fields.clear();
                plain.0.clear();
            }
            13 if random.u8(..8) == 0 => {
                // As a parser does, in the memory of the head before.
                let raw = [&name.to_ascii_uppercase()[..], b":", value, b"\r\n\r\n"].concat();
                fields.load(&raw);
                fields
                    .index_lines(0, 1, |_, _| Ok::<_, LineError>(true))
                    .expect("a field line");
                plain.0.clear();
                plain.push(name, value);
            }
            14 => fields = fields.clone(),
            15 if random.u8(..8) == 0 => {
                let mut into = Fields::new();
                into.push(b"te", b"trailers");
                into.clone_from(&fields);
                fields = into;
            }
            _ => {}
        }
        plain.check(&fields, &names);
    }
}

#[test]
fn repeated_fields_are_joined() {
    let mut fields = Fields::new();
    assert!(fields.is_empty());
    fields.push(b"accept", b"a");
    fields.push(b"accept", b"b");
    assert_eq!(fields.joined(b"accept").as_deref(), Some("a,b"));
    assert_eq!(fields.joined(b"x"), None);
    fields.clear();
    assert!(fields.is_empty());
}

#[test]
fn a_foreign_span_reads_as_empty() {
    let fields = Fields::new();
    assert_eq!(fields.slice(Span::new(5, 10)), b"");
}
